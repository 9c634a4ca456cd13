"""What is said of planted drifts and biases, and of their absence."""

import numpy as np
import pytest

from onepolicy.records.verdict import Status


def test_a_mismatch_that_is_numerics_alone_passes(judged, drawn):
    found = judged(drawn())
    assert found.drift.status is Status.PASS
    assert found.persistent_bias.status is Status.PASS
    assert not found.sequence_ratio.required
    assert found.sequence_ratio.status is Status.PASS
    assert "of sequence ratios are outside [0.5, 2]" in found.sequence_ratio.message


def test_an_offset_on_every_token_is_a_drift(judged, drawn):
    found = judged(drawn(offset=0.005, prompts=100))
    assert found.drift.status is Status.FAIL
    assert "that no KL explains" in found.drift.message
    assert found.sequence_ratio.status is Status.UNKNOWN
    assert found.sequence_ratio.required


def test_a_bias_of_each_rollout_is_persistent_and_no_drift(judged, drawn):
    found = judged(drawn(bias=0.008, kl=1e-4))
    assert found.persistent_bias.status is Status.FAIL
    assert found.persistent_bias.value == pytest.approx(0.008**2, rel=0.6)
    assert found.drift.status is not Status.FAIL


def test_rollouts_that_differ_in_their_kl_have_no_bias_and_the_message_says_so(judged):
    rng = np.random.default_rng(3)
    ds = [rng.normal(-v / 2, np.sqrt(v), 640) for v in rng.choice([0.01, 0.09], 60)]
    found = judged(ds)
    assert found.persistent_bias.status is Status.PASS, found.persistent_bias.message
    assert "They differ in their KL" in found.persistent_bias.message


def test_few_tokens_do_not_say_that_there_is_no_drift(judged, drawn):
    found = judged(drawn(prompts=24, length=64), tokens=512)
    assert found.drift.status is Status.UNKNOWN
    assert "as many prompts would decide" in found.drift.message


def test_tokens_without_a_logprob_may_hide_a_drift(judged, drawn):
    ds = drawn(prompts=400, offset=0.004)
    assert judged(ds, tokens=3072).drift.status is Status.FAIL
    found = judged(ds, tokens=3072, missing=0.005).drift
    assert found.status is Status.UNKNOWN
    assert found.message.endswith("Logprobs for all tokens would decide.")


def test_a_bias_that_could_hide_at_the_horizon_is_unknown(judged, drawn):
    found = judged(drawn(prompts=24), tokens=8 * 384)
    assert found.persistent_bias.status is Status.UNKNOWN
    assert "could hide" in found.persistent_bias.message


@pytest.mark.parametrize(
    ("ds", "how", "words"),
    [
        ({"prompts": 23}, {}, "23 prompts are too few for an interval, 24 are needed"),
        ({"length": 63}, {}, "no rollout of 64 tokens"),
        ({}, {"tokens": 3073}, "3,073 tokens are more than 8 times the measured length of 384"),
        ({}, {"is_kl": False}, "no sample of the distribution"),
    ],
)
def test_an_extrapolation_is_refused(judged, drawn, ds, how, words):
    found = judged(drawn(**ds), **how)
    assert found.sequence_ratio.status is Status.UNKNOWN
    assert found.sequence_ratio.required
    assert words in found.sequence_ratio.message


def test_eight_times_the_measured_length_is_not_refused(judged, drawn):
    assert judged(drawn(), tokens=3072).sequence_ratio.value is not None


def test_without_a_sample_nothing_but_the_position_is_left(measured_of, drawn):
    found = measured_of(drawn(), is_kl=False)
    assert (found.drift, found.bias, found.spread, found.extrapolation) == (None, None, None, None)
    assert len(found.positions) == 8
    assert found.growth is not None


def test_fewer_than_twelve_prompts_decide_nothing(judged, drawn):
    found = judged(drawn(prompts=11))
    assert {found.drift.status, found.persistent_bias.status, found.sequence_ratio.status} == {Status.UNKNOWN}
    assert "11 prompts are too few, 12 are needed" in found.drift.message


def test_an_infinite_ratio_is_unknown_and_no_number(judged, drawn):
    ds = drawn()
    ds[3][10] = 720.0  # exp of it is beyond float64
    found = judged(ds, base=-900.0)
    assert found.drift.status is Status.UNKNOWN
    assert "beyond what a number can hold" in found.drift.message


@pytest.mark.parametrize(("limit", "status"), [(0.9, Status.PASS), (0.05, Status.FAIL)])
def test_a_limit_of_the_share_decides(judged, drawn, limit, status):
    found = judged(drawn(prompts=100), most_outside=limit)
    assert found.sequence_ratio.status is status
    assert found.sequence_ratio.required
    assert found.sequence_ratio.limit == limit


def test_a_limit_inside_the_interval_is_unknown(judged, drawn):
    share = judged(drawn()).sequence_ratio.value
    found = judged(drawn(), most_outside=share)
    assert found.sequence_ratio.status is Status.UNKNOWN
    assert "More prompts would decide" in found.sequence_ratio.message


def growing(scale, *, prompts=60, length=384):
    rng = np.random.default_rng(5)
    v = np.array([scale(t) for t in range(length)])
    return [rng.normal(-v / 2, np.sqrt(v)) for _ in range(prompts)]


def test_a_mismatch_that_grows_lets_no_extrapolation_pass_but_may_fail_it(judged):
    ds = growing(lambda t: 1e-4 if t < 192 else 4e-4)
    assert judged(ds, tokens=768, most_outside=0.99).sequence_ratio.status is Status.UNKNOWN
    assert judged(ds, tokens=768).sequence_ratio.status is Status.UNKNOWN
    assert judged(ds, most_outside=0.99).sequence_ratio.status is Status.PASS
    assert judged(ds, tokens=3072, most_outside=0.01).sequence_ratio.status is Status.FAIL
    assert "it is not the same along a rollout" in judged(ds).by_position.message


def test_a_mismatch_that_falls_lets_no_extrapolation_fail_but_may_pass_it(judged):
    ds = growing(lambda t: 4e-4 if t < 192 else 1e-4)
    assert judged(ds, tokens=3072, most_outside=0.01).sequence_ratio.status is Status.UNKNOWN
    assert judged(ds, tokens=3072, most_outside=0.99).sequence_ratio.status is Status.PASS


def test_a_share_that_is_not_the_formulas_lets_nothing_be_extrapolated(judged):
    """A few rollouts hold all of the mismatch: one spread for all of them is that of none."""
    rng = np.random.default_rng(6)
    ds = [rng.normal(-v / 2, np.sqrt(v), 384) for v in np.where(rng.random(200) < 0.9, 1e-6, 2e-2)]
    found = judged(ds, tokens=768, most_outside=0.9)
    assert found.sequence_ratio.status is Status.UNKNOWN
    assert "by a formula that does not fit" in found.sequence_ratio.message
    assert not judged(ds).sequence_ratio.required


def test_equal_engines_pass_at_any_horizon_within_reach(judged):
    found = judged([np.zeros(128)] * 30, tokens=1024, most_outside=0.0)
    assert found.drift.status is Status.PASS
    assert found.persistent_bias.status is Status.PASS
    assert found.sequence_ratio.status is Status.PASS
    assert found.sequence_ratio.value == 0.0
