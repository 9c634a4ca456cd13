"""K26: a KL penalty that is subtracted, one of the wrong direction, a metric that counts padding (B120, B121, B123)."""

import numpy as np
import pytest
import torch

from onepolicy.records.verdict import Status
from onepolicy.signal.batch.batch import SignalBatch
from onepolicy.signal.batch.check import check_batch
from onepolicy.signal.kl import ESTIMATORS, kl_loss, kl_value
from onepolicy.signal.masks import mask_from_lengths, masked_mean

LOGITS = torch.tensor([0.3, -1.2, 0.8, 0.1, -0.4], dtype=torch.float64)
REFERENCE = torch.log_softmax(torch.tensor([1.0, 0.2, -0.7, 0.4, -1.5], dtype=torch.float64), dim=0)


def kl_of(logits):
    logprobs = torch.log_softmax(logits, dim=0)
    return float((logprobs.exp() * (logprobs - REFERENCE)).sum())


def trained(penalty, *, steps, rate=0.5):
    """The KL before and after, of a bandit of five actions without any advantage: only the penalty moves it."""
    logits = LOGITS.clone().requires_grad_()
    optimizer = torch.optim.SGD([logits], lr=rate)
    for _ in range(steps):
        logprobs = torch.log_softmax(logits, dim=0)
        optimizer.zero_grad()
        (logprobs.exp().detach() * penalty(logprobs)).sum().backward()
        optimizer.step()
    return kl_of(LOGITS), kl_of(logits.detach())


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_b120_one_step_of_an_added_penalty_lowers_the_kl_and_of_a_subtracted_one_raises_it(estimator):
    before, added = trained(lambda p: kl_loss(p, REFERENCE, estimator=estimator), steps=1)
    _, subtracted = trained(lambda p: -kl_loss(p, REFERENCE, estimator=estimator), steps=1)
    assert added < before < subtracted


def test_b120_fifty_steps_bring_the_kl_to_0_or_away_from_it():
    before, added = trained(lambda p: kl_loss(p, REFERENCE), steps=50, rate=2.0)
    assert before > 0.3
    assert added < 1e-6
    assert trained(lambda p: -kl_loss(p, REFERENCE), steps=50, rate=2.0)[1] > 4 * before


def test_b120_a_penalty_of_k1_is_of_no_sign_at_all():
    before, after = trained(lambda p: kl_value(p, REFERENCE, estimator="k1"), steps=50)
    assert after == pytest.approx(before, rel=1e-12)


def test_b121_the_mean_of_policy_minus_reference_is_the_kl_and_reversed_it_is_minus_the_kl():
    logprobs = torch.log_softmax(LOGITS, dim=0)
    torch.manual_seed(0)
    drawn = torch.multinomial(logprobs.exp(), 20_000, replacement=True)
    k1, k3 = (kl_value(logprobs[drawn], REFERENCE[drawn], estimator=estimator) for estimator in ("k1", "k3"))
    assert float(k1.mean()) == pytest.approx(kl_of(LOGITS), rel=0.05)
    assert float(k3.mean()) == pytest.approx(kl_of(LOGITS), rel=0.05)
    reversed_ = kl_value(REFERENCE[drawn], logprobs[drawn], estimator="k1")
    assert float(reversed_.mean()) == pytest.approx(-kl_of(LOGITS), rel=0.05)


def test_b121_a_batch_says_that_policy_and_reference_are_exchanged():
    torch.manual_seed(0)
    p = torch.log_softmax(LOGITS, dim=0)
    ids = torch.multinomial(p.exp(), 64, replacement=True).reshape(8, 8)
    given = {"token_ids": ids, "loss_mask": torch.ones(8, 8), "lengths": torch.full((8,), 8)}
    right = check_batch(SignalBatch(**given, rollout_logprobs=p[ids], reference_logprobs=REFERENCE[ids]))
    wrong = check_batch(SignalBatch(**given, rollout_logprobs=REFERENCE[ids], reference_logprobs=p[ids]))
    assert right.status is Status.PASS, right.sentence
    assert wrong.status is Status.FAIL
    assert "the reference finds them likelier" in wrong.sentence


def padded(width):
    """Logprobs of both policies for rows of 3 to 16 tokens; what follows the end has logprobs too, as models give."""
    rng = np.random.default_rng(1)
    lengths = torch.tensor([3, 16, 9, 5])
    rows = -rng.exponential(size=(2, 4, 64))
    policy, reference = (torch.from_numpy(side[:, :width]) for side in rows)
    return policy, reference, mask_from_lengths(lengths, width=width)


def test_b123_the_reported_kl_does_not_change_with_the_padding():
    masked, unmasked = [], []
    for width in (16, 64):
        policy, reference, mask = padded(width)
        values = kl_value(policy, reference)
        masked.append(float(masked_mean(values, mask)))
        unmasked.append(float(values.sum() / mask.sum()))
    assert masked[0] == masked[1]
    assert unmasked[1] > 2 * unmasked[0] > 2 * masked[0]


def test_b123_what_is_too_much_is_what_lies_after_the_end():
    policy, reference, mask = padded(64)
    values = kl_value(policy, reference)
    after = values[~mask].sum() / mask.sum()
    assert float(values.sum() / mask.sum() - masked_mean(values, mask)) == pytest.approx(float(after), rel=1e-12)
