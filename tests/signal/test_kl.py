"""Oracle: the closed form over all actions, or all sequences of a tree of two steps, differentiated by autograd."""

import math

import pytest
import torch

from onepolicy.errors import AlignmentError, UsageError
from onepolicy.signal.kl import ESTIMATORS, kl_in_reward, kl_loss, kl_value
from onepolicy.signal.masks import masked_sum, selected

EXACT = {"rtol": 1e-10, "atol": 1e-12}
LOGITS = torch.tensor([0.3, -1.2, 0.8, 0.1, -0.4], dtype=torch.float64)
REFERENCE = torch.log_softmax(torch.tensor([1.0, 0.2, -0.7, 0.4, -1.5], dtype=torch.float64), dim=0)


def exact(p_logprobs, q_logprobs):
    """KL(p || q) of the last dimension."""
    return (p_logprobs.exp() * (p_logprobs - q_logprobs)).sum(-1)


def gradient(function, logits=LOGITS):
    """Of a function of the logprobs of the softmax of logits."""
    leaf = logits.clone().requires_grad_()
    (found,) = torch.autograd.grad(function(torch.log_softmax(leaf, dim=-1)), leaf)
    return found


def expected_gradient(per_token):
    """That of a loss on tokens that the policy drew: the drawing itself is not differentiated."""
    return gradient(lambda logprobs: (logprobs.exp().detach() * per_token(logprobs, REFERENCE)).sum())


TO_REFERENCE = gradient(lambda logprobs: exact(logprobs, REFERENCE))
FROM_REFERENCE = gradient(lambda logprobs: exact(REFERENCE, logprobs))


# -- one token --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("estimator", "is_unbiased"), [("k1", True), ("k2", False), ("k3", True)])
def test_the_mean_of_k1_and_k3_is_the_exact_kl_and_that_of_k2_is_not(estimator, is_unbiased):
    logprobs = torch.log_softmax(LOGITS, dim=0)
    mean = (logprobs.exp() * kl_value(logprobs, REFERENCE, estimator=estimator)).sum()
    off = abs(float(mean - exact(logprobs, REFERENCE)))
    assert off < 1e-14 if is_unbiased else off > 0.1


def test_k2_is_half_the_squared_log_ratio():
    found = kl_value(torch.tensor([-1.0, -3.0]), torch.tensor([-3.0, -2.5]), estimator="k2")
    torch.testing.assert_close(found, torch.tensor([2.0, 0.125]))


def test_as_a_loss_k1_trains_nothing():
    torch.testing.assert_close(
        expected_gradient(lambda p, r: kl_value(p, r, estimator="k1")), torch.zeros_like(LOGITS), **EXACT
    )


def test_as_a_loss_k2_has_the_gradient_of_the_kl_to_the_reference():
    torch.testing.assert_close(expected_gradient(lambda p, r: kl_value(p, r, estimator="k2")), TO_REFERENCE, **EXACT)


def test_as_a_loss_k3_has_the_gradient_of_the_kl_from_the_reference():
    found = expected_gradient(lambda p, r: kl_value(p, r, estimator="k3"))
    torch.testing.assert_close(found, FROM_REFERENCE, **EXACT)
    assert (found - TO_REFERENCE).abs().max() > 0.1


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_loss_has_the_value_of_its_estimator_and_the_gradient_of_the_kl(estimator):
    logprobs = torch.log_softmax(LOGITS, dim=0)
    value = kl_value(logprobs, REFERENCE, estimator=estimator)
    torch.testing.assert_close(kl_loss(logprobs, REFERENCE, estimator=estimator), value, rtol=0, atol=0)
    found = expected_gradient(lambda p, r: kl_loss(p, r, estimator=estimator))
    torch.testing.assert_close(found, TO_REFERENCE, **EXACT)


def test_tokens_of_an_older_policy_weighed_with_their_ratio_have_the_same_gradient():
    older = torch.log_softmax(LOGITS.flip(0), dim=0)

    def of_older(logprobs):
        ratio = (logprobs - older).exp().detach()
        return (older.exp() * ratio * kl_loss(logprobs, REFERENCE)).sum()

    torch.testing.assert_close(gradient(of_older), TO_REFERENCE, **EXACT)


def test_in_the_reward_k1_has_the_gradient_of_the_kl_and_the_others_of_neither():
    def scored(penalty):
        return expected_gradient(lambda p, r: penalty(p, r).detach() * p)

    torch.testing.assert_close(scored(kl_in_reward), TO_REFERENCE, **EXACT)
    for estimator in ("k2", "k3"):
        found = scored(lambda p, r, name=estimator: kl_value(p, r, estimator=name))
        assert (found - TO_REFERENCE).abs().max() > 0.01
        assert (found - FROM_REFERENCE).abs().max() > 0.01


def test_the_penalty_in_the_reward_has_no_gradient():
    assert not kl_in_reward(LOGITS.clone().requires_grad_(), REFERENCE).requires_grad


# -- sequences --------------------------------------------------------------------------------------------------

FIRST = torch.tensor([0.5, -0.3, 0.1], dtype=torch.float64)
SECOND = torch.tensor([[1.0, 0.0, -0.5], [0.2, 0.9, -1.0], [-0.4, 0.3, 0.7]], dtype=torch.float64)
TREE = torch.cat([FIRST[None], SECOND])
"""[4, 3] the logits of the first token, and those of the second after each first one"""
TREE_REFERENCE = torch.log_softmax(torch.tensor([[0, 1, 0], [1, -1, 0], [0, 0, 0], [2, 0, -1.0]]).double(), dim=1)


def columns(tree):
    """[4, 3] -> [9, 2] logprobs of both tokens of each sequence."""
    return torch.stack([tree[0].repeat_interleave(3), tree[1:].reshape(9)], dim=1)


def sequence_kl(tree):
    return exact(columns(tree).sum(1), columns(TREE_REFERENCE).sum(1))


def over_sequences(loss):
    """The expected gradient of a loss of [9, 2] logprobs and reference -> [9]."""

    def expectation(tree):
        drawn = columns(tree)
        return (drawn.sum(1).exp().detach() * loss(drawn, columns(TREE_REFERENCE))).sum()

    return gradient(expectation, TREE)


def kl_at_given_prefixes(tree):
    reached = torch.cat([torch.ones(1, dtype=tree.dtype), tree[0].exp().detach()])
    return (reached * exact(tree, TREE_REFERENCE)).sum()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_loss_of_whole_completions_has_the_gradient_of_their_kl(estimator):
    found = over_sequences(lambda p, r: kl_loss(p.sum(1), r.sum(1), estimator=estimator))
    torch.testing.assert_close(found, gradient(sequence_kl, TREE), **EXACT)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_loss_of_tokens_has_the_gradient_at_given_prefixes_only(estimator):
    found = over_sequences(lambda p, r: kl_loss(p, r, estimator=estimator).sum(1))
    torch.testing.assert_close(found, gradient(kl_at_given_prefixes, TREE), **EXACT)
    assert (found - gradient(sequence_kl, TREE)).abs().max() > 0.01


def test_summed_over_tokens_the_value_is_still_that_of_completions():
    tree = torch.log_softmax(TREE, dim=1)
    drawn, reference = columns(tree), columns(TREE_REFERENCE)
    for estimator in ("k1", "k3"):
        mean = (drawn.sum(1).exp() * kl_value(drawn, reference, estimator=estimator).sum(1)).sum()
        assert float(mean) == pytest.approx(float(sequence_kl(tree)), rel=1e-12)


def test_penalties_from_a_token_on_have_the_gradient_of_the_kl_of_completions():
    def scored(p, r):
        to_come = kl_in_reward(p, r).flip(1).cumsum(1).flip(1)
        return (to_come * p).sum(1)

    torch.testing.assert_close(over_sequences(scored), gradient(sequence_kl, TREE), **EXACT)


# -- edges ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gap", [1e-6, 1e-4, 9.9e-3, 1.01e-2, -1e-4, -9.9e-3, -1.01e-2])
def test_k3_of_a_small_gap_keeps_the_precision_of_float32(gap):
    reference = torch.tensor(gap, dtype=torch.float32)
    wide = float(reference)
    expected = sum(wide**n / math.factorial(n) for n in range(2, 12))
    found = kl_value(torch.tensor(0.0), reference)
    assert float(found) == pytest.approx(expected, rel=3e-5)


def test_k3_and_its_slope_go_on_where_the_series_ends():
    below, above = 0.01 * (1 - 1e-12), 0.01 * (1 + 1e-12)
    r = torch.tensor([below, above, -below, -above], dtype=torch.float64, requires_grad=True)
    value = kl_value(torch.zeros_like(r), r)
    (slope,) = torch.autograd.grad(value.sum(), r)
    torch.testing.assert_close(value[[0, 2]], value[[1, 3]], rtol=1e-11, atol=0)
    torch.testing.assert_close(slope, torch.expm1(r.detach()), rtol=1e-11, atol=0)


def test_a_token_that_the_reference_excludes_costs_infinitely_much_and_has_a_gradient():
    logprob = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    value = kl_value(logprob, torch.tensor([-torch.inf], dtype=torch.float64))
    (slope,) = torch.autograd.grad(value.sum(), logprob)
    assert float(value.detach()) == math.inf
    assert float(slope) == 1.0


@pytest.mark.parametrize("fill", [-9999.0, -1e9, -3.4e38])
def test_a_filler_far_off_leaves_the_gradients_of_other_tokens_alone(fill):
    logprobs = torch.tensor([[-1.0, -1.0]], requires_grad=True)
    reference = torch.tensor([[-1.2, fill]])
    (slope,) = torch.autograd.grad(masked_sum(kl_value(logprobs, reference), torch.tensor([[1, 0]])), logprobs)
    assert slope.isfinite().all()
    assert float(slope[0, 1]) == 0.0


@pytest.mark.parametrize("fill", [math.nan, math.inf, -math.inf, 500.0])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_selected_logprobs_keep_whatever_padding_holds_out_of_value_and_gradient(fill, estimator):
    mask = torch.tensor([[1, 1, 0]])
    leaf = torch.tensor([[-1.0, -2.0, -1.0]], requires_grad=True)
    reference = torch.tensor([[-1.2, -1.5, fill]])
    loss = kl_loss(selected(leaf, mask), selected(reference, mask), estimator=estimator)
    whole = masked_sum(loss, mask)
    (slope,) = torch.autograd.grad(whole, leaf)
    expected = masked_sum(kl_value(leaf[:, :2], reference[:, :2], estimator=estimator), mask[:, :2])
    torch.testing.assert_close(whole, expected)
    torch.testing.assert_close(slope, torch.tensor([[0.2, -0.5, 0.0]]))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_nan_in_gives_nan_out(estimator):
    found = kl_value(torch.tensor([math.nan, -1.0]), torch.tensor([-1.0, math.nan]), estimator=estimator)
    assert found.isnan().all()


def test_k3_is_never_negative_in_float32():
    torch.manual_seed(0)
    gaps = torch.randn(10_000) * torch.logspace(-7, 1, 10_000)
    assert (kl_value(torch.zeros(10_000), gaps) >= 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_type_of_the_logprobs_is_kept(dtype):
    assert kl_loss(torch.tensor([-1.0], dtype=dtype), torch.tensor([-1.5], dtype=dtype)).dtype == dtype


def test_shapes_that_differ_are_refused():
    with pytest.raises(AlignmentError, match=r"\[2, 3\].*\[2, 1\]"):
        kl_value(torch.zeros(2, 3), torch.zeros(2, 1))


def test_another_estimator_is_refused_with_the_names_of_those_there_are():
    with pytest.raises(UsageError, match="k1, k2, k3"):
        kl_value(torch.zeros(1), torch.zeros(1), estimator="k4")
