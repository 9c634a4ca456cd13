"""Token classes and pieces: byte-level, SentencePiece with byte fallback, and ids that no token has."""

import json

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from onepolicy.tokens.classes import CLASSES, class_of, classes_in, classes_of
from onepolicy.tokens.pieces import Pieces, byte_alphabet


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("the", "Latin letters"),
        (" über", "Latin letters"),
        ("介绍", "Chinese characters"),
        ("ひら", "Japanese kana"),
        ("カタ", "Japanese kana"),
        ("한국", "Korean letters"),
        ("привет", "Cyrillic letters"),
        ("سلام", "Arabic letters"),
        ("שלום", "Hebrew letters"),
        ("ไทย", "Thai letters"),
        ("ქართული", "other letters"),
        (" 2024", "digits"),
        ("٣", "digits"),
        ("x2", "Latin letters"),
        (" == ", "code symbols"),
        ("});", "code symbols"),
        ("!\n", "punctuation"),
        ("。", "punctuation"),
        ("😀", "other symbols"),
        ("\n\n  ", "whitespace"),
        ("", "unknown"),
    ],
)
def test_a_text_has_the_class_that_a_person_would_give_it(text, name):
    assert class_of(text.encode()) == name


def test_what_is_no_text_has_a_class_too():
    assert class_of("😀".encode()[:2]) == "partial bytes"
    assert class_of(None) == "unknown"
    assert class_of(b"<|end|>", special=True) == "special"


def test_the_byte_alphabet_is_that_of_the_tokenizers_library():
    assert set(byte_alphabet()) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(byte_alphabet().values()) == list(range(256))


def test_byte_level_pieces_are_the_bytes_of_the_text(tokenizer):
    pieces = Pieces(tokenizer)
    for text in ("the end", "介 😀", "\n\t"):
        ids = tokenizer.encode(text).ids
        assert b"".join(pieces.bytes_of(i) for i in ids) == text.encode()
        assert pieces.joined(np.array(ids, dtype=np.int32)) == text


def test_half_a_character_is_shown_as_its_bytes_and_left_out_of_joined_text(tokenizer):
    ids = np.array(tokenizer.encode("é").ids, dtype=np.int32)
    pieces = Pieces(tokenizer)
    assert pieces.texts_of(ids) == (r"\xc3", r"\xa9")
    assert pieces.joined(ids[1:]) == ""


def test_special_and_unknown_ids_are_named(tokenizer):
    pieces = Pieces(tokenizer)
    end = tokenizer.token_to_id("<|end|>")
    assert (pieces.is_special(end), pieces.text_of(end)) == (True, "<|end|>")
    assert pieces.text_of(99_999) == "<99999>"
    assert pieces.text_of(-1) == "<-1>"


def test_every_id_of_a_vocabulary_has_a_class(tokenizer, tmp_path):
    classes = classes_of(tokenizer)
    assert len(classes) == tokenizer.get_vocab_size()
    assert CLASSES[classes[tokenizer.token_to_id("the")]] == "Latin letters"
    assert CLASSES[classes[tokenizer.token_to_id("<|end|>")]] == "special"
    assert CLASSES[classes[tokenizer.token_to_id("Ġ")]] == "whitespace"
    tokenizer.save(str(tmp_path / "t.json"))
    assert (classes_in(tmp_path / "t.json") == classes).all()


def test_sentencepiece_vocabularies_are_read_too():
    vocabulary = {"<unk>": 0, "▁hello": 1, "<0xE9>": 2, "▁": 3}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    pieces = Pieces(tokenizer)
    assert [pieces.bytes_of(i) for i in range(1, 5)] == [b" hello", b"\xe9", b" ", b"<s>"]
    names = [CLASSES[c] for c in classes_of(tokenizer)]
    assert names[1:] == ["Latin letters", "partial bytes", "whitespace", "special"]


def test_a_vocabulary_with_holes_keeps_its_ids():
    tokenizer = Tokenizer(models.WordLevel(vocab={"a": 0, "b": 5}, unk_token="a"))
    assert [CLASSES[c] for c in classes_of(tokenizer)] == ["Latin letters", *["unknown"] * 4, "Latin letters"]
    assert json.loads(tokenizer.to_str())["decoder"] is None
