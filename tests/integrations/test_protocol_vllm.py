from __future__ import annotations

import hashlib
from types import SimpleNamespace

import pytest

from onepolicy.errors import UsageError
from onepolicy.integrations.vllm.protocol import effective, read_protocol, write_protocol
from onepolicy.records.protocol import SamplingProtocol

QWEN = {
    "do_sample": True,
    "temperature": 0.7,
    "top_k": 20,
    "top_p": 0.8,
    "repetition_penalty": 1.05,
    "eos_token_id": [9, 5],
}


def test_a_field_that_the_request_leaves_out_is_the_models_and_says_so():
    read = effective(request={"prompt": "x", "temperature": 1.0}, generation_config=QWEN)
    assert (read.protocol.temperature, read.protocol.top_k, read.protocol.repetition_penalty) == (1.0, 20, 1.05)
    assert read.sources["temperature"] == "the request"
    assert read.sources["top_k"] == read.sources["repetition_penalty"] == "generation_config.json"
    assert read.sources["min_p"] == "vLLM's neutral default"
    assert not read.ignored


def test_an_override_goes_over_the_model_and_under_the_request():
    flags = ["serve", "model", "--override-generation-config", '{"top_k": 7, "temperature": 0.3}']
    read = effective(request={"prompt": "x", "temperature": 1.0}, flags=flags, generation_config=QWEN)
    assert (read.protocol.temperature, read.protocol.top_k) == (1.0, 7)
    assert read.sources["top_k"] == "--override-generation-config"
    dotted = effective(flags=["--override-generation-config.top_k", "7"], generation_config=QWEN)
    assert dotted.protocol.top_k == 7


def test_a_server_with_neutral_defaults_takes_the_end_tokens_alone_from_the_model():
    read = effective(request={"prompt": "x"}, flags=["--generation-config", "vllm"], generation_config=QWEN)
    assert read.protocol.temperature == 1.0
    assert read.protocol.top_k == 0
    assert read.protocol.stop_token_ids == (5, 9)
    assert read.sources["stop_token_ids"] == "eos_token_id in generation_config.json"


def test_a_model_whose_generation_config_is_not_given_leaves_a_note_that_matters():
    notes = effective(request={"prompt": "x", "temperature": 0.5}).ignored
    assert [note.field for note in notes] == ["generation_config.json"]
    assert notes[0].matters
    assert "top_k" in notes[0].why
    assert "temperature," not in notes[0].why
    assert not effective(request={"prompt": "x"}, flags=["--generation-config=vllm"]).ignored


def test_a_written_request_leaves_the_server_nothing_to_fill_in():
    content = write_protocol(SamplingProtocol(temperature=0.6)).content
    assert isinstance(content, dict)
    read = effective(request={"prompt": "x", **content["request"]}, generation_config=QWEN | {"eos_token_id": None})
    assert read.protocol == SamplingProtocol(temperature=0.6, seed_policy="none")


@pytest.mark.parametrize("off", [0, -1])
def test_two_spellings_of_no_top_k_are_one(off):
    assert read_protocol({"prompt": "x", "top_k": off}).protocol.top_k == 0


def test_a_completion_request_without_max_tokens_has_16_and_a_chat_the_rest_of_the_context():
    assert effective(request={"prompt": "x"}).protocol.max_new_tokens == 16
    chat = effective(request={"messages": []}, flags=["--max-model-len", "4K"])
    assert chat.protocol.max_new_tokens == chat.protocol.max_total_tokens == 4096
    open_ = effective(request={"messages": []})
    assert any(note.field == "max_new_tokens" and note.matters for note in open_.ignored)


def test_max_new_tokens_of_the_model_is_a_chats_default_and_of_an_override_a_limit_of_all():
    assert effective(request={"messages": []}, generation_config={"max_new_tokens": 99}).protocol.max_new_tokens == 99
    flags = {"override_generation_config": {"max_new_tokens": 10}}
    read = effective(request={"prompt": "x", "max_tokens": 50}, flags=flags)
    assert read.protocol.max_new_tokens == 10
    assert "limits every request" in read.sources["max_new_tokens"]


def test_min_p_acts_before_top_p_and_the_order_is_only_said_where_it_matters():
    both = read_protocol({"prompt": "x", "min_p": 0.1, "top_p": 0.9}).protocol
    assert both.processors == ("penalties", "temperature", "min_p", "top_k", "top_p")
    assert read_protocol({"prompt": "x", "min_p": 0.1, "top_k": 5}).protocol.processors[-1] == "min_p"
    with pytest.raises(UsageError, match=r"processors = .*min_p, top_k, top_p: write this order"):
        write_protocol(SamplingProtocol(min_p=0.1, top_p=0.9))
    assert write_protocol(both)


def test_sampling_params_ask_no_generation_config():
    params = SimpleNamespace(temperature=1.0, top_k=0, top_p=1.0, max_tokens=None, seed=3, stop=["\n"], _eos_token_id=5)
    read = effective(sampling_params=params, generation_config=QWEN)
    assert read.protocol.top_k == 0
    assert read.protocol.stop == ("\n",)
    assert (read.protocol.seed, read.protocol.seed_policy) == (3, "each request")
    with pytest.raises(UsageError, match="two ways"):
        effective(sampling_params=params, request={})


def test_do_sample_of_the_model_is_not_looked_at():
    read = effective(request={"prompt": "x"}, generation_config={"do_sample": False})
    assert read.protocol.temperature == 1.0
    assert any(note.field.startswith("do_sample") and note.matters for note in read.ignored)


def test_the_start_flags_say_what_a_logprob_is():
    assert read_protocol(["--logprobs-mode", "processed_logprobs"]).protocol.logprobs == "processed"
    with pytest.raises(UsageError, match=r"processed_logits.*not understood"):
        read_protocol(["--logprobs-mode", "processed_logits"])


def test_a_very_low_temperature_is_raised():
    read = read_protocol({"prompt": "x", "temperature": 0.001})
    assert read.protocol.temperature == 0.01
    assert any(note.field == "temperature" for note in read.ignored)
    with pytest.raises(UsageError, match="raises it"):
        write_protocol(SamplingProtocol(temperature=0.001))


def test_unknown_and_unsayable_settings_are_named():
    body = {"prompt": "x", "frobnicate": 3, "logit_bias": {"5": 1.0}, "top_logprobs": 5, "guided_choice": ["a"]}
    notes = {note.field: note for note in read_protocol(body).ignored}
    assert "not understood" in notes["frobnicate"].why
    assert notes["frobnicate"].matters
    assert "no field" in notes["logit_bias"].why
    assert "guided_choice" in notes
    assert "top_logprobs" not in notes


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"top_k": "5"}, "top_k = '5' from the request"),
        ({"temperature": -1.0}, "temperature = -1.0 from the request"),
        ({"temperature": float("nan")}, "temperature = nan from the request"),
        ({"temperature": True}, "temperature = True from the request"),
        ({"top_p": 0.0}, "top_p = 0.0 from the request"),
        ({"stop": [""]}, "empty stop string"),
        ({"stop": 5}, "no text and no list of texts"),
        ({"stop_token_ids": ["5"]}, "no list of ids"),
        ({"ignore_eos": True, "stop_token_ids": [5]}, "conflict"),
        ({"min_tokens": 50, "max_tokens": 3}, "min_new_tokens = 50"),
        ({"max_tokens": 1.5}, "no number of tokens"),
        ({5: 1}, "no text"),
    ],
)
def test_a_value_that_cannot_be_is_an_error_with_its_place(body, said):
    with pytest.raises(UsageError) as error:
        read_protocol({"prompt": "x", **body})
    assert said in str(error.value)


def test_two_limits_of_a_chat_that_differ_leave_a_note():
    read = read_protocol({"messages": [], "max_tokens": 5, "max_completion_tokens": 9})
    assert read.protocol.max_new_tokens == 9
    assert any(note.field == "max_tokens" and note.matters for note in read.ignored)


def test_a_template_in_a_request_is_known_by_its_hash():
    read = read_protocol({"messages": [], "chat_template": "{{ x }}"})
    assert read.protocol.chat_template == hashlib.sha256(b"{{ x }}").hexdigest()


def test_a_cut_prompt_says_which_side():
    read = read_protocol({"prompt": "x", "truncate_prompt_tokens": 9, "truncation_side": "right"})
    assert (read.protocol.max_prompt_tokens, read.protocol.prompt_truncation) == (9, "right")
    unsaid = read_protocol({"prompt": "x", "truncate_prompt_tokens": 9})
    assert any(note.field == "truncation_side" and note.matters for note in unsaid.ignored)


@pytest.mark.parametrize("body", [{}, {"max_tokens": None}])
def test_a_completion_request_without_a_length_ends_after_16_tokens(body):
    read = effective(request={"prompt": "x", **body}, flags=["--max-model-len", "4096"])
    assert (read.protocol.max_new_tokens, read.sources["max_new_tokens"]) == (16, "vLLM's default for completions")
