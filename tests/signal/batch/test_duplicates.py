import numpy as np

from onepolicy.records.verdict import Status
from onepolicy.signal.batch.batch import SignalBatch
from onepolicy.signal.batch.check import checked

CHECK = "duplicate_samples"


def doubled(batch, *, logprob):
    """Row 0 again as another row of the same prompt, its tokens of that logprob each."""
    other = int(np.flatnonzero(batch.prompts == batch.prompts[0])[1])
    ids, lengths, logprobs = batch.token_ids.copy(), batch.lengths.copy(), batch.rollout_logprobs.copy()
    ids[other], lengths[other] = ids[0], lengths[0]
    logprobs[[0, other]] = logprob
    return other, {"token_ids": ids, "lengths": lengths, "rollout_logprobs": logprobs}


def test_an_unlikely_completion_that_is_there_twice_fails(sound, verdict):
    batch = sound(seed=2)
    other, changes = doubled(batch, logprob=-4.0)
    found = verdict(CHECK, batch, **changes)
    assert found.status is Status.FAIL
    assert found.evidence[0].rollout_id == f"row {max(0, other)}"
    assert "equals row 0" in found.evidence[0].note


def test_a_likely_completion_may_be_there_twice(sound, verdict):
    batch = sound(seed=2)
    assert verdict(CHECK, batch, **doubled(batch, logprob=-0.1)[1]).status is Status.PASS


def test_without_logprobs_a_coincidence_is_unknown(sound, verdict):
    batch = sound(seed=2)
    for missing in (None, np.full((16, 12), np.nan)):
        changes = doubled(batch, logprob=-4.0)[1] | {"rollout_logprobs": missing}
        found = verdict(CHECK, batch, **changes)
        assert (found.status, found.required) == (Status.UNKNOWN, True)


def test_equal_completions_of_two_prompts_are_no_coincidence(sound, verdict):
    batch = sound(seed=2)
    _, changes = doubled(batch, logprob=-4.0)
    found = verdict(CHECK, batch, **changes, prompts=np.arange(16))
    assert (found.status, found.required) == (Status.UNKNOWN, False)


def test_a_difference_in_padding_is_none(sound, verdict):
    batch = sound(seed=2)
    other, changes = doubled(batch, logprob=-4.0)
    changes["token_ids"][other, changes["lengths"][other] :] = 77
    assert changes["lengths"][other] < 12
    assert verdict(CHECK, batch, **changes).status is Status.FAIL


def test_completions_that_differ_where_the_policy_did_not_sample_differ(sound, verdict):
    batch = sound(seed=2)
    other, changes = doubled(batch, logprob=-4.0)
    changes["sampled"] = np.tile(np.arange(12) != 1, (16, 1))
    assert verdict(CHECK, batch, **changes, loss_mask=None).status is Status.FAIL
    changes["token_ids"][other, 1] += 1
    assert verdict(CHECK, batch, **changes, loss_mask=None).status is Status.PASS


def test_a_longer_completion_with_the_same_beginning_is_another(sound, verdict):
    batch = sound(seed=2)
    other, changes = doubled(batch, logprob=-4.0)
    changes["lengths"][other] += 1
    assert verdict(CHECK, batch, **changes).status is Status.PASS


def test_independent_draws_fail_as_seldom_as_is_said():
    """Draws of up to three tokens from ten, each as likely as its logprob says: they coincide often."""
    rng = np.random.default_rng(0)
    failed = coincided = 0
    for _ in range(300):
        lengths = rng.integers(1, 4, 16)
        batch = SignalBatch(
            token_ids=rng.integers(0, 10, (16, 3)),
            lengths=lengths,
            loss_mask=np.arange(3) < lengths[:, None],
            prompts=np.repeat([0, 1], 8),
            rollout_logprobs=np.full((16, 3), -np.log(10)),
        )
        found = next(v for v in checked(batch) if v.check == CHECK)
        failed += found.status is Status.FAIL
        coincided += "equal an earlier" in found.message
    assert coincided > 100
    assert failed == 0
