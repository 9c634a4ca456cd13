"""K29: groups by position, means of means, padding in one aggregation, another length norm (B135, B137, B139, B140)."""

import numpy as np
import pytest
import torch

from onepolicy.records.verdict import Status
from onepolicy.signal.advantages import dr_grpo_advantages, grpo_advantages, rloo_advantages
from onepolicy.signal.aggregation_name import aggregation_of, token_weights
from onepolicy.signal.batch.batch import SignalBatch
from onepolicy.signal.batch.check import check_batch
from onepolicy.signal.masks import mask_from_lengths
from onepolicy.signal.policy_loss import AGGREGATIONS, Whole, aggregated

# -- B135 -------------------------------------------------------------------------------------------------------

PROMPTS = torch.arange(4).repeat(4)
"""p0 p1 p2 p3 p0 ...: as a repeated sampler gives them"""
WINDOWS = torch.arange(4).repeat_interleave(4)


def rewards():
    """Of prompts that are easy or hard, which is most of the difference."""
    return torch.from_numpy(np.random.default_rng(0).uniform(0, 1, 16)) + 3.0 * PROMPTS


@pytest.mark.parametrize("advantages", [grpo_advantages, dr_grpo_advantages, rloo_advantages])
def test_b135_windows_over_an_interleaved_batch_fail_by_id_and_add_up_by_position(advantages):
    given = {"prompts": PROMPTS, "rewards": rewards()}
    wrong = check_batch(SignalBatch(**given, advantages=advantages(rewards(), WINDOWS)))
    assert wrong.status is Status.FAIL
    assert "They are 0 by position, not by id: over every 4 neighbouring rows" in wrong.sentence
    right = check_batch(SignalBatch(**given, advantages=advantages(rewards(), PROMPTS)))
    assert right.status is Status.PASS, right.sentence


def test_b135_grouped_by_id_the_order_of_the_batch_does_not_matter():
    order = torch.argsort(PROMPTS, stable=True)
    torch.testing.assert_close(
        grpo_advantages(rewards()[order], PROMPTS[order]), grpo_advantages(rewards(), PROMPTS)[order]
    )


# -- B137 -------------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(3)
FEATURES = torch.from_numpy(RNG.standard_normal((2, 20, 6)))
TARGETS = torch.from_numpy(RNG.standard_normal((2, 20)))


def accumulated(lengths, *, parts, loss_of_part):
    """Gradient of a linear model's weights after so many micro-batches of the same two rows."""
    weights = torch.ones(6, dtype=torch.float64, requires_grad=True)
    mask = mask_from_lengths(torch.tensor(lengths), width=20)
    for part in torch.arange(2).chunk(parts):
        losses = (FEATURES[part] @ weights - TARGETS[part]).square()
        loss_of_part(losses, mask[part], parts).backward()
    return weights.grad


def mean_of_means(losses, mask, parts):
    return aggregated(losses, mask, how="token_mean") / parts


@pytest.mark.parametrize("how", AGGREGATIONS)
def test_b137_divided_by_the_counts_of_the_whole_batch_accumulation_changes_nothing(how):
    def loss(losses, mask, parts):
        return aggregated(losses, mask, how=how, whole=Whole(tokens=22, sequences=2), length=20)

    one, two = (accumulated([2, 20], parts=parts, loss_of_part=loss) for parts in (1, 2))
    torch.testing.assert_close(two, one, rtol=1e-12, atol=1e-14)


def test_b137_a_mean_over_micro_batches_of_their_means_gives_short_rows_more_weight():
    one, two = (accumulated([2, 20], parts=parts, loss_of_part=mean_of_means) for parts in (1, 2))
    assert (two - one).abs().max() > 0.1 * one.abs().max()
    by_sequence = accumulated(
        [2, 20], parts=1, loss_of_part=lambda losses, mask, _: aggregated(losses, mask, how="sequence_mean")
    )
    torch.testing.assert_close(two, by_sequence, rtol=1e-12, atol=1e-14)


def test_b137_rows_of_one_length_hide_it():
    one, two = (accumulated([20, 20], parts=parts, loss_of_part=mean_of_means) for parts in (1, 2))
    torch.testing.assert_close(two, one, rtol=1e-12, atol=1e-14)


# -- B139 -------------------------------------------------------------------------------------------------------

LENGTHS = (2, 3, 5, 8, 13, 21, 34, 50)


def filled(seed):
    """Losses that agree where the mask is, and are random elsewhere."""
    mask = mask_from_lengths(torch.tensor(LENGTHS), width=50)
    marked = torch.from_numpy(np.random.default_rng(0).standard_normal(mask.shape))
    return torch.where(mask, marked, torch.from_numpy(np.random.default_rng(seed).standard_normal(mask.shape))), mask


def masked_after_the_sum(losses, mask):
    return (losses.sum(-1) * mask.any(-1) / mask.sum(-1)).mean()


@pytest.mark.parametrize("how", AGGREGATIONS)
def test_b139_random_numbers_under_padding_do_not_move_the_loss(how):
    one, two = (aggregated(*filled(seed), how=how, length=50) for seed in (1, 2))
    assert float(one) == float(two)


def test_b139_a_mask_that_is_applied_after_the_sum_lets_padding_in_and_is_no_aggregation():
    one, two = (masked_after_the_sum(*filled(seed)) for seed in (1, 2))
    assert abs(float(one - two)) > 0.1
    assert aggregation_of(masked_after_the_sum) is None
    weights = token_weights(masked_after_the_sum, filled(1)[1])
    assert (weights[~filled(1)[1]] != 0).all()


# -- B140 -------------------------------------------------------------------------------------------------------

RELEASES = {
    "sequence_mean": lambda losses, mask: ((losses * mask).sum(-1) / mask.sum(-1)).mean(),
    "token_mean": lambda losses, mask: (losses * mask).sum() / mask.sum(),
    "constant_length": lambda losses, mask: (losses * mask).sum() / (len(mask) * 50),
}


@pytest.mark.parametrize(("name", "exponent"), [("sequence_mean", -1.0), ("token_mean", 0.0), ("constant_length", 0.0)])
def test_b140_the_weight_of_a_token_against_the_length_of_its_row_names_the_formula(name, exponent):
    mask = mask_from_lengths(torch.tensor(LENGTHS), width=50)
    weights = token_weights(RELEASES[name], mask)[:, 0]
    assert np.polyfit(np.log(LENGTHS), weights.log().numpy(), 1)[0] == pytest.approx(exponent, abs=1e-12)
    assert aggregation_of(RELEASES[name]) == name


def test_b140_two_releases_with_one_exponent_differ_in_another_batch():
    """A mean over tokens weighs less where there are more of them; a constant does not."""
    short, long = (mask_from_lengths(torch.tensor(lengths), width=50) for lengths in ((2, 2), (2, 50)))
    ratio = {name: float(token_weights(f, short)[0, 0] / token_weights(f, long)[0, 0]) for name, f in RELEASES.items()}
    assert ratio == pytest.approx({"sequence_mean": 1.0, "token_mean": 13.0, "constant_length": 1.0})
