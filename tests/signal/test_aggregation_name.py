"""Oracle: the aggregations as others write them."""

import pytest
import torch

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


def test_weights_are_what_each_token_counts_for():
    mask = mask_from_lengths(torch.tensor([1, 2]), width=3)
    found = token_weights(FUNCTIONS["sequence_mean"], mask)
    torch.testing.assert_close(found, torch.tensor([[0.5, 0, 0], [0.25, 0.25, 0]], dtype=torch.float64))
