"""vLLM's sampling parameters, requests and start flags as a protocol, and back.

Source: vllm-project/vllm:vllm/sampling_params.py (fields, defaults, limits),
vllm/entrypoints/openai/{completion,chat_completion}/protocol.py (request over server default over neutral),
vllm/config/model.py (`get_diff_sampling_param`, `logprobs_mode`), vllm/v1/sample/sampler.py (the order: min_p acts
before top_k and top_p), vllm/entrypoints/serve/utils/api_utils.py (`get_max_tokens`); version 0.32.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal

from onepolicy.errors import UsageError
from onepolicy.integrations.vllm.protocol_tables import (
    ALIASES,
    CHAT,
    COMPLETIONS,
    ELSEWHERE,
    FLAGS,
    FLAGS_ELSEWHERE,
    FROM_MODEL,
    KINDS,
    LOWEST_TEMPERATURE,
    MODEL_SILENT,
    NEUTRAL_DEFAULTS,
    ORDER,
    OVERRIDE_ELSEWHERE,
    PARAMS,
    REQUEST_EXTRA,
    SEED,
)
from onepolicy.integrations.vllm.protocol_writing import write_protocol
from onepolicy.sampling.convert import ReadProtocol
from onepolicy.sampling.flags import flags_of
from onepolicy.sampling.layers import Layer, Reading, is_parts
from onepolicy.sampling.spellings import NO_LIMIT, ids, limit, mapping_of, texts

__all__ = ["effective", "read_protocol", "write_protocol"]
PARTS = ("request", "sampling_params", "flags", "generation_config")
Way = Literal["completions", "chat", "sampling_params"]


def read_protocol(source: Mapping[str, Any] | object, /) -> ReadProtocol:
    """The protocol of a request's body, a SamplingParams object, a list of start flags, or a mapping of PARTS to them.

    Raises: UsageError for a value that is none, with where it stands.
    """
    if isinstance(source, list | tuple):
        return effective(flags=source)
    if isinstance(source, Mapping):
        return effective(**source) if is_parts(source, PARTS) else effective(request=source)
    return effective(sampling_params=source)


def effective(
    *, request: Any = None, sampling_params: Any = None, flags: Any = None, generation_config: Any = None
) -> ReadProtocol:
    """What a server samples with for a request that leaves fields out, and where each value is from.

    request: a body of `/v1/completions`, or of `/v1/chat/completions` if it has messages. sampling_params: instead of
    it, what is given to `LLM.generate`, which asks no server's defaults. flags: of the start, as a list or a mapping.
    generation_config: the one in the model's folder, or in the folder that `--generation-config` names.
    Raises: UsageError.
    """
    if request is not None and sampling_params is not None:
        raise UsageError("vLLM: a request and sampling_params are given; they are two ways to ask. Give one.")
    body = mapping_of(
        request if sampling_params is None else sampling_params, what="vLLM's request", names=sorted(PARAMS_NAMES)
    )
    kind: Way = "completions" if sampling_params is None else "sampling_params"
    kind = "chat" if "messages" in body else kind
    return _Server(flags=flags, generation_config=generation_config).read(body, kind)


PARAMS_NAMES = {setting.theirs for setting in PARAMS} | set(ELSEWHERE.silent) | set(ELSEWHERE.neutral)


class _Server:
    """What a server was started with."""

    def __init__(self, *, flags: Any, generation_config: Any) -> None:
        self.reading = Reading(framework="vLLM")
        self.flags = Layer(name="the start flags", values=flags_of(flags, what="vLLM's flags", aliases=ALIASES))
        self.given = generation_config is not None
        self.model = mapping_of(generation_config, what="generation_config.json")
        self.override = Layer(
            name="--override-generation-config",
            values=mapping_of(self.flags.values.get("override_generation_config"), what="--override-generation-config"),
        )

    def read(self, body: dict[str, Any], kind: Way) -> ReadProtocol:
        """The protocol of a request."""
        reading = self.reading
        asked = Layer(name="the request" if kind != "sampling_params" else "SamplingParams", values=body)
        layers = [asked, *([] if kind == "sampling_params" else self._defaults(asked)), _neutral(kind)]
        settings = CHAT if kind == "chat" else PARAMS if kind == "sampling_params" else COMPLETIONS
        reading.take(settings, layers)
        self._limits(asked, kind, layers)
        self._stops(asked)
        self._temperature()
        reading.take(FLAGS, [self.flags, Layer(name="vLLM's default", values={"logprobs_mode": "raw_logprobs"})])
        self._prompt(asked, kind)
        self._constraint(asked)
        known = {setting.theirs for setting in settings} | REQUEST_EXTRA
        reading.rest(asked, known=known, elsewhere=ELSEWHERE)
        reading.rest(
            self.flags,
            known={setting.theirs for setting in FLAGS} | {"override_generation_config"},
            elsewhere=FLAGS_ELSEWHERE,
        )
        reading.rest(self.override, known=FROM_MODEL, elsewhere=OVERRIDE_ELSEWHERE)
        self._seeds(asked)
        self._beside(self.model)
        reading.unlimited("the context ends a completion: give --max-model-len, or max_tokens in the request")
        return reading.finish(order=ORDER, order_source="vLLM's sampler, which has one order")

    def _defaults(self, asked: Layer) -> list[Layer]:
        """The layers between a request and the neutral values."""
        chosen = self.flags.values.get("generation_config") or "auto"
        model = {} if chosen == "vllm" else self.model
        open_ = [
            name
            for name in FROM_MODEL
            if name != "max_new_tokens" and not asked.has(name) and not self.override.has(name)
        ]
        if chosen != "vllm" and not self.given and open_:
            where = "the model's folder" if chosen == "auto" else chosen
            self.reading.note(
                "generation_config.json",
                "not given",
                f"vLLM takes {', '.join(open_)} from the one in {where}; neutral ones stand here. Give it or send them",
                matters=True,
            )
        if model.get("do_sample") is False and "temperature" in open_:
            why = "vLLM does not look at it: it samples at the temperature"
            self.reading.note("do_sample in generation_config.json", False, why, matters=True)
        return [
            self.override,
            Layer(name="generation_config.json", values={k: model[k] for k in FROM_MODEL if k in model}),
        ]

    def _limits(self, asked: Layer, kind: Way, layers: list[Layer]) -> None:
        """max_tokens: of the request, of the server, or the rest of the context."""
        name = next((name for name in ("max_completion_tokens", "max_tokens") if asked.has(name)), "max_tokens")
        name = name if kind == "chat" else "max_tokens"
        if kind == "chat" and asked.has("max_tokens") and asked.has("max_completion_tokens"):
            self._one_limit(asked)
        reading = self.reading
        if asked.has(name):
            reading.put("max_new_tokens", limit(asked.values[name], f"vLLM: {name}"), asked.name)
        elif kind == "completions" or (kind == "sampling_params" and name not in asked.values):
            reading.put("max_new_tokens", _LEFT_OUT, f"vLLM's default for {kind.replace('_', ' ')}")
        else:
            server = next((layer for layer in layers[1:] if layer.has("max_new_tokens")), None)
            if server is None:
                reading.put("max_new_tokens", NO_LIMIT, "vLLM: up to the context")
            else:
                reading.put("max_new_tokens", limit(server.values["max_new_tokens"], server.name), server.name)
        if kind != "sampling_params":
            self._server_limit()
        self._context()

    def _one_limit(self, asked: Layer) -> None:
        one, other = asked.values["max_completion_tokens"], asked.values["max_tokens"]
        if one != other:
            why = f"max_completion_tokens = {one} counts, which is the newer name"
            self.reading.note("max_tokens", other, why, matters=True)

    def _server_limit(self) -> None:
        """A max_new_tokens that no request can go beyond."""
        chosen = self.flags.values.get("generation_config") or "auto"
        own = self.override if chosen in ("auto", "vllm") or self.override.has("max_new_tokens") else None
        layer = own or Layer(name="generation_config.json", values=self.model)
        if layer.has("max_new_tokens"):
            most = limit(layer.values["max_new_tokens"], f"vLLM: max_new_tokens in {layer.name}")
            if most < self.reading.values["max_new_tokens"]:
                self.reading.put("max_new_tokens", most, f"{layer.name}, which limits every request")

    def _context(self) -> None:
        given = self.flags.values.get("max_model_len")
        if given in (None, -1, "auto"):
            return
        most = _tokens(given)
        self.reading.put("max_total_tokens", most, "--max-model-len")
        if self.reading.values["max_new_tokens"] == NO_LIMIT:
            self.reading.put("max_new_tokens", most, "--max-model-len")

    def _stops(self, asked: Layer) -> None:
        """The ids in the generation config end a completion too, whatever `--generation-config` says."""
        eos = self.model.get("eos_token_id")
        if eos is None or self.reading.values.get("ignore_eos"):
            return
        own = self.reading.values.get("stop_token_ids", ())
        where = f"{asked.name} and generation_config.json" if own else "eos_token_id in generation_config.json"
        self.reading.put("stop_token_ids", (*own, *ids(eos, "vLLM: eos_token_id in generation_config.json")), where)

    def _temperature(self) -> None:
        value = self.reading.values.get("temperature")
        if isinstance(value, int | float) and 0 < value < LOWEST_TEMPERATURE:
            self.reading.note("temperature", value, f"vLLM raises it to {LOWEST_TEMPERATURE}", matters=True)
            self.reading.put("temperature", LOWEST_TEMPERATURE, "vLLM's lowest temperature but for 0")

    def _prompt(self, asked: Layer, kind: Way) -> None:
        """Truncation, and the BOS token that is added to text."""
        reading, cut = self.reading, asked.values.get("truncate_prompt_tokens")
        side = asked.values.get("truncation_side")
        if cut is not None:
            if side is None:
                why = "truncate_prompt_tokens cuts where the tokenizer does, mostly on the left; send the side"
                reading.note("truncation_side", "not set", why, matters=True)
            reading.put("prompt_truncation", side or "left", asked.name)
            if cut != -1:
                reading.put("max_prompt_tokens", cut, asked.name)
        elif side is not None:
            reading.note("truncation_side", side, "it acts only beside truncate_prompt_tokens")
        if asked.has("chat_template"):
            text = texts(asked.values["chat_template"], f"vLLM: chat_template in {asked.name}")
            reading.put("chat_template", hashlib.sha256("".join(text).encode()).hexdigest(), asked.name)
        special = asked.values.get("add_special_tokens")
        if special is not None and special != (kind != "chat"):
            reading.put("add_bos", special, asked.name)

    def _constraint(self, asked: Layer) -> None:
        where = f"vLLM: structured_outputs in {asked.name}"
        given = mapping_of(asked.values.get("structured_outputs"), what=where)
        found = {name: value for name, value in given.items() if value not in (None, False) and name not in _STYLE}
        response = mapping_of(asked.values.get("response_format"), what=f"vLLM: response_format in {asked.name}")
        if response.get("type") == "json_schema":
            found["json"] = mapping_of(response.get("json_schema"), what=where).get("schema")
        elif response.get("type") not in (None, "text"):
            self.reading.note("response_format", response, "a constraint that a protocol has no kind for", matters=True)
        for name, value in found.items():
            if name not in KINDS:
                why = "a constraint that a protocol has no kind for"
                self.reading.note(f"structured_outputs.{name}", value, why, matters=True)
            else:
                self.reading.constrain(KINDS[name], value, name=f"structured_outputs.{name}", source=asked.name)

    def _seeds(self, asked: Layer) -> None:
        if asked.values.get("seed") != -1:
            self.reading.take((SEED,), [asked])
        self.reading.seeds()

    def _beside(self, model: dict[str, Any]) -> None:
        """What a generation config says and vLLM does not look at."""
        for name, value in model.items():
            if name not in FROM_MODEL and name not in MODEL_SILENT and value is not None:
                self.reading.note(f"{name} in generation_config.json", value, "vLLM does not look at it")


_STYLE = {"disable_any_whitespace", "disable_additional_properties", "whitespace_pattern", "disable_fallback"}
_LEFT_OUT = 16
"""max_tokens of a completion request, and of SamplingParams, that does not say"""


def _neutral(kind: Way) -> Layer:
    name = "vLLM's default" if kind == "sampling_params" else "vLLM's neutral default"
    return Layer(name=name, values=NEUTRAL_DEFAULTS)


def _tokens(value: Any) -> int:
    """32768, 32k (thousands) or 32K (times 1,024)."""
    text = str(value)
    scale = {"k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2}.get(text[-1:], 1)
    digits = text[:-1] if scale != 1 else text
    if isinstance(value, bool) or not digits.isdecimal():
        raise UsageError(f"vLLM: --max-model-len {value!r} is no number of tokens. Give one, such as 32768 or 32K.")
    return int(digits) * scale
