"""TRL's GRPOConfig as a protocol, and back; TRL is not imported.

`generation_kwargs` goes over the other fields, in the names of vLLM or of Transformers, whichever samples. Source:
huggingface/trl:trl/trainer/grpo_config.py, trl/trainer/grpo_trainer.py (what `generate` is given; `set_seed` for each
process), trl/generation/vllm_generation.py (SamplingParams; processed logprobs), version 1.16.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from onepolicy.errors import UsageError
from onepolicy.integrations.trl.protocol_tables import (
    DEFAULTS,
    ELSEWHERE,
    KWARGS_ELSEWHERE,
    KWARGS_NAMES,
    KWARGS_SETTINGS,
    KWARGS_SPELLINGS,
    SETTINGS,
    TRANSFORMERS_ORDER,
    VLLM_ORDER,
)
from onepolicy.records.json_text import json_in
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.sampling.convert import ReadProtocol, Written
from onepolicy.sampling.layers import Layer, Reading, is_parts
from onepolicy.sampling.spellings import NO_LIMIT, Kind, Setting, default_of, ids, limit, mapping_of
from onepolicy.sampling.writing import Writing

PARTS = ("config", "model_generation_config")
_OF_SAMPLING = re.compile(
    r"temperature|top_|min_p|typical|penalty|stop|eos|length|truncat|generat|vllm|seed|template|logprob|sampl|token|beam|prompt"
)
_KNOWN = {setting.theirs for setting in SETTINGS} | {
    "max_completion_length",
    "max_prompt_length",
    "generation_kwargs",
    "vllm_structured_outputs_regex",
    "model_init_kwargs",
    "use_vllm",
    "vllm_mode",
    "seed",
}


def read_protocol(source: Mapping[str, Any] | object, /) -> ReadProtocol:
    """The protocol of a GRPOConfig, of its fields in a mapping, or of a mapping of PARTS to them.

    Raises: UsageError for a value that is none, with where it stands.
    """
    if isinstance(source, Mapping) and is_parts(source, PARTS):
        return effective(**source)
    return effective(config=source)


def effective(*, config: Any = None, model_generation_config: Any = None) -> ReadProtocol:
    """What the rollouts are sampled with, and where each value is from.

    model_generation_config: of the model that is trained. Where Transformers samples, min_p is taken from it unless
    GRPOConfig says one. Raises: UsageError.
    """
    reading = Reading(framework="TRL")
    values = mapping_of(config, what="GRPOConfig", names=sorted(_KNOWN))
    given = Layer(name="GRPOConfig", values=values)
    vllm = values.get("use_vllm") is True
    extra = Layer(
        name="generation_kwargs", values=_renamed(_loaded(values.get("generation_kwargs"), "generation_kwargs"))
    )
    layers = [extra, given, *_of_model(model_generation_config, vllm)]
    reading.take(SETTINGS, [*layers, Layer(name="TRL's default", values=DEFAULTS)])
    reading.take(KWARGS_SETTINGS, [extra])
    if extra.values.get("do_sample") is False:
        reading.put("temperature", 0.0, "do_sample = False in generation_kwargs")
    _limits(reading, extra, given)
    _stops(reading, extra, model_generation_config)
    _constraint(reading, extra, given)
    _rest_of_training(reading, given)
    reading.rest(extra, known=KWARGS_NAMES, elsewhere=KWARGS_ELSEWHERE)
    _seed(reading, given)
    _logprobs(reading, given, vllm)
    reading.unlimited("the context ends a completion: set max_completion_length")
    order = VLLM_ORDER if vllm else TRANSFORMERS_ORDER
    return reading.finish(order=order, order_source="the sampler of vLLM" if vllm else "the sampler of Transformers")


def _loaded(value: Any, what: str) -> dict[str, Any]:
    """A mapping, or JSON text of one, as it is on a command line."""
    if isinstance(value, str):
        try:
            value = json_in(value)
        except UsageError as error:
            raise UsageError(f"TRL: {what} = {value!r}: {error} Correct it.") from error
    return mapping_of(value, what=f"TRL: {what}")


def _renamed(values: dict[str, Any]) -> dict[str, Any]:
    return {KWARGS_SPELLINGS.get(name, name): value for name, value in values.items()}


def _of_model(model: Any, vllm: bool) -> list[Layer]:
    """What Transformers fills in where GRPOConfig says None."""
    if vllm:
        return []
    config = mapping_of(model, what="model_generation_config")
    return [Layer(name="the model's generation config", values={"min_p": config.get("min_p")})]


def _limits(reading: Reading, extra: Layer, given: Layer) -> None:
    layer = next((layer for layer in (extra, given) if layer.has("max_completion_length")), None)
    if layer is not None:
        value = limit(layer.values["max_completion_length"], f"TRL: max_completion_length in {layer.name}")
        reading.put("max_new_tokens", value, layer.name)
    elif "max_completion_length" in given.values:
        most = reading.values.get("max_total_tokens", NO_LIMIT)
        reading.put("max_new_tokens", most, "GRPOConfig: no limit but the context")
    else:
        reading.put("max_new_tokens", DEFAULTS["max_completion_length"], "TRL's default")
    if given.has("max_prompt_length"):
        reading.put("max_prompt_tokens", given.values["max_prompt_length"], given.name)
        reading.put("prompt_truncation", "left", "max_prompt_length of earlier versions, which keeps the last tokens")


def _stops(reading: Reading, extra: Layer, model: Any) -> None:
    """The ids in the model's generation config end a completion too."""
    eos = mapping_of(model, what="model_generation_config").get("eos_token_id")
    if eos is not None and not extra.has("eos_token_id") and not reading.values.get("ignore_eos"):
        own = reading.values.get("stop_token_ids", ())
        where = "eos_token_id in the model's generation config" + (", and generation_kwargs" if own else "")
        reading.put("stop_token_ids", (*own, *ids(eos, "TRL: eos_token_id")), where)


def _constraint(reading: Reading, extra: Layer, given: Layer) -> None:
    regex = given.values.get("vllm_structured_outputs_regex")
    if regex:
        reading.constrain("regex", regex, name="vllm_structured_outputs_regex", source=given.name)
        return
    kinds: dict[str, Kind] = {"json": "json_schema", "regex": "regex", "grammar": "grammar"}
    for name, value in mapping_of(extra.values.get("structured_outputs"), what="TRL: structured_outputs").items():
        if value is None:
            continue
        if name in kinds:
            reading.constrain(kinds[name], value, name=f"structured_outputs.{name}", source=extra.name)
        else:
            reading.note(
                f"structured_outputs.{name}", value, "a constraint that a protocol has no kind for", matters=True
            )


def _rest_of_training(reading: Reading, given: Layer) -> None:
    """Notes for what sounds like sampling, and one for all other settings of a training."""
    of_sampling = {name: value for name, value in given.values.items() if _OF_SAMPLING.search(name)}
    reading.rest(Layer(name=given.name, values=of_sampling), known=_KNOWN, elsewhere=ELSEWHERE)
    others = sorted(set(given.values) - set(of_sampling) - _KNOWN - set(ELSEWHERE.silent) - set(ELSEWHERE.neutral))
    if others:
        why = "not understood as sampling: settings of the training, taken to change nothing of what is drawn"
        reading.note("other settings", ", ".join(others), why)
    init = _loaded(given.values.get("model_init_kwargs"), "model_init_kwargs")
    dtype = init.get("dtype", init.get("torch_dtype"))
    if isinstance(dtype, str) and dtype != "auto":
        reading.put("dtype", dtype, "model_init_kwargs")


def _seed(reading: Reading, given: Layer) -> None:
    reading.take((Setting(theirs="seed", field="seed"),), [given, Layer(name="TRL's default", values={"seed": 42})])
    reading.put("seed_policy", "none", "TRL seeds each process with seed and its rank; no request has one")


def _logprobs(reading: Reading, given: Layer, vllm: bool) -> None:
    """What is drawn from: TRL starts vLLM so, and divides the trainer's logits by the temperature."""
    values = reading.values
    cut = [
        name
        for name in ("top_p", "top_k", "min_p", "repetition_penalty")
        if values.get(name) not in (None, default_of(name))
    ]
    plain = values.get("temperature", 1.0) in (0.0, 1.0) and not cut
    reading.put("logprobs", "raw" if plain else "processed", "TRL: logprobs are of what is drawn from")
    if cut:
        why = f"TRL's trainer divides by the temperature alone, the rollout's logprobs are after {', '.join(cut)} too"
        reading.note("logprobs", "processed", why, matters=True)
    if vllm and given.values.get("vllm_mode") == "server":
        why = "the server's --logprobs-mode decides, and its start flags go with it; read them too"
        reading.note("vllm_mode", "server", why)


def write_protocol(protocol: SamplingProtocol, /, *, use_vllm: bool = True) -> Written:
    """Fields of GRPOConfig, for vLLM or for Transformers as the one that samples: {"config": ...}.

    Raises: UsageError if TRL cannot say something that changes what is drawn.
    """
    writing = Writing(framework="TRL", protocol=protocol)
    config = writing.settings(SETTINGS) | {"max_completion_length": protocol.max_new_tokens, "seed": protocol.seed}
    config["use_vllm"] = use_vllm
    writing.said.update({"max_new_tokens", "seed", "dtype", "seed_policy", "logprobs"})
    config |= {"model_init_kwargs": {"dtype": protocol.dtype}} if protocol.dtype else {}
    kwargs = _write_kwargs(writing, use_vllm)
    config |= {"generation_kwargs": kwargs} if kwargs else {}
    if protocol.seed_policy != "none":
        why = "TRL seeds each process, and no request has a seed"
        writing.note("seed_policy", why, matters=writing.uses("seed_policy"))
    _write_logprobs(writing)
    if protocol.samples_per_prompt < _FEWEST:
        writing.note(
            "samples_per_prompt",
            "GRPO needs 2 or more: GRPOConfig refuses it",
            matters=writing.uses("samples_per_prompt"),
        )
    if not use_vllm and protocol.is_greedy:
        kwargs |= {"do_sample": False}
        config |= {"temperature": 1.0, "generation_kwargs": kwargs}
    writing.order(VLLM_ORDER if use_vllm else TRANSFORMERS_ORDER)
    return writing.finish({"config": {name: value for name, value in config.items() if value is not None}})


_FEWEST = 2


def _write_kwargs(writing: Writing, use_vllm: bool) -> dict[str, Any]:
    """What GRPOConfig has no field for and the sampling side does."""
    protocol = writing.protocol
    theirs = {"min_new_tokens": "min_tokens"} if use_vllm else {"stop": "stop_strings"}
    kwargs: dict[str, Any] = {}
    for setting in KWARGS_SETTINGS:
        if not use_vllm and setting.field in _VLLM_ALONE:
            continue
        writing.said.add(setting.field)
        if writing.uses(setting.field):
            kwargs[theirs.get(setting.theirs, setting.theirs)] = setting.value_of(protocol)
    if not use_vllm and "stop_token_ids" in kwargs:
        kwargs["eos_token_id"] = kwargs.pop("stop_token_ids")
        writing.note(
            "stop_token_ids", "generate ends at these ids alone: the model's own end tokens must be among them"
        )
    if use_vllm:
        writing.said.add("constraint")
        if protocol.constraint:
            kind = {"json_schema": "json"}.get(protocol.constraint.kind, protocol.constraint.kind)
            kwargs["structured_outputs"] = {kind: protocol.constraint.text}
    return kwargs


_VLLM_ALONE = ("presence_penalty", "frequency_penalty", "ignore_eos")


def _write_logprobs(writing: Writing) -> None:
    protocol = writing.protocol
    plain = protocol.temperature in (0.0, 1.0) and protocol.top_p == 1.0 and not protocol.top_k and not protocol.min_p
    plain = plain and protocol.repetition_penalty == 1.0
    if plain != (protocol.logprobs == "raw"):
        same = "which is the same where nothing is processed" if plain else "whatever the protocol says"
        writing.note("logprobs", f"TRL's logprobs are of what is drawn from, {same}", matters=not plain)
