"""Opening tokenizers: every place and form, and every way in which the files can be wrong."""

import contextlib
import copy
import json
import random
import struct
from contextlib import suppress

import pytest
from tokenizers import processors

from onepolicy.errors import TokenizerError
from onepolicy.tokens import fingerprint, open_tokenizer
from onepolicy.tokens.open import MAX_FILE, as_stored
from onepolicy.tokens.probes import probes

TEXT = "the search  12 你好 it's\n\n"


def ids(stored, text=TEXT, *, add=False):
    return stored.tokenizer().encode(text, add_special_tokens=add).ids


# where it lies


def test_a_folder_and_its_file_are_the_same_tokenizer(trained, saved):
    folder = saved(trained(), bos_token="<s>", eos_token={"content": "</s>", "lstrip": False}, add_bos_token=False)
    for target in (folder, folder / "tokenizer.json"):
        stored = open_tokenizer(str(target))
        assert ids(stored) == trained().encode(TEXT).ids
        assert stored.special == {"bos_token": "<s>", "eos_token": "</s>"}
        assert stored.settings == {"add_bos_token": False}


def test_a_file_of_another_name_is_a_pipeline_without_configuration(trained, saved, tmp_path):
    folder = saved(trained(), bos_token="<s>")
    (folder / "tokenizer.json").rename(tmp_path / "other.json")
    stored = open_tokenizer(str(tmp_path / "other.json"))
    assert ids(stored) == trained().encode(TEXT).ids
    assert stored.special == {}


def test_a_hub_id_is_read_from_the_local_cache_and_never_downloaded(trained, saved, tmp_path, monkeypatch):
    repository = tmp_path / "hub" / "models--some--model"
    folder = saved(trained())
    for part in ("snapshots", "refs"):
        (repository / part).mkdir(parents=True)
    folder.rename(repository / "snapshots" / "abc")
    (repository / "refs" / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    assert ids(open_tokenizer("some/model")) == trained().encode(TEXT).ids
    with pytest.raises(TokenizerError, match=r"local cache of the hub does not have it\. Download it first"):
        open_tokenizer("another/model")


def test_a_loaded_tokenizer_is_taken_as_it_is(trained):
    assert ids(as_stored(trained())) == trained().encode(TEXT).ids
    stored = open_tokenizer
    with pytest.raises(TokenizerError, match="a function is no tokenizer"):
        as_stored(stored)


@pytest.mark.parametrize(
    ("config", "files", "expected"),
    [
        ({"chat_template": "a"}, {}, {"default": "a"}),
        ({"chat_template": [{"name": "default", "template": "a"}, {"name": "rag", "template": "b"}]}, {}, "ab"),
        ({}, {"chat_template.json": '{"chat_template": "a"}'}, {"default": "a"}),
        ({"chat_template": "old"}, {"chat_template.jinja": "a"}, {"default": "a"}),
        ({"chat_template": "a"}, {"additional_chat_templates/rag.jinja": "b"}, "ab"),
        ({"chat_template": None}, {}, {}),
    ],
)
def test_templates_are_found_in_every_form_in_which_they_are_stored(config, files, expected, trained, saved):
    expected = {"default": "a", "rag": "b"} if expected == "ab" else expected
    assert open_tokenizer(str(saved(trained(), files=files, **config))).templates == expected


def test_special_tokens_may_stand_in_a_file_of_their_own_and_the_configuration_counts_more(trained, saved):
    files = {"special_tokens_map.json": json.dumps({"bos_token": {"content": "<s>"}, "eos_token": "<s>"})}
    stored = open_tokenizer(str(saved(trained(), files=files, eos_token="</s>")))
    assert stored.special == {"bos_token": "<s>", "eos_token": "</s>"}


def test_an_added_token_that_only_the_configuration_has_is_matched_as_transformers_does(trained, saved):
    built = trained()
    new = {"content": "<search>", "special": True, "lstrip": False, "rstrip": False, "normalized": False}
    folder = saved(built, added_tokens_decoder={str(built.get_vocab_size()): new})
    assert ids(open_tokenizer(str(folder)), "<search>") == [built.get_vocab_size()]


def test_truncation_and_padding_that_a_file_carries_are_switched_off(trained, saved):
    built = trained()
    built.enable_truncation(2)
    built.enable_padding(length=64)
    assert ids(open_tokenizer(str(saved(built)))) == trained().encode(TEXT).ids


# what is wrong with it

BROKEN = {
    "": "is not JSON",
    "{": "is not JSON",
    "[" * 200_000: "is not JSON",
    "\0\x01\x02": "is not JSON",
    "[]": "holds a JSON list, not an object",
    "{}": "has no key 'model'",
    '{"model": []}': "has no key 'model'",
    '{"model": {"type": "BPE", "vocab": {}, "merges": []}, "added_tokens": 1}': "'added_tokens' that is no list",
}
UNUSABLE = {
    '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}}': "Token `b` out of vocabulary",
    '{"model": {"type": "BPE", "vocab": {"\\ud800": 0}, "merges": []}}': "its parts do not make a tokenizer",
    '{"model": {"type": "Made", "vocab": {}, "merges": []}}': "its parts do not make a tokenizer",
    '{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}': "its parts do not make a tokenizer",
    '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "pre_tokenizer": 5}': "do not make a tokenizer",
}


FATAL = {
    "lacks the prefix of pieces inside a word": {"model": {"continuing_subword_prefix": "##"}},
    "fails when it encodes a text": {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<none>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [],
            "special_tokens": {},
        }
    },
    "Precompiled": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}},
}
"""found -> what makes the library end the process or panic"""


@pytest.mark.parametrize("found", FATAL)
def test_what_the_library_itself_fails_on_is_refused(found, trained, saved):
    pipeline = json.loads(trained().to_str())
    change = FATAL[found]
    pipeline |= change if "model" not in change else {"model": pipeline["model"] | change["model"]}
    with pytest.raises(TokenizerError, match=found):
        open_tokenizer(str(saved(pipeline))).tokenizer()


def places(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(items)[:30]:
        yield from places(item, (*path, key))


def test_a_damaged_tokenizer_file_is_refused_or_read_and_never_anything_else(trained, saved):
    built = trained()
    built.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    whole = {"tokenizer.json": json.loads(built.to_str())}
    added = {"0": {"content": "<s>", "special": True}}
    whole["tokenizer_config.json"] = {"bos_token": "<s>", "add_bos_token": True, "added_tokens_decoder": added}
    folder = saved(whole["tokenizer.json"])
    draw, all_places = random.Random(0), [path for path in places(whole) if len(path) > 1]
    junk = [None, 0, -1, 1e9, 2**63, "", "x", "\ud800", [], {}, [1], {"a": 1}, True, [[]]]
    for _ in range(300):
        changed = copy.deepcopy(whole)
        *way, last = draw.choice(all_places)
        inner = changed
        for key in way:
            inner = inner[key]
        inner[last] = draw.choice(junk)
        for name, content in changed.items():
            (folder / name).write_text(json.dumps(content))
        with suppress(TokenizerError):
            fingerprint(folder)


@pytest.mark.parametrize("content", BROKEN, ids=range(len(BROKEN)))
def test_a_tokenizer_file_that_is_none_is_refused_with_what_it_is(content, tmp_path):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerError, match=BROKEN[content]):
        open_tokenizer(str(tmp_path))


@pytest.mark.parametrize("content", UNUSABLE, ids=range(len(UNUSABLE)))
def test_parts_that_do_not_fit_together_are_refused_when_the_tokenizer_is_built(content, tmp_path):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerError, match=UNUSABLE[content]):
        open_tokenizer(str(tmp_path)).tokenizer()


def test_a_binary_file_is_refused(tmp_path):
    (tmp_path / "model.bin").write_bytes(bytes(range(256)) * 100)
    with pytest.raises(TokenizerError, match="is not JSON"):
        open_tokenizer(str(tmp_path / "model.bin"))


def test_a_file_larger_than_any_tokenizer_is_not_read(tmp_path):
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate(MAX_FILE + 1)
    with pytest.raises(TokenizerError, match=f"has {MAX_FILE + 1} bytes, more than any tokenizer"):
        open_tokenizer(str(tmp_path))


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ((), "It holds nothing"),
        (("config.json",), "It holds config.json"),
        (("tokenizer.model",), "It has tokenizer.model, .*save_pretrained"),
        (("vocab.json", "merges.txt"), "It has vocab.json, "),
        (("m.Q4.gguf",), "It has m.Q4.gguf: give that file"),
    ],
)
def test_a_folder_without_a_tokenizer_says_what_it_holds_and_what_to_do(names, found, tmp_path):
    for name in names:
        (tmp_path / name).write_text("")
    with pytest.raises(TokenizerError, match=found):
        open_tokenizer(str(tmp_path))


@pytest.mark.parametrize("target", ["", "absent", "./some/model", "/no/such/tokenizer.json", "a/b/c", "a\0b"])
def test_a_target_that_is_nowhere_is_refused_with_what_could_be_given(target):
    with pytest.raises(TokenizerError, match="Give a model's folder"):
        open_tokenizer(target)


def test_a_path_that_the_system_refuses_is_refused_with_its_reason():
    with pytest.raises(TokenizerError, match="File name too long"):
        open_tokenizer("x" * 500)


# GGUF


def test_a_byte_level_tokenizer_gives_the_same_ids_from_gguf(trained, byte_level_entries, gguf):
    stored = open_tokenizer(str(gguf(byte_level_entries(trained(), bos_token_id=0, eos_token_id=1))))
    for probe in probes(["<s>", "<|im_end|>"]):
        assert ids(stored, probe.text) == trained().encode(probe.text).ids, probe
    assert stored.special == {"bos_token": "<s>", "eos_token": "</s>"}


def test_gguf_of_version_2_is_read_too(trained, byte_level_entries, gguf_bytes, tmp_path):
    metadata = {f"tokenizer.ggml.{name}": value for name, value in byte_level_entries(trained()).items()}
    (tmp_path / "a.bin").write_bytes(gguf_bytes(metadata, version=2))  # known by its content, not by its name
    assert ids(open_tokenizer(str(tmp_path / "a.bin"))) == trained().encode(TEXT).ids


@pytest.mark.parametrize(("pre", "flags", "first"), [("llama-bpe", {}, 0), ("gpt-2", {"add_bos_token": True}, 0)])
def test_bos_is_added_where_llama_cpp_or_the_file_says_so(pre, flags, first, trained, byte_level_entries, gguf):
    entries = byte_level_entries(trained(), pre=pre, bos_token_id=0, eos_token_id=1, **flags)
    stored = open_tokenizer(str(gguf(entries)))
    assert ids(stored, "x", add=True) == [first, *ids(stored, "x")]
    assert ids(open_tokenizer(str(gguf({**entries, "add_bos_token": False}))), "x", add=True) == ids(stored, "x")


def test_a_vocabulary_with_scores_falls_back_to_bytes_and_puts_a_space_in_front(sentence_piece, gguf):
    stored = open_tokenizer(str(gguf(sentence_piece)))
    built = stored.tokenizer()
    assert built.encode("☃", add_special_tokens=False).tokens == ["▁", "<0xE2>", "<0x98>", "<0x83>"]
    assert built.decode(built.encode("the ☃", add_special_tokens=False).ids) == "the ☃"
    assert built.encode("x").ids[0] == 1


def test_templates_of_a_gguf_file_are_found_by_name(trained, byte_level_entries, gguf):
    whole = {"tokenizer.chat_template": "a", "tokenizer.chat_template.rag": "b", "tokenizer.chat_templates": ["rag"]}
    assert open_tokenizer(str(gguf(byte_level_entries(trained()), **whole))).templates == {"default": "a", "rag": "b"}


def small(byte_level_entries, trained):
    return byte_level_entries(trained(vocab_size=260), bos_token_id=0)


def test_a_gguf_file_that_ends_anywhere_is_refused(trained, byte_level_entries, gguf, tmp_path):
    whole = gguf(small(byte_level_entries, trained)).read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in [*range(600), *range(600, len(whole), 7), len(whole) - 1]:
        cut.write_bytes(whole[:length])
        with pytest.raises(TokenizerError):
            open_tokenizer(str(cut))


def test_a_damaged_gguf_file_is_refused_or_read_and_never_anything_else(trained, byte_level_entries, gguf, tmp_path):
    whole = gguf(small(byte_level_entries, trained)).read_bytes()
    draw = random.Random(0)
    bad = tmp_path / "bad.gguf"
    for _ in range(600):
        content = bytearray(whole)
        content[draw.randrange(4, len(whole))] = draw.randrange(256)
        bad.write_bytes(content)
        with suppress(TokenizerError):
            open_tokenizer(str(bad)).tokenizer()


HUGE = 1 << 60
LYING = {
    "claims 1152921504606846976 metadata entries": b"GGUF" + struct.pack("<IQQ", 3, 0, HUGE),
    "claims a list of 1000000 texts": struct.pack("<IIQ", 9, 8, 1_000_000),
    "has a list of 1152921504606846976 items": struct.pack("<IIQ", 9, 8, HUGE),
    "more are announced": struct.pack("<IIQ", 9, 4, 1 << 20),
    "has a text of 1152921504606846976 bytes": struct.pack("<IQ", 8, HUGE),
    "a list of items of the type 9": struct.pack("<IIQIQ", 9, 9, 1, 4, 0),
    "value of the unknown type 99": struct.pack("<I", 99),
    "a text that is not UTF-8": struct.pack("<IQ", 8, 2) + b"\xff\xfe",
}


@pytest.mark.parametrize("found", LYING)
def test_a_gguf_file_is_not_believed_about_its_own_sizes(found, tmp_path):
    key = b"tokenizer.ggml.tokens"
    start = b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, len(key)) + key
    content = LYING[found] if LYING[found].startswith(b"GGUF") else start + LYING[found]
    (tmp_path / "bad.gguf").write_bytes(content)
    with pytest.raises(TokenizerError, match=rf"{found}.*\(byte \d+\)"):
        open_tokenizer(str(tmp_path / "bad.gguf"))


@pytest.mark.parametrize(
    ("version", "found"), [(struct.pack("<I", 1), "version 1"), (struct.pack(">I", 3), "big-endian GGUF")]
)
def test_another_version_of_gguf_is_named(version, found, tmp_path):
    (tmp_path / "old.gguf").write_bytes(b"GGUF" + version + bytes(16))
    with pytest.raises(TokenizerError, match=found):
        open_tokenizer(str(tmp_path / "old.gguf"))


def test_a_gguf_file_that_is_none_is_refused(tmp_path):
    (tmp_path / "no.gguf").write_bytes(b"<html>not found</html>")
    with pytest.raises(TokenizerError, match="does not begin as a GGUF file does"):
        open_tokenizer(str(tmp_path / "no.gguf"))


WRONG = {
    "names the pre-tokenizer 'made-up'": {"pre": "made-up"},
    "a tokenizer of the kind 'bert'": {"model": "bert"},
    "and ids from 0 to": {"bos_token_id": 999_999},
    "not as many entries in tokenizer.ggml.token_type": {"token_type": [1, 1]},
    "has the merge 'ab', which is not two pieces": {"merges": ["ab"]},
    "other things than texts in tokenizer.ggml.merges": {"merges": [1, 2]},
    "neither true nor false": {"add_bos_token": 1},
}


@pytest.mark.parametrize("found", WRONG)
def test_metadata_that_makes_no_tokenizer_is_refused_by_name(found, trained, byte_level_entries, gguf):
    with pytest.raises(TokenizerError, match=found):
        open_tokenizer(str(gguf(byte_level_entries(trained()) | WRONG[found])))


@pytest.mark.parametrize("name", ["tokens", "merges"])
def test_metadata_that_is_missing_is_named(name, trained, byte_level_entries, gguf):
    entries = byte_level_entries(trained())
    del entries[name]
    with pytest.raises(TokenizerError, match=f"has no tokenizer.ggml.{name}"):
        open_tokenizer(str(gguf(entries)))


def test_a_token_that_a_gguf_file_has_twice_is_refused(trained, byte_level_entries, gguf):
    entries = byte_level_entries(trained())
    entries["tokens"][-1] = entries["tokens"][5]
    with pytest.raises(TokenizerError, match="twice"):
        open_tokenizer(str(gguf(entries)))


def test_a_metadata_key_that_a_gguf_file_has_twice_is_refused(gguf_bytes, tmp_path):
    once = gguf_bytes({"tokenizer.ggml.model": "gpt2"}, count=2)
    (tmp_path / "twice.gguf").write_bytes(once + once[24:])
    with pytest.raises(TokenizerError, match="twice"):
        open_tokenizer(str(tmp_path / "twice.gguf"))


def test_a_gguf_file_without_a_tokenizer_says_so(gguf):
    with pytest.raises(TokenizerError, match="has no tokenizer; of GGUF files, gpt2 and llama are read"):
        open_tokenizer(str(gguf({})))


def test_a_vocabulary_entry_of_a_megabyte_is_read(trained, byte_level_entries, gguf):
    entries = byte_level_entries(trained())
    entries["tokens"].append("x" * 1_000_000)
    entries["token_type"].append(4)
    assert ids(open_tokenizer(str(gguf(entries))), "x" * 1_000_000) == [len(entries["tokens"]) - 1]


def test_a_scored_token_whose_merges_would_take_for_ever_is_refused(sentence_piece, gguf):
    entries = {
        name: [*value, value[-1]] if isinstance(value, list) else value for name, value in sentence_piece.items()
    }
    entries["tokens"][-1] = "x" * 1_000_000
    with pytest.raises(TokenizerError, match="too long to be split, the longest of 1000000 characters"):
        open_tokenizer(str(gguf(entries)))


def test_many_long_scored_tokens_are_refused_before_any_is_split(sentence_piece, gguf):
    """2 MB, which took seconds: the work grows with the square of each length."""
    entries = sentence_piece | {
        "tokens": [*sentence_piece["tokens"], *(f"{i:04}" + "x" * 16_000 for i in range(120))],
        "token_type": [*sentence_piece["token_type"], *[1] * 120],
        "scores": [*sentence_piece["scores"], *[-1.0] * 120],
    }
    with pytest.raises(TokenizerError, match="the longest of 16004 characters"):
        open_tokenizer(str(gguf(entries)))


NOT_FINITE = [float("nan"), float("inf"), -float("inf")]


@pytest.mark.parametrize("score", NOT_FINITE)
def test_a_score_by_which_nothing_can_be_ranked_is_refused(score, sentence_piece, gguf):
    scores = [*sentence_piece["scores"][:-1], score]
    with pytest.raises(TokenizerError, match=r"among its tokenizer\.ggml\.scores"):
        open_tokenizer(str(gguf(sentence_piece | {"scores": scores})))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("token_type", lambda count: ["4"] * count),
        ("token_type", lambda count: [4.0] * count),
        ("token_type", lambda count: [True] * count),
        ("scores", lambda count: ["1"] * count),
        ("scores", lambda count: [False] * count),
    ],
)
def test_columns_of_another_type_are_refused_and_no_added_token_is_lost(name, values, sentence_piece, gguf):
    wrong = {name: values(len(sentence_piece["tokens"]))}
    with pytest.raises(TokenizerError, match=rf"in tokenizer\.ggml\.{name}, which is no number of its kind"):
        open_tokenizer(str(gguf(sentence_piece | wrong)))


KEYS = (
    *("model", "pre", "tokens", "token_type", "scores", "merges", "bos_token_id", "eos_token_id", "unknown_token_id"),
    *("padding_token_id", "add_bos_token", "add_eos_token", "add_space_prefix"),
)
VALUES = (True, 7, 2**31, 0.5, float("nan"), "", "text", [], [1], [True], [0.5], ["a"], ["a", "a"], ["a b"])


@pytest.mark.parametrize("value", VALUES, ids=repr)
@pytest.mark.parametrize("name", [*KEYS, "chat_template"])
def test_a_value_of_any_type_under_any_key_is_refused_or_read_and_never_anything_else(
    name, value, sentence_piece, trained, byte_level_entries, gguf
):
    for entries in (sentence_piece, byte_level_entries(trained())):
        whole = {"tokenizer.chat_template": value} if name == "chat_template" else {}
        path = gguf(entries | ({} if whole else {name: value}), **whole)
        with contextlib.suppress(TokenizerError):
            open_tokenizer(str(path)).tokenizer().encode("a text")


@pytest.mark.parametrize("name", ["token_type", "scores", "tokens", "merges"])
def test_a_column_of_the_right_length_and_any_type_is_refused_or_read(name, sentence_piece, gguf):
    for value in (True, 7, 0.5, float("nan"), "text"):
        column = [value] * len(sentence_piece["tokens"])
        with contextlib.suppress(TokenizerError):
            open_tokenizer(str(gguf(sentence_piece | {name: column}))).tokenizer().encode("a text")
