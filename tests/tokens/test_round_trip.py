import dataclasses

import numpy as np
import pytest

from onepolicy.tokens.round_trip import TokenMeasurement, batches, measure_round_trip


def measured(rollouts, tokenizer):
    result = TokenMeasurement(rollouts=len(rollouts))
    measure_round_trip(rollouts, tokenizer, result)
    return result


def bytes_of(text):
    """The pieces of a byte-level vocabulary that spell these bytes one by one, for bytes below 0x7f and above 0xa0."""
    return [chr(byte) if 0x21 <= byte <= 0x7E or byte >= 0xAE else chr(byte + 0xA2) for byte in text.encode()]


def test_ids_that_the_tokenizer_itself_would_write_come_back(completed, tokenizer):
    result = measured([completed("the", "th", "a", "<|end|>")], tokenizer)
    assert (result.checked, result.causes, result.text_broken) == (1, {}, 0)


def test_another_valid_segmentation_is_found_at_its_position_in_the_full_sequence(completed, tokenizer):
    result = measured([completed("a", "th", "e", "b", prompt=5)], tokenizer)
    assert result.causes == {"another valid segmentation": 1}
    assert result.text_broken == 0
    found = result.breaks[0]
    assert (found.rollout_id, found.position) == ("r-1", 6)
    assert (found.sampled, found.encoded) == (("th", "e", "b"), ("the", "b"))


def test_a_character_that_was_cut_off_is_a_matter_of_bytes_and_no_other_text(completed, tokenizer):
    result = measured([completed("a", *bytes_of("é")[:1])], tokenizer)
    assert result.causes == {"bytes that form no character": 1}
    assert result.text_broken == 0
    assert result.breaks[0].position == 4
    assert result.breaks[0].sampled == ("\ufffd",)


@pytest.mark.parametrize("text", ["a", "a\ufffd", "a\ufffd\ufffd\ufffd"])
def test_engines_may_write_any_number_of_marks_for_bytes_that_form_no_character(completed, tokenizer, text):
    result = measured([completed("a", *bytes_of("é")[:1], text=text)], tokenizer)
    assert result.text_broken == 0


def test_ids_that_mean_other_text_to_the_trainer_are_shown_from_just_before_the_difference(
    completed, tokenizer, other_tokenizer
):
    same, other = completed("a", text="a"), completed(*"0123456789abc", text="0123456789abX", name="r-2")
    result = measured([same, other], tokenizer)
    assert (result.checked, result.text_broken, result.causes) == (2, 1, {"the text changes": 1})
    found = result.text_breaks[0]
    assert (found.rollout_id, found.sampling_text, found.scoring_text) == ("r-2", "456789abX", "456789abc")
    assert result.breaks[0].position == 3 + 12
    shifted = measured([same], other_tokenizer)
    assert (shifted.text_broken, shifted.text_breaks[0].scoring_text) == (1, "b")


def test_marks_in_front_of_the_difference_do_not_hide_it(completed, tokenizer):
    text = "\ufffd" * 60 + "x"
    result = measured([completed(*bytes_of("é")[:1], "y", text=text)], tokenizer)
    assert (result.text_breaks[0].sampling_text, result.text_breaks[0].scoring_text) == ("x", "y")


def test_a_completion_that_encodes_to_fewer_or_more_ids_breaks_where_the_shorter_one_ends(completed, tokenizer):
    longer = measured([completed("a", "b", text="a")], tokenizer).breaks[0]
    assert (longer.position, longer.sampled, longer.encoded) == (4, ("b",), ())
    shorter = measured([completed("a", text="ab")], tokenizer).breaks[0]
    assert (shorter.position, shorter.sampled, shorter.encoded) == (4, (), ("b",))


def test_only_the_first_breaks_are_kept_and_all_are_counted(completed, tokenizer):
    rows = [completed("th", "e", name=f"r-{i}") for i in range(300)]
    result = measured(rows, tokenizer)
    assert result.checked == 300
    assert result.causes == {"another valid segmentation": 300}
    assert [found.rollout_id for found in result.breaks] == [f"r-{i}" for i in range(5)]


def test_rollouts_without_a_text_or_without_a_completion_are_not_checked(completed, tokenizer):
    empty = completed(text="")
    untold = dataclasses.replace(completed("a"), text=None)
    assert measured([empty, untold], tokenizer).checked == 0


def test_padding_and_truncation_in_the_tokenizer_file_break_nothing(completed, tokenizer):
    tokenizer.enable_padding(length=8)
    tokenizer.enable_truncation(2)
    assert measured([completed("a", "b", "c", "d"), completed("a")], tokenizer).causes == {}


def test_a_completion_starts_at_the_first_compared_token_and_ends_with_the_sequence(completed, tokenizer):
    rollout = completed("a", "b", "c", "d", text="bcd")
    sampled = np.array([False] * 4 + [True, False, True])
    assert measured([dataclasses.replace(rollout, sampled=sampled)], tokenizer).causes == {}


def test_batches_hold_everything_once(completed):
    rows = [completed("a", name=str(i)) for i in range(7)]
    assert [[r.rollout_id for r in batch] for batch in batches(rows, 3)] == [
        ["0", "1", "2"],
        ["3", "4", "5"],
        ["6"],
    ]
