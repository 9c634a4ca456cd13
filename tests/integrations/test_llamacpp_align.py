"""Which of the sampled tokens llama.cpp's list of logprobs speaks of."""

import pytest

from onepolicy.integrations.llamacpp.align import (
    complete_positions,
    ends_inside_character,
    only_embedding,
    paired_positions,
)


def one_byte(token_id):
    """A vocabulary in which each id is one byte."""
    return bytes([token_id])


def test_entries_for_every_token_are_paired_in_order():
    assert paired_positions([5, 6, 5], [5, 6, 5], bytes_of=one_byte) == [0, 1, 2]


def test_as_many_entries_as_tokens_but_other_ids_are_not_paired():
    assert paired_positions([5, 6], [6, 5], bytes_of=one_byte) is None


def test_only_the_last_token_of_a_character_has_an_entry():
    text = list("aé介b".encode())
    assert complete_positions(text, bytes_of=one_byte) == [0, 2, 5, 6]
    assert paired_positions(text, [text[at] for at in (0, 2, 5, 6)], bytes_of=one_byte) == [0, 2, 5, 6]


def test_repeated_ids_are_paired_by_the_rule_where_order_alone_would_allow_several_ways():
    lead, middle = 0xE4, 0xBB
    ids = [lead, middle, middle, lead, middle, middle]
    assert only_embedding(ids, [middle, middle]) is None
    assert paired_positions(ids, [middle, middle], bytes_of=one_byte) == [2, 5]


def test_a_completion_cut_inside_a_character_has_no_entry_at_its_end():
    ids = [*b"ab", 0xF0, 0x9F, 0x98]
    assert paired_positions(ids, [97, 98], bytes_of=one_byte) == [0, 1]


def test_an_invalid_lead_byte_swallows_the_bytes_it_is_owed():
    ids = [0xE4, *b"ab", 0xC3, *b"c"]
    assert complete_positions(ids, bytes_of=one_byte) == [2, 4]


def test_a_stray_continuation_byte_counts_as_complete():
    assert complete_positions([0x80, 0xBF], bytes_of=one_byte) == [0, 1]


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        (b"", False),
        (b"a", False),
        (b"\xc3", True),
        (b"\xc3\xa9", False),
        (b"\xe4\xbb", True),
        (b"\xe4\xbb\x8b", False),
        (b"\xf0\x9f\x98", True),
        (b"\xf0\x9f\x98\x80", False),
        (b"\xff", False),
    ],
)
def test_a_text_ends_inside_a_character_while_its_lead_byte_is_owed_bytes(text, inside):
    assert ends_inside_character(text) is inside


def test_tokens_of_unknown_bytes_are_paired_only_if_one_way_exists():
    assert paired_positions([1, 2, 3], [1, 3], bytes_of=lambda _: None) == [0, 2]
    assert paired_positions([1, 2, 2], [1, 2], bytes_of=lambda _: None) is None


def test_entries_that_are_not_among_the_tokens_are_not_paired():
    assert paired_positions([1, 2, 3], [4], bytes_of=lambda _: None) is None


def test_no_entries_belong_to_no_token():
    assert paired_positions([0xE4, 0xBB], [], bytes_of=one_byte) == []
