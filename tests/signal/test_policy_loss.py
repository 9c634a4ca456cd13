"""Oracles: loops in plain Python, and the exact gradient of the expected reward over all sequences of a tree."""

import math

import numpy as np
import pytest
import torch

from onepolicy.errors import AlignmentError, UsageError
from onepolicy.signal.masks import mask_from_lengths, selected
from onepolicy.signal.policy_loss import AGGREGATIONS, Whole, aggregated, clipped_loss

EXACT = {"rtol": 1e-10, "atol": 1e-12}


def by_hand(ratio, advantage, *, low=0.2, high=0.2, dual=None):
    clipped = min(max(ratio, 1 - low), 1 + high)
    loss = -min(ratio * advantage, clipped * advantage)
    return min(loss, dual * abs(advantage)) if dual is not None and advantage < 0 else loss


RATIOS = [0.3, 0.79, 0.8, 0.9, 1.0, 1.1, 1.2, 1.21, 1.27, 2.0, 5.0]
BOUNDS = [{}, {"high": 0.28}, {"low": 0.1, "high": 0.3, "dual": 3.0}, {"dual": 1.5}]


def loss_and_slope(ratios, advantages, **bounds):
    logprobs = torch.tensor([ratios], dtype=torch.float64).log().requires_grad_()
    loss = clipped_loss(logprobs, torch.zeros_like(logprobs), torch.tensor([advantages]).double(), **bounds)
    (slope,) = torch.autograd.grad(loss.sum(), logprobs)
    return loss[0].tolist(), slope[0].tolist()


# -- one token --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("advantage", [2.0, -2.0, 0.0])
def test_the_loss_is_that_of_the_formula(bounds, advantage):
    loss, _ = loss_and_slope(RATIOS, [advantage] * len(RATIOS), **bounds)
    assert loss == pytest.approx([by_hand(ratio, advantage, **bounds) for ratio in RATIOS], rel=1e-12)


def test_the_gradient_is_0_exactly_where_the_ratio_has_gone_too_far_the_way_of_the_advantage():
    ratios = [0.5, 0.9, 1.1, 1.5]
    _, up = loss_and_slope(ratios, [1.0] * 4)
    _, down = loss_and_slope(ratios, [-1.0] * 4)
    assert up == pytest.approx([-0.5, -0.9, -1.1, 0.0])
    assert down == pytest.approx([0.0, 0.9, 1.1, 1.5])


def test_the_gradient_is_whole_where_clipped_and_unclipped_are_equal():
    assert loss_and_slope([1.0, 1.0], [1.0, -1.0])[1] == pytest.approx([-1.0, 1.0], rel=1e-15)


def test_a_higher_upper_bound_lets_more_of_a_rising_token_through():
    assert loss_and_slope([1.25], [1.0])[1] == [0.0]
    assert loss_and_slope([1.25], [1.0], high=0.28)[1] == pytest.approx([-1.25])


def test_the_dual_bound_stops_negative_advantages_only():
    loss, slope = loss_and_slope([5.0, 2.0, 5.0], [-1.0, -1.0, 1.0], dual=3.0)
    assert loss == pytest.approx([3.0, 2.0, -1.2])
    assert slope == pytest.approx([0.0, 2.0, 0.0])


def test_advantages_of_columns_are_refused_even_where_they_would_fit():
    square = torch.zeros(3, 3)
    with pytest.raises(AlignmentError, match=r"advantages\[:, None\]"):
        clipped_loss(square, square, torch.ones(3))
    assert clipped_loss(square, square, torch.ones(3, 1)).shape == (3, 3)


def test_logprobs_of_two_shapes_are_refused():
    with pytest.raises(AlignmentError, match=r"\[2, 3\].*\[2, 1\]"):
        clipped_loss(torch.zeros(2, 3), torch.zeros(2, 1), torch.zeros(2, 3))


# -- the gradient of the expected reward --------------------------------------------------------------------------

TREE = torch.tensor([[0.5, -0.3, 0.1], [1.0, 0.0, -0.5], [0.2, 0.9, -1.0], [-0.4, 0.3, 0.7]], dtype=torch.float64)
REWARDS = torch.tensor([0.0, 1.0, 0.5, -2.0, 3.0, 0.1, 0.7, -0.4, 1.5], dtype=torch.float64)


def drawn(logits):
    """[4, 3] -> [9, 2] logprobs of all sequences."""
    tree = torch.log_softmax(logits, dim=1)
    return torch.stack([tree[0].repeat_interleave(3), tree[1:].reshape(9)], dim=1)


def gradient(function):
    leaf = TREE.clone().requires_grad_()
    return torch.autograd.grad(function(drawn(leaf)), leaf)[0]


def test_on_policy_the_expected_gradient_is_that_of_the_expected_reward():
    def loss(logprobs):
        weights = logprobs.sum(1).exp().detach()
        return (weights * clipped_loss(logprobs, logprobs.detach(), REWARDS[:, None]).sum(1)).sum()

    def expected_reward(logprobs):
        return (logprobs.sum(1).exp() * REWARDS).sum()

    torch.testing.assert_close(gradient(loss), -gradient(expected_reward), **EXACT)


def test_within_the_bounds_the_loss_of_an_older_policys_tokens_is_the_ratio_times_the_advantage():
    older = drawn(TREE + 0.05 * torch.sin(torch.arange(12.0, dtype=torch.float64)).reshape(4, 3))
    weights = older.sum(1).exp()

    def surrogate(logprobs):
        return -(weights[:, None] * (logprobs - older).exp() * REWARDS[:, None]).sum()

    def loss(logprobs):
        return (weights[:, None] * clipped_loss(logprobs, older, REWARDS[:, None])).sum()

    torch.testing.assert_close(gradient(loss), gradient(surrogate), **EXACT)


# -- aggregation ------------------------------------------------------------------------------------------------

LENGTHS = [2, 7, 16, 1, 0, 11]


def batch(width=16, fill=0.0):
    """[6, width] losses and their mask; the losses do not depend on the width."""
    rng = np.random.default_rng(0)
    losses = torch.full((len(LENGTHS), width), fill, dtype=torch.float64)
    for row, length in enumerate(LENGTHS):
        losses[row, :length] = torch.from_numpy(rng.standard_normal(length))
    return losses, mask_from_lengths(torch.tensor(LENGTHS), width=width)


def looped(how, losses, lengths, *, length):
    rows = [losses[row, :n].tolist() for row, n in enumerate(lengths) if n]
    if how == "token_mean":
        return math.fsum(map(math.fsum, rows)) / sum(map(len, rows))
    if how == "sequence_mean":
        return math.fsum(math.fsum(row) / len(row) for row in rows) / len(rows)
    return math.fsum(map(math.fsum, rows)) / (len(rows) * length)


@pytest.fixture(params=AGGREGATIONS)
def how(request):
    return request.param


def value_and_slope(losses, mask, **options):
    leaf = losses.clone().requires_grad_()
    found = aggregated(leaf, mask, length=20, **options)
    return found.detach(), torch.autograd.grad(found, leaf)[0]


def test_the_loss_of_a_batch_is_that_of_a_loop_over_its_rows(how):
    losses, mask = batch()
    found = aggregated(losses, mask, how=how, length=20)
    assert float(found) == pytest.approx(looped(how, losses, LENGTHS, length=20), rel=1e-13)


def test_the_weight_of_a_token_has_the_exponent_of_its_aggregation_in_the_length_of_its_row(how):
    losses, mask = batch()
    _, slope = value_and_slope(losses, mask, how=how)
    lengths = torch.tensor([n for n in LENGTHS if n]).double().log()
    weights = slope[[n > 0 for n in LENGTHS], 0].log()
    exponent = np.polyfit(lengths.numpy(), weights.numpy(), 1)[0]
    assert exponent == pytest.approx({"sequence_mean": -1.0}.get(how, 0.0), abs=1e-12)


@pytest.mark.parametrize("cuts", [[6], [1, 5], [2, 2, 2], [1, 1, 1, 1, 1, 1]])
def test_the_summands_of_micro_batches_add_up_to_the_whole_in_value_and_gradient(how, cuts):
    losses, mask = batch()
    whole = Whole(tokens=sum(LENGTHS), sequences=sum(n > 0 for n in LENGTHS))
    value, slope = value_and_slope(losses, mask, how=how)
    parts = zip(losses.split(cuts), mask.split(cuts), strict=True)
    found = [value_and_slope(part, marked, how=how, whole=whole) for part, marked in parts]
    torch.testing.assert_close(torch.stack([v for v, _ in found]).sum(), value, rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(torch.cat([s for _, s in found]), slope, rtol=1e-13, atol=1e-15)


def test_the_loss_does_not_depend_on_the_padding(how):
    narrow, wide = (value_and_slope(*batch(width), how=how) for width in (16, 64))
    torch.testing.assert_close(narrow[0], wide[0], rtol=1e-14, atol=0)
    torch.testing.assert_close(narrow[1], wide[1][:, :16], rtol=0, atol=0)
    assert not wide[1][:, 16:].any()


@pytest.mark.parametrize("fill", [math.nan, math.inf, -math.inf, 1e30])
def test_what_padding_holds_changes_neither_value_nor_gradient(how, fill):
    for found, expected in zip(
        value_and_slope(*batch(fill=fill), how=how), value_and_slope(*batch(), how=how), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("fill", [math.nan, math.inf, -math.inf, -1e30])
@pytest.mark.parametrize("where", ["logprobs", "old", "advantages"])
def test_selected_inputs_keep_padding_out_of_the_gradient_of_the_clipped_loss(how, fill, where):
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    clean = {
        name: torch.full((2, 3), value) for name, value in (("logprobs", -1.0), ("old", -1.1), ("advantages", 2.0))
    }
    planted = clean | {where: torch.where(mask.bool(), clean[where], fill)}

    def slope(given):
        leaf = given["logprobs"].clone().requires_grad_()
        inputs = (selected(values, mask) for values in (leaf, given["old"], given["advantages"]))
        return torch.autograd.grad(aggregated(clipped_loss(*inputs), mask, how=how, length=3), leaf)[0]

    torch.testing.assert_close(slope(planted), slope(clean), rtol=0, atol=0)
    assert slope(clean)[0, 0] != 0


def test_a_row_without_a_token_counts_as_none_unless_the_whole_counts_it(how):
    losses, mask = batch()
    kept = [n > 0 for n in LENGTHS]
    without = aggregated(losses[kept], mask[kept], how=how, length=20)
    torch.testing.assert_close(aggregated(losses, mask, how=how, length=20), without, rtol=1e-14, atol=0)
    counted = aggregated(losses, mask, how=how, length=20, whole=Whole(tokens=sum(LENGTHS), sequences=len(LENGTHS)))
    factor = 1.0 if how == "token_mean" else 5 / 6
    torch.testing.assert_close(counted, without * factor, rtol=1e-14, atol=0)


def test_a_batch_without_a_marked_token_has_the_loss_0_and_the_gradient_0(how):
    value, slope = value_and_slope(torch.full((2, 3), math.nan), torch.zeros(2, 3), how=how)
    assert float(value) == 0.0
    assert not slope.any()


def test_a_constant_length_of_1_is_the_mean_over_sequences_of_their_sums():
    losses, mask = batch()
    found = aggregated(losses, mask, how="constant_length", length=1)
    assert float(found) == pytest.approx(float((losses * mask).sum() / 5), rel=1e-14)


@pytest.mark.parametrize("length", [None, 0, -3])
def test_a_constant_length_needs_one(length):
    with pytest.raises(UsageError, match="longest completion"):
        aggregated(torch.zeros(1, 1), torch.ones(1, 1), how="constant_length", length=length)


def test_another_aggregation_is_refused_with_the_names_of_those_there_are():
    with pytest.raises(UsageError, match="token_mean, sequence_mean, constant_length"):
        aggregated(torch.zeros(1, 1), torch.ones(1, 1), how="seq_mean")


def test_a_mask_of_another_shape_is_refused(how):
    with pytest.raises(AlignmentError, match=r"\[2, 3\].*\[2, 2\]"):
        aggregated(torch.zeros(2, 3), torch.zeros(2, 2), how=how, length=3)


@pytest.mark.parametrize("shape", [(2,), (2, 3, 4)])
def test_losses_that_are_not_of_rows_and_columns_are_refused(how, shape):
    with pytest.raises(AlignmentError, match=r"they are \[B, T\]"):
        aggregated(torch.zeros(shape), torch.ones(shape), how=how, length=3)


def test_a_mask_that_is_none_is_refused(how):
    with pytest.raises(UsageError, match="something else than 0 and 1"):
        aggregated(torch.zeros(1, 2), torch.tensor([[1.0, math.nan]]), how=how, length=3)


@pytest.mark.parametrize("changes", [{"low": -1.0}, {"high": math.nan}, {"dual": 0.5}, {"dual": math.nan}])
def test_bounds_that_are_none_are_refused(changes):
    with pytest.raises(UsageError, match="bounds are 0 or more"):
        clipped_loss(torch.zeros(1), torch.zeros(1), torch.ones(1), **changes)
