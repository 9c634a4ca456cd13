"""The pieces that causes are made of, and that no pair of sides whatever ends in anything but an answer."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from onepolicy.tokens.boundaries import boundaries_of
from onepolicy.tokens.causes import CAUSES, explain
from onepolicy.tokens.characters import Characters
from onepolicy.tokens.json_style import json_difference
from onepolicy.tokens.sides import Compared, Reader, Side, common_prefix

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())


def built(*specials, merges=(("t", "h"),)):
    pieces = [*LETTERS, *("".join(merge) for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(specials))
    return tokenizer


READERS = [Reader(built("<s>", "</s>")), Reader(built("<bos>", merges=(("e", "r"), ("t", "h"))))]
CHARACTERS = Characters(READERS[0])
NAMES = {cause.name for cause in CAUSES} | {"unknown"}

some_ids = st.lists(st.integers(-2, 270), max_size=12)
some_text = st.text(alphabet='the<s>/{"a": 1},é\u0301 \n<0x0A>�', max_size=24)
some_side = st.one_of(
    st.builds(lambda ids, r: {"ids": ids, "reader": r}, some_ids, st.sampled_from(READERS)),
    st.builds(lambda text, r: {"text": text, "reader": r}, some_text, st.sampled_from([*READERS, CHARACTERS, None])),
)


@settings(max_examples=400, deadline=None)
@given(some_side, some_side, st.integers(0, 5))
def test_any_two_sides_end_in_one_named_cause_at_their_first_difference(a, b, start):
    if (a["reader"] is CHARACTERS) != (b["reader"] is CHARACTERS):
        b = a | {"reader": a["reader"]}
    first, second = Side(name="sampled", **a), Side(name="encoded", **b)
    difference = explain(first, second, start=start)
    compared = Compared(first, second, start=start)
    if difference is None:
        assert compared.ids[0] == compared.ids[1]
        return
    assert difference.cause in NAMES
    assert difference.seen
    assert 0 <= difference.shifted <= 1
    at = difference.position - start
    assert compared.ids[0][:at] == compared.ids[1][:at]


@given(st.text(alphabet="ab", max_size=9), st.text(alphabet="ab", max_size=9))
def test_the_common_prefix_is_what_counting_gives(a, b):
    counted = 0
    while counted < min(len(a), len(b)) and a[counted] == b[counted]:
        counted += 1
    assert common_prefix(a, b) == counted


def test_tokens_that_begin_and_end_a_sequence_are_known_by_name_and_by_what_the_tokenizer_adds():
    def spelled(tokenizer, ids):
        return {tokenizer.id_to_token(i) for i in ids}

    llama = built("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|start_header_id|>")
    assert spelled(llama, boundaries_of(llama).bos) == {"<|begin_of_text|>"}
    assert spelled(llama, boundaries_of(llama).eos) == {"<|end_of_text|>", "<|eot_id|>"}
    assert not boundaries_of(llama).adds_bos
    deepseek = built("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>")
    assert spelled(deepseek, boundaries_of(deepseek).bos) == {"<｜begin▁of▁sentence｜>"}
    odd = built("[CLS]", "[SEP]")
    odd.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(name, odd.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    )
    found = boundaries_of(odd)
    assert (spelled(odd, found.bos), spelled(odd, found.eos), found.adds_bos) == ({"[CLS]"}, {"[SEP]"}, True)


@pytest.mark.parametrize("names", [(), ("<|im_start|>", "<|im_end|>"), ("<|endoftext|>",)])
def test_a_marker_of_roles_and_an_end_are_no_beginning(names):
    assert boundaries_of(built(*names)).bos == frozenset()


@pytest.mark.parametrize("text", ["", "the <s> end</s>", "<s><s>", "é\U0001f642", "</s"])
def test_characters_spell_the_text_again_with_added_tokens_as_one(text):
    ids = CHARACTERS.encode(text)
    assert CHARACTERS.decode(ids) == text
    assert len(ids) == len(text) - 2 * text.count("<s>") - 3 * text.count("</s>")


def test_json_is_told_apart_by_order_then_spacing_then_escapes():
    value = {"b": "é", "a": [1, {"c": None}]}
    plain = "x " + json.dumps(value)

    def against(**how):
        other = "x " + json.dumps(value, **how)
        return json_difference(plain, other, at=common_prefix(plain, other))

    assert against(sort_keys=True) == "order of keys"
    assert against(indent=1) == "spacing"
    assert against(ensure_ascii=False) == "escapes"
    assert json_difference('x {"a": 1}', 'x {"a": 2}', at=8) is None
    assert json_difference("no json", "at all", at=0) is None
