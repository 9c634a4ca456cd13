"""Tokenizers of real models: SmolLM2 (GGUF and converted), DeepSeek, Qwen3, Llama 3.1 and Gemma 3.

The oracles are Transformers, the `gguf` package and llama.cpp's own `/tokenize`.
"""

from contextlib import contextmanager
from functools import cache

import httpx
import numpy as np
import pytest
import xllamacpp
from gguf import GGUFReader, GGUFWriter
from transformers import AutoTokenizer

from onepolicy.engines.models import packaged_gguf
from onepolicy.suites.load import SUITES, load_suite
from onepolicy.tokens import fingerprint, open_tokenizer
from onepolicy.tokens.compare import compare_tokenizers
from onepolicy.tokens.gguf import read_metadata
from onepolicy.tokens.gguf_pipeline import SPLITTINGS
from onepolicy.tokens.probes import probes

pytestmark = pytest.mark.real
NAMES = ("smollm2", "deepseek", "qwen3", "llama3_1", "gemma3")


@cache
def of_transformers(folder):
    return AutoTokenizer.from_pretrained(folder)


@contextmanager
def llama_cpp(path):
    """The ids that llama.cpp's own server gives to a text."""
    params = xllamacpp.CommonParams()
    params.model.path, params.hostnames, params.port = str(path), ["127.0.0.1"], 0
    params.n_ctx, params.n_gpu_layers, params.verbosity, params.fit_params, params.ui = 64, 0, -1, False, False
    server = xllamacpp.Server(params)
    with httpx.Client(base_url=server.listening_address, trust_env=False, timeout=60) as client:

        def tokenize(text, *, add_special=False):
            body = {"content": text, "add_special": add_special, "parse_special": True}
            return client.post("/tokenize", json=body).json()["tokens"]

        yield tokenize
    del server


def differing(one, other):
    return {name for name in one.parts if one.parts[name] != other.parts[name]}


def different_parts(comparison):
    return {part.name for part in comparison.parts if not part.same}


def texts():
    """Those of the probes and of every suite."""
    yield from (probe.text for probe in probes(["<|im_start|>", "<bos>", "<|eot_id|>", "<｜end▁of▁sentence｜>"]))
    for suite in map(load_suite, SUITES):
        yield from (text for item in suite.sequences for text in (item.prompt, item.completion))
        yield from (message["content"] for prompt in suite.prompts for message in prompt.messages)


@pytest.mark.parametrize("name", NAMES)
def test_ids_texts_special_tokens_and_template_agree_with_transformers(name, real_tokenizers):
    theirs, stored = of_transformers(real_tokenizers[name]), open_tokenizer(real_tokenizers[name])
    assert all(getattr(theirs, key) == token for key, token in stored.special.items())
    assert stored.templates.get("default") == theirs.chat_template
    ours = stored.tokenizer()
    for text in texts():
        for add in (True, False):
            got = ours.encode(text, add_special_tokens=add).ids
            assert got == theirs.encode(text, add_special_tokens=add), (text[:80], add)
            decoded = theirs.decode(got, skip_special_tokens=False, clean_up_tokenization_spaces=False)
            assert ours.decode(got, skip_special_tokens=False) == decoded


def test_metadata_agrees_with_the_gguf_package_on_a_real_file():
    path = packaged_gguf("smollm2")
    fields = GGUFReader(path).fields
    expected = {name: field.contents() for name, field in fields.items() if not name.startswith("GGUF.")}
    assert read_metadata(path, keep=("",)) == expected


def written_by_the_gguf_package(path, entries):
    """A llama of one layer whose weights are zero, with this tokenizer."""
    writer = GGUFWriter(path, "llama")
    sizes = {"block_count": 1, "context_length": 2048, "embedding_length": 32, "feed_forward_length": 32}
    sizes |= {"attention.head_count": 1, "attention.head_count_kv": 1, "rope.dimension_count": 32}
    for name, size in sizes.items():
        writer.add_uint32(f"llama.{name}", size)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    for name, value in entries.items():
        add = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string, list: writer.add_array}
        add[type(value)](f"tokenizer.ggml.{name}", value)
    square = [f"blk.0.{part}.weight" for part in ("attn_q", "attn_k", "attn_v", "attn_output")]
    square += [f"blk.0.{part}.weight" for part in ("ffn_gate", "ffn_up", "ffn_down")]
    shapes = dict.fromkeys(square, (32, 32)) | {"token_embd.weight": (len(entries["tokens"]), 32)}
    shapes |= dict.fromkeys(("output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"), (32,))
    for name, shape in shapes.items():
        writer.add_tensor(name, np.zeros(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def disagreements_with_llama_cpp(path, tried):
    """(text, with special tokens added, its ids, ours) where llama.cpp's own `/tokenize` says otherwise."""
    ours = open_tokenizer(str(path)).tokenizer()
    with llama_cpp(path) as tokenize:
        for text in tried:
            for add in (False, True):
                theirs, mine = tokenize(text, add_special=add), ours.encode(text, add_special_tokens=add).ids
                if theirs != mine:
                    yield text, add, theirs, mine


@pytest.mark.parametrize("pre", SPLITTINGS)
def test_ids_agree_with_llama_cpp_for_every_pre_tokenizer_that_is_known(pre, tmp_path):
    first_of_its_kind = pre == next(name for name, how in SPLITTINGS.items() if how == SPLITTINGS[pre])
    keys = ("tokens", "token_type", "merges")
    metadata = read_metadata(packaged_gguf("smollm2"), keep=("tokenizer.",))
    entries = {"model": "gpt2", "pre": pre, "bos_token_id": 1, "eos_token_id": 2}
    path = tmp_path / "model.gguf"
    written_by_the_gguf_package(path, entries | {name: metadata[f"tokenizer.ggml.{name}"] for name in keys})
    tried = [probe.text for probe in probes(["<|im_start|>", "<|im_end|>"])][:: 1 if first_of_its_kind else 9]
    assert list(disagreements_with_llama_cpp(path, tried)) == []


@pytest.mark.parametrize("flags", [{}, {"add_space_prefix": False}, {"add_bos_token": False, "add_eos_token": True}])
def test_ids_agree_with_llama_cpp_for_a_vocabulary_with_scores(flags, sentence_piece, tmp_path):
    path = written_by_the_gguf_package(tmp_path / "model.gguf", sentence_piece | flags)
    tried = [probe.text for probe in probes(["<s>", "</s>", "<think>"])]
    assert list(disagreements_with_llama_cpp(path, tried)) == []


def test_ids_agree_with_llama_cpp_on_the_packaged_model():
    assert list(disagreements_with_llama_cpp(packaged_gguf("smollm2"), list(dict.fromkeys(texts())))) == []


def test_the_packaged_model_and_its_conversion_differ_only_in_how_digits_are_split(real_tokenizers):
    file, folder = fingerprint("smollm2"), fingerprint(real_tokenizers["smollm2"])
    assert differing(file, folder) == {"pre-tokenizer", "versions"}


@pytest.mark.parametrize("name", NAMES)
def test_real_tokenizers_have_the_same_fingerprint_when_transformers_saves_them_again(name, real_tokenizers, tmp_path):
    tokenizer = of_transformers(real_tokenizers[name])
    tokenizer.save_pretrained(tmp_path)
    before, saved, loaded = map(fingerprint, (real_tokenizers[name], tmp_path, tokenizer))
    makes_mask_special = {"added tokens", "special tokens"} if name == "gemma3" else set()
    for after in (saved, loaded):
        assert differing(before, after) - {"versions"} == makes_mask_special


def test_the_packaged_model_and_its_conversion_differ_in_digits_after_spaces_as_both_engines_say(real_tokenizers):
    folder = real_tokenizers["smollm2"]
    comparison = compare_tokenizers(open_tokenizer("smollm2"), open_tokenizer(folder))
    assert different_parts(comparison) == {"pre-tokenizer", "versions"}
    detail = next(part.detail for part in comparison.parts if part.name == "pre-tokenizer")
    assert detail == (r"only in A: Split, pattern /\p{N}/, behavior Isolated",)
    assert {kind.name for kind in comparison.classes if kind.differ} == {"digits after spaces", "other numerals"}
    transformers = of_transformers(folder)
    with llama_cpp(packaged_gguf("smollm2")) as tokenize:
        for text in (comparison.shortest.text, "  12", "a  7", "x1y2z3", " 1", "1234567890"):
            ours = compare_pair(folder, text)
            assert list(ours[0]) == tokenize(text)
            assert list(ours[1]) == transformers.encode(text, add_special_tokens=False)
    assert comparison.shortest.a_ids != comparison.shortest.b_ids


def compare_pair(folder, text):
    sides = (open_tokenizer("smollm2"), open_tokenizer(folder))
    return [side.tokenizer().encode(text, add_special_tokens=False).ids for side in sides]


@pytest.mark.parametrize("name", ["deepseek", "qwen3", "llama3_1", "gemma3"])
def test_a_real_tokenizer_is_the_same_as_itself_and_unlike_another(name, real_tokenizers):
    stored = open_tokenizer(real_tokenizers[name])
    assert compare_tokenizers(stored, stored).exit_status == 0
    comparison = compare_tokenizers(stored, open_tokenizer("smollm2"))
    assert comparison.exit_status == 1
    assert {"vocabulary", "merges", "added tokens", "special tokens"} <= different_parts(comparison)
    assert comparison.shortest.a_ids != comparison.shortest.b_ids
