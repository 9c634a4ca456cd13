from onepolicy.judgement.decide import decide
from onepolicy.records.verdict import Status
from onepolicy.tokens.checks import CHECKS
from onepolicy.tokens.checks.round_trip import round_trip
from onepolicy.tokens.checks.same_ids import same_ids
from onepolicy.tokens.checks.same_text import same_text
from onepolicy.tokens.round_trip import RoundTripBreak, TextBreak, TokenMeasurement

PASS, FAIL, UNKNOWN = Status.PASS, Status.FAIL, Status.UNKNOWN

BROKEN = TokenMeasurement(
    rollouts=9,
    checked=8,
    causes={"the text changes": 2, "another valid segmentation": 1},
    breaks=[
        RoundTripBreak(
            rollout_id="r-3", position=17, cause="another valid segmentation", sampled=("a\n", "b"), encoded=()
        )
    ],
    text_broken=2,
    text_breaks=[TextBreak(rollout_id="r-5", sampling_text="one", scoring_text="two")],
)


def outcome(verdict):
    return verdict.status, verdict.required


def test_a_run_without_rollouts_passes_no_token_check():
    verdicts = [check(TokenMeasurement()) for check in CHECKS]
    assert {v.status for v in verdicts} == {UNKNOWN}
    assert decide(verdicts) is UNKNOWN


def test_every_check_bears_its_own_name():
    for measurement in (TokenMeasurement(), TokenMeasurement(rollouts=1, checked=1), BROKEN):
        assert [check(measurement).check for check in CHECKS] == [check.__name__ for check in CHECKS]


def test_same_ids_says_in_how_many_rollouts_and_claims_no_more_than_it_knows():
    verdict = same_ids(TokenMeasurement(rollouts=7))
    assert outcome(verdict) == (PASS, True)
    assert verdict.value == 7
    assert verdict.message == "no reading scored other ids than those of the run's 7 rollouts."


def test_a_text_that_nobody_checked_is_unknown_says_why_and_does_not_decide():
    for check in (same_text, round_trip):
        verdict = check(TokenMeasurement(rollouts=3, why_unchecked="the run keeps no text (--no-text)"))
        assert outcome(verdict) == (UNKNOWN, False)
        assert verdict.message == "not checked: the run keeps no text (--no-text)."
        assert check(TokenMeasurement(rollouts=3)).message == "not checked: no rollout has a text."


def test_the_same_text_passes_with_the_number_of_completions_that_were_read():
    measurement = TokenMeasurement(rollouts=9, checked=8)
    assert outcome(same_text(measurement)) == (PASS, True)
    assert "8 rollouts" in same_text(measurement).message
    assert outcome(round_trip(measurement)) == (PASS, False)
    assert "all 8 completions" in round_trip(measurement).message


def test_another_text_fails_and_shows_both_readings_of_it():
    verdict = same_text(BROKEN)
    assert outcome(verdict) == (FAIL, True)
    assert (verdict.value, verdict.limit, verdict.unit) == (2, 0, "rollouts")
    assert "2 of 8 completions" in verdict.message
    assert "in rollout r-5 the rollout side reads 'one' and the trainer 'two'" in verdict.message
    assert [(e.rollout_id, e.note) for e in verdict.evidence] == [("r-5", "'one' against 'two'")]


def test_ids_that_do_not_come_back_fail_inform_only_and_are_spelled():
    verdict = round_trip(BROKEN)
    assert outcome(verdict) == (FAIL, False)
    assert (verdict.value, verdict.limit) == (3, 0)
    assert "3 of 8 completions do not come back" in verdict.message
    assert "(1 by another valid segmentation, 2 by the text changes)" in verdict.message
    assert r"rollout r-3 at position 17: sampled a\n|b, encoded nothing" in verdict.message
    assert [(e.rollout_id, e.position) for e in verdict.evidence] == [("r-3", 17)]
