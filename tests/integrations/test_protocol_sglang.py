from __future__ import annotations

import pytest

from onepolicy.errors import UsageError
from onepolicy.integrations.sglang.protocol import effective, read_protocol, write_protocol
from onepolicy.records.protocol import SamplingProtocol

MODEL = {"temperature": 0.6, "top_k": 20, "repetition_penalty": 1.05, "eos_token_id": 5}


def test_its_own_endpoint_asks_no_generation_config_but_for_end_tokens():
    read = effective(request={"sampling_params": {}}, generation_config=MODEL)
    assert (read.protocol.temperature, read.protocol.top_k, read.protocol.max_new_tokens) == (1.0, 0, 128)
    assert read.protocol.stop_token_ids == (5,)


def test_the_openai_endpoints_do_unless_the_server_says_otherwise():
    chat = {"messages": [], "max_tokens": 9}
    assert effective(request=chat, generation_config=MODEL).protocol.temperature == 0.6
    neutral = effective(request=chat, flags=["--sampling-defaults", "openai"], generation_config=MODEL)
    assert (neutral.protocol.temperature, neutral.protocol.top_k) == (1.0, 0)
    assert any(note.field == "generation_config.json" for note in effective(request=chat).ignored)


def test_preferred_sampling_params_fill_what_a_request_leaves_out():
    flags = ["--preferred-sampling-params", '{"temperature": 0.2, "top_p": 0.5}']
    read = effective(request={"sampling_params": {"top_p": 0.9}}, flags=flags)
    assert (read.protocol.temperature, read.protocol.top_p) == (0.2, 0.9)
    assert read.sources["temperature"] == "--preferred-sampling-params"


@pytest.mark.parametrize("off", [-1, 1 << 30])
def test_two_spellings_of_no_top_k_are_one(off):
    assert read_protocol({"sampling_params": {"top_k": off}}).protocol.top_k == 0


def test_top_k_and_top_p_act_together_unless_min_p_is_on():
    joint = read_protocol({"sampling_params": {"top_k": 5, "top_p": 0.9}}).protocol
    assert joint.processors == ("penalties", "temperature", "top_p", "top_k", "min_p")
    in_turn = read_protocol({"sampling_params": {"top_k": 5, "top_p": 0.9, "min_p": 0.1}}).protocol
    assert in_turn.processors == SamplingProtocol().processors
    slow = effective(
        request={"sampling_params": {"top_k": 5, "top_p": 0.9, "min_p": 0.1}}, flags=["--sampling-backend", "pytorch"]
    )
    assert slow.protocol.processors == joint.processors


def test_a_repetition_penalty_looks_at_the_completion_alone():
    read = read_protocol({"sampling_params": {"repetition_penalty": 1.1}})
    assert any(note.field == "repetition_penalty" and note.matters for note in read.ignored)
    with pytest.raises(UsageError, match="completion alone"):
        write_protocol(SamplingProtocol(repetition_penalty=1.1))


def test_logprobs_are_after_the_temperature_unless_a_variable_says_otherwise():
    assert read_protocol({"sampling_params": {}}).protocol.logprobs == "processed"
    raw = effective(request={"sampling_params": {}}, environment={"SGLANG_RETURN_ORIGINAL_LOGPROB": "1"})
    assert raw.protocol.logprobs == "raw"
    cut = read_protocol({"sampling_params": {"top_p": 0.9}})
    assert any(note.field == "logprobs" and note.matters for note in cut.ignored)


def test_two_constraints_contradict_each_other():
    with pytest.raises(UsageError, match="regex"):
        read_protocol({"sampling_params": {"regex": "a", "json_schema": "{}"}})


def test_the_context_ends_a_chat():
    read = effective(request={"messages": []}, flags=["--context-length", "2048"])
    assert read.protocol.max_new_tokens == read.protocol.max_total_tokens == 2048


def test_unknown_parameters_are_named():
    notes = read_protocol({"sampling_params": {"frobnicate": 1, "stop_regex": "a+"}}).ignored
    assert {note.field for note in notes if note.matters} == {"frobnicate", "stop_regex"}


@pytest.mark.parametrize(
    "params", [{"top_k": "5"}, {"top_p": 0}, {"temperature": float("nan")}, {"stop": 3}, {"top_k": -2}]
)
def test_a_value_that_cannot_be_is_an_error(params):
    with pytest.raises(UsageError):
        read_protocol({"sampling_params": params})
