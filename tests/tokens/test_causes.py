"""Each cause planted in tokenizers built here, under the number of its public report; and what must stay silent."""

import json

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from onepolicy.tokens.causes import CAUSES, explain
from onepolicy.tokens.characters import Characters
from onepolicy.tokens.sides import Origin, Reader, Side

SPECIALS = ["<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>"]
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_level(*merges, normalizer=None, specials=SPECIALS):
    """T-BPE: a byte-level vocabulary whose merges are given as "th e"."""
    pairs = [tuple(merge.split(" ")) for merge in merges]
    pieces = [*LETTERS, *("".join(pair) for pair in pairs)]
    tokenizer = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.add_special_tokens(list(specials))
    return tokenizer


def sentence_piece():
    """T-SPM: word starts are marked, and bytes without a piece of their own fall back to <0x..>."""
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "h",
        "e",
        "y",
        "he",
        "▁h",
        "▁he",
    ]
    merges = [("h", "e"), ("▁", "h"), ("▁h", "e")]
    model = models.BPE(
        vocab={piece: i for i, piece in enumerate(pieces)}, merges=merges, byte_fallback=True, unk_token="<unk>"
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer


def words(*vocabulary, bos=True):
    """T-WORD: ids chosen by hand, and a post-processor that puts <s> in front."""
    pieces = ["<unk>", *vocabulary]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(pieces)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(SPECIALS)
    if bos:
        template = [("<s>", tokenizer.token_to_id("<s>"))]
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=template)
    return tokenizer


def ids_of(tokenizer, *pieces):
    return [tokenizer.token_to_id(piece) for piece in pieces]


def found(tokenizer, first, second, *, other=None, **options):
    """The difference between two sides, each given as ids or as a text."""
    reader = Reader(tokenizer)
    sides = []
    for name, given, own in (("sampled", first, reader), ("encoded", second, Reader(other) if other else reader)):
        key = "text" if isinstance(given, str) else "ids"
        sides.append(Side(name=name, reader=own, **{key: given}))
    return explain(*sides, **options)


BPE = byte_level("h e", "l l", "he ll", "hell o", "Ġ hello")
WORD = words("a", "b", "c", "d", "e", "user", "assistant")


# -- K01 ------------------------------------------------------------------------------------------------------------


def test_b01_a_tool_loop_that_encodes_its_text_again_breaks_inside_the_earlier_turn():
    sampled = ids_of(BPE, "<|im_start|>", "a", "Ġ", "hello", "b", "<|im_end|>", "c")
    difference = found(BPE, sampled, BPE.encode("<|im_start|>a hellob<|im_end|>c").ids)
    assert (difference.cause, difference.position) == ("another valid segmentation", 2)
    assert [(p.token_id, p.content) for p in difference.first[:2]] == [
        (BPE.token_to_id("Ġ"), b" "),
        (BPE.token_to_id("hello"), b"hello"),
    ]
    assert difference.second[0].content == b" hello"
    assert difference.shifted == pytest.approx(5 / 7)


def test_b02_more_tokens_than_a_sample_can_have_are_told_beside_the_cause():
    cut_in_a_merge = ids_of(BPE, "a", "hell", "Ã")
    difference = found(BPE, cut_in_a_merge, BPE.encode(BPE.decode(cut_in_a_merge)).ids, cap=3)
    assert difference.cause == "bytes that form no character"
    assert difference.position == 2
    assert difference.seen.endswith("5 tokens are more than the 3 that a sample can have")


def test_b04_ids_made_from_the_text_of_single_tokens_differ_at_isolated_places():
    spm = sentence_piece()
    sampled = ids_of(spm, "▁he", "y", "▁h", "e", "▁he", "y", "<0xC3>", "<0xA9>", "y")
    rebuilt = [(spm.encode(spm.decode([i]), add_special_tokens=False).ids or [0])[0] for i in sampled]
    assert len(rebuilt) == len(sampled)
    assert rebuilt != sampled
    difference = found(spm, sampled, rebuilt)
    assert (difference.cause, difference.position) == ("ids rebuilt token by token", 0)
    assert difference.shifted == pytest.approx(
        sum(a != b for a, b in zip(sampled, rebuilt, strict=True)) / len(sampled)
    )


def test_b05_a_rebuilt_call_and_a_forced_split_in_one_run_are_two_causes():
    call = json.dumps({"b": 1, "a": [2, 3]})
    rebuilt = json.dumps({"b": 1, "a": [2, 3]}, separators=(",", ":"))
    first = found(BPE, f"<|im_start|>{call}<|im_end|>", f"<|im_start|>{rebuilt}<|im_end|>")
    assert (first.cause, first.seen) == (
        "tool-call JSON written anew",
        "the same JSON value, written with other spacing",
    )
    assert first.position == 1 + len('{"b":')
    second = found(BPE, ids_of(BPE, "he", "l", "l", "o"), ids_of(BPE, "hello"))
    assert (second.cause, second.position) == ("another valid segmentation", 0)


# -- K02 ------------------------------------------------------------------------------------------------------------


def test_b06_a_second_bos_in_front_of_a_rendered_text():
    rendered = "<s> user a b assistant"
    trainer = WORD.encode(rendered, add_special_tokens=False).ids
    engine = WORD.encode(rendered, add_special_tokens=True).ids
    difference = found(WORD, trainer, engine)
    assert (difference.cause, difference.position) == ("BOS doubled", 1)
    assert difference.seen == "the encoded ids begin with 2 x <s>, the sampled ids with 1"
    assert found(WORD, engine, trainer).seen == "the sampled ids begin with 2 x <s>, the encoded ids with 1"


@pytest.mark.parametrize("engine_has_it", [True, False])
def test_b07_and_b11_raw_text_that_lost_its_bos(engine_has_it):
    with_it, without = (WORD.encode("a b c", add_special_tokens=special).ids for special in (True, False))
    pair = (with_it, without) if engine_has_it else (without, with_it)
    difference = found(WORD, *pair)
    assert (difference.cause, difference.position) == ("BOS missing", 0)
    assert f"only the {'sampled' if engine_has_it else 'encoded'} ids" in difference.seen


def test_b09_a_bos_before_each_segment_is_found_at_the_boundary():
    prompt, response = WORD.encode("a b").ids, WORD.encode("c d").ids
    once = WORD.encode("a b c d").ids
    difference = found(WORD, once, prompt + response)
    assert (difference.cause, difference.position) == ("BOS inside", 3)
    assert found(WORD, once[3:], response, start=3).cause == "BOS inside"


def test_an_end_token_too_many_or_too_few():
    ended = ids_of(WORD, "a", "b", "</s>")
    twice = found(WORD, ended, [*ended, ended[-1]])
    assert (twice.cause, twice.position) == ("EOS doubled", 3)
    lost = found(WORD, ended, ended[:-1])
    assert (lost.cause, lost.position) == ("EOS missing", 2)


# -- K03, where the text tells --------------------------------------------------------------------------------------


def test_b12_reasoning_that_the_template_removes_is_named_with_its_text():
    before = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
    kept = f"{before}<think>\nfirst i count\n</think>\n\nfour<|im_end|>\n"
    difference = found(BPE, kept, f"{before}four<|im_end|>\n")
    assert difference.cause == "thinking removed"
    assert difference.position == len(BPE.encode(before).ids)
    assert difference.seen == "the encoded text lacks the reasoning '<think>\\nfirst i count\\n</think>\\n\\n'"


def test_an_empty_block_of_reasoning_that_a_template_adds_is_the_same_cause():
    difference = found(BPE, "a<|im_end|>four", "a<|im_end|><think>\n\n</think>\n\nfour")
    assert (difference.cause, difference.position) == ("thinking removed", 2)
    assert "the sampled text lacks" in difference.seen


def test_b18_content_that_a_template_trims():
    difference = found(BPE, "  answer\n<|im_end|>", "answer<|im_end|>")
    assert (difference.cause, difference.position) == ("whitespace", 0)
    assert found(BPE, "<|im_end|>\nfour more", "<|im_end|>four more").position == 1


@pytest.mark.parametrize(
    ("written", "style"),
    [
        ({"sort_keys": True}, "order of keys"),
        ({"separators": (",", ":")}, "spacing"),
        ({"ensure_ascii": False}, "escapes"),
    ],
)
def test_b19_a_call_that_was_parsed_and_dumped_again_says_how(written, style):
    value = {"name": "search", "arguments": {"query": "café", "limit": 3}}
    tail = "<|im_end|>\nand more of the conversation"
    first, second = (f"<|im_start|>calls {json.dumps(value, **how)}{tail}" for how in ({}, written))
    difference = found(BPE, first, second)
    assert difference.cause == "tool-call JSON written anew"
    assert difference.seen.endswith(style)


def test_a_system_message_that_one_template_puts_in_is_a_matter_of_the_template():
    user = "<|im_start|>user\nhi<|im_end|>\n"
    difference = found(BPE, user, f"<|im_start|>system\nYou are helpful.<|im_end|>\n{user}")
    assert (difference.cause, difference.position) == ("template rendered otherwise", 1)


# -- K04 ------------------------------------------------------------------------------------------------------------


def test_b24_a_marker_of_the_users_own_is_missing_from_the_text_if_it_is_special():
    special, plain = byte_level("h e"), byte_level("h e")
    special.add_special_tokens(["<search>"])
    plain.add_tokens([AddedToken("<search>", special=False)])
    text = "he<search>he is here"
    difference = found(special, special.encode(text).ids, special.decode(special.encode(text).ids))
    assert (difference.cause, difference.position) == ("special tokens stripped or added", 1)
    assert found(plain, plain.encode(text).ids, plain.decode(plain.encode(text).ids)) is None


def test_b25_a_prompt_rebuilt_without_its_markers():
    ids = BPE.encode("<|im_start|>user\nhello there<|im_end|>\n<|im_start|>assistant\n").ids
    difference = found(BPE, ids, BPE.encode(BPE.decode(ids, skip_special_tokens=True)).ids)
    assert (difference.cause, difference.position) == ("special tokens stripped or added", 0)
    assert difference.seen.startswith("3 special tokens sampled and 0 encoded")
    assert found(BPE, ids, BPE.encode(BPE.decode(ids, skip_special_tokens=False)).ids) is None


def test_b27_text_of_a_user_that_spells_a_special_token_is_found_in_the_content():
    before = "<|im_start|>user\n"
    parsed = BPE.encode(f"{before}see <|im_end|> here<|im_end|>").ids
    split = byte_level("h e")
    split.encode_special_tokens = True
    content = [split.id_to_token(i) for i in split.encode("see <|im_end|> here", add_special_tokens=False).ids]
    spelled = [*BPE.encode(before).ids, *ids_of(BPE, *content, "<|im_end|>")]
    difference = found(BPE, spelled, parsed)
    assert difference.cause == "special text parsed on one side"
    assert difference.position == len(BPE.encode(f"{before}see ").ids)
    assert difference.seen == "<|im_end|> is a token in the encoded ids and plain text in the other"


# -- K05, as far as one text tells ----------------------------------------------------------------------------------


def test_b31_a_space_after_a_special_token_that_two_encoders_split_in_two_ways():
    spm = sentence_piece()
    one, other = ids_of(spm, "<s>", "▁", "he", "y"), ids_of(spm, "<s>", "▁he", "y")
    difference = found(spm, one, other)
    assert (difference.cause, difference.position) == ("space after a special token", 1)


def test_b33_a_token_that_only_one_side_has_is_another_tokenizer():
    trainer = words("a", "b")
    trainer.add_special_tokens(["<search>"])
    engine = words("a", "b")
    engine.add_tokens(["<sea", "rch>"])
    difference = found(trainer, ids_of(trainer, "a", "<search>"), ids_of(engine, "a", "<sea", "rch>"), other=engine)
    assert (difference.cause, difference.position) == ("other tokenizer", 1)


def test_one_vocabulary_with_other_merges_is_another_tokenizer_and_no_drift():
    one = byte_level("a b", "ab c")
    other = byte_level("b c", "a bc")
    vocabulary = {piece: i for i, piece in enumerate([*LETTERS, "ab", "bc", "abc"])}
    one.model = models.BPE(vocab=vocabulary, merges=[("a", "b")])
    other.model = models.BPE(vocab=vocabulary, merges=[("b", "c")])
    difference = found(one, one.encode("xabc").ids, other.encode("xabc").ids, other=other)
    assert (difference.cause, difference.position) == ("other tokenizer", 1)


# -- K06 ------------------------------------------------------------------------------------------------------------


def test_b35_pieces_decoded_one_by_one_have_marks_in_place_of_characters():
    ids = BPE.encode("so \U0001f642 there").ids
    joined = "".join(BPE.decode([i]) for i in ids)
    difference = found(BPE, ids, joined)
    assert (difference.cause, difference.position) == ("bytes that form no character", 3)
    assert difference.seen == "the encoded text has the mark U+FFFD where the sampled text has a character"


def test_a_character_that_was_cut_off_is_told_with_its_bytes():
    ids = ids_of(BPE, "hello", "ð", "Ł")
    difference = found(BPE, ids, BPE.encode(BPE.decode(ids)).ids)
    assert (difference.cause, difference.position) == ("bytes that form no character", 1)
    assert difference.seen == "the sampled bytes f0 9f form no character"


def test_a_split_before_a_cut_off_character_is_the_first_difference_and_another_cause():
    ids = ids_of(BPE, "he", "ll", "a", "ð")
    assert found(BPE, ids, BPE.encode(BPE.decode(ids)).ids).cause == "another valid segmentation"


def test_b37_an_added_token_that_its_decoder_garbles():
    tokenizer = byte_level("h e")
    tokenizer.add_tokens(["<Grün>"])
    ids = ids_of(tokenizer, "he", "<Grün>", "he")
    difference = found(tokenizer, ids, tokenizer.decode(ids))
    assert (difference.cause, difference.position) == ("added token decoded as other text", 1)
    assert "is decoded as '<Gr\ufffdn>'" in difference.seen


def test_b38_byte_pieces_joined_as_their_names():
    spm = sentence_piece()
    ids = spm.encode("he\nhe\U0001f642", add_special_tokens=False).ids
    joined = "".join(spm.id_to_token(i) for i in ids)
    difference = found(spm, ids, joined)
    assert (difference.cause, difference.position) == ("byte codes in the text", 1)
    assert "<0x0A>" in difference.seen


# -- the rest -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "text", "named", "position"),
    [
        (normalizers.NFC(), "a cafe\u0301 there", "NFC", 5),
        (normalizers.NFKC(), "an ﬁsh there", "NFKC", 3),
        (normalizers.Lowercase(), "so The end of it", "lower case", 3),
        (normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]), "a café there", "accents stripped", 5),
    ],
)
def test_a_normaliser_on_the_scoring_side_is_named(rule, text, named, position):
    sampling, scoring = byte_level(), byte_level(normalizer=rule)
    difference = found(sampling, sampling.encode(text).ids, scoring.encode(text).ids, other=scoring)
    assert (difference.cause, difference.position) == ("normalisation", position)
    assert difference.seen.startswith(f"equal after {named}: ")


def test_a_character_that_the_vocabulary_cannot_spell_is_named():
    letters = [piece for piece in LETTERS if piece != "Ą"]  # the byte 4, as some real vocabularies lack it
    model = models.BPE(vocab={piece: i for i, piece in enumerate(letters)}, merges=[])
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    characters = Characters(Reader(tokenizer))
    text = "end\x04of it"
    back = tokenizer.decode(tokenizer.encode(text).ids)
    difference = explain(
        Side(name="first", text=text, reader=characters), Side(name="returned", text=back, reader=characters)
    )
    assert (difference.cause, difference.position) == ("no token for a character", 3)
    assert difference.seen == "the tokenizer has no token for '\\x04' and leaves it out"


def test_a_tokenizer_that_writes_unknown_for_a_character_is_named_and_one_that_was_sampled_is_not():
    written = found(WORD, ids_of(WORD, "a", "b"), ids_of(WORD, "a", "<unk>"))
    assert written.cause != "no token for a character"
    characters = Characters(Reader(WORD))
    sides = [Side(name=name, text=text, reader=characters) for name, text in (("x", "a é b"), ("y", "a <unk> b"))]
    assert explain(*sides).seen == "the tokenizer has no token for 'é' and writes <unk>"


def test_ids_that_end_earlier_or_begin_later_are_cut():
    ids = BPE.encode("the quick brown fox").ids
    assert found(BPE, ids, ids[:-4]).seen == f"the encoded ids lack the last 4 of {len(ids)}"
    front = found(BPE, ids, ids[5:])
    assert (front.cause, front.position) == ("cut", 0)
    assert front.seen == f"the encoded ids lack the first 5 of {len(ids)}"


def test_ids_of_equal_length_that_stand_further_on_are_shifted():
    ids = BPE.encode("the quick brown fox").ids
    difference = found(BPE, ids, [ids[-1], *ids[:-1]])
    assert (difference.cause, difference.position) == ("shifted", 0)
    assert difference.seen == "from there on the encoded ids stand 1 places later"


def test_what_nothing_explains_is_unknown_and_shows_both_texts():
    difference = found(BPE, "one thing", "two others")
    assert difference.cause == "unknown"
    assert difference.seen == "sampled 'one thing', encoded 'two others'"
    assert "".join(p.text for p in difference.first) == "one thin"


def test_two_texts_without_any_tokenizer_are_compared_by_character():
    difference = explain(Side(name="a", text="xyz Café crème"), Side(name="b", text="xyz Cafe creme"))
    assert (difference.cause, difference.position) == ("normalisation", 7)
    assert (difference.first[0].token_id, difference.first[0].content) == (None, "é crème".encode())


@pytest.mark.parametrize("text", ["", "plain", "<s> b", "naïve \U0001f469\u200d\U0001f469", "tab\tnul\0"])
def test_equal_sides_have_no_difference(text):
    assert found(BPE, BPE.encode(text).ids, text) is None


@pytest.mark.parametrize("ids", [[10**6], [-1], [2**31 - 1]])
def test_ids_that_no_vocabulary_has_are_shown_by_number(ids):
    difference = found(BPE, ids, "a")
    assert difference.cause == "id outside the vocabulary"
    assert difference.first[0].text == f"<{ids[0]}>"


def test_lone_surrogates_and_deep_json_end_in_an_answer():
    assert found(BPE, "a\ud800b", "a?b") is None
    deep = '{"a":' * 3000
    assert found(BPE, f"{deep}1", f"{deep} 1").cause == "whitespace"


def test_every_cause_has_a_name_of_its_own_and_advice_in_one_sentence():
    assert len({cause.name for cause in CAUSES}) == len(CAUSES)
    assert all(cause.advice.endswith(".") and cause.advice.count(". ") == 0 for cause in CAUSES)


LIES_IN = {
    Origin.TOKENIZER: {
        "id outside the vocabulary",
        "special text parsed on one side",
        "added token decoded as other text",
        "space after a special token",
        "other tokenizer",
        "another valid segmentation",
        "no token for a character",
        "byte codes in the text",
        "bytes that form no character",
        "normalisation",
        "ids rebuilt token by token",
    },
    Origin.SPECIALS: {
        "BOS doubled",
        "BOS missing",
        "BOS inside",
        "EOS doubled",
        "EOS missing",
        "special tokens stripped or added",
    },
    Origin.TEXT: {
        "tool-call JSON written anew",
        "thinking removed",
        "whitespace",
        "cut",
        "shifted",
        "template rendered otherwise",
    },
}


def test_every_cause_says_where_it_lies():
    assert {origin: {cause.name for cause in CAUSES if cause.origin is origin} for origin in Origin} == LIES_IN
