"""Tokens that a side's truncation gives no probability: counted, named, in no mean, and never a pass."""

import math

import numpy as np
import pytest

from onepolicy.judgement.limits import Limits
from onepolicy.numerics.checks.coverage import coverage
from onepolicy.numerics.checks.kept_set import MOST_BY_ROUNDING, kept_set
from onepolicy.numerics.checks.mean_kl import mean_kl
from onepolicy.numerics.checks.valid_logprobs import valid_logprobs
from onepolicy.records.protocol import Meaning
from onepolicy.records.tokens import TokenState, states_of
from onepolicy.records.verdict import Status

V, EXCLUDED, ABSENT = TokenState.VALUE, TokenState.EXCLUDED, TokenState.ABSENT
DEFAULT = Limits()
NUCLEUS = {"rollout_meaning": Meaning(top_p=0.9), "trainer_meaning": Meaning(top_p=0.9)}


def with_excluded(rollout, count, of=100, *, side="q", name="r"):
    values = {"p": [-1.0] * of, "q": [-1.0] * of}
    values[side][:count] = [math.nan] * count
    states = {f"{side}_states": [EXCLUDED] * count + [V] * (of - count)}
    return rollout(values["p"], values["q"], name=name, **states)


def test_minus_infinity_is_excluded_where_tokens_are_cut_and_no_logprob_elsewhere():
    numbers = np.array([-1.0, -math.inf, math.nan, 0.5, -9999.0])
    assert states_of(numbers, truncates=True).tolist() == [V, EXCLUDED, *[TokenState.INVALID] * 3]
    assert states_of(numbers).tolist() == [V, *[TokenState.INVALID] * 4]


def test_nothing_is_said_without_a_truncation_or_under_two_meanings(rollout, measured):
    rows = [with_excluded(rollout, 1)]
    assert kept_set(measured(rows), DEFAULT) == []
    assert kept_set(measured(rows, rollout_meaning=Meaning(top_p=0.9)), DEFAULT) == []
    assert kept_set(measured([], **NUCLEUS), DEFAULT) == []


def test_no_excluded_token_passes(rollout, measured):
    (verdict,) = kept_set(measured([with_excluded(rollout, 0)], **NUCLEUS), DEFAULT)
    assert (verdict.status, verdict.value) == (Status.PASS, 0)


def test_one_excluded_token_is_unknown_with_its_count_its_place_and_what_it_means(rollout, measured):
    (verdict,) = kept_set(measured([with_excluded(rollout, 1)], **NUCLEUS), DEFAULT)
    assert (verdict.status, verdict.required, verdict.value) == (Status.UNKNOWN, True, 0.01)
    assert "1 of 100 tokens (1.00%)" in verdict.message
    assert "rollout r at position 0" in verdict.message
    assert verdict.evidence[0].note == "rollout -1, trainer -inf"


@pytest.mark.parametrize(("count", "status"), [(5, Status.UNKNOWN), (6, Status.FAIL)])
def test_more_than_rounding_makes_fails(rollout, measured, count, status):
    assert MOST_BY_ROUNDING == 0.05
    assert kept_set(measured([with_excluded(rollout, count)], **NUCLEUS), DEFAULT)[0].status is status


def test_a_token_that_its_own_side_excludes_was_not_drawn_from_it(rollout, measured):
    rows = [with_excluded(rollout, 1, side="p")]
    (verdict,) = kept_set(measured(rows, **NUCLEUS), DEFAULT)
    assert verdict.status is Status.FAIL
    assert "not drawn from it" in verdict.message
    fixed = measured(rows, is_kl=False, **NUCLEUS)
    assert kept_set(fixed, DEFAULT)[0].status is Status.UNKNOWN, "tokens that nobody drew may lie outside"


def test_it_is_in_no_mean_and_no_gap_and_the_kl_has_no_number(rollout, measured):
    found = measured([with_excluded(rollout, 10, 100, name=f"r{i}") for i in range(20)], **NUCLEUS)
    assert (found.excluded, found.valid, found.compared) == (200, 1800, 2000)
    assert valid_logprobs(found, DEFAULT).status is Status.PASS
    covered = coverage(found, DEFAULT)
    assert covered.status is Status.PASS
    assert "200 more have none as truncation excludes them" in covered.message
    kl = mean_kl(found, DEFAULT)
    assert (kl.status, kl.value) == (Status.UNKNOWN, None)
    assert "infinite" in kl.message


def test_one_that_the_other_side_says_nothing_of_is_a_gap_as_before(rollout, measured):
    row = rollout([math.nan] * 2, [math.nan] * 2, p_states=[ABSENT, V], q_states=[EXCLUDED, ABSENT])
    found = measured([row], **NUCLEUS)
    assert found.excluded == 0
    assert coverage(found, DEFAULT).value == 0
