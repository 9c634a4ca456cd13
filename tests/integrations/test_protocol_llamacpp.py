from __future__ import annotations

import struct

import pytest

from onepolicy.errors import UsageError
from onepolicy.integrations.llamacpp.protocol import EVERYTHING, effective, read_protocol, write_protocol
from onepolicy.records.protocol import Constraint, SamplingProtocol

LAST = ("penalties", "top_k", "top_p", "min_p", "temperature")


def test_a_request_that_says_nothing_is_far_from_neutral():
    read = read_protocol({"prompt": "x", "n_predict": 5})
    protocol = read.protocol
    assert (protocol.temperature, protocol.top_k, protocol.top_p, protocol.min_p) == (0.8, 40, 0.95, 0.05)
    assert protocol.processors == LAST
    assert read.sources["min_p"] == "llama.cpp's default"


def test_a_request_goes_over_the_server_and_the_server_over_the_defaults():
    read = effective(
        request={"prompt": "x", "top_k": 5}, flags=["-m", "x.gguf", "--temp", "0.3", "--top-k", "9", "-n", "7"]
    )
    assert (read.protocol.top_k, read.protocol.temperature, read.protocol.max_new_tokens) == (5, 0.3, 7)
    assert (read.sources["top_k"], read.sources["temperature"]) == ("the request", "the flags")
    assert read.sources["top_p"] == "llama.cpp's default"
    assert not read.ignored


def test_numbers_in_props_are_as_they_were_before_float32():
    narrow = struct.unpack("f", struct.pack("f", 0.95))[0]
    assert narrow != 0.95
    props = {
        "default_generation_settings": {"n_ctx": 512, "params": {"top_p": narrow, "temperature": 0.5, "n_predict": -1}}
    }
    read = read_protocol(props)
    assert read.protocol.top_p == 0.95
    assert read.sources["top_p"] == "/props"
    assert read.protocol.max_total_tokens == read.protocol.max_new_tokens == 512


@pytest.mark.parametrize("off", [0, -1, -5])
def test_spellings_of_no_top_k_are_one(off):
    assert read_protocol({"prompt": "x", "top_k": off, "n_predict": 1}).protocol.top_k == 0


def test_a_whole_number_beyond_all_floats_is_no_number():
    with pytest.raises(UsageError, match="no finite number"):
        read_protocol({"prompt": "x", "temperature": 10**400, "n_predict": 1})


@pytest.mark.parametrize("value", [0, -1.0])
def test_a_temperature_of_0_or_less_is_greedy(value):
    assert read_protocol({"prompt": "x", "temperature": value, "n_predict": 1}).protocol.is_greedy


def test_a_sampler_that_is_not_listed_is_off_whatever_its_value():
    read = read_protocol({"prompt": "x", "n_predict": 1, "samplers": ["temperature", "top_k"]})
    assert (read.protocol.top_k, read.protocol.top_p, read.protocol.min_p) == (40, 1.0, 0.0)
    assert read.sources["top_p"] == "samplers in the request, which leaves top_p out"
    assert read.protocol.processors == SamplingProtocol().processors
    short = effective(flags=["--samplers", "top_p;temp", "-n", "1"]).protocol
    assert (short.top_k, short.top_p, short.processors) == (0, 0.95, ("top_p", "temperature"))
    letters = effective(flags=["--sampling-seq", "pt", "-n", "1"]).protocol
    assert letters == short


def test_an_unknown_sampler_is_named():
    notes = read_protocol({"prompt": "x", "n_predict": 1, "samplers": ["top_q"]}).ignored
    assert [(note.field, note.value) for note in notes] == [("samplers", "top_q")]
    assert notes[0].matters


def test_a_window_of_no_tokens_switches_the_penalties_off():
    on = {"prompt": "x", "n_predict": 1, "repeat_penalty": 1.1}
    assert read_protocol(on).protocol.penalty_window == 64
    assert read_protocol({**on, "repeat_last_n": -1}).protocol.penalty_window is None
    off = read_protocol({**on, "repeat_last_n": 0})
    assert off.protocol.repetition_penalty == 1.0
    assert off.protocol.penalty_window is None
    assert off.sources["repetition_penalty"] == "repeat_last_n = 0 in the request"


def test_a_window_that_is_longer_than_the_context_is_all_tokens():
    flags = ["--ctx-size", "64"]
    read = effective(request={"n_predict": 1, "repeat_penalty": 1.1, "repeat_last_n": 64}, flags=flags)
    assert read.protocol.penalty_window is None


def test_all_tokens_are_written_as_a_number_that_a_server_takes():
    content = write_protocol(SamplingProtocol(repetition_penalty=1.1)).content
    assert isinstance(content, dict)
    assert content["request"]["repeat_last_n"] == EVERYTHING
    assert read_protocol(content).protocol.penalty_window is None


def test_what_a_server_says_it_used_goes_over_what_was_asked():
    answer = {"content": "", "generation_settings": {"temperature": 0.699999988079071, "speculative.types": "none"}}
    read = read_protocol(answer)
    assert read.protocol.temperature == 0.7
    assert read.sources["temperature"] == "generation_settings"
    asked = effective(request={"temperature": 0.5, "n_predict": 1}, generation_settings={"temperature": 0.25})
    assert asked.protocol.temperature == 0.25


def test_slots_share_the_context():
    assert effective(flags=["-c", "4096", "-np", "4"]).protocol.max_total_tokens == 1024


def test_presence_looks_at_the_prompt_too():
    read = read_protocol({"prompt": "x", "n_predict": 1, "presence_penalty": 0.5})
    assert any(note.field == "presence_penalty" and note.matters for note in read.ignored)
    with pytest.raises(UsageError, match="prompt too"):
        write_protocol(SamplingProtocol(presence_penalty=0.5))


@pytest.mark.parametrize("seed", [-1, 2**32 - 1, None])
def test_spellings_of_a_random_seed_are_one(seed):
    assert read_protocol({"prompt": "x", "n_predict": 1, "seed": seed}).protocol.seed_policy == "none"
    assert read_protocol({"prompt": "x", "n_predict": 1, "seed": 4}).protocol.seed == 4


def test_without_a_limit_and_without_a_context_a_note_says_so():
    assert any(note.field == "max_new_tokens" and note.matters for note in read_protocol({"prompt": "x"}).ignored)


def test_a_json_schema_is_written_as_the_value_that_it_is():
    """llama.cpp drops a text in silence."""
    written = write_protocol(SamplingProtocol(constraint=Constraint(kind="json_schema", text='{"type":"object"}')))
    assert written.content["request"]["json_schema"] == {"type": "object"}
    assert [note.why for note in written.lost if note.field == "constraint"] == [
        "the schema is the same, spaced otherwise"
    ]
    with pytest.raises(UsageError, match="no JSON"):
        write_protocol(SamplingProtocol(constraint=Constraint(kind="json_schema", text="{")))


def test_an_empty_grammar_is_none_and_two_constraints_contradict_each_other():
    assert read_protocol({"n_predict": 1, "grammar": "", "json_schema": ""}).protocol.constraint is None
    with pytest.raises(UsageError, match="Leave one"):
        read_protocol({"n_predict": 1, "grammar": "root ::= a", "json_schema": {"type": "object"}})


def test_one_setting_under_two_names_must_be_one_value():
    assert read_protocol({"n_predict": 3, "max_tokens": 3}).protocol.max_new_tokens == 3
    with pytest.raises(UsageError, match="one setting"):
        read_protocol({"n_predict": 3, "max_tokens": 4})


def test_a_written_request_names_every_sampler_in_order():
    protocol = SamplingProtocol(temperature=0.7, top_p=0.9, processors=("top_p", "temperature"))
    content = write_protocol(protocol).content
    assert isinstance(content, dict)
    assert content["request"]["samplers"] == ["top_p", "temperature"]
    assert content["request"]["min_p"] == 0.0
    assert content["request"]["dry_multiplier"] == 0.0


def test_settings_that_a_protocol_has_no_field_for_are_named_where_they_are_on():
    notes = read_protocol({"n_predict": 1, "dry_multiplier": 0.8, "mirostat": 0, "xtc_probability": 0.0}).ignored
    assert [note.field for note in notes] == ["dry_multiplier"]


@pytest.mark.parametrize(
    "body",
    [
        {"top_k": "5"},
        {"temperature": "hot"},
        {"temperature": float("nan")},
        {"samplers": 5},
        {"n_predict": -2},
        {"repeat_penalty": 0},
    ],
)
def test_a_value_that_cannot_be_is_an_error(body):
    with pytest.raises(UsageError):
        read_protocol({"prompt": "x", **body})
