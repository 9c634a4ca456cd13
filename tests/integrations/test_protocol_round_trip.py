from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from onepolicy.errors import UsageError
from onepolicy.integrations import PROTOCOLS, protocol_reader, protocol_writer
from onepolicy.records.protocol import Constraint, SamplingProtocol, TemperatureSchedule

FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "temperature": st.sampled_from([0.0, 0.005, 0.6, 1.0, 1.5, 3.0]),
    "top_p": st.sampled_from([0.05, 0.9, 1.0]),
    "top_k": st.sampled_from([0, 1, 50, 10**6]),
    "min_p": st.sampled_from([0.0, 0.05, 1.0]),
    "max_new_tokens": st.sampled_from([1, 64, 4096]),
    "samples_per_prompt": st.integers(1, 9),
    "seed": st.sampled_from([-1, 0, 7, 2**32 - 1]),
    "repetition_penalty": st.sampled_from([0.9, 1.0, 1.05, 3.0]),
    "presence_penalty": st.sampled_from([-3.0, 0.0, 0.5]),
    "frequency_penalty": st.sampled_from([0.0, 0.5, 2.5]),
    "penalty_window": st.sampled_from([None, 1, 64, 10**6]),
    "processors": st.permutations(["penalties", "temperature", "top_k", "top_p", "min_p"]),
    "min_new_tokens": st.sampled_from([0, 1, 64]),
    "max_total_tokens": st.sampled_from([None, 2048, 100]),
    "prompt_truncation": st.sampled_from([None, "left", "right"]),
    "max_prompt_tokens": st.sampled_from([None, 1, 512]),
    "stop": st.lists(st.text(min_size=1, max_size=4), max_size=5),
    "stop_token_ids": st.lists(st.integers(0, 200_000), max_size=3),
    "ignore_eos": st.booleans(),
    "padding_side": st.sampled_from([None, "left", "right"]),
    "use_cache": st.booleans(),
    "dtype": st.sampled_from([None, "bfloat16", "float32"]),
    "seed_policy": st.sampled_from(["each rollout", "each request", "none"]),
    "add_bos": st.sampled_from([None, True, False]),
    "chat_template": st.sampled_from([None, "chatml", "ab" * 32]),
    "add_generation_prompt": st.booleans(),
    "constraint": st.sampled_from(
        [
            None,
            Constraint(kind="regex", text="[a-z]+"),
            Constraint(kind="grammar", text='root ::= "a"'),
            Constraint(kind="json_schema", text='{"type": "object"}'),
            Constraint(kind="json_schema", text='{"type":"object"}'),
        ]
    ),
    "logprobs": st.sampled_from(["raw", "processed"]),
    "schedule": st.sampled_from([None, TemperatureSchedule(kind="linear", start=1.5, end=1.0, steps=10)]),
}


SPACED = ("openai", "llamacpp")
"""take a JSON schema as a value, so its text comes back in one spelling"""


@st.composite
def protocols(draw: st.DrawFn) -> SamplingProtocol:
    """A protocol with up to six fields that are not at their defaults; all of them together no framework can say."""
    names = draw(st.lists(st.sampled_from(sorted(FIELDS)), max_size=6, unique=True))
    values = {name: draw(FIELDS[name]) for name in names}
    for name in ("stop", "stop_token_ids", "processors"):
        if name in values:
            values[name] = tuple(values[name])
    try:
        return SamplingProtocol(**values)
    except ValidationError:
        return SamplingProtocol()


def test_every_field_of_a_protocol_is_tried():
    assert set(FIELDS) == set(SamplingProtocol.model_fields)


@pytest.mark.parametrize("framework", PROTOCOLS)
@settings(max_examples=100, deadline=None)
@given(protocol=protocols())
def test_what_is_written_is_read_back_or_named_as_lost(framework: str, protocol: SamplingProtocol):
    try:
        written = protocol_writer(framework)(protocol)
    except UsageError as refusal:
        named = [name for name in FIELDS if f"{name} = " in str(refusal)]
        assert named
        assert set(named) <= {*protocol.changed, "processors"}
        return
    content = json.loads(json.dumps(written.content))
    read = protocol_reader(framework)(content).protocol
    different = {name for name in FIELDS if getattr(read, name) != getattr(protocol, name)}
    assert different <= {note.field for note in written.lost}


@pytest.mark.parametrize("framework", PROTOCOLS)
@settings(max_examples=60, deadline=None)
@given(protocol=protocols())
def test_what_is_lost_and_used_is_said_to_matter_or_comes_back(framework: str, protocol: SamplingProtocol):
    try:
        written = protocol_writer(framework)(protocol)
    except UsageError:
        return
    drawn = {"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"}
    lengths = {"max_total_tokens", "min_new_tokens", "stop", "stop_token_ids", "samples_per_prompt", "constraint"}
    read = protocol_reader(framework)(written.content).protocol
    for name in drawn | (lengths - {"constraint"} if framework in SPACED else lengths):
        assert getattr(read, name) == getattr(protocol, name)


@pytest.mark.parametrize("framework", PROTOCOLS)
def test_a_field_that_a_framework_lacks_is_noted_once_and_does_not_matter_at_its_default(framework: str):
    lost = protocol_writer(framework)(SamplingProtocol()).lost
    assert len({note.field for note in lost}) == len(lost)
    assert not any(note.matters for note in lost)


@pytest.mark.parametrize("framework", PROTOCOLS)
def test_nothing_unknown_is_in_what_is_written(framework: str):
    protocol = SamplingProtocol(temperature=0.7, top_p=0.9, samples_per_prompt=4, seed_policy="none")
    read = protocol_reader(framework)(protocol_writer(framework)(protocol).content)
    assert not any("not understood" in note.why for note in read.ignored)


@pytest.mark.parametrize("framework", PROTOCOLS)
def test_a_protocol_comes_with_the_source_of_each_value_that_is_not_at_its_default(framework: str):
    read = protocol_reader(framework)(protocol_writer(framework)(SamplingProtocol(temperature=0.7)).content)
    assert set(read.protocol.changed) <= set(read.sources)


@pytest.mark.parametrize("framework", PROTOCOLS)
@pytest.mark.parametrize("bad", [3, "temperature=1", {1: 2}, True])
def test_what_is_no_configuration_is_an_error_that_says_what_to_give(framework: str, bad: Any):
    with pytest.raises(UsageError, match=r"Give|Correct"):
        protocol_reader(framework)(bad)


@pytest.mark.parametrize("framework", PROTOCOLS)
def test_a_part_beside_something_else_is_an_error_that_lists_the_parts(framework: str):
    with pytest.raises(UsageError, match=r"no part 'frobnicate'.*Give a mapping of"):
        protocol_reader(framework)({"frobnicate": 1, "request": {}, "config": {}, "flags": []})


JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-3, 2**33), st.floats(), st.text(max_size=3), st.just("json_schema")
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(st.sampled_from(["type", "schema", "json", "a"]), inner, max_size=2),
    ),
    max_leaves=4,
)
NAMES = sorted(
    {
        *[
            "request",
            "flags",
            "sampling_params",
            "generation_config",
            "config",
            "props",
            "generation_settings",
            "tokenizer",
            "model",
        ],
        *[
            "response_format",
            "structured_outputs",
            "guided_decoding",
            "samplers",
            "sampler_seq",
            "grammar",
            "json_schema",
            "seed",
            "n",
            "best_of",
        ],
        *[
            "max_tokens",
            "max_completion_tokens",
            "max_length",
            "max_prompt_length",
            "n_predict",
            "n_ctx",
            "ctx_size",
            "parallel",
            "stop",
        ],
        *[
            "generation_kwargs",
            "model_init_kwargs",
            "actor_rollout_ref",
            "rollout",
            "data",
            "val_kwargs",
            "truncation",
            "name",
            "val",
        ],
        *[
            "temperature",
            "top_k",
            "top_p",
            "min_p",
            "repeat_last_n",
            "do_sample",
            "eos_token_id",
            "logprobs_mode",
            "truncate_prompt_tokens",
        ],
        *[
            "truncation_side",
            "chat_template",
            "add_special_tokens",
            "override_generation_config",
            "max_model_len",
            "messages",
        ],
        *[
            "default_generation_settings",
            "params",
            "environment",
            "preferred_sampling_params",
            "context_length",
            "dtype",
        ],
    }
)


@pytest.mark.parametrize("framework", PROTOCOLS)
@settings(max_examples=100, deadline=None)
@given(
    source=st.dictionaries(
        st.sampled_from(NAMES), st.one_of(JSON, st.dictionaries(st.sampled_from(NAMES), JSON, max_size=3)), max_size=4
    )
)
def test_any_json_is_read_or_refused_in_words(framework: str, source: dict[str, Any]):
    with contextlib.suppress(UsageError):
        read = protocol_reader(framework)(source)
        SamplingProtocol.model_validate(read.protocol.model_dump())


def test_one_model_directory_is_another_protocol_on_each_engine_if_the_request_says_nothing():
    """Bug case B68: three servers of one model, and no two sample alike."""
    model = {"do_sample": False, "temperature": 0.6, "top_k": 20, "eos_token_id": 2}
    read = {
        "transformers": protocol_reader("transformers")({"generation_config": {}, "model_generation_config": model}),
        "vllm": protocol_reader("vllm")({"request": {"prompt": "x"}, "generation_config": model}),
        "sglang": protocol_reader("sglang")({"sampling_params": {}, "generation_config": model}),
    }
    assert {name: (one.protocol.temperature, one.protocol.top_k) for name, one in read.items()} == {
        "transformers": (0.0, 20),
        "vllm": (0.6, 20),
        "sglang": (1.0, 0),
    }
    assert {one.protocol.max_new_tokens for one in read.values()} == {20, 16, 128}
    assert {one.protocol.stop_token_ids for one in read.values()} == {(2,)}
