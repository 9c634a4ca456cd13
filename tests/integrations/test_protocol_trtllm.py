from __future__ import annotations

from types import SimpleNamespace

import pytest

from onepolicy.errors import UsageError
from onepolicy.integrations.trtllm.protocol import effective, read_protocol, write_protocol
from onepolicy.records.protocol import SamplingProtocol


def test_sampling_params_that_say_nothing_are_greedy_and_a_request_is_not():
    nothing = SimpleNamespace(temperature=None, top_k=None, top_p=None, max_tokens=32)
    assert read_protocol(nothing).protocol.is_greedy
    assert not read_protocol(SimpleNamespace(temperature=None, top_k=None, top_p=0.9)).protocol.is_greedy
    assert read_protocol({"prompt": "x"}).protocol.temperature == 1.0


def test_top_p_0_is_greedy():
    assert read_protocol({"prompt": "x", "top_p": 0.0}).protocol.is_greedy


def test_what_does_not_say_a_limit_has_32_tokens_in_python_and_the_context_behind_a_server():
    assert effective(sampling_params={"top_k": 1}).protocol.max_new_tokens == 32
    assert effective(request={"prompt": "x"}, max_seq_len=500).protocol.max_new_tokens == 500


def test_a_long_prompt_loses_its_beginning():
    read = read_protocol({"prompt": "x", "truncate_prompt_tokens": 9}).protocol
    assert (read.max_prompt_tokens, read.prompt_truncation) == (9, "left")
    with pytest.raises(UsageError, match="on the left"):
        write_protocol(SamplingProtocol(max_prompt_tokens=9, prompt_truncation="right"))


def test_presence_looks_at_the_prompt_unless_that_is_passed_over():
    read = read_protocol({"prompt": "x", "presence_penalty": 0.5})
    assert any(note.field == "presence_penalty" and note.matters for note in read.ignored)
    written = write_protocol(
        SamplingProtocol(presence_penalty=0.5, processors=("temperature", "penalties", "top_k", "top_p", "min_p"))
    )
    assert not read_protocol(written.content).ignored


def test_the_temperature_acts_before_the_penalties():
    with pytest.raises(UsageError, match="processors"):
        write_protocol(SamplingProtocol(presence_penalty=0.5, temperature=0.5))
    assert write_protocol(SamplingProtocol(repetition_penalty=1.1, temperature=0.5))


def test_a_response_format_is_a_constraint():
    body = {"prompt": "x", "response_format": {"type": "regex", "regex": "a+"}}
    assert read_protocol(body).protocol.constraint.text == "a+"  # type: ignore[union-attr]
    both = {**body, "guided_decoding": {"json": "{}"}}
    with pytest.raises(UsageError, match="Leave one"):
        read_protocol(both)


@pytest.mark.parametrize("mode", ["raw", SimpleNamespace(name="RAW"), None])
def test_logprobs_are_raw_unless_asked_for_otherwise(mode):
    assert effective(sampling_params={"top_k": 5, "logprobs_mode": mode}).protocol.logprobs == "raw"
    processed = effective(sampling_params={"top_k": 5, "logprobs_mode": SimpleNamespace(name="PROCESSED")})
    assert processed.protocol.logprobs == "processed"


def test_the_best_of_several_is_another_distribution():
    notes = read_protocol({"prompt": "x", "n": 1, "best_of": 4}).ignored
    assert [note.field for note in notes if "best" in note.why] == ["best_of"]


@pytest.mark.parametrize(
    "body", [{"top_k": "5"}, {"temperature": -1}, {"logprobs_mode": "odd"}, {"max_tokens": "many"}]
)
def test_a_value_that_cannot_be_is_an_error(body):
    with pytest.raises(UsageError):
        read_protocol({"prompt": "x", **body})
