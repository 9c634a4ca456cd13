import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onepolicy.judgement.limits import Limits
from onepolicy.judgement.looks import Look
from onepolicy.judgement.statistics import Estimate
from onepolicy.numerics.checks.mean_kl import mean_kl
from onepolicy.numerics.hybrid import PairedTop
from onepolicy.numerics.measurement import Measurement
from onepolicy.records.protocol import Meaning
from onepolicy.records.tokens import TokenState
from onepolicy.records.verdict import Status

PASS, FAIL, UNKNOWN = Status.PASS, Status.FAIL, Status.UNKNOWN


class Gated(Measurement):
    """A measurement whose gate is given."""

    estimate: Estimate
    valid = 1_000

    def gate(self):
        return self.estimate


def gated(value, *, low, high, is_kl=True, clusters=30):
    measurement = Gated(is_kl=is_kl)
    measurement.estimate = Estimate(
        value=value,
        low=low,
        high=high,
        standard_error=value / 10,
        clusters=clusters,
        effective_clusters=float(clusters),
    )
    return measurement


def named_limit(message):
    return float(re.search(r"smallest limit that this check would pass is (\S+)\.$", message)[1])


def test_an_interval_below_the_limit_passes_and_is_shown(many, measured):
    pair = measured(many(30, scale=0.01))
    verdict = mean_kl(pair, Limits(mean_kl=1e-4))
    assert (verdict.status, verdict.kind, verdict.required) == (PASS, "about the policy", True)
    assert verdict.low < verdict.value < verdict.high <= verdict.limit == 1e-4
    assert verdict.value == pytest.approx(pair.mean("k3"), rel=1e-12)
    assert (verdict.quantity, verdict.unit) == ("kl_k3", "nats per token")
    assert (
        f"KL {verdict.value:.2g} nats per token (99 % bounds {verdict.low:.2g} and {verdict.high:.2g})"
        in verdict.message
    )


def test_an_interval_beyond_the_limit_fails_and_the_limit_it_names_passes(many, measured):
    pair = measured(many(30, scale=0.1))
    verdict = mean_kl(pair, Limits(mean_kl=1e-4))
    assert verdict.status is FAIL
    assert verdict.low > 1e-4
    assert mean_kl(pair, Limits(mean_kl=named_limit(verdict.message))).status is PASS


@given(st.floats(1e-12, 1e12), st.booleans())
def test_the_smallest_limit_that_would_pass_passes_and_is_the_smallest_of_two_digits(high, is_kl):
    pair = gated(high if not is_kl else high / 2, low=high / 4, high=high, is_kl=is_kl)
    limit = named_limit(mean_kl(pair, Limits(mean_kl=high / 1e6)).message)
    assert mean_kl(pair, Limits(mean_kl=limit)).status is PASS
    assert high <= limit <= high * 1.1 * (1 + 1e-12)


@pytest.mark.parametrize("start", [1e-4, 1.2e-4, 9.9e-5, 0.01, 1.0])
def test_a_hair_above_a_round_limit_is_rounded_up(start):
    high = float(np.nextafter(start, 2 * start))
    pair = gated(high / 2, low=high / 4, high=high)
    limit = named_limit(mean_kl(pair, Limits(mean_kl=high / 1e6)).message)
    assert limit >= high
    exact = gated(start / 2, low=start / 4, high=start)
    assert named_limit(mean_kl(exact, Limits(mean_kl=start / 1e6)).message) == start


def test_a_limit_inside_the_interval_is_unknown_and_says_how_many_prompts_would_decide(many, measured):
    pair = measured(many(30, scale=0.1, length=8))
    estimate = pair.gate()
    limit = estimate.value * 1.1
    verdict = mean_kl(pair, Limits(mean_kl=limit))
    assert verdict.status is UNKNOWN
    more = int(re.search(r"About (\d+) more prompts would decide", verdict.message)[1])
    assert 1 <= more <= 50 * 30
    assert mean_kl(measured(many(30 + 2 * more, scale=0.1, length=8)), Limits(mean_kl=limit)).status is not UNKNOWN


def test_a_value_on_the_limit_would_not_be_decided_by_any_number_of_prompts(many, measured):
    pair = measured(many(30, scale=0.1))
    verdict = mean_kl(pair, Limits(mean_kl=pair.gate().value))
    assert verdict.status is UNKNOWN
    assert "1500 prompts would not decide" in verdict.message


@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_eleven_prompts_decide_nothing_about_a_policy_and_twelve_do(many, measured, scale):
    few = mean_kl(measured(many(11, scale=scale)), Limits())
    assert few.status is UNKNOWN
    assert "comes from 11 prompts" in few.message
    assert "12 are needed" in few.message
    assert mean_kl(measured(many(12, scale=scale)), Limits()).status is (FAIL if scale else PASS)


def test_many_samples_of_few_prompts_are_few_prompts(many, measured):
    rows = [{**row, "prompt": f"prompt {i % 5}"} for i, row in enumerate(many(100, scale=0.0))]
    assert mean_kl(measured(rows), Limits()).status is UNKNOWN


def test_one_prompt_with_nearly_all_tokens_is_nearly_one_prompt(rollout, many, measured):
    rows = [*many(30, scale=0.0, length=1), rollout([-1.0] * 1000, [-1.0] * 1000, name="long")]
    verdict = mean_kl(measured(rows), Limits())
    assert verdict.status is UNKNOWN
    assert "31 prompts (effectively 1.5)" in verdict.message


def test_copies_of_one_rollout_do_not_make_a_sample(rollout, measured):
    rows = [rollout([-1.0] * 4, [-1.0] * 4, name=f"r-{i}", prompt="x", digest="same") for i in range(50)]
    assert mean_kl(measured(rows), Limits()).status is UNKNOWN


@pytest.mark.parametrize("is_kl", [True, False])
def test_nothing_valid_is_unknown(rollout, measured, is_kl):
    rows = [rollout([-1.0], [-1.0], name=f"r-{i}", q_states=[TokenState.ABSENT]) for i in range(20)]
    for pair in (measured(rows, is_kl=is_kl), measured([], is_kl=is_kl)):
        verdict = mean_kl(pair, Limits())
        assert (verdict.status, verdict.value) == (UNKNOWN, None)
        assert "no token has a logprob on both sides" in verdict.message


@pytest.mark.parametrize("is_kl", [True, False])
def test_differing_meanings_have_no_divergence_however_close_the_numbers_are(many, measured, is_kl):
    cold = Meaning(temperature=0.7)
    verdict = mean_kl(measured(many(30, scale=0.0), trainer_meaning=cold, is_kl=is_kl), Limits())
    assert (verdict.status, verdict.value) == (UNKNOWN, None)
    assert "mean different things" in verdict.message


@pytest.mark.parametrize("is_kl", [True, False])
def test_an_infinite_mean_fails_and_says_which_side_is_wrong(rollout, many, measured, is_kl):
    rows = [*many(30, scale=0.0), rollout([-900.0], [-1.0], name="impossible")]
    verdict = mean_kl(measured(rows, is_kl=is_kl), Limits())
    assert (verdict.status, verdict.value) == (FAIL, math.inf)
    assert not is_kl or "trainer's logprob is hundreds of nats above" in verdict.message


def test_nan_is_never_a_pass():
    verdict = mean_kl(gated(math.nan, low=math.nan, high=math.nan), Limits())
    assert (verdict.status, verdict.message) == (UNKNOWN, "the mean is not a number.")


def test_tokens_that_are_no_sample_have_a_mean_without_an_interval_and_are_not_called_a_kl(rollout, measured):
    row = rollout([-2.0, -2.0], [-1.99, -2.0])
    good = mean_kl(measured([row], is_kl=False), Limits(mean_kl=1e-4))
    bad = mean_kl(measured([row], is_kl=False), Limits(mean_kl=1e-5))
    assert (good.status, bad.status) == (PASS, FAIL)
    for verdict in (good, bad):
        assert (verdict.kind, verdict.low, verdict.high) == ("on these tokens", None, None)
        assert verdict.quantity == "k3_on_these_tokens"
        assert verdict.value == pytest.approx(0.01**2 / 4, rel=0.01)
        assert "mean k3 over these tokens is 2.5e-05 nats" in verdict.message
    assert "this is no KL" in good.message
    assert mean_kl(measured([row], is_kl=False), Limits(mean_kl=named_limit(bad.message))).status is PASS


@pytest.mark.parametrize(("positions", "name"), [([0, 1], "kl_hybrid"), ([1], "kl_hybrid_and_k3")])
def test_the_quantity_says_how_much_of_it_comes_from_top_lists(rollout, measured, positions, name):
    n = len(positions)
    certain = np.full((n, 1), -0.1, dtype=np.float32)
    top = PairedTop(
        positions=np.int32(positions), ids=np.zeros((n, 1), dtype=np.int32), rollout=certain, trainer=certain
    )
    rows = [rollout([-2.0, -2.0], [-2.0, -2.0], name="r", ids=[0, 0])]
    assert mean_kl(measured(rows, top={"r": top}), Limits()).quantity == name


def looked_at(measured, number):
    measured.look = Look(number=number)
    return measured


def test_a_later_look_may_pass_with_more_of_the_level_and_says_so(many, measured):
    rows = many(30, scale=0.1)
    highs = [mean_kl(looked_at(measured(rows), n), Limits()).high for n in (1, 2, 3)]
    assert highs == sorted(highs, reverse=True)
    verdict = mean_kl(looked_at(measured(rows), 2), Limits())
    assert "(99 % lower and 98.5 % upper bound, look 2 " in verdict.message


def test_no_level_is_left_for_a_fourth_look_however_good_the_number_is(many, measured):
    good = many(200, scale=0.0001)
    assert mean_kl(looked_at(measured(good), 3), Limits()).status is PASS
    fourth = mean_kl(looked_at(measured(good), 4), Limits())
    assert fourth.status is UNKNOWN
    assert "3 looks are allowed" in fourth.message


def test_a_long_rollout_weighs_no_more_than_one_of_128_tokens(rollout, many, measured):
    rows = [*many(30, scale=0.0, length=128), rollout([-1.0] * 4096, [-1.2] * 4096, name="long")]
    k3 = math.expm1(-0.2) + 0.2
    assert measured(rows).gate().value == pytest.approx(k3 / 31, rel=1e-5)
    assert measured(rows, is_kl=False).gate().value == pytest.approx(k3 * 4096 / (4096 + 30 * 128), rel=1e-5)


def test_after_the_last_look_a_new_run_is_advised_and_no_extension(many, measured):
    pair = looked_at(measured(many(30, scale=0.1, length=8)), 3)
    verdict = mean_kl(pair, Limits(mean_kl=pair.gate().value * 1.1))
    assert verdict.status is UNKNOWN
    assert "a new run of about" in verdict.message
    assert "--extend" not in verdict.message
