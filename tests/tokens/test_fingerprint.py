"""The same tokenizer has the same fingerprint however it is stored; any change of a part changes that part's hash."""

import copy
import json

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from onepolicy.errors import TokenizerError
from onepolicy.tokens import fingerprint, open_tokenizer
from onepolicy.tokens.parts import parts_of
from onepolicy.tokens.tokenizer import StoredTokenizer


def stored(tokenizer, **others):
    pipeline = tokenizer if isinstance(tokenizer, dict) else json.loads(tokenizer.to_str())
    return StoredTokenizer(origin="built", format="tokenizer.json", pipeline=pipeline, **others)


def pipeline_of(tokenizer, **others):
    return json.loads(tokenizer.to_str()) | others


def differing(one, other):
    return {name for name in one.parts if one.parts[name] != other.parts[name]}


def test_a_fingerprint_is_the_same_for_a_path_and_for_what_is_loaded(trained, saved):
    folder = saved(trained())
    assert fingerprint(str(folder)).hash == fingerprint(folder).hash == fingerprint(open_tokenizer(str(folder))).hash
    assert fingerprint(trained()).hash == fingerprint(folder).hash


def test_a_released_fingerprint_stays_what_it_is():
    built = Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "ab": 2}, merges=[("a", "b")]))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    assert fingerprint(built).hash == "451e622c05c05c44"


def with_merges_as_texts(pipeline):
    pipeline["model"]["merges"] = [" ".join(merge) for merge in pipeline["model"]["merges"]]


def with_the_vocabulary_in_another_order(pipeline):
    pipeline["model"]["vocab"] = dict(reversed(pipeline["model"]["vocab"].items()))


def with_defaults_left_out(pipeline):
    model = pipeline["model"]
    pipeline["model"] = {name: model[name] for name in ("type", "vocab", "merges")}


def with_defaults_written_differently(pipeline):
    pipeline["model"] |= {"continuing_subword_prefix": "", "end_of_word_suffix": "", "dropout": None}


def with_the_pattern_written_out(pipeline):
    gpt2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    split = {"type": "Split", "pattern": {"Regex": gpt2}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    pipeline["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, level]}


def with_empty_and_nested_sequences(pipeline):
    inner = {"type": "Sequence", "pretokenizers": [pipeline["pre_tokenizer"]]}
    pipeline["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [inner]}
    pipeline["normalizer"] = {"type": "Sequence", "normalizers": []}


def with_offsets_trimmed(pipeline):
    pipeline["post_processor"] = {
        "type": "ByteLevel",
        "add_prefix_space": True,
        "trim_offsets": True,
        "use_regex": True,
    }


def with_a_post_processor_that_adds_nothing(pipeline):
    alone = [{"Sequence": {"id": "A", "type_id": 0}}]
    pair = [*alone, {"Sequence": {"id": "B", "type_id": 1}}]
    pipeline["post_processor"] = {"type": "TemplateProcessing", "single": alone, "pair": pair, "special_tokens": {}}


def with_truncation(pipeline):
    pipeline["truncation"] = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}


SAME = [value for name, value in list(globals().items()) if name.startswith("with_")]


@pytest.mark.parametrize("change", SAME, ids=lambda change: change.__name__)
def test_the_same_tokenizer_stored_otherwise_has_the_same_fingerprint(change, trained):
    pipeline = pipeline_of(trained())
    changed = copy.deepcopy(pipeline)
    change(changed)
    assert json.dumps(changed) != json.dumps(pipeline)
    assert stored(changed).tokenizer().encode("the 12  x\n").ids == trained().encode("the 12  x\n").ids
    assert fingerprint(stored(changed)) == fingerprint(stored(pipeline))


def test_an_added_token_is_the_same_whether_or_not_the_vocabulary_has_it_too(trained):
    built = trained()
    built.add_special_tokens(["<new>"])
    outside = pipeline_of(built)
    inside = copy.deepcopy(outside)
    inside["model"]["vocab"]["<new>"] = built.token_to_id("<new>")
    assert fingerprint(stored(inside)) == fingerprint(stored(outside))


def test_digits_and_the_pattern_that_they_stand_for_are_the_same(trained):
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    by_name = trained(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), level]))
    pipeline = pipeline_of(by_name)
    pipeline["pre_tokenizer"]["pretokenizers"][0] = {
        "type": "Split",
        "pattern": {"Regex": r"\p{N}"},
        "behavior": "Isolated",
        "invert": False,
    }
    assert fingerprint(stored(pipeline)) == fingerprint(by_name_stored := stored(by_name))
    text = "a1²③Ⅻ٣ 12"
    assert stored(pipeline).tokenizer().encode(text).ids == by_name_stored.tokenizer().encode(text).ids


def test_gguf_and_a_folder_of_the_same_tokenizer_differ_only_in_their_format(trained, byte_level_entries, saved, gguf):
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built = trained(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), level]))
    folder = fingerprint(saved(built, chat_template="{{ x }}", bos_token="<s>", eos_token="</s>"))
    entries = byte_level_entries(built, pre="smollm", bos_token_id=0, eos_token_id=1)
    file = fingerprint(gguf(entries, **{"tokenizer.chat_template": "{{ x }}"}))
    assert differing(folder, file) == {"versions"}
    assert file.hash == folder.hash


def test_a_setting_that_repeats_what_the_pipeline_does_is_no_difference(trained):
    built = trained()
    built.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    special = {"bos_token": "<s>"}
    quiet = fingerprint(stored(built, special=special))
    assert fingerprint(stored(built, special=special, settings={"add_bos_token": True})) == quiet
    assert fingerprint(stored(built, special=special, settings={"clean_up_tokenization_spaces": False})) == quiet
    contradiction = fingerprint(stored(built, special=special, settings={"add_bos_token": False}))
    assert contradiction.hash != quiet.hash


def another(part, pipeline):
    """The pipeline with one part changed."""
    changed = copy.deepcopy(pipeline)
    model = changed["model"]
    if part == "vocabulary":
        a, b = list(model["vocab"])[5:7]
        model["vocab"][a], model["vocab"][b] = model["vocab"][b], model["vocab"][a]
    elif part == "merges":
        model["merges"][0], model["merges"][1] = model["merges"][1], model["merges"][0]
    elif part == "added tokens":
        changed["added_tokens"][0]["lstrip"] = True
    elif part == "model options":
        model["ignore_merges"] = True
    else:
        key = {"normalizer": "normalizer", "pre-tokenizer": "pre_tokenizer", "decoder": "decoder"}[part]
        changed[key] = {
            "normalizer": {"type": "NFC"},
            "pre-tokenizer": {**pipeline["pre_tokenizer"], "add_prefix_space": True},
            "decoder": {"type": "Fuse"},
        }[part]
    return changed


@pytest.mark.parametrize(
    "part", ["vocabulary", "merges", "added tokens", "normalizer", "pre-tokenizer", "model options", "decoder"]
)
def test_a_changed_part_changes_its_own_hash_and_the_whole(part, trained):
    pipeline = pipeline_of(trained())
    before, after = fingerprint(stored(pipeline)), fingerprint(stored(another(part, pipeline)))
    assert differing(before, after) == {part}
    assert before.hash != after.hash


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("special tokens", {"special": {"bos_token": "<s>"}}),
        ("chat template", {"templates": {"default": "{{ x }} "}}),
        ("settings", {"settings": {"clean_up_tokenization_spaces": True}}),
    ],
)
def test_a_changed_configuration_changes_its_own_hash_and_the_whole(part, change, trained):
    plain = {"special": {}, "templates": {"default": "{{ x }}"}, "settings": {}}
    before, after = fingerprint(stored(trained(), **plain)), fingerprint(stored(trained(), **(plain | change)))
    assert differing(before, after) == {part}
    assert before.hash != after.hash


def test_a_post_processor_is_compared_by_what_it_puts_around_a_text(trained):
    built, other = trained(), trained()
    built.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    other.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    assert fingerprint(built) == fingerprint(other)
    other.post_processor = processors.RobertaProcessing(("</s>", 1), ("<|im_end|>", 2))
    assert fingerprint(built).parts["post-processor"] != fingerprint(other).parts["post-processor"]


def test_versions_change_no_hash_of_the_whole(trained):
    old, new = (stored(trained(), versions={"transformers": version}) for version in ("4.40", "5.1"))
    assert fingerprint(old).parts["versions"] != fingerprint(new).parts["versions"]
    assert fingerprint(old).hash == fingerprint(new).hash


def test_an_unknown_token_with_the_id_0_is_not_taken_for_none():
    known, unknown = (Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)], unk_id=unk)) for unk in (0, None))
    assert fingerprint(known).hash != fingerprint(unknown).hash


def test_scores_of_a_unigram_vocabulary_count():
    one, other = (Tokenizer(models.Unigram([("<unk>", 0.0), ("a", score)], unk_id=0)) for score in (-1.0, -2.0))
    assert fingerprint(one).parts["vocabulary"] != fingerprint(other).parts["vocabulary"]


def test_a_lone_surrogate_in_a_template_has_a_fingerprint(trained):
    assert fingerprint(stored(trained(), templates={"default": "\ud800"})).hash


def test_what_is_no_tokenizer_has_no_fingerprint(tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a c"]}}')
    with pytest.raises(TokenizerError):
        fingerprint(tmp_path)


def test_parts_of_legacy_files_without_a_type_are_read(trained):
    pipeline = pipeline_of(trained())
    del pipeline["model"]["type"]
    assert fingerprint(stored(pipeline)) == fingerprint(stored(trained()))
    assert parts_of(stored(pipeline), stored(pipeline).tokenizer())["model options"] == {"type": "BPE"}
