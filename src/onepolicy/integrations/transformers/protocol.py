"""Transformers' generation config as a protocol, and back; Transformers is not imported.

What acts is the config that is given to `generate`, over the model's own (`generation_config.json`), over the library's
defaults, among them top_k = 50 and 20 new tokens. Source: huggingface/transformers:src/transformers/generation/
{configuration_utils,utils}.py (`_get_default_generation_params`, `_prepare_generation_config`,
`_prepare_generated_length`, `_get_logits_processor`), version 5.24.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from onepolicy.errors import UsageError
from onepolicy.records.processors import DEFAULT_ORDER
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.sampling.convert import ReadProtocol, Written
from onepolicy.sampling.layers import Elsewhere, Layer, Reading, is_parts, words
from onepolicy.sampling.spellings import Setting, finite, ids, limit, listed, mapping_of, texts
from onepolicy.sampling.writing import Writing


def _bare(dtype: Any, where: str) -> str:
    """torch.bfloat16 and "bfloat16" are one. Raises: UsageError for a number or a list."""
    if isinstance(dtype, int | float | list | tuple | Mapping):
        raise UsageError(f"{where} = {dtype!r}: this is no dtype. Give its name, such as bfloat16.")
    return str(dtype).removeprefix("torch.")


def _template(template: Any, where: str) -> str:
    """A name as it is, a template's text as its SHA-256. Raises: UsageError if it is no text."""
    if not isinstance(template, str):
        raise UsageError(f"{where} = {template!r}: this is no template. Give its text, or a name.")
    return hashlib.sha256(template.encode()).hexdigest() if "{" in template else template


PARTS = ("generation_config", "model_generation_config", "tokenizer", "model")
SETTINGS = (
    Setting(theirs="top_p", field="top_p"),
    Setting(theirs="top_k", field="top_k", off=(0,)),
    Setting(theirs="min_p", field="min_p"),
    Setting(theirs="repetition_penalty", field="repetition_penalty"),
    Setting(theirs="min_new_tokens", field="min_new_tokens"),
    Setting(theirs="num_return_sequences", field="samples_per_prompt"),
    Setting(theirs="stop_strings", field="stop", read=texts, write=listed),
    Setting(theirs="use_cache", field="use_cache"),
)
EOS = Setting(theirs="eos_token_id", field="stop_token_ids", read=ids, write=listed)
TOKENIZER = (
    Setting(theirs="padding_side", field="padding_side"),
    Setting(theirs="add_bos_token", field="add_bos"),
    Setting(theirs="add_generation_prompt", field="add_generation_prompt"),
    Setting(theirs="chat_template", field="chat_template", read=_template),
)
"""of the tokenizer and of the calls that tokenise"""
MODEL = (Setting(theirs="dtype", field="dtype", off=(None, "auto"), read=_bare),)
DEFAULTS = {
    "do_sample": False,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
    "repetition_penalty": 1.0,
    "num_return_sequences": 1,
    "use_cache": True,
}
DEFAULT_NEW_TOKENS = 20
"""of a config without max_new_tokens and max_length"""
_KNOWN = {setting.theirs for setting in (*SETTINGS, EOS)} | {
    "do_sample",
    "temperature",
    "max_new_tokens",
    "max_length",
    "output_scores",
    "output_logits",
}
ELSEWHERE = Elsewhere(
    silent=words(
        "_from_model_config transformers_version pad_token_id bos_token_id decoder_start_token_id cache_implementation "
        "cache_config max_cache_len return_legacy_cache compile_config disable_compile continuous_batching_config "
        "output_attentions output_hidden_states return_dict_in_generate early_stopping length_penalty low_memory "
        "num_beam_groups diversity_penalty num_assistant_tokens num_assistant_tokens_schedule is_assistant "
        "assistant_confidence_threshold assistant_lookbehind target_lookbehind assistant_ensemble_weight "
        "max_matching_ngram_size remove_invalid_values renormalize_logits prefill_chunk_size speculation_type"
    ),
    neutral={
        "min_length": (0,),
        "num_beams": (1,),
        "typical_p": (1.0,),
        "top_h": (),
        "epsilon_cutoff": (0.0,),
        "eta_cutoff": (0.0,),
        "no_repeat_ngram_size": (0,),
        "encoder_no_repeat_ngram_size": (0,),
        "encoder_repetition_penalty": (1.0,),
        "bad_words_ids": ([],),
        "force_words_ids": ([],),
        "constraints": ([],),
        "forced_bos_token_id": (),
        "forced_eos_token_id": (),
        "exponential_decay_length_penalty": (),
        "suppress_tokens": ([],),
        "begin_suppress_tokens": ([],),
        "sequence_bias": ({}, []),
        "guidance_scale": (1.0,),
        "penalty_alpha": (0.0,),
        "watermarking_config": (),
        "max_time": (),
        "token_healing": (False,),
        "dola_layers": (),
        "prompt_lookup_num_tokens": (),
        "assistant_early_exit": (),
        "use_mtp": (False,),
    },
)


def read_protocol(source: Mapping[str, Any] | object, /) -> ReadProtocol:
    """The protocol of a GenerationConfig, of `generation_config.json`, or of a mapping of PARTS to them.

    Raises: UsageError for a value that is none, with where it stands.
    """
    if isinstance(source, Mapping) and is_parts(source, PARTS):
        return effective(**source)
    return effective(generation_config=source)


def effective(
    *, generation_config: Any = None, model_generation_config: Any = None, tokenizer: Any = None, model: Any = None
) -> ReadProtocol:
    """What `generate` samples with, and where each value is from.

    generation_config: as it is given to `generate`. model_generation_config: the model's own, for what the other
    leaves out. tokenizer: padding_side, add_bos_token and the arguments with which prompts are tokenised (truncation,
    max_length, truncation_side, add_generation_prompt). model: dtype. Raises: UsageError.
    """
    reading = Reading(framework="Transformers")
    given = Layer(name="the generation config", values=mapping_of(generation_config, what="generation_config"))
    own = Layer(
        name="the model's generation config", values=mapping_of(model_generation_config, what="model_generation_config")
    )
    layers = [given, own]
    reading.take((*SETTINGS, EOS), [*layers, Layer(name="Transformers' default", values=DEFAULTS)])
    _temperature(reading, layers)
    _lengths(reading, layers)
    _logprobs(reading, layers)
    _tokenizer(reading, Layer(name="the tokenizer", values=_parts(tokenizer, "tokenizer", ["padding_side"])))
    reading.take(MODEL, [Layer(name="the model", values=_parts(model, "model", ["dtype"]))])
    for layer in layers:
        reading.rest(layer, known=_KNOWN, elsewhere=ELSEWHERE)
    reading.put("seed_policy", "none", "torch's random state, which is of the process")
    return reading.finish(order=DEFAULT_ORDER, order_source="Transformers' order, which is fixed")


def _parts(source: Any, what: str, names: list[str]) -> dict[str, Any]:
    """A mapping as it is; of an object the attributes that are not its own to decide, such as its own template."""
    if source is None or isinstance(source, Mapping | str | int | list):
        return mapping_of(source, what=what)
    return {name: getattr(source, name) for name in names if hasattr(source, name)}


def _first(layers: list[Layer], name: str) -> Layer | None:
    return next((layer for layer in layers if layer.has(name)), None)


def _temperature(reading: Reading, layers: list[Layer]) -> None:
    """do_sample = False is greedy, whatever the temperature; what is no temperature is an error all the same."""
    layer = _first(layers, "temperature")
    value = finite(layer.values["temperature"], f"Transformers: temperature in {layer.name}") if layer else 1.0
    sampled = _first(layers, "do_sample")
    if sampled is None:
        reading.put("temperature", 0.0, "Transformers' default, do_sample = False")
        return
    flag = sampled.values["do_sample"]
    if not isinstance(flag, bool):
        raise UsageError(
            f"Transformers: do_sample = {flag!r} in {sampled.name} is neither true nor false. Correct it there."
        )
    if not flag:
        reading.put("temperature", 0.0, f"do_sample = False in {sampled.name}")
        return
    if value == 0.0:
        raise UsageError("Transformers: do_sample = True at temperature 0 is refused by it. Set do_sample = False.")
    reading.put("temperature", value, layer.name if layer else "Transformers' default")


def _lengths(reading: Reading, layers: list[Layer]) -> None:
    """max_new_tokens counts over max_length, which counts the prompt too."""
    new, total = _first(layers, "max_new_tokens"), _first(layers, "max_length")
    if new is not None:
        value = limit(new.values["max_new_tokens"], f"Transformers: max_new_tokens in {new.name}")
        reading.put("max_new_tokens", value, new.name)
        if total is not None:
            why = "max_new_tokens counts where both are set"
            reading.note("max_length", total.values["max_length"], why)
    elif total is not None:
        value = limit(total.values["max_length"], f"Transformers: max_length in {total.name}")
        source = f"max_length in {total.name}, which counts the prompt too"
        reading.put("max_total_tokens", value, source)
        reading.put("max_new_tokens", value, source)
    else:
        reading.put("max_new_tokens", DEFAULT_NEW_TOKENS, "Transformers' default")


def _logprobs(reading: Reading, layers: list[Layer]) -> None:
    """Scores are what is drawn from, logits what the model gives."""
    scores = _first(layers, "output_scores")
    if scores is not None and scores.values["output_scores"] is True:
        reading.put("logprobs", "processed", f"output_scores in {scores.name}")
    else:
        reading.put("logprobs", "raw", "the model's logits")


def _tokenizer(reading: Reading, layer: Layer) -> None:
    reading.take(TOKENIZER, [layer])
    if layer.values.get("truncation") in (True, "longest_first"):
        reading.put("prompt_truncation", layer.values.get("truncation_side", "right"), layer.name)
        reading.take((Setting(theirs="max_length", field="max_prompt_tokens"),), [layer])


def write_protocol(protocol: SamplingProtocol, /) -> Written:
    """What `generate`, the tokenizer and `from_pretrained` are given: a mapping of PARTS, those that say something.

    `generation_config` is the content of a `generation_config.json`; all that could change the distribution is in it.
    Raises: UsageError if Transformers cannot say something that changes what is drawn.
    """
    writing = Writing(framework="Transformers", protocol=protocol)
    config = {"do_sample": not protocol.is_greedy} | writing.settings(SETTINGS)
    config |= {"temperature": protocol.temperature} if not protocol.is_greedy else {}
    config |= _limits(writing)
    config |= {"output_scores": True, "return_dict_in_generate": True} if protocol.logprobs == "processed" else {}
    writing.said.update({"temperature", "logprobs"})
    if not protocol.stop:
        config["stop_strings"] = None
    config["eos_token_id"] = _eos(writing)
    content = {"generation_config": {name: value for name, value in config.items() if value is not None}}
    if tokenizer := _tokenizer_arguments(writing):
        content["tokenizer"] = tokenizer
    if model := {name: value for name, value in writing.settings(MODEL).items() if value is not None}:
        content["model"] = model
    writing.no_seeds("call torch.manual_seed before generate; it is of the whole batch")
    writing.order(DEFAULT_ORDER)
    return writing.finish(content)


def _limits(writing: Writing) -> dict[str, int]:
    """One of the two limits: the other does not count beside it."""
    new, total = writing.protocol.max_new_tokens, writing.protocol.max_total_tokens
    writing.said.update({"max_new_tokens", "max_total_tokens"})
    if total is None:
        return {"max_new_tokens": new}
    if new < total:
        writing.refuse("max_total_tokens", "max_length does not count beside max_new_tokens")
    elif new > total:
        writing.note("max_new_tokens", f"max_length = {total} ends a completion before it")
    return {"max_length": total}


def _eos(writing: Writing) -> list[int] | None:
    """The end tokens, which are all in one list: the model's own must be among them."""
    writing.said.add("stop_token_ids")
    if writing.protocol.ignore_eos:
        writing.cannot("ignore_eos", "an empty list of end tokens is filled with the model's own")
    if not writing.protocol.stop_token_ids:
        return None
    writing.note("stop_token_ids", "generate ends at these ids alone: the model's own end tokens must be among them")
    return list(writing.protocol.stop_token_ids)


def _tokenizer_arguments(writing: Writing) -> dict[str, Any]:
    protocol = writing.protocol
    found = {name: value for name, value in writing.settings(TOKENIZER).items() if value is not None}
    if protocol.add_generation_prompt:
        del found["add_generation_prompt"]
    writing.said.update({"prompt_truncation", "max_prompt_tokens"})
    if protocol.prompt_truncation is not None:
        found |= {"truncation": True, "truncation_side": protocol.prompt_truncation}
        found |= {"max_length": protocol.max_prompt_tokens} if protocol.max_prompt_tokens else {}
    elif protocol.max_prompt_tokens is not None:
        writing.cannot("max_prompt_tokens", "a tokenizer cuts what is longer, or lets it through")
    return found
