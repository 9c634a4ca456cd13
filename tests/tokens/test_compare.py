"""Planted differences between two tokenizers are found, named by class of text, and shown on the shortest text."""

import copy
import itertools
import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from onepolicy.errors import TokenizerError
from onepolicy.tokens import open_tokenizer
from onepolicy.tokens.compare import Pair, compare_tokenizers
from onepolicy.tokens.open import as_stored
from onepolicy.tokens.pieces import Pieces
from onepolicy.tokens.probes import ENDS, Probe, probes
from onepolicy.tokens.shrink import LONGEST_EXCERPT, shortest, shrunk

SPECIAL = ["<s>", "</s>", "[INST]"]


def compared(a, b):
    return compare_tokenizers(as_stored(a), as_stored(b))


def different_parts(comparison):
    return {part.name for part in comparison.parts if not part.same}


def classes(comparison):
    return {kind.name for kind in comparison.classes if kind.differ}


def detail(comparison, name):
    return "\n".join(next(part.detail for part in comparison.parts if part.name == name))


def changed(tokenizer, change):
    pipeline = json.loads(tokenizer.to_str())
    change(pipeline)
    return Tokenizer.from_str(json.dumps(pipeline))


def boundary_marker(scheme):
    """A vocabulary with a marker for spaces, put in front of a text always, or of its first word only."""
    pieces = ["<unk>", "▁", *(f"<0x{i:02X}>" for i in range(256)), "h", "i", "hi", "▁hi", "▁▁", "▁▁hi"]
    merges = [("h", "i"), ("▁", "hi"), ("▁", "▁"), ("▁", "▁hi")]
    built = Tokenizer(
        models.BPE({p: i for i, p in enumerate(pieces)}, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    built.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    built.add_special_tokens(SPECIAL)
    return built


def words(*more):
    vocabulary = {word: i for i, word in enumerate(["<unk>", "find", "the", "answer", "search", "<", ">"])}
    built = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    built.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.Split(Regex("[<>]"), "isolated")]
    )
    built.add_special_tokens(list(more))
    return built


# planted: B29 to B34


def test_b29_digits_that_a_new_version_splits_differently_are_named(trained):
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    together = trained(level)
    apart = copy.deepcopy(together)
    apart.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), level])
    assert together.get_vocab() == apart.get_vocab()
    comparison = compared(together, apart)
    assert comparison.exit_status == 1
    assert different_parts(comparison) == {"pre-tokenizer"}
    assert comparison.a_fingerprint.hash != comparison.b_fingerprint.hash
    assert "digits" in classes(comparison)
    of_parts = {"mixed", "other numerals"}
    assert all(name.startswith(("digits", "long digits")) for name in classes(comparison) - of_parts)
    assert any(character.isnumeric() for character in comparison.shortest.text)


def test_b30_a_boundary_put_in_front_always_or_first_only_shows_after_a_special_token():
    comparison = compared(boundary_marker("always"), boundary_marker("first"))
    assert different_parts(comparison) == {"pre-tokenizer"}
    assert "after a special token" in classes(comparison)
    assert not classes(comparison) & {"words", "digits", "Chinese", "whitespace runs", "leading space"}
    assert any(token in comparison.shortest.text for token in SPECIAL)
    assert comparison.shortest.text[-1] not in "> "
    assert (comparison.shortest.a_pieces[-1], comparison.shortest.a_pieces[-2]) != comparison.shortest.b_pieces[-2:]


def test_b31_a_space_after_a_special_token_that_is_split_differently_keeps_its_text():
    """One side writes a double boundary and the bare word, the other a lone boundary and the word with its own."""
    plain = boundary_marker("never")
    plain.normalizer = normalizers.Prepend("▁")
    plain.decoder = decoders.Metaspace(prepend_scheme="never")
    word_first = [["h", "i"], ["▁", "hi"], ["▁", "▁"]]
    double = changed(plain, lambda p: p["model"].update(merges=[word_first[2], *word_first[:2]]))
    lone = changed(plain, lambda p: p["model"].update(merges=word_first))
    comparison = compared(double, lone)
    assert different_parts(comparison) == {"merges"}
    assert "after a special token" in classes(comparison)
    found = Pair(double, lone).difference("X[INST] hi", with_ends=False)
    assert (found.a_pieces[-2:], found.b_pieces[-2:]) == (("  ", "hi"), (" ", " hi"))
    assert found.a_text == found.b_text
    assert comparison.shortest.kind == "ids"


def test_b33_a_token_that_only_the_trainer_has_is_listed_and_its_text_shown():
    comparison = compared(words("<search>"), words())
    assert different_parts(comparison) == {"added tokens"}
    assert "1 only in A: '<search>' (7)" in detail(comparison, "added tokens")
    assert "texts of added tokens that differ" in classes(comparison)
    assert not classes(comparison) & {"words", "digits", "code", "Chinese", "control characters"}
    assert comparison.shortest.text == "<search>"
    assert comparison.shortest.a_ids == (7,)
    assert comparison.shortest.b_ids == (5, 4, 6)


def test_b34_control_characters_that_one_side_takes_for_spaces_are_named(trained):
    plain = trained(pre_tokenizers.ByteLevel(add_prefix_space=False))
    other = copy.deepcopy(plain)
    control = Regex(r"[\x00-\x08\x0e-\x1f\x7f]")
    other.normalizer = normalizers.Replace(control, " ")
    comparison = compared(plain, other)
    assert different_parts(comparison) == {"normalizer"}
    assert classes(comparison) == {"control characters"}
    assert len(comparison.shortest.text) == 1
    assert ord(comparison.shortest.text) < 32 or comparison.shortest.text == "\x7f"


# planted: others


@pytest.mark.parametrize("form", ["NFC", "NFKC", "NFD"])
def test_a_normal_form_that_one_side_applies_shows_in_what_it_changes(form, trained):
    other = trained()
    other.normalizer = getattr(normalizers, form)()
    comparison = compared(trained(), other)
    changed_by = {"NFC": "accents, decomposed", "NFKC": "compatibility forms", "NFD": "accents, composed"}
    assert changed_by[form] in classes(comparison)
    assert "words" not in classes(comparison)
    assert detail(comparison, "normalizer") == f"in A: nothing\nin B: {form}"


def test_bos_that_one_side_adds_shows_only_at_the_ends(trained):
    other = trained()
    other.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    comparison = compared(trained(), other)
    assert different_parts(comparison) == {"post-processor"}
    assert classes(comparison) == {ENDS}
    assert comparison.shortest.with_ends
    assert comparison.shortest.b_ids == (0, *comparison.shortest.a_ids)
    assert detail(comparison, "post-processor") == "in A: the text\nin B: 0, the text"


def test_a_decoder_that_drops_a_space_shows_as_text_of_equal_ids(trained):
    other = changed(
        trained(),
        lambda p: p.update(
            decoder={
                "type": "Sequence",
                "decoders": [p["decoder"], {"type": "Strip", "content": " ", "start": 1, "stop": 0}],
            }
        ),
    )
    comparison = compared(trained(), other)
    assert different_parts(comparison) == {"decoder"}
    assert comparison.shortest.kind == "text"
    assert (comparison.shortest.a_text, comparison.shortest.b_text) == (" ", "")
    assert comparison.shortest.a_ids == comparison.shortest.b_ids


def test_two_ids_that_are_swapped_are_named_and_shown(trained):
    built = trained()
    first, second = (piece for piece, i in built.get_vocab().items() if i in (300, 301))
    ids = built.get_vocab()

    def swap(pipeline):
        pipeline["model"]["vocab"] |= {first: ids[second], second: ids[first]}

    comparison = compared(built, changed(built, swap))
    assert different_parts(comparison) == {"vocabulary"}
    assert "2 with another id" in detail(comparison, "vocabulary")
    texts = {Pieces(built).bytes_of(i).decode(errors="ignore") for i in (300, 301)}
    assert any(text in comparison.shortest.text or comparison.shortest.text in text for text in texts)


def test_merges_in_another_order_are_named_by_rank(trained):
    def swap(pipeline):
        merges = pipeline["model"]["merges"]
        merges[0], merges[1] = merges[1], merges[0]

    built = trained()
    comparison = compared(built, changed(built, swap))
    assert different_parts(comparison) == {"merges"}
    assert "first difference at rank 0" in detail(comparison, "merges")


def test_an_added_token_that_strips_the_space_before_it_shows_before_it(trained):
    def strip(pipeline):
        pipeline["added_tokens"][0]["lstrip"] = True

    comparison = compared(trained(), changed(trained(), strip))
    assert "1 with another lstrip: '<s>' false in A, true in B" in detail(comparison, "added tokens")
    assert "before a special token" in classes(comparison)
    assert comparison.shortest.text == " <s>"


def test_a_template_is_compared_by_line_and_column(trained, saved):
    a = saved(trained(), name="a", chat_template="one\ntwo {{ x }}\nthree")
    b = saved(trained(), name="b", chat_template="one\ntwo {{ y }}\nthree")
    comparison = compare_tokenizers(open_tokenizer(str(a)), open_tokenizer(str(b)))
    assert different_parts(comparison) == {"chat template"}
    assert comparison.exit_status == 1
    assert detail(comparison, "chat template").startswith("'default', line 2, column 8:")


def test_a_text_that_only_one_side_refuses_is_a_difference():
    refuses = Tokenizer(models.WordLevel({"a": 0}, unk_token="<unk>"))
    takes = Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    comparison = compared(refuses, takes)
    assert comparison.exit_status == 1
    assert comparison.shortest.a_ids is None
    assert comparison.shortest.b_ids == (1,)


# controls


def test_a_tokenizer_is_the_same_as_itself_and_as_one_trained_again(trained):
    comparison = compared(trained(), trained())
    assert (comparison.same, comparison.exit_status, comparison.shortest) == (True, 0, None)
    assert not classes(comparison)
    assert comparison.a_fingerprint == comparison.b_fingerprint


def test_other_versions_alone_are_shown_and_decide_nothing(trained, saved):
    sides = [saved(trained(), name=name, transformers_version=name) for name in ("4.40", "5.1")]
    comparison = compare_tokenizers(*(open_tokenizer(str(side)) for side in sides))
    assert different_parts(comparison) == {"versions"}
    assert comparison.exit_status == 0


def test_gguf_and_folder_of_one_tokenizer_report_nothing_but_the_format(trained, byte_level_entries, saved, gguf):
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built = trained(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), level]))
    folder = saved(built, bos_token="<s>", eos_token="</s>")
    file = gguf(byte_level_entries(built, pre="smollm", bos_token_id=0, eos_token_id=1))
    comparison = compare_tokenizers(open_tokenizer(str(folder)), open_tokenizer(str(file)))
    assert different_parts(comparison) == {"versions"}
    assert comparison.exit_status == 0
    assert not classes(comparison)


def test_a_model_with_padding_entries_is_compared_to_the_end(trained):
    def pad(pipeline):
        vocabulary = pipeline["model"]["vocab"]
        vocabulary |= {f"[PAD{i}]": i for i in range(len(vocabulary), len(vocabulary) + 64)}

    comparison = compared(trained(), changed(trained(), pad))
    assert different_parts(comparison) == {"vocabulary"}
    assert "64 only in B" in detail(comparison, "vocabulary")
    assert comparison.shortest is None  # no text becomes one; an engine that samples one writes another text
    assert comparison.exit_status == 1


# bad input


def test_an_entry_of_a_megabyte_is_named_and_does_not_fill_the_report(trained):
    other = trained()
    other.add_tokens([AddedToken("y" * 1_000_000, normalized=False)])
    comparison = compared(trained(), other)
    assert different_parts(comparison) == {"added tokens"}
    assert len(detail(comparison, "added tokens")) < 500


def test_bytes_that_form_no_text_are_compared_by_their_parts(trained):
    built = trained()
    letter = Pieces(built)
    partial = [piece for piece, i in built.get_vocab().items() if letter.bytes_of(i) in (b"\xf0", b"\xf1")]

    def swap(pipeline):
        a, b = partial
        vocabulary = pipeline["model"]["vocab"]
        vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]

    comparison = compared(built, changed(built, swap))
    assert different_parts(comparison) == {"vocabulary"}
    assert "rare characters" in classes(comparison)
    assert comparison.shortest.text.encode()[0] in (0xF0, 0xF1)


def test_what_is_no_tokenizer_is_not_compared(trained, tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a c"]}}')
    with pytest.raises(TokenizerError):
        compare_tokenizers(as_stored(trained()), open_tokenizer(str(tmp_path)))


# the shortest text


@given(st.text("abc", min_size=1, max_size=12), st.text("abc", min_size=1, max_size=6))
def test_the_shortest_text_is_the_shortest_that_leaving_out_characters_can_give(text, needle):
    def contains(tried):
        return [_has(candidate, needle) for candidate in tried]

    if not _has(text, needle):
        return
    assert shortest([text], contains) == needle
    assert shrunk(text, contains) == needle


def _has(text, needle):
    """The characters of `needle` in order, whatever stands between."""
    rest = iter(text)
    return all(character in rest for character in needle)


@given(st.text("ab<>", min_size=1, max_size=30))
def test_of_a_shrunk_text_no_character_can_be_left_out(text):
    def shows(tried):
        return [candidate.count("a") >= 2 or "<>" in candidate for candidate in tried]

    if shows([text])[0]:
        small = shrunk(text, shows)
        assert shows([small])[0]
        assert not any(shows([small[:i] + small[i + 1 :]])[0] for i in range(len(small)))


@given(st.lists(st.text("abcd", min_size=1, max_size=8), min_size=1, max_size=4), st.text("abcd", max_size=3))
def test_no_excerpt_of_up_to_four_characters_is_shorter_than_what_is_found(texts, needle):
    def shows(tried):
        return [needle in candidate and bool(candidate) for candidate in tried]

    texts = [text for text in texts if needle in text]
    excerpts = {text[i:j] for text in texts for i, j in itertools.combinations(range(len(text) + 1), 2)}
    hits = [excerpt for excerpt in excerpts if needle in excerpt]
    found = shortest(texts, shows)
    assert found is None if not hits else len(found) == min(map(len, hits))
    assert LONGEST_EXCERPT == 4


# probes


def test_every_probe_can_be_encoded_and_is_there_once():
    everything = list(probes(["<s>"]))
    assert len(everything) == len(set(everything)) > 250
    assert all(probe.text.encode() and "{special}" not in probe.text for probe in everything)
    kinds = {probe.kind for probe in everything}
    asked = {"digits", "long digits", "Chinese", "Japanese", "Korean", "emoji sequences", "code", "control characters"}
    assert asked | {"special-token text", "after a special token", "byte order mark", ENDS} <= kinds


def test_each_control_character_and_normal_form_that_the_cases_need_is_a_probe():
    texts = "".join(probe.text for probe in probes([]))
    assert set(map(chr, [*range(4), 7, 8, *range(0x1B, 0x20), 0x7F, 0x85, 0x200B, 0x200D, 0x202A, 0xFEFF])) <= set(
        texts
    )
    assert {"é", "\u0301", "ﬁ", "\u3099"} <= set(texts)


def test_digits_are_only_in_the_classes_that_are_about_them():
    about = ("digits", "numerals", "mixed", "alphabets")
    others = [probe for probe in probes(["<s>"]) if not any(word in probe.kind for word in about)]
    assert [probe for probe in others if any(unicodedata.category(c)[0] == "N" for c in probe.text)] == []


def test_probes_with_a_special_token_are_made_for_each():
    both = [probe for probe in probes(["<a>", "<b>"]) if probe.kind == "after a special token"]
    assert Probe(kind="after a special token", text="X<a> Y") in both
    assert Probe(kind="after a special token", text="X<b> Y") in both
    assert [probe for probe in probes([]) if probe.kind == "after a special token"] == []
