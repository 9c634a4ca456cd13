import dataclasses

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from onepolicy.tokens.round_trip import RoundTrip, Sample, TokenMeasurement, measure_round_trip, sample_of
from onepolicy.tokens.sides import Reader


def measured(rollouts, scoring, sampling=None, **options):
    result = TokenMeasurement(rollouts=len(rollouts))
    trip = RoundTrip(sampling=Reader(sampling) if sampling else None, scoring=Reader(scoring))
    measure_round_trip(rollouts, trip, result, **options)
    return result


def outcomes(samples, scoring, sampling=None):
    reader = Reader(scoring)
    own = Reader(sampling) if sampling else reader
    return list(RoundTrip(sampling=own, scoring=reader).outcomes(samples))


def bytes_of(text):
    """The pieces of a byte-level vocabulary that spell these bytes one by one, for bytes below 0x7f and above 0xa0."""
    return [chr(byte) if 0x21 <= byte <= 0x7E or byte >= 0xAE else chr(byte + 0xA2) for byte in text.encode()]


def texts(pieces):
    return tuple(piece.text for piece in pieces)


def test_ids_that_the_tokenizer_itself_would_write_come_back(completed, tokenizer):
    result = measured([completed("the", "th", "a", "<|end|>")], tokenizer)
    assert (result.checked, result.tokens, result.causes, result.text_causes, result.text_broken) == (1, 4, {}, {}, 0)


def test_another_valid_segmentation_is_found_at_its_position_in_the_full_sequence(completed, tokenizer):
    result = measured([completed("a", "th", "e", "b", prompt=5)], tokenizer)
    assert result.causes == {"another valid segmentation": 1}
    assert (result.text_broken, result.text_causes) == (0, {})
    found = result.breaks[0]
    assert (found.rollout_id, found.difference.position) == ("r-1", 6)
    assert (texts(found.difference.first), texts(found.difference.second)) == (("th", "e", "b"), ("the", "b"))
    assert found.difference.shifted == result.shifted == pytest.approx(3 / 4)


def test_a_character_that_was_cut_off_is_a_matter_of_bytes_and_no_other_text(completed, tokenizer):
    result = measured([completed("a", *bytes_of("é")[:1])], tokenizer)
    assert result.causes == {"bytes that form no character": 1}
    assert result.text_broken == 0
    assert result.breaks[0].difference.position == 4
    assert result.breaks[0].difference.first[0].content == b"\xc3"


@pytest.mark.parametrize("text", ["a", "a\ufffd", "a\ufffd\ufffd\ufffd"])
def test_engines_may_write_any_number_of_marks_for_bytes_that_form_no_character(completed, tokenizer, text):
    result = measured([completed("a", *bytes_of("é")[:1], text=text)], tokenizer)
    assert result.text_broken == 0


def test_ids_that_mean_other_text_to_the_trainer_are_shown_from_just_before_the_difference(
    completed, tokenizer, other_tokenizer
):
    same, other = completed("a", text="a"), completed(*"0123456789abc", text="0123456789abX", name="r-2")
    result = measured([same, other], tokenizer)
    assert (result.checked, result.text_broken, list(result.causes.values())) == (2, 1, [1])
    found = result.text_breaks[0]
    assert (found.rollout_id, found.expected, found.found) == ("r-2", "456789abX", "456789abc")
    assert result.breaks[0].difference.position == 3 + 12
    shifted = measured([same], other_tokenizer)
    assert (shifted.text_broken, shifted.text_breaks[0].found) == (1, "b")


def test_two_known_tokenizers_that_read_an_id_as_two_texts_are_named_as_such(completed, tokenizer, other_tokenizer):
    result = measured([completed("a", "b")], other_tokenizer, tokenizer)
    assert result.reading_causes == {"other tokenizer": 1}
    assert result.other_meaning == 1
    assert result.text_breaks[0].difference.position == 0


def test_marks_in_front_of_the_difference_do_not_hide_it(completed, tokenizer):
    text = "\ufffd" * 60 + "x"
    result = measured([completed(*bytes_of("é")[:1], "y", text=text)], tokenizer)
    assert (result.text_breaks[0].expected, result.text_breaks[0].found) == ("x", "y")


def test_a_text_without_its_end_token_is_another_text_in_which_the_ids_mean_the_same(completed, tokenizer):
    result = measured([completed("a", "b", "<|end|>", text="ab")], tokenizer)
    assert result.causes == result.reading_causes == {"EOS missing": 1}
    assert result.other_meaning == 0


def test_marks_where_there_are_characters_are_told(completed, tokenizer):
    ids = bytes_of("î")
    result = measured([completed("a", *ids, "b", text="a\ufffdb")], tokenizer)
    assert result.causes == {"bytes that form no character": 1}
    assert result.reading_causes == {"bytes that form no character": 1}


def test_a_completion_that_encodes_to_fewer_or_more_ids_breaks_where_the_shorter_one_ends(completed, tokenizer):
    longer = measured([completed("a", "b", text="a")], tokenizer).breaks[0].difference
    assert (longer.position, texts(longer.first), longer.second) == (4, ("b",), ())
    shorter = measured([completed("a", text="ab")], tokenizer).breaks[0].difference
    assert (shorter.position, shorter.first, texts(shorter.second)) == (4, (), ("b",))


def test_only_the_first_breaks_are_kept_and_all_are_counted(completed, tokenizer):
    rows = [completed("th", "e", name=f"r-{i}") for i in range(1300)]
    result = measured(rows, tokenizer)
    assert result.checked == 1300
    assert result.causes == {"another valid segmentation": 1300}
    assert [found.rollout_id for found in result.breaks] == [f"r-{i}" for i in range(5)]


def test_rollouts_without_a_text_or_without_a_completion_are_not_checked(completed, tokenizer):
    empty = completed(text="")
    untold = dataclasses.replace(completed("a"), text=None)
    assert measured([empty, untold], tokenizer).checked == 0


def test_padding_and_truncation_in_the_tokenizer_break_nothing_and_stay_as_they_were(completed, tokenizer):
    tokenizer.enable_padding(length=8)
    tokenizer.enable_truncation(2)
    assert measured([completed("a", "b", "c", "d"), completed("a")], tokenizer).causes == {}
    assert (tokenizer.padding["length"], tokenizer.truncation["max_length"]) == (8, 2)


def test_a_completion_starts_at_the_first_compared_token_and_ends_with_the_sequence(completed, tokenizer):
    rollout = completed("a", "b", "c", "d", text="bcd")
    sampled = np.array([False] * 4 + [True, False, True])
    one = dataclasses.replace(rollout, sampled=sampled)
    assert measured([one], tokenizer).causes == {}
    assert (sample_of(one).start, len(sample_of(one).ids)) == (4, 3)


def test_more_tokens_than_a_completion_may_have_are_told(completed, tokenizer):
    result = measured([completed("th", *bytes_of("é")[:1])], tokenizer, cap=2)
    assert "4 tokens are more than the 2" in result.breaks[0].difference.seen


def test_ids_without_a_text_are_decoded_and_a_text_without_ids_is_encoded_by_the_sampling_side(tokenizer):
    known = tokenizer.encode("the end").ids
    by_ids, by_text, empty = outcomes(
        [Sample(name="i", ids=known), Sample(name="t", text="the end"), Sample(name="e", ids=[])], tokenizer
    )
    for one in (by_ids, by_text, empty):
        assert (one.ids, one.text, one.reading) == (None, None, None)
    assert (by_ids.tokens, by_text.tokens, empty.tokens) == (len(known), len(known), 0)


def test_a_text_that_the_scoring_side_normalises_does_not_come_back(tokenizer):
    scoring = Tokenizer.from_str(tokenizer.to_str())
    scoring.normalizer = normalizers.Lowercase()
    found = outcomes([Sample(name="t", text="see The end")], scoring, tokenizer)[0]
    assert (found.ids.difference.cause, found.text.difference.cause) == ("normalisation", "normalisation")
    assert (found.text.difference.position, found.text.expected, found.text.found) == (4, "see The end", "see the end")
    assert found.reading is None


def test_samples_come_out_in_order_whatever_their_length(tokenizer):
    samples = [Sample(name=str(i), ids=[i % 200] * (70_000 if i % 3 == 0 else 5)) for i in range(20)]
    assert [one.name for one in outcomes(samples, tokenizer)] == [str(i) for i in range(20)]


@pytest.mark.parametrize("ids", [[-1], [10**9], [2**40]])
def test_ids_that_the_vocabulary_lacks_do_not_come_back(tokenizer, ids):
    assert outcomes([Sample(name="r", ids=ids)], tokenizer)[0].ids.difference.cause == "id outside the vocabulary"


@pytest.mark.parametrize("text", ["nul\0inside", "a" * 1_000_000, "\u202e\u200d", "tab\t\r\n"])
def test_hard_texts_come_back(tokenizer, text):
    found = outcomes([Sample(name="t", text=text)], tokenizer)[0]
    assert (found.ids, found.text) == (None, None)


MARKED = "<|think|>"


@pytest.fixture
def marked(tokenizer):
    """With two special tokens more, of which one begins a sequence, and " \\xf0" as one token."""
    tokenizer.add_special_tokens([MARKED, "<s>", "<|eot|>"])
    return tokenizer


def read_as(tokenizer, text, ids):
    """What is said of a server's text, against the text of the ids here."""
    return outcomes([Sample(name="r", text=text, ids=ids)], tokenizer)[0].reading


def of(tokenizer, text, after=()):
    return [*tokenizer.encode(text).ids, *(tokenizer.token_to_id(piece) for piece in after)]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("alpha beta gamma delta no", MARKED + " alpha beta gamma delta yes"),
        ("nothing of the kind at all", "<s> alpha beta gamma"),
        ("alpha beta", "<s> alpha beta gamma"),
        ("alpha", "alpha beta<|end|>"),
        ("", "<s> alpha"),
        ("alpha<|eot|>", "alpha<|end|>"),
        ("<s>" + MARKED + "alpha", MARKED + "<s>alpha"),
        ("alpha <s> beta", "alpha beta"[:-1] + "s"),
    ],
)
def test_other_text_behind_a_special_token_that_was_left_out_is_other_text(marked, text, read):
    assert read_as(marked, text, of(marked, read)).changes_meaning


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("alpha beta", MARKED + " alpha beta<|end|>"),
        ("alpha beta", "<s>alpha" + MARKED + " beta<|end|><|end|>"),
        ("alpha beta<|end|><|end|>", "alpha beta<|end|>"),
        ("<s>alpha", "alpha"),
        ("", "<s><|end|>"),
    ],
)
def test_a_text_that_lacks_nothing_but_special_tokens_is_no_other_text(marked, text, read):
    assert not read_as(marked, text, of(marked, read)).changes_meaning


def test_what_differs_behind_a_special_token_is_shown_and_named_and_not_the_token(marked):
    found = read_as(marked, "alpha beta no", of(marked, MARKED + "alpha beta yes"))
    assert (found.expected, found.found) == ("ha beta no", "ha beta yes")
    assert found.difference.cause != "special tokens stripped or added"


BROKEN = bytes_of("\U0001f600")
"""four bytes that form one character together"""


@pytest.mark.parametrize(
    ("text", "read", "after", "changes"),
    [
        ("", "hello ", BROKEN[:1], True),  # complete tokens before the unfinished character
        ("hell", "hello", BROKEN[:3], True),
        ("hello", "hello", [*BROKEN[:3], "<|end|>"], False),
        ("hello", "hello", BROKEN[:3], None),
        ("hello", "hello ", BROKEN[:1], True),
        ("hello\ufffd", "hello", [*BROKEN[:1], "<|end|>"], False),
        ("hell", "hello", [*BROKEN, "<|end|>"], True),
        ("hello", "hello", BROKEN, True),  # a whole character is never held back
    ],
)
def test_only_pieces_with_an_unfinished_character_may_be_held_back(marked, text, read, after, changes):
    found = read_as(marked, text, of(marked, read, after))
    assert (found.changes_meaning if found else None) is changes


def test_a_piece_that_holds_text_and_the_start_of_a_character_may_be_held_back_whole(marked):
    """As vLLM's text 'ako:\\n\\n1.' of ids that read 'ako:\\n\\n1. ' and the first bytes of a character."""
    merged = byte_level_with_space_and_start()
    start = merged.token_to_id("\u0120" + BROKEN[0])
    ids = [*merged.encode("ako:\n\n1.").ids, start]
    assert merged.decode(ids) == "ako:\n\n1. \ufffd"
    held = read_as(merged, "ako:\n\n1.", ids)
    assert (held.difference.cause, held.changes_meaning) == ("end held back", False)
    assert read_as(merged, "ako:\n\n1", ids).changes_meaning
    assert read_as(merged, "", ids).changes_meaning


def test_a_long_run_of_bytes_that_form_no_character_holds_back_no_more_than_a_few_tokens(marked):
    ids = of(marked, "a long text that the server does not have", BROKEN[:1] * 30)
    assert read_as(marked, "a long text", ids).changes_meaning
    assert read_as(marked, "a long text that the server does not have", ids) is None


def byte_level_with_space_and_start():
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pair = ("\u0120", BROKEN[0])
    vocabulary = {piece: i for i, piece in enumerate([*letters, "".join(pair)])}
    built = Tokenizer(models.BPE(vocab=vocabulary, merges=[pair]))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    built.decoder = decoders.ByteLevel()
    return built
