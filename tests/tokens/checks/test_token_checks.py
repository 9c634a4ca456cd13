import numpy as np
import pytest

from onepolicy.judgement.decide import decide
from onepolicy.records.rollout import Rollout
from onepolicy.records.verdict import Status
from onepolicy.tokens.boundaries import Boundaries
from onepolicy.tokens.checks import CHECKS
from onepolicy.tokens.checks.round_trip import round_trip
from onepolicy.tokens.checks.same_ids import same_ids
from onepolicy.tokens.checks.same_text import same_text
from onepolicy.tokens.checks.special_tokens import special_tokens
from onepolicy.tokens.round_trip import Outcome, RoundTripBreak, TextBreak, TokenMeasurement
from onepolicy.tokens.sides import Difference, Origin, Piece
from onepolicy.tokens.special_tokens import SpecialTokens

PASS, FAIL, UNKNOWN = Status.PASS, Status.FAIL, Status.UNKNOWN
BOS, EOS, A, B = 1, 2, 10, 11


def difference(cause, *, position=17, first=(), second=()):
    return Difference(
        cause=cause,
        origin=Origin.TEXT,
        seen="what was seen",
        advice="Do this.",
        position=position,
        first=tuple(Piece(token_id=i, content=text) for i, text in enumerate(first)),
        second=tuple(Piece(token_id=i, content=text) for i, text in enumerate(second)),
        shifted=0.5,
    )


def text_break(cause, name="r-5", *, changes_meaning=True):
    return TextBreak(
        rollout_id=name,
        difference=difference(cause),
        expected="one",
        found="two",
        changes_meaning=changes_meaning,
    )


def read(*breaks):
    """What was found in completions that are read like this."""
    measured = TokenMeasurement(rollouts=9)
    for one in breaks:
        measured.add(Outcome(name=one.rollout_id, tokens=4, ids=None, text=None, reading=one))
    return measured


def broken(*, text_cause="other tokenizer"):
    return TokenMeasurement(
        rollouts=9,
        checked=8,
        causes={"unknown": 2, "another valid segmentation": 1, "whitespace": 2},
        breaks=[
            RoundTripBreak(
                rollout_id="r-3",
                difference=difference("another valid segmentation", first=[b"a\n", b"\xc3", b"c", b"d", b"e"]),
            )
        ],
        reading_causes={text_cause: 2},
        text_breaks=[text_break(text_cause)],
        other_meaning=2,
    )


def looked_at(*rows, raw_text=False, adds_bos=True, bos=(BOS,), prompt=2):
    """What was counted in rollouts of these ids, the first `prompt` of which are a prompt."""
    special = SpecialTokens(
        boundaries=Boundaries(bos=frozenset(bos), eos=frozenset({EOS}), adds_bos=adds_bos),
        spelled={BOS: "<s>", EOS: "</s>"},
        raw_text=raw_text,
    )
    for number, ids in enumerate(rows):
        sampled = np.arange(len(ids)) >= prompt
        special.seen(
            Rollout(
                rollout_id=f"r-{number}",
                prompt_id="p",
                trajectory_id="t",
                token_ids=np.array(ids, dtype=np.int32),
                sampled=sampled,
                loss_mask=sampled,
            )
        )
    return TokenMeasurement(rollouts=len(rows), special=special)


def outcome(verdict):
    return verdict.status, verdict.required


def test_a_run_without_rollouts_passes_no_token_check():
    verdicts = [check(TokenMeasurement()) for check in CHECKS]
    assert {v.status for v in verdicts} == {UNKNOWN}
    assert decide(verdicts) is UNKNOWN


def test_every_check_bears_its_own_name():
    for measurement in (TokenMeasurement(), TokenMeasurement(rollouts=1, checked=1), broken(), looked_at([BOS, BOS])):
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
    verdict = same_text(broken())
    assert outcome(verdict) == (FAIL, True)
    assert (verdict.value, verdict.limit, verdict.unit) == (2, 0, "rollouts")
    assert "2 of 8 completions" in verdict.message
    assert "in rollout r-5 the rollout side reads 'one' and the trainer 'two'" in verdict.message
    assert [(e.rollout_id, e.note) for e in verdict.evidence] == [
        ("r-5", "other tokenizer (what was seen): 'one' against 'two'")
    ]


def test_a_text_from_which_a_server_left_out_special_tokens_informs_and_does_not_decide():
    verdict = same_text(read(*[text_break("EOS missing", changes_meaning=False)] * 2))
    assert outcome(verdict) == (FAIL, False)
    assert "(2 by EOS missing)" in verdict.message
    assert "The ids mean the same on both sides" in verdict.message


def test_one_completion_that_means_other_text_decides_and_is_shown_among_many_that_only_lack_tokens():
    less = [text_break("EOS missing", f"r-{i}", changes_meaning=False) for i in range(9)]
    verdict = same_text(read(*less, text_break("BOS missing", "the-one"), *less))
    assert outcome(verdict) == (FAIL, True)
    assert "in rollout the-one the rollout side reads" in verdict.message
    assert "The two sides do not have the same tokenizer" in verdict.message


def test_ids_that_do_not_come_back_fail_inform_only_and_are_spelled():
    verdict = round_trip(broken())
    assert outcome(verdict) == (FAIL, False)
    assert (verdict.value, verdict.limit) == (5, 0)
    assert "5 of 8 completions do not come back" in verdict.message
    assert "(2 by unknown, 2 by whitespace, 1 by another valid segmentation)" in verdict.message
    assert r"rollout r-3 at position 17: sampled a\n|\\xc3|c|d, encoded nothing" in verdict.message
    assert [(e.rollout_id, e.position) for e in verdict.evidence] == [("r-3", 17)]
    assert "another valid segmentation (what was seen)" in verdict.evidence[0].note


# -- special tokens -------------------------------------------------------------------------------------------------


def test_sequences_that_begin_and_end_once_pass():
    verdict = special_tokens(looked_at([BOS, A, A, EOS], [BOS, A, B], []))
    assert outcome(verdict) == (PASS, True)
    assert verdict.message == "none of 3 rollouts begins or ends twice, or begins anew inside."


def test_a_tokenizer_without_a_token_that_begins_a_sequence_is_silent():
    verdict = special_tokens(looked_at([BOS, BOS, A], [A, B], bos=()))
    assert outcome(verdict) == (PASS, True)
    assert "no token that begins a sequence" in verdict.message


def test_bos_in_front_of_every_sequence_twice_fails_with_the_place():
    verdict = special_tokens(looked_at([BOS, BOS, A, B], [BOS, BOS, B, B]))
    assert outcome(verdict) == (FAIL, True)
    assert (verdict.value, verdict.limit) == (2, 0)
    assert verdict.message.startswith(
        "2 of 2 rollouts begin with <s> more than once (BOS doubled), first r-0 at 1. One side encoded"
    )
    assert [(e.rollout_id, e.position, e.note) for e in verdict.evidence] == [
        ("r-0", 1, "doubled: <s>"),
        ("r-1", 1, "doubled: <s>"),
    ]


@pytest.mark.parametrize("row", [[BOS, BOS, A, B], [BOS, A, BOS, B], [BOS, A, B, A, BOS], [BOS, A, B, EOS, EOS]])
def test_one_text_of_a_user_that_spells_the_token_informs_only(row):
    verdict = special_tokens(looked_at(row, *[[BOS, A, B, B]] * 4))
    assert outcome(verdict) == (FAIL, False)
    assert "1 of 5 rollouts" in verdict.message


def test_bos_at_the_start_of_every_completion_fails_and_one_that_the_policy_sampled_informs():
    at_start = special_tokens(looked_at([BOS, A, BOS, B], [BOS, A, BOS, A]))
    assert outcome(at_start) == (FAIL, True)
    assert "(BOS inside), first r-0 at 2" in at_start.message
    sampled = special_tokens(looked_at([BOS, A, B, A, BOS], [BOS, A, B, A, BOS]))
    assert outcome(sampled) == (FAIL, False)


def test_a_completion_that_begins_right_behind_the_first_bos_is_no_fault():
    assert outcome(special_tokens(looked_at([BOS, A, B], [BOS, B], prompt=1))) == (PASS, True)


def test_plain_text_without_the_bos_that_the_tokenizer_adds_fails_and_a_chat_does_not():
    rows = ([A, B, B], [A, A, B])
    missing = special_tokens(looked_at(*rows, raw_text=True))
    assert outcome(missing) == (FAIL, True)
    assert "without the BOS that the tokenizer puts in front (BOS missing)" in missing.message
    assert outcome(special_tokens(looked_at(*rows, raw_text=False))) == (PASS, True)
    assert outcome(special_tokens(looked_at(*rows, raw_text=True, adds_bos=False))) == (PASS, True)


def test_sequences_that_end_twice_fail():
    verdict = special_tokens(looked_at([BOS, A, EOS, EOS], [BOS, B, EOS, EOS], [BOS, B, EOS]))
    assert outcome(verdict) == (FAIL, True)
    assert "2 of 3 rollouts end with </s> twice (EOS doubled), first r-0 at 3" in verdict.message


def test_many_faults_keep_a_few_places_of_each():
    verdict = special_tokens(looked_at(*[[BOS, BOS, A, EOS, EOS]] * 40))
    assert len(verdict.evidence) == 10
    assert verdict.value == 40
