"""verl's configuration as a protocol, and back; verl is not imported.

What is read: `actor_rollout_ref.rollout` with its `val_kwargs`, `actor_rollout_ref.model.custom_chat_template`, and the
lengths and the truncation in `data`. Source: verl-project/verl:verl/trainer/config/rollout/rollout.yaml,
verl/trainer/config/data/legacy_data.yaml, verl/experimental/agent_loop/agent_loop.py (what a request says: the
repetition penalty is 1.0 whatever the configuration says), verl/workers/rollout/vllm_rollout/vllm_async_server.py,
verl/utils/torch_functional.py (the sides that are cut), version 0.9.1.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Literal

from onepolicy.errors import UsageError
from onepolicy.integrations.verl.protocol_tables import (
    DATA_ELSEWHERE,
    DATA_KNOWN,
    DEFAULTS,
    ELSEWHERE,
    KNOWN,
    ORDERS,
    SETTINGS,
    VALIDATION_DEFAULTS,
    VALIDATION_SETTINGS,
)
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.sampling.convert import ReadProtocol, Written
from onepolicy.sampling.layers import Layer, Reading, is_parts
from onepolicy.sampling.spellings import limit, mapping_of, one_of
from onepolicy.sampling.writing import Writing

PARTS = ("config", "generation_config")
Stage = Literal["train", "validate"]
_UNRESOLVED = re.compile(r"\$\{.*\}", re.DOTALL)
_SIDES = {"error": None, "left": "left", "right": "right"}


def read_protocol(source: Mapping[str, Any] | object, /) -> ReadProtocol:
    """The protocol of the training's rollouts in a configuration, or in a mapping of PARTS.

    A mapping without actor_rollout_ref and data is taken to be the rollout's own section. Raises: UsageError.
    """
    if isinstance(source, Mapping) and is_parts(source, PARTS):
        return effective(**source)
    return effective(config=source)


def effective(*, config: Any = None, generation_config: Any = None, stage: Stage = "train") -> ReadProtocol:
    """What rollouts are sampled with, and where each value is from.

    generation_config: in the model's folder; its end tokens end a completion. stage: validation takes `val_kwargs`.
    Raises: UsageError.
    """
    if stage not in ("train", "validate"):
        raise UsageError(f"verl has no stage {stage!r}. Known: train, validate.")
    reading = Reading(framework="verl")
    whole = mapping_of(config, what="verl's configuration")
    rollout, data, model = _sections(reading, whole)
    layers = [rollout, Layer(name="verl's default", values=DEFAULTS)]
    reading.take(SETTINGS, layers)
    _stage(reading, rollout, stage)
    _lengths(reading, rollout, data)
    _logprobs(reading, rollout)
    _model(reading, model, generation_config)
    _penalty(reading, rollout)
    _seed(reading, rollout)
    reading.rest(rollout, known=KNOWN, elsewhere=ELSEWHERE)
    reading.rest(data, known=DATA_KNOWN, elsewhere=DATA_ELSEWHERE)
    engine = rollout.values.get("name", "vllm")
    order = one_of(ORDERS)(engine, f"verl: name in {rollout.name}")
    if engine == "sglang" and reading.values.get("min_p"):
        order = ORDERS["hf"]
    return reading.finish(order=order, order_source=f"the sampler of {engine}")


def _sections(reading: Reading, whole: dict[str, Any]) -> tuple[Layer, Layer, Layer]:
    """The rollout's section, the data's and the model's; text such as ${...} is not resolved and so left out."""
    if "actor_rollout_ref" in whole or "data" in whole:
        inner = mapping_of(whole.get("actor_rollout_ref"), what="verl: actor_rollout_ref")
    else:
        inner = {"rollout": whole}
        whole = {}
    found = []
    sections = (
        ("actor_rollout_ref.rollout", inner.get("rollout")),
        ("data", whole.get("data")),
        ("actor_rollout_ref.model", inner.get("model")),
    )
    for name, value in sections:
        values = mapping_of(value, what=f"verl: {name}")
        for key in [key for key, text in values.items() if isinstance(text, str) and _UNRESOLVED.fullmatch(text)]:
            if key in KNOWN | DATA_KNOWN and key not in _SAME_AS_DATA:
                reading.note(
                    f"{name}.{key}", values[key], "not resolved: give the configuration as verl prints it", matters=True
                )
            values = {other: kept for other, kept in values.items() if other != key}
        found.append(Layer(name=name, values=values))
    return found[0], found[1], found[2]


_SAME_AS_DATA = {"prompt_length", "response_length"}
"""that say ${oc.select:data...} in verl's own files"""


def _stage(reading: Reading, rollout: Layer, stage: Stage) -> None:
    if stage == "validate":
        values = mapping_of(rollout.values.get("val_kwargs"), what="verl: rollout.val_kwargs")
        section = Layer(name=f"{rollout.name}.val_kwargs", values=values)
        reading.take(VALIDATION_SETTINGS, [section, Layer(name="verl's default", values=VALIDATION_DEFAULTS)])
    else:
        section = rollout
    if section.values.get("do_sample") is False and reading.values["temperature"] != 0.0:
        if rollout.values.get("name") == "hf":
            reading.put("temperature", 0.0, f"do_sample = False in {section.name}")
        else:
            why = "verl's agent loop does not look at it: it samples at the temperature"
            reading.note(f"{section.name}.do_sample", False, why, matters=True)


def _lengths(reading: Reading, rollout: Layer, data: Layer) -> None:
    """Lengths of the rollout, which are those of the data unless said; the side that is cut, or an error."""
    pairs = (
        ("max_new_tokens", "response_length", "max_response_length"),
        ("max_prompt_tokens", "prompt_length", "max_prompt_length"),
    )
    for field, own, of_data in pairs:
        layer, name = (rollout, own) if rollout.has(own) else (data, of_data)
        if layer.has(name):
            reading.put(field, limit(layer.values[name], f"verl: {name} in {layer.name}"), f"{layer.name}.{name}")
        else:
            reading.put(field, _DEFAULT_LENGTH, "verl's default")
        if rollout.has(own) and data.has(of_data) and rollout.values[own] != data.values[of_data]:
            why = f"the engine goes by rollout.{own} = {rollout.values[own]}, the data's rows by this"
            reading.note(f"data.{of_data}", data.values[of_data], why, matters=True)
    truncation = data.values.get("truncation", "error")
    if truncation == "middle":
        reading.note(
            "data.truncation", truncation, "it cuts the middle of a prompt, which a protocol cannot say", matters=True
        )
    else:
        side = one_of(_SIDES)(truncation, "verl: truncation in data")
        reading.put("prompt_truncation", side, "data.truncation" if data.has("truncation") else "verl's default")


_DEFAULT_LENGTH = 512


def _logprobs(reading: Reading, rollout: Layer) -> None:
    modes = {"raw_logprobs": "raw", "processed_logprobs": "processed"}
    mode = rollout.values.get("logprobs_mode") or "processed_logprobs"
    source = rollout.name if rollout.has("logprobs_mode") else "verl's default"
    reading.put("logprobs", one_of(modes)(mode, f"verl: logprobs_mode in {rollout.name}"), source)
    if rollout.values.get("calculate_log_probs") is False:
        reading.note("calculate_log_probs", False, "the rollout's logprobs are not kept: there is nothing to compare")


def _model(reading: Reading, model: Layer, generation_config: Any) -> None:
    template = model.values.get("custom_chat_template")
    if template is not None:
        digest = hashlib.sha256(str(template).encode()).hexdigest()
        reading.put("chat_template", digest, f"{model.name}.custom_chat_template")
    eos = mapping_of(generation_config, what="generation_config.json").get("eos_token_id")
    if eos is not None and not reading.values.get("ignore_eos"):
        found = eos if isinstance(eos, list | tuple) else (eos,)
        reading.put("stop_token_ids", tuple(found), "eos_token_id in generation_config.json")


def _penalty(reading: Reading, rollout: Layer) -> None:
    value = rollout.values.get("repetition_penalty")
    reading.put("repetition_penalty", 1.0, "verl's agent loop, which sends 1.0")
    if value is not None and value != 1.0:
        why = "verl's agent loop sends 1.0 whatever the configuration says"
        reading.note("repetition_penalty", value, why, matters=True)


def _seed(reading: Reading, rollout: Layer) -> None:
    """With full_determinism each replica sends seed plus its rank with every request; without, none is sent."""
    reading.put("seed", rollout.values.get("seed", 42), rollout.name if rollout.has("seed") else "verl's default")
    if rollout.values.get("full_determinism") is True:
        reading.put("seed_policy", "each request", f"full_determinism in {rollout.name}")
        reading.note("full_determinism", True, "the seed that is sent is seed plus the replica's rank")
    else:
        reading.put("seed_policy", "none", f"full_determinism is off in {rollout.name}")


def write_protocol(protocol: SamplingProtocol, /) -> Written:
    """The sections of verl's configuration, for vLLM as the rollout's engine: {"config": ...}.

    Raises: UsageError if verl cannot say something that changes what is drawn.
    """
    writing = Writing(framework="verl", protocol=protocol)
    rollout = {"name": "vllm"} | writing.settings(SETTINGS)
    rollout |= {"response_length": protocol.max_new_tokens, "logprobs_mode": f"{protocol.logprobs}_logprobs"}
    rollout |= {"seed": protocol.seed, "full_determinism": protocol.seed_policy == "each request"}
    data: dict[str, Any] = {
        "max_response_length": protocol.max_new_tokens,
        "truncation": protocol.prompt_truncation or "error",
    }
    if protocol.max_prompt_tokens is None:
        writing.note("max_prompt_tokens", "verl always has one: 512 unless data.max_prompt_length says another")
    else:
        rollout["prompt_length"] = data["max_prompt_length"] = protocol.max_prompt_tokens
    writing.said.update(
        {
            "max_new_tokens",
            "logprobs",
            "seed",
            "seed_policy",
            "prompt_truncation",
            "max_prompt_tokens",
            "repetition_penalty",
        }
    )
    if protocol.seed_policy == "each rollout":
        writing.note("seed_policy", "verl sends one seed for all requests of a replica, or none")
    if protocol.repetition_penalty != 1.0:
        writing.refuse("repetition_penalty", "its agent loop sends 1.0 whatever the configuration says")
    if protocol.chat_template is not None:
        writing.cannot("chat_template", "custom_chat_template takes the template's text, not its name or hash")
    writing.order(ORDERS["vllm"])
    config = {
        "actor_rollout_ref": {"rollout": {name: value for name, value in rollout.items() if value is not None}},
        "data": data,
    }
    return writing.finish({"config": config})
