from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from onepolicy.errors import UsageError
from onepolicy.integrations.trl.protocol import effective, read_protocol, write_protocol
from onepolicy.records.protocol import SamplingProtocol

PEERS = Path(__file__).parents[2] / ".peers"


@dataclass
class Config:
    """The fields of TRL's GRPOConfig that matter here, and two of a training."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float | None = None
    repetition_penalty: float = 1.0
    num_generations: int = 8
    max_completion_length: int | None = 512
    generation_kwargs: Any = None
    use_vllm: bool = False
    vllm_mode: str = "colocate"
    learning_rate: float = 1e-6
    seed: int = 42
    odd: dict[str, int] = field(default_factory=dict)


def test_an_objects_fields_are_read_and_those_of_the_training_are_one_note():
    read = read_protocol(Config(temperature=0.7))
    assert (read.protocol.temperature, read.protocol.samples_per_prompt, read.protocol.max_new_tokens) == (0.7, 8, 512)
    assert [(note.field, note.value, note.matters) for note in read.ignored] == [
        ("other settings", "learning_rate, odd", False)
    ]


def test_generation_kwargs_go_over_the_other_fields_in_either_spelling():
    for kwargs in (
        {"temperature": 0.3, "max_tokens": 9, "stop": ["a"]},
        '{"temperature": 0.3, "max_new_tokens": 9, "stop_strings": "a"}',
    ):
        read = read_protocol({"temperature": 0.7, "max_completion_length": 64, "generation_kwargs": kwargs})
        assert (read.protocol.temperature, read.protocol.max_new_tokens, read.protocol.stop) == (0.3, 9, ("a",))
        assert read.sources["temperature"] == read.sources["max_new_tokens"] == "generation_kwargs"


def test_min_p_of_the_model_acts_where_transformers_samples():
    model = {"min_p": 0.1, "temperature": 0.5, "eos_token_id": [3, 4]}
    own = effective(config={"use_vllm": False}, model_generation_config=model)
    assert (own.protocol.min_p, own.protocol.temperature, own.protocol.stop_token_ids) == (0.1, 1.0, (3, 4))
    assert effective(config={"use_vllm": True}, model_generation_config=model).protocol.min_p == 0.0


def test_the_order_is_that_of_the_engine_that_samples():
    both = {"top_p": 0.9, "min_p": 0.1}
    assert read_protocol({**both, "use_vllm": True}).protocol.processors[2] == "min_p"
    assert read_protocol(both).protocol.processors == SamplingProtocol().processors


def test_logprobs_are_of_what_is_drawn_from_and_truncation_is_not_in_the_trainers():
    assert read_protocol({"temperature": 0.7}).protocol.logprobs == "processed"
    assert read_protocol({"temperature": 1.0}).protocol.logprobs == "raw"
    cut = read_protocol({"temperature": 0.7, "top_p": 0.9})
    assert any(note.field == "logprobs" and note.matters and "top_p" in note.why for note in cut.ignored)


def test_a_written_configuration_is_spelled_for_the_engine_that_samples():
    protocol = SamplingProtocol(stop=("a",), min_new_tokens=3, samples_per_prompt=4)
    vllm, own = write_protocol(protocol).content, write_protocol(protocol, use_vllm=False).content
    assert isinstance(vllm, dict)
    assert isinstance(own, dict)
    assert vllm["config"]["generation_kwargs"] == {"min_tokens": 3, "stop": ["a"]}
    assert own["config"]["generation_kwargs"] == {"min_new_tokens": 3, "stop_strings": ["a"]}
    for content in (vllm, own):
        assert read_protocol(content).protocol.min_new_tokens == 3


def test_what_transformers_has_not_is_refused_for_it_alone():
    protocol = SamplingProtocol(presence_penalty=0.5)
    assert write_protocol(protocol)
    with pytest.raises(UsageError, match="presence_penalty"):
        write_protocol(protocol, use_vllm=False)


def test_greedy_is_not_sampling_where_transformers_samples():
    content = write_protocol(SamplingProtocol(temperature=0.0), use_vllm=False).content
    assert isinstance(content, dict)
    assert content["config"]["generation_kwargs"] == {"do_sample": False}
    assert read_protocol(content).protocol.is_greedy


def test_no_limit_is_the_context():
    read = read_protocol({"max_completion_length": None, "use_vllm": True, "vllm_max_model_length": 2048})
    assert read.protocol.max_new_tokens == read.protocol.max_total_tokens == 2048


def test_what_sounds_like_sampling_and_is_not_known_matters():
    notes = read_protocol({"top_q": 0.9, "generation_kwargs": {"frobnicate": 1}, "learning_rate": 1.0}).ignored
    assert {note.field for note in notes if note.matters} == {"top_q", "frobnicate"}


@pytest.mark.parametrize(
    "config",
    [
        {"top_k": "5"},
        {"temperature": -1},
        {"generation_kwargs": "{"},
        {"generation_kwargs": [1]},
        {"generation_kwargs": '{"temperature": 1e-999}'},
        {"top_p": 0},
    ],
)
def test_a_value_that_cannot_be_is_an_error(config):
    with pytest.raises(UsageError):
        read_protocol(config)


@pytest.mark.real
@pytest.mark.skipif(not PEERS.exists(), reason="TRL is not in .peers: run make bench once")
def test_trls_own_class_is_read_with_its_defaults_and_without_an_unknown_name():
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", OWN_CLASS],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(PEERS), *sys.path])},
        capture_output=True,
        text=True,
        check=True,
    )
    protocol, unknown = json.loads(found.stdout.splitlines()[-1])
    assert protocol == read_protocol({}).protocol.model_dump(mode="json")
    assert unknown == []


OWN_CLASS = """
import json
from trl import GRPOConfig
from onepolicy.integrations.trl.protocol import read_protocol
read = read_protocol(GRPOConfig(output_dir="unused", use_cpu=True, bf16=False))
print(json.dumps([read.protocol.model_dump(mode="json"), [note.field for note in read.ignored if note.matters]]))
"""
