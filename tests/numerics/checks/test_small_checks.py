"""Each check on its planted fault and on its absence."""

import math

import pytest

from onepolicy.judgement.decide import decide
from onepolicy.judgement.limits import Limits
from onepolicy.numerics.checks import CHECKS
from onepolicy.numerics.checks.coverage import coverage
from onepolicy.numerics.checks.max_abs_d import max_abs_d
from onepolicy.numerics.checks.meaning import meaning
from onepolicy.numerics.checks.placeholder_zeros import placeholder_zeros
from onepolicy.numerics.checks.valid_logprobs import valid_logprobs
from onepolicy.numerics.checks.worst_rollout import worst_rollout
from onepolicy.records.protocol import Meaning
from onepolicy.records.tokens import TokenState
from onepolicy.records.verdict import Status

V, MASKED, INVALID, ABSENT, TRUNCATED, EXCLUDED = TokenState
PASS, FAIL, UNKNOWN = Status.PASS, Status.FAIL, Status.UNKNOWN
DEFAULT = Limits()
COLD = Meaning(temperature=0.7)
NUCLEUS = Meaning(top_p=0.9)


def outcome(verdict):
    return verdict.status, verdict.required


# -- all of them -------------------------------------------------------------------------------------------------


def test_no_check_passes_where_nothing_was_compared_but_the_declared_meaning(rollout, measured):
    absent = rollout([math.nan], [math.nan], p_states=[ABSENT], q_states=[TRUNCATED])
    for rows in ([], [rollout([], [])], [absent]):
        verdicts = [check(measured(rows), DEFAULT) for check in CHECKS]
        assert [v.check for v in verdicts if v.status is PASS] == ["meaning"]
        assert decide(verdicts) is UNKNOWN


def test_two_equal_columns_pass_every_check(many, measured):
    verdicts = [check(measured(many(24, scale=0.0)), DEFAULT) for check in CHECKS]
    undecided = {v.check for v in verdicts if outcome(v) != (PASS, True)}
    assert undecided == {"sampled_as_reported"}, "columns of logprobs carry no entropy"
    assert decide(verdicts) is PASS


def test_every_check_bears_its_own_name_and_says_something_whole(many, measured):
    for scale in (0.0, 3.0):
        for check in CHECKS:
            verdict = check(measured(many(20, scale=scale)), DEFAULT)
            assert verdict.check == check.__name__
            assert verdict.message.endswith(".")


# -- meaning -----------------------------------------------------------------------------------------------------


def test_the_same_meaning_passes_and_is_named(measured):
    verdict = meaning(measured([], rollout_meaning=NUCLEUS, trainer_meaning=NUCLEUS), DEFAULT)
    assert outcome(verdict) == (PASS, True)
    assert "processed (temperature 1, top_p 0.9)" in verdict.message


def test_another_meaning_is_unknown_and_both_are_named(measured):
    verdict = meaning(measured([], rollout_meaning=COLD), DEFAULT)
    assert outcome(verdict) == (UNKNOWN, True)
    assert "the rollout logprobs are processed (temperature 0.7), the trainer logprobs raw" in verdict.message


@pytest.mark.parametrize("check", [worst_rollout, max_abs_d])
def test_logprobs_of_another_meaning_are_not_held_against_a_limit(rollout, measured, check):
    verdict = check(measured([rollout([-1.0], [-9.0])], rollout_meaning=COLD), DEFAULT)
    assert outcome(verdict) == (UNKNOWN, True)
    assert "mean different things" in verdict.message


# -- valid_logprobs ----------------------------------------------------------------------------------------------


def test_numbers_that_are_logprobs_pass(rollout, measured):
    assert outcome(valid_logprobs(measured([rollout([-1.0, 0.0, 1e-7], [-1.0] * 3)]), DEFAULT)) == (PASS, True)


def test_numbers_that_are_no_logprobs_fail_with_their_count_and_the_first_place(rollout, measured):
    rows = [
        rollout([-1.0], [-1.0], name="good"),
        rollout([-1.0, -1.0, -9999.0], [-1.0, -1.0, -2.0], name="bad-1"),
        rollout([math.nan, -1.0], [0.5, math.inf], name="bad-2"),
    ]
    verdict = valid_logprobs(measured(rows, blocks=2), DEFAULT)
    assert outcome(verdict) == (FAIL, True)
    assert (verdict.value, verdict.limit, verdict.unit) == (4, 0, "tokens")
    assert "2 rollout and 2 trainer values in 2 rollouts are no logprobs" in verdict.message
    assert "the first is in rollout bad-1 at position 2" in verdict.message
    assert [(e.rollout_id, e.position, e.note) for e in verdict.evidence] == [
        ("bad-1", 2, "rollout -9999, trainer -2"),
        ("bad-2", 0, "rollout nan, trainer 0.5"),
    ]


def test_a_bad_number_at_a_token_that_nobody_compares_is_nobodys_business(rollout, measured):
    row = rollout([math.nan, -1.0], [math.nan, -1.0], sampled=[False, True])
    assert valid_logprobs(measured([row]), DEFAULT).status is PASS


def test_without_any_number_validity_is_unknown_and_left_to_coverage(rollout, measured):
    row = rollout([math.nan], [math.nan], p_states=[ABSENT], q_states=[ABSENT])
    assert outcome(valid_logprobs(measured([row]), DEFAULT)) == (UNKNOWN, False)


# -- placeholder_zeros -------------------------------------------------------------------------------------------


def test_zeros_that_the_other_side_agrees_with_pass(rollout, measured):
    assert outcome(placeholder_zeros(measured([rollout([0.0, -1.0], [-5e-5, -1.0])]), DEFAULT)) == (PASS, True)


def test_a_contradicted_zero_fails_and_names_its_place_and_both_numbers(rollout, measured):
    rows = [rollout([-1.0], [-1.0], name="good"), rollout([-1.0, 0.0], [-1.0, -2.5], name="filled")]
    verdict = placeholder_zeros(measured(rows), DEFAULT)
    assert outcome(verdict) == (FAIL, True)
    assert (verdict.value, verdict.unit) == (1, "rollouts")
    assert "in 1 rollouts" in verdict.message
    assert "rollout filled at position 1 (rollout 0, trainer -2.5)" in verdict.message
    assert [(e.rollout_id, e.position) for e in verdict.evidence] == [("filled", 1)]


@pytest.mark.parametrize("truncated", [NUCLEUS, Meaning(top_k=5), Meaning(min_p=0.1)])
def test_where_truncation_may_leave_one_token_a_zero_only_informs(rollout, measured, truncated):
    meant = {"rollout_meaning": truncated, "trainer_meaning": truncated}
    assert outcome(placeholder_zeros(measured([rollout([0.0], [-2.5])], **meant), DEFAULT)) == (FAIL, False)
    assert outcome(placeholder_zeros(measured([rollout([-1.0], [-1.0])], **meant), DEFAULT)) == (PASS, False)


def test_under_another_meaning_a_zero_contradicts_nothing(rollout, measured):
    verdict = placeholder_zeros(measured([rollout([-0.01], [0.0])], trainer_meaning=COLD), DEFAULT)
    assert outcome(verdict) == (FAIL, False)


def test_a_temperature_alone_excuses_no_zero(rollout, measured):
    both = measured([rollout([0.0], [-2.5])], rollout_meaning=COLD, trainer_meaning=COLD)
    assert outcome(placeholder_zeros(both, DEFAULT)) == (FAIL, True)


# -- coverage ----------------------------------------------------------------------------------------------------


def of_coverage(rollout, measured, missing):
    states = [ABSENT] * missing + [V] * (200 - missing)
    rows = [rollout([-1.0] * 200, [-1.0] * 200, name="r-7", q_states=states), rollout([], [], name="empty")]
    return coverage(measured(rows), DEFAULT)


def test_coverage_at_its_limit_passes_and_names_the_largest_gap(rollout, measured):
    verdict = of_coverage(rollout, measured, 2)
    assert outcome(verdict) == (PASS, True)
    assert (verdict.value, verdict.limit) == (0.99, 0.99)
    assert "198 of 200 tokens (99.0%)" in verdict.message
    assert "1 of 2 rollouts have no completion" in verdict.message
    assert "rollout r-7 misses most (2 of 200, trainer side)" in verdict.message


def test_coverage_below_its_limit_is_unknown_and_says_what_is_needed(rollout, measured):
    verdict = of_coverage(rollout, measured, 3)
    assert outcome(verdict) == (UNKNOWN, True)
    assert "99% are needed" in verdict.message
    assert [(e.rollout_id, e.note) for e in verdict.evidence] == [
        ("r-7", "3 of 200 tokens without a value (trainer side)")
    ]


def test_rollouts_without_a_token_to_compare_cover_nothing(rollout, measured):
    verdict = coverage(measured([rollout([], [])]), DEFAULT)
    assert outcome(verdict) == (UNKNOWN, True)
    assert "1 rollouts hold no token to compare" in verdict.message


# -- worst_rollout -----------------------------------------------------------------------------------------------


def test_one_rollout_of_other_tokens_fails_among_thousands_of_good_ones(many, rollout, measured):
    rows = [*many(100, scale=1e-3), rollout([-1.0, -2.0], [-3.0, -2.0], name="shifted")]
    verdict = worst_rollout(measured(rows), DEFAULT)
    d = -2.0
    assert outcome(verdict) == (FAIL, True)
    assert verdict.value == pytest.approx((math.exp(d) - 1 - d) / 2)
    assert verdict.limit == 0.01
    assert "the worst rollout, shifted, has a mean k3 of 0.57, limit 0.01" in verdict.message
    assert "paired wrongly or shifted" in verdict.message
    assert [e.rollout_id for e in verdict.evidence] == ["shifted"]


def test_rollouts_within_the_limit_pass_and_the_worst_is_shown(many, measured):
    verdict = worst_rollout(measured(many(100, scale=1e-3)), DEFAULT)
    assert outcome(verdict) == (PASS, True)
    assert 0 < verdict.value < 1e-5
    assert len(verdict.evidence) == 5


def test_a_worst_rollout_exactly_at_its_limit_passes(rollout, measured):
    pair = measured([rollout([-1.0], [-1.5])])
    limit = pair.worst_by_kl[0].mean_k3
    assert worst_rollout(pair, Limits(worst_rollout_kl=limit)).status is PASS
    assert worst_rollout(pair, Limits(worst_rollout_kl=limit * (1 - 1e-12))).status is FAIL


# -- max_abs_d ---------------------------------------------------------------------------------------------------


def test_one_token_far_off_fails_in_either_direction_and_is_named(many, rollout, measured):
    for far in (-2.75, -1.25):
        row = rollout([-2.0] * 3, [-2.0, far, -2.0], name="r-41", sampled=[False, True, True])
        verdict = max_abs_d(measured([*many(20, scale=1e-3), row]), DEFAULT)
        assert outcome(verdict) == (FAIL, True)
        assert (verdict.value, verdict.limit, verdict.unit) == (0.75, 0.5, "nats")
        assert "the largest |d| is 0.75 nats, in rollout r-41 at position 1, limit 0.5" in verdict.message
        assert [(e.rollout_id, e.position, e.note) for e in verdict.evidence] == [
            ("r-41", 1, f"rollout -2, trainer {far}")
        ]


def test_tokens_within_the_limit_pass(rollout, measured):
    verdict = max_abs_d(measured([rollout([-2.0], [-2.5])]), DEFAULT)
    assert outcome(verdict) == (PASS, True)
    assert verdict.value == 0.5
