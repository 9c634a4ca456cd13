"""TensorRT-LLM's sampling parameters and requests as a protocol, and back.

Source: NVIDIA/TensorRT-LLM:tensorrt_llm/sampling_params.py (fields, defaults, `params_imply_greedy_decoding`,
`prompt_ignore_length`: tokens of the prompt that the presence and frequency penalties pass over),
tensorrt_llm/serve/openai_protocol.py (`CompletionRequest`), cpp/tensorrt_llm/kernels/penaltyKernels.cu (temperature
before penalties), 2026.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onepolicy.errors import UsageError
from onepolicy.records.processors import Processor
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.sampling.convert import ReadProtocol, Written
from onepolicy.sampling.layers import Elsewhere, Layer, Reading, is_parts, words
from onepolicy.sampling.spellings import NO_LIMIT, Kind, Setting, ids, limit, listed, mapping_of, same, texts
from onepolicy.sampling.writing import Writing

PARTS = ("request", "sampling_params", "max_seq_len")
ORDER: tuple[Processor, ...] = ("temperature", "penalties", "top_k", "top_p", "min_p")
SETTINGS = (
    Setting(theirs="temperature", field="temperature"),
    Setting(theirs="top_p", field="top_p"),
    Setting(theirs="top_k", field="top_k", off=(0, -1)),
    Setting(theirs="min_p", field="min_p"),
    Setting(theirs="repetition_penalty", field="repetition_penalty"),
    Setting(theirs="presence_penalty", field="presence_penalty"),
    Setting(theirs="frequency_penalty", field="frequency_penalty"),
    Setting(theirs="min_tokens", field="min_new_tokens"),
    Setting(theirs="n", field="samples_per_prompt"),
    Setting(theirs="stop", field="stop", read=texts, write=listed),
    Setting(theirs="stop_token_ids", field="stop_token_ids", read=ids, write=listed),
    Setting(theirs="ignore_eos", field="ignore_eos"),
)
DEFAULTS = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "n": 1}
PYTHON_NEW_TOKENS = 32
"""max_tokens of SamplingParams that does not say; a request without it goes up to the context"""
ELSEWHERE = Elsewhere(
    silent=words(
        "model prompt messages stream stream_options echo logprobs top_logprobs prompt_logprobs user end_id pad_id "
        "return_context_logits return_generation_logits exclude_input_from_output return_encoder_output "
        "return_perf_metrics additional_model_outputs skip_special_tokens spaces_between_special_tokens detokenize "
        "include_stop_str_in_output length_penalty early_stopping beam_search_diversity_rate lora_request priority "
        "disaggregated_params conversation_params apply_batched_logits_processor beam_width_array top_p_min "
        "top_p_reset_ids return_log_probs"
    ),
    neutral={
        "use_beam_search": (False,),
        "logit_bias": ({},),
        "embedding_bias": (),
        "bad": ([], ""),
        "bad_token_ids": ([],),
        "logits_processor": ([],),
        "no_repeat_ngram_size": (1 << 30, 0),
        "top_p_decay": (1.0,),
        "lookahead_config": (),
        "thinking_token_budget": (),
        "suffix": ("",),
        "chat_template_kwargs": ({},),
        "tools": ([],),
    },
)
_KINDS: dict[str, Kind] = {
    "json": "json_schema",
    "regex": "regex",
    "grammar": "grammar",
}
_RESPONSES = {
    "json": ("json", "schema"),
    "json_schema": ("json", "json_schema"),
    "regex": ("regex", "regex"),
    "ebnf": ("grammar", "ebnf"),
}
_KNOWN = {setting.theirs for setting in SETTINGS} | {
    "max_tokens",
    "max_completion_tokens",
    "seed",
    "best_of",
    "truncate_prompt_tokens",
    "add_special_tokens",
    "add_generation_prompt",
    "prompt_ignore_length",
    "response_format",
    "guided_decoding",
    "logprobs_mode",
}


def read_protocol(source: Mapping[str, Any] | object, /) -> ReadProtocol:
    """The protocol of a request's body, a SamplingParams object, or a mapping of PARTS to them.

    Raises: UsageError for a value that is none, with where it stands.
    """
    if isinstance(source, Mapping):
        return effective(**source) if is_parts(source, PARTS) else effective(request=source)
    return effective(sampling_params=source)


def effective(*, request: Any = None, sampling_params: Any = None, max_seq_len: int | None = None) -> ReadProtocol:
    """What is sampled with for a request, or for SamplingParams, that leave fields out, and where each value is from.

    max_seq_len: of the server, prompt and completion. Raises: UsageError.
    """
    served = sampling_params is None
    body = mapping_of(request if served else sampling_params, what="TensorRT-LLM's request", names=sorted(_KNOWN))
    reading = Reading(framework="TensorRT-LLM")
    asked = Layer(name="the request" if served else "SamplingParams", values=body)
    reading.take(SETTINGS, [asked, Layer(name="TensorRT-LLM's default", values=DEFAULTS)])
    _greedy(reading, asked, served)
    _limits(reading, asked, served, max_seq_len)
    _prompt(reading, asked)
    _constraint(reading, asked)
    _logprobs(reading, asked)
    reading.take((Setting(theirs="seed", field="seed"),), [asked])
    reading.seeds()
    _penalties(reading, asked)
    if asked.has("best_of") and not same(body["best_of"], reading.values["samples_per_prompt"]):
        reading.note(
            "best_of", body["best_of"], "the best of them are kept, which is another distribution", matters=True
        )
    reading.rest(asked, known=_KNOWN, elsewhere=ELSEWHERE)
    reading.unlimited("the context ends a completion: give max_tokens, or max_seq_len")
    return reading.finish(order=ORDER, order_source="TensorRT-LLM's sampler, which has one order")


def _greedy(reading: Reading, asked: Layer, served: bool) -> None:
    """SamplingParams without temperature, top_k and top_p are greedy; top_k = 1 and top_p = 0 are too."""
    unset = not any(asked.has(name) for name in ("temperature", "top_k", "top_p"))
    if not served and unset:
        reading.put("temperature", 0.0, "TensorRT-LLM's default: greedy without temperature, top_k and top_p")
    if same(asked.values.get("top_p"), 0.0):
        reading.put("temperature", 0.0, f"top_p = 0 in {asked.name}, which is greedy")
        reading.put("top_p", 1.0, f"top_p = 0 in {asked.name}, which is greedy")


def _limits(reading: Reading, asked: Layer, served: bool, max_seq_len: int | None) -> None:
    name = "max_completion_tokens" if asked.has("max_completion_tokens") else "max_tokens"
    if max_seq_len is not None:
        reading.put("max_total_tokens", max_seq_len, "max_seq_len")
    if asked.has(name):
        reading.put("max_new_tokens", limit(asked.values[name], f"TensorRT-LLM: {name}"), asked.name)
    elif not served and name not in asked.values:
        reading.put("max_new_tokens", PYTHON_NEW_TOKENS, "TensorRT-LLM's default")
    else:
        reading.put("max_new_tokens", max_seq_len or NO_LIMIT, "TensorRT-LLM: up to the context")


def _prompt(reading: Reading, asked: Layer) -> None:
    """The last tokens of a long prompt are kept."""
    if asked.has("truncate_prompt_tokens"):
        reading.put("max_prompt_tokens", asked.values["truncate_prompt_tokens"], asked.name)
        reading.put("prompt_truncation", "left", f"truncate_prompt_tokens in {asked.name}, which keeps the last ones")
    chat = "messages" in asked.values
    if asked.has("add_special_tokens") and asked.values["add_special_tokens"] is chat:
        reading.put("add_bos", chat, asked.name)
    reading.take((Setting(theirs="add_generation_prompt", field="add_generation_prompt"),), [asked])


def _constraint(reading: Reading, asked: Layer) -> None:
    given = mapping_of(asked.values.get("guided_decoding"), what="TensorRT-LLM: guided_decoding", names=sorted(_KINDS))
    found = {name: value for name, value in given.items() if value not in (None, False)}
    response = mapping_of(asked.values.get("response_format"), what="TensorRT-LLM: response_format")
    kind = response.get("type")
    if isinstance(kind, str) and kind in _RESPONSES:
        name, key = _RESPONSES[kind]
        value = response.get(key)
        found[name] = (
            value["schema"] if kind == "json_schema" and isinstance(value, Mapping) and "schema" in value else value
        )
    elif kind not in (None, "text"):
        reading.note("response_format", response, "a constraint that a protocol has no kind for", matters=True)
    if len(found) > 1:
        raise UsageError(f"TensorRT-LLM: {' and '.join(found)} are given; it takes one constraint. Leave one.")
    for name, value in found.items():
        if name in _KINDS:
            reading.constrain(_KINDS[name], value, name=name, source=asked.name)
        else:
            reading.note(name, value, "a constraint that a protocol has no kind for", matters=True)


def _logprobs(reading: Reading, asked: Layer) -> None:
    mode = asked.values.get("logprobs_mode")
    said = str(getattr(mode, "name", mode) or "raw").lower()
    if not said.startswith(("raw", "processed")):
        raise UsageError(f"TensorRT-LLM: logprobs_mode = {mode!r}: not understood. Known: raw, processed.")
    source = asked.name if mode is not None else "TensorRT-LLM's default"
    reading.put("logprobs", "processed" if said.startswith("processed") else "raw", source)


def _penalties(reading: Reading, asked: Layer) -> None:
    """Presence and frequency look at the prompt too, but for its first prompt_ignore_length tokens."""
    ignored = asked.values.get("prompt_ignore_length")
    for name in ("presence_penalty", "frequency_penalty"):
        value = reading.values.get(name, 0.0)
        if value and ignored != NO_LIMIT:
            why = f"TensorRT-LLM penalises tokens of the prompt too (prompt_ignore_length = {ignored or 0})"
            reading.note(name, value, why, matters=True)


def write_protocol(protocol: SamplingProtocol, /) -> Written:
    """All fields of SamplingParams that could change what is drawn: {"sampling_params": ..., "max_seq_len": ...}.

    Raises: UsageError if TensorRT-LLM cannot say something that changes what is drawn.
    """
    writing = Writing(framework="TensorRT-LLM", protocol=protocol)
    params = writing.settings(SETTINGS) | {"max_tokens": protocol.max_new_tokens, "prompt_ignore_length": NO_LIMIT}
    writing.said.update(
        {"max_new_tokens", "max_total_tokens", "constraint", "add_bos", "logprobs", "prompt_truncation"}
    )
    params |= {"add_special_tokens": protocol.add_bos is not False, "logprobs_mode": protocol.logprobs}
    if protocol.add_bos:
        writing.cannot("add_bos", "it adds the special tokens that the tokenizer adds")
    if protocol.constraint:
        name = next(name for name, kind in _KINDS.items() if kind == protocol.constraint.kind)
        params["guided_decoding"] = {name: protocol.constraint.text}
    params |= _write_prompt(writing)
    if (seed := writing.seed()) is not None:
        params["seed"] = seed
    if protocol.is_greedy and protocol.samples_per_prompt > 1:
        writing.refuse("samples_per_prompt", "it takes n = 1 only for greedy decoding; they would be the same")
    writing.order(ORDER)
    total = {} if protocol.max_total_tokens is None else {"max_seq_len": protocol.max_total_tokens}
    return writing.finish({"sampling_params": params, **total})


def _write_prompt(writing: Writing) -> dict[str, Any]:
    most, side = writing.protocol.max_prompt_tokens, writing.protocol.prompt_truncation
    writing.said.add("max_prompt_tokens")
    if side == "right":
        writing.refuse("prompt_truncation", "truncate_prompt_tokens cuts on the left")
    elif side == "left" and most is None:
        writing.refuse("prompt_truncation", "truncate_prompt_tokens needs the number of tokens; set max_prompt_tokens")
    elif most is not None and side is None:
        writing.refuse("max_prompt_tokens", "truncate_prompt_tokens cuts what is longer, and does not refuse it")
    return {} if most is None else {"truncate_prompt_tokens": most}
