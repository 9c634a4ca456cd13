from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from onepolicy.errors import UsageError
from onepolicy.integrations.verl.protocol import effective, read_protocol, write_protocol
from onepolicy.records.protocol import SamplingProtocol

PEERS = Path(__file__).parents[2] / ".peers"


def configuration(
    data: dict[str, Any] | None = None, model: dict[str, Any] | None = None, **rollout: Any
) -> dict[str, Any]:
    """A configuration as verl resolves it."""
    section = {"name": "vllm", "temperature": 1.0, "top_k": -1, "top_p": 1, "n": 5, **rollout}
    return {"actor_rollout_ref": {"rollout": section, "model": model or {}}, "data": data or {}, "trainer": {"x": 1}}


def test_the_sections_are_read_with_their_names_as_sources():
    read = read_protocol(configuration(data={"max_response_length": 256, "max_prompt_length": 128}, temperature=0.6))
    assert (read.protocol.temperature, read.protocol.top_k, read.protocol.samples_per_prompt) == (0.6, 0, 5)
    assert (read.protocol.max_new_tokens, read.protocol.max_prompt_tokens) == (256, 128)
    assert read.sources["temperature"] == "actor_rollout_ref.rollout"
    assert read.sources["max_new_tokens"] == "data.max_response_length"
    assert read.sources["dtype"] == "verl's default"
    assert not read.ignored


def test_validation_is_greedy_unless_its_own_section_says_otherwise():
    assert effective(config=configuration(), stage="validate").protocol.is_greedy
    own = configuration(val_kwargs={"temperature": 0.7, "top_p": 0.8, "n": 2, "do_sample": True})
    read = effective(config=own, stage="validate")
    assert (read.protocol.temperature, read.protocol.top_p, read.protocol.samples_per_prompt) == (0.7, 0.8, 2)
    assert effective(config=own).protocol.temperature == 1.0
    with pytest.raises(UsageError, match="train, validate"):
        effective(config=own, stage="test")  # type: ignore[arg-type]


def test_the_repetition_penalty_of_the_configuration_is_not_what_is_sent():
    read = read_protocol(configuration(repetition_penalty=1.05))
    assert read.protocol.repetition_penalty == 1.0
    assert any(note.field == "repetition_penalty" and note.matters for note in read.ignored)
    with pytest.raises(UsageError, match=r"sends 1.0"):
        write_protocol(SamplingProtocol(repetition_penalty=1.05))


def test_do_sample_counts_for_transformers_alone():
    assert read_protocol(configuration(name="hf", do_sample=False)).protocol.is_greedy
    read = read_protocol(configuration(do_sample=False))
    assert not read.protocol.is_greedy
    assert any(note.field.endswith("do_sample") and note.matters for note in read.ignored)


def test_two_lengths_that_differ_leave_a_note():
    read = read_protocol(configuration(data={"max_response_length": 256}, response_length=128))
    assert read.protocol.max_new_tokens == 128
    assert any(note.field == "data.max_response_length" and note.matters for note in read.ignored)


@pytest.mark.parametrize(("said", "ours"), [("error", None), ("left", "left"), ("right", "right")])
def test_the_side_that_is_cut_is_the_datas(said, ours):
    assert read_protocol(configuration(data={"truncation": said})).protocol.prompt_truncation == ours


def test_a_cut_in_the_middle_is_named_and_other_words_are_errors():
    notes = read_protocol(configuration(data={"truncation": "middle"})).ignored
    assert any(note.field == "data.truncation" and note.matters for note in notes)
    with pytest.raises(UsageError, match="not understood"):
        read_protocol(configuration(data={"truncation": "somewhere"}))


@pytest.mark.parametrize(
    ("engine", "order"),
    [
        ("vllm", ("penalties", "temperature", "min_p", "top_k", "top_p")),
        ("sglang", ("penalties", "temperature", "top_p", "top_k", "min_p")),
    ],
)
def test_the_order_is_that_of_the_engine(engine, order):
    read = read_protocol(configuration(name=engine, top_k=5, top_p=0.9)).protocol
    assert read.processors == (order if engine == "sglang" else SamplingProtocol().processors)


def test_seeds_are_sent_only_with_full_determinism():
    assert read_protocol(configuration(seed=7)).protocol.seed_policy == "none"
    read = read_protocol(configuration(seed=7, full_determinism=True)).protocol
    assert (read.seed, read.seed_policy) == (7, "each request")


def test_logprobs_are_processed_unless_said():
    assert read_protocol(configuration()).protocol.logprobs == "processed"
    assert read_protocol(configuration(logprobs_mode="raw_logprobs")).protocol.logprobs == "raw"
    notes = read_protocol(configuration(calculate_log_probs=False)).ignored
    assert any(note.field == "calculate_log_probs" for note in notes)


def test_what_verls_files_do_not_resolve_is_the_datas_or_named():
    text = "${oc.select:data.max_prompt_length,512}"
    read = read_protocol(configuration(data={"max_prompt_length": 99}, prompt_length=text))
    assert read.protocol.max_prompt_tokens == 99
    assert not read.ignored
    notes = read_protocol(configuration(temperature="${somewhere.else}")).ignored
    assert any("not resolved" in note.why and note.matters for note in notes)


def test_a_template_is_known_by_its_hash_and_the_models_end_tokens_count():
    read = effective(
        config=configuration(model={"custom_chat_template": "{{ x }}"}), generation_config={"eos_token_id": [4, 3]}
    )
    assert read.protocol.chat_template == hashlib.sha256(b"{{ x }}").hexdigest()
    assert read.protocol.stop_token_ids == (3, 4)


def test_unknown_settings_of_the_rollout_are_named():
    notes = read_protocol(configuration(frobnicate=1, engine_kwargs={"vllm": {"seed": 3}}, nnodes=2)).ignored
    assert {note.field for note in notes if note.matters} == {"frobnicate", "engine_kwargs"}


@pytest.mark.parametrize(
    "rollout", [{"top_k": "5"}, {"temperature": -1.0}, {"name": "odd"}, {"logprobs_mode": "odd"}, {"n": 0}]
)
def test_a_value_that_cannot_be_is_an_error(rollout):
    with pytest.raises(UsageError):
        read_protocol(configuration(**rollout))


@pytest.mark.real
@pytest.mark.skipif(not PEERS.exists(), reason="verl is not in .peers: run make bench once")
def test_verls_own_files_are_read_without_an_unknown_name():
    folder = PEERS / "verl" / "trainer" / "config"
    rollout = yaml.safe_load((folder / "rollout" / "rollout.yaml").read_text()) | {"name": "vllm"}
    data = yaml.safe_load((folder / "data" / "legacy_data.yaml").read_text())
    read = read_protocol({"actor_rollout_ref": {"rollout": rollout}, "data": data})
    assert not read.ignored
    assert (read.protocol.max_new_tokens, read.protocol.dtype, read.protocol.seed) == (512, "bfloat16", 42)
