from __future__ import annotations

import pytest

from onepolicy.errors import UsageError
from onepolicy.integrations.openai.protocol import read_protocol, write_protocol
from onepolicy.records.protocol import Constraint, SamplingProtocol


def test_a_request_that_says_nothing_has_the_documented_defaults():
    completion = read_protocol({"prompt": "x"})
    assert (completion.protocol.temperature, completion.protocol.max_new_tokens) == (1.0, 16)
    assert completion.sources["max_new_tokens"] == "OpenAI's default for completions"
    chat = read_protocol({"messages": []})
    assert any(note.field == "max_new_tokens" and note.matters for note in chat.ignored)


@pytest.mark.parametrize("field", [{"top_k": 5}, {"min_p": 0.1}, {"repetition_penalty": 1.1}, {"stop_token_ids": (5,)}])
def test_what_the_api_lacks_is_an_error_where_it_is_used(field):
    with pytest.raises(UsageError, match=f"{next(iter(field))} = .*no setting"):
        write_protocol(SamplingProtocol(**field))


def test_two_limits_must_be_one():
    assert read_protocol({"messages": [], "max_tokens": 5, "max_completion_tokens": 5}).protocol.max_new_tokens == 5
    with pytest.raises(UsageError, match="contradict"):
        read_protocol({"messages": [], "max_tokens": 5, "max_completion_tokens": 6})


def test_a_schema_comes_back_and_other_constraints_are_refused():
    protocol = SamplingProtocol(constraint=Constraint(kind="json_schema", text='{"type":"object"}'))
    written = write_protocol(protocol)
    assert [note.why for note in written.lost if note.field == "constraint"] == [
        "the schema is the same, spaced otherwise"
    ]
    read = read_protocol(written.content).protocol
    assert read.constraint == Constraint(kind="json_schema", text='{"type": "object"}')
    with pytest.raises(UsageError, match="JSON schemas alone"):
        write_protocol(SamplingProtocol(constraint=Constraint(kind="regex", text="a")))
    with pytest.raises(UsageError, match="no JSON"):
        write_protocol(SamplingProtocol(constraint=Constraint(kind="json_schema", text="{")))


def test_a_fifth_stop_string_is_refused():
    assert write_protocol(SamplingProtocol(stop=("a", "b", "c", "d")))
    with pytest.raises(UsageError, match="at most 4"):
        write_protocol(SamplingProtocol(stop=("a", "b", "c", "d", "e")))


def test_fields_of_other_servers_are_named():
    notes = read_protocol({"messages": [], "max_tokens": 1, "top_k": 5, "logit_bias": {"1": 2}, "tools": [{}]}).ignored
    assert {note.field for note in notes if note.matters} == {"top_k", "logit_bias", "tools"}


@pytest.mark.parametrize("body", [{"temperature": "1"}, {"n": 0}, {"stop": [""]}, {"response_format": "json"}])
def test_a_value_that_cannot_be_is_an_error(body):
    with pytest.raises(UsageError):
        read_protocol({"prompt": "x", **body})
