from __future__ import annotations

import hashlib
from types import SimpleNamespace

import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from onepolicy.errors import UsageError
from onepolicy.integrations.transformers.protocol import (
    DEFAULT_NEW_TOKENS,
    DEFAULTS,
    effective,
    read_protocol,
    write_protocol,
)
from onepolicy.records.protocol import SamplingProtocol


def test_a_config_that_says_only_to_sample_keeps_50_tokens_and_20_long():
    read = read_protocol({"do_sample": True})
    assert (read.protocol.top_k, read.protocol.max_new_tokens, read.protocol.temperature) == (50, 20, 1.0)
    assert read.sources["top_k"] == read.sources["max_new_tokens"] == "Transformers' default"


def test_the_defaults_are_those_of_the_library():

    theirs = GenerationConfig._get_default_generation_params()
    assert {name: theirs[name] for name in DEFAULTS} == DEFAULTS
    assert theirs["max_length"] == DEFAULT_NEW_TOKENS


def test_the_order_is_the_librarys():

    small = LlamaConfig(
        vocab_size=8,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
    )
    content = write_protocol(
        SamplingProtocol(temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, repetition_penalty=1.1)
    ).content
    assert isinstance(content, dict)
    config = GenerationConfig(**content["generation_config"])
    made = LlamaForCausalLM(small)._get_logits_processor(config, input_ids_seq_length=1)
    assert [type(one).__name__.removesuffix("LogitsWarper").removesuffix("LogitsProcessor") for one in made] == [
        "RepetitionPenalty",
        "Temperature",
        "TopK",
        "TopP",
        "MinP",
    ]


def test_a_real_generation_config_is_read_as_its_file_is():

    values = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "eos_token_id": [7, 3], "max_new_tokens": 9}
    read = read_protocol(GenerationConfig(**values))
    assert read.protocol == read_protocol(values).protocol
    assert read.protocol.stop_token_ids == (3, 7)
    assert not read.ignored


def test_no_sampling_is_greedy_whatever_the_temperature():
    assert read_protocol({"do_sample": False, "temperature": 0.7}).protocol.is_greedy
    assert read_protocol({"temperature": 0.7}).protocol.is_greedy
    assert write_protocol(SamplingProtocol(temperature=0.0)).content["generation_config"]["do_sample"] is False  # type: ignore[call-overload]


def test_what_generate_is_given_goes_over_the_models_own_config():
    model = {"do_sample": True, "temperature": 0.6, "min_p": 0.2, "typical_p": 0.5}
    read = effective(generation_config={"temperature": 1.0, "top_k": 0}, model_generation_config=model)
    assert (read.protocol.temperature, read.protocol.top_k, read.protocol.min_p) == (1.0, 0, 0.2)
    assert read.sources["min_p"] == "the model's generation config"
    assert [note.field for note in read.ignored] == ["typical_p"]
    assert read.ignored[0].matters


def test_max_length_counts_the_prompt_and_nothing_beside_max_new_tokens():
    total = read_protocol({"do_sample": True, "max_length": 100}).protocol
    assert (total.max_total_tokens, total.max_new_tokens) == (100, 100)
    both = read_protocol({"do_sample": True, "max_length": 100, "max_new_tokens": 7})
    assert (both.protocol.max_total_tokens, both.protocol.max_new_tokens) == (None, 7)
    assert [note.field for note in both.ignored] == ["max_length"]
    with pytest.raises(UsageError, match="max_total_tokens"):
        write_protocol(SamplingProtocol(max_total_tokens=100))
    assert read_protocol(write_protocol(total).content).protocol.max_total_tokens == 100


def test_end_tokens_that_are_written_are_the_only_ones_and_a_note_says_so():
    written = write_protocol(SamplingProtocol(stop_token_ids=(5,)))
    assert any(note.field == "stop_token_ids" for note in written.lost)


def test_what_it_has_no_setting_for_is_an_error_only_where_it_is_used():
    with pytest.raises(
        UsageError, match=r"presence_penalty = 0\.5 .*no setting.*ignore_eos|ignore_eos.*presence_penalty"
    ):
        write_protocol(SamplingProtocol(presence_penalty=0.5, ignore_eos=True))
    fine = {note.field: note for note in write_protocol(SamplingProtocol()).lost}
    assert not fine["presence_penalty"].matters


def test_a_tokenizer_says_where_it_pads_and_cuts():
    tokenizer = {"padding_side": "left", "truncation": True, "max_length": 64, "truncation_side": "left"}
    read = effective(generation_config={"do_sample": True}, tokenizer=tokenizer, model={"dtype": "bfloat16"})
    assert (read.protocol.padding_side, read.protocol.prompt_truncation) == ("left", "left")
    assert (read.protocol.max_prompt_tokens, read.protocol.dtype) == (64, "bfloat16")


@pytest.mark.parametrize(
    "config",
    [
        {"do_sample": "yes"},
        {"do_sample": True, "temperature": float("inf")},
        {"do_sample": True, "temperature": 0.0},
        {"do_sample": False, "temperature": True},
        {"do_sample": False, "temperature": float("nan")},
        {"temperature": float("inf")},
        {"temperature": "0.7"},
        {"do_sample": True, "top_k": 2.5},
        {"do_sample": True, "top_p": "0.9"},
        {"do_sample": True, "eos_token_id": "</s>"},
        {"do_sample": True, "stop_strings": [3]},
    ],
)
def test_a_value_that_cannot_be_is_an_error(config):
    with pytest.raises(UsageError, match=r"Correct|Give|Set|set"):
        read_protocol(config)


def test_objects_say_what_is_not_their_own_to_decide():
    tokenizer = SimpleNamespace(padding_side="left", chat_template="{{ own }}", add_bos_token=True)
    read = effective(generation_config={}, tokenizer=tokenizer, model=SimpleNamespace(dtype=torch.bfloat16)).protocol
    assert (read.padding_side, read.dtype, read.chat_template, read.add_bos) == ("left", "bfloat16", None, None)


def test_a_template_that_is_given_is_known_by_its_hash_and_a_name_by_itself():
    text = effective(tokenizer={"chat_template": "{{ x }}"}).protocol
    assert text.chat_template == hashlib.sha256(b"{{ x }}").hexdigest()
    assert effective(tokenizer={"chat_template": "tool_use"}).protocol.chat_template == "tool_use"
