"""Oracle: the aggregations as others write them."""

import pytest
import torch

from onepolicy.errors import UsageError
from onepolicy.signal.aggregation_name import aggregation_of, token_weights
from onepolicy.signal.masks import mask_from_lengths

FUNCTIONS = {
    "token_mean": lambda losses, mask: (losses * mask).sum() / mask.sum(),
    "sequence_mean": lambda losses, mask: ((losses * mask).sum(-1) / mask.sum(-1).clamp(min=1)).mean(),
    "constant_length": lambda losses, mask: (losses * mask).sum() / (len(mask) * 640),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_named_by_what_it_does(name):
    assert aggregation_of(FUNCTIONS[name]) == name


@pytest.mark.parametrize("name", FUNCTIONS)
def test_rounding_of_float32_and_of_a_small_constant_is_no_other_aggregation(name):
    assert aggregation_of(lambda losses, mask: FUNCTIONS[name](losses.float(), mask.float() + 0.0)) == name
    assert aggregation_of(lambda losses, mask: FUNCTIONS[name](losses, mask) * (1 + 1e-8)) == name


def test_one_that_lets_padding_in_or_weighs_otherwise_has_no_name():
    assert aggregation_of(lambda losses, mask: losses.mean()) is None
    assert aggregation_of(lambda losses, mask: losses.sum() / mask.sum()) is None
    assert aggregation_of(lambda losses, mask: ((losses * mask).sum(-1) / mask.sum(-1).sqrt()).mean()) is None
    assert aggregation_of(lambda losses, mask: 2 * FUNCTIONS["token_mean"](losses, mask)) is None


def test_what_a_function_does_to_its_mask_is_not_seen_by_the_next():
    def spoils(losses, mask):
        mask[:, 0] = 0
        return FUNCTIONS["token_mean"](losses, mask)

    mask = mask_from_lengths(torch.tensor([1, 2]), width=3)
    token_weights(spoils, mask)
    assert mask.tolist() == [[True, False, False], [True, True, False]]
    assert aggregation_of(spoils) is None


@pytest.mark.parametrize(
    "gives", [lambda *_: torch.tensor(1.0), lambda losses, _: losses, lambda *_: None, lambda *_: 0.5]
)
def test_a_constant_a_vector_and_no_tensor_have_no_name(gives):
    assert aggregation_of(gives) is None


def test_a_loss_of_the_other_sign_and_one_without_a_gradient_have_no_name():
    assert aggregation_of(lambda losses, mask: -FUNCTIONS["constant_length"](losses, mask)) is None
    assert aggregation_of(lambda losses, mask: FUNCTIONS["token_mean"](losses.detach(), mask)) is None


def test_a_gradient_that_was_switched_off_before_is_on_here():
    with torch.no_grad():
        assert aggregation_of(FUNCTIONS["token_mean"]) == "token_mean"


def test_no_single_number_has_no_weights():
    with pytest.raises(UsageError, match="no single number"):
        token_weights(lambda losses, _: losses, torch.ones(2, 3))


def test_weights_are_what_each_token_counts_for():
    mask = mask_from_lengths(torch.tensor([1, 2]), width=3)
    found = token_weights(FUNCTIONS["sequence_mean"], mask)
    torch.testing.assert_close(found, torch.tensor([[0.5, 0, 0], [0.25, 0.25, 0]], dtype=torch.float64))
