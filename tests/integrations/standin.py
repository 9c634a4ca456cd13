"""Stand-in servers: real sockets that speak the recorded shapes of vLLM, SGLang, TensorRT-LLM and OpenAI-style servers.

The model behind them has the weights of the engine `fake` with the same seed, so a server can be compared with it; what
is computed from them here (softmax, truncation, draws) shares no code with the package. Every field that a client
leaves out has a default that bites, as real servers take theirs from the model's folder.

    with standing_in(Sglang(model="m")) as server:
        open_engine(parse_spec(f"sglang:{server.url}"))
        server.requests     # (method, path, body) of everything that was asked
"""

from __future__ import annotations

import json
import math
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy.special import log_softmax

from onepolicy.engines.contract import SampleInput, ScoreInput
from onepolicy.integrations.fake import vocabulary
from onepolicy.integrations.fake.weights import make_weights

Json = dict[str, Any]
Reply = tuple[int, Any]
LOWEST = -3.4028234663852886e38
"""what SGLang and llama.cpp write for minus infinity"""
END = vocabulary.END
BITING = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.0}
"""defaults of every server here, as from a model's generation_config.json"""


class TinyModel:
    """Logits by the last three ids. `logprobs` is the oracle: float64, any processing."""

    def __init__(self, *, seed: int = 0, noise: float = 0.0, salt: str = "float64") -> None:
        self._weights = make_weights(seed=seed, noise=noise, salt=salt)
        self._known: dict[tuple[float, ...], np.ndarray] = {}

    def logprobs(
        self,
        context: Sequence[int],
        *,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
    ) -> np.ndarray:
        """[V] of the token after a context: divided by the temperature, then cut by top_k, top_p and min_p."""
        last = [vocabulary.VOCAB_SIZE] * 3 + [int(token) for token in context[-3:]]
        row = self._weights.row_after(*last[-3:])
        key = (row, temperature, top_p, top_k, min_p)
        if key not in self._known:
            lps = log_softmax(self._weights.logits[row] / (temperature or 1.0))
            self._known[key] = truncated(lps, top_p=top_p, top_k=top_k, min_p=min_p)
        return self._known[key]

    def of_tokens(self, ids: Sequence[int], **processing: float) -> np.ndarray:
        """[T] logprob of each token after those before it; NaN for the first."""
        given = [self.logprobs(ids[:at], **processing)[ids[at]] for at in range(1, len(ids))]
        return np.asarray([np.nan, *given])


def truncated(lps: np.ndarray, *, top_p: float, top_k: int, min_p: float) -> np.ndarray:
    """Logprobs renormalised over what is kept; -inf elsewhere."""
    if top_p >= 1.0 and top_k <= 0 and min_p <= 0.0:
        return lps
    kept = [(float(lps[token]), token) for token in np.argsort(-lps, kind="stable").tolist()]
    if top_k > 0:
        kept = kept[:top_k]
    total, mass, chosen = math.fsum(math.exp(lp) for lp, _ in kept), 0.0, []
    for lp, token in kept:
        if mass >= top_p or math.exp(lp) < min_p * math.exp(kept[0][0]):
            break
        chosen.append(token)
        mass += math.exp(lp) / total
    result = np.full(len(lps), -np.inf)
    result[chosen] = log_softmax(lps[chosen])
    return result


@dataclass(kw_only=True)
class Faults:
    """What goes wrong. Counts are of requests that ask the model something; others (versions, tokenizers) do not."""

    die_after: int | None = None
    """the server is gone after this many answers, until `StandIn.revive`"""
    delay: float = 0.0
    """seconds before each answer"""
    refuse: int = 0
    """the first so many requests get `refuse_status`"""
    refuse_status: int = 503
    retry_after: str = "0"
    cut_json: int = 0
    """the first so many answers end in the middle, with a content length that fits"""
    cut_body: int = 0
    """the first so many answers end in the middle, and the connection with them"""
    wrong_prompt_ids: bool = False
    """the server says that it worked on other ids (one more in front), and did"""
    wrong_ids: bool = False
    """where ids of sampled or scored tokens come back, one is another"""
    fewer_logprobs: bool = False
    """one logprob less than tokens"""
    odd_values: tuple[Any, ...] = ()
    """instead of the first logprobs of tokens (after the null one of a prompt): sentinels, None, float("nan"), 0.5"""
    other_model_after: int | None = None
    """another model's name from then on"""
    ignores_temperature: bool = False
    endless: bool = False
    """an answer that goes on for ever"""
    redirect: str = ""
    """where every request is sent on to"""
    reload_after: int | None = None
    """other weights from then on; the weight version becomes `new_version` where the server has one"""
    new_version: str = "step-1"
    new_seed: int = 1
    no_prompt_logprobs: bool = False


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request for tokens, in one dialect's terms or another."""

    prompt: list[int]
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int | None
    ignore_eos: bool = False
    forced: list[int] | None = None

    @property
    def processing(self) -> dict[str, Any]:
        return {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k, "min_p": self.min_p}


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Sampled ids, and at each position the reported logprobs of the whole vocabulary."""

    ids: list[int]
    reported: list[np.ndarray]
    finish_reason: str

    @property
    def logprobs(self) -> list[float]:
        return [float(lps[token]) for lps, token in zip(self.reported, self.ids, strict=True)]


@dataclass(kw_only=True)
class Dialect:
    """What all servers have; a subclass says how it writes JSON."""

    model: str = "m"
    tiny: TinyModel = field(default_factory=TinyModel)
    logprobs: Literal["raw", "processed", "temperature"] = "raw"
    """of sampled tokens. temperature: divided by it, and not renormalised over what is kept"""
    max_length: int = 8192
    faults: Faults = field(default_factory=Faults)
    root: str = ""
    """the model's folder, if the server names one"""
    weight_version: str = ""
    served: int = 0
    """answers given by the model"""
    draws: int = 0

    def reply(self, method: str, path: str, body: Json) -> Reply | None:
        """What is answered; None where there is no such path."""
        raise NotImplementedError

    def is_question(self, path: str) -> bool:
        """Whether a path asks the model, so that faults count it."""
        return path in ("/v1/completions", "/v1/chat/completions", "/generate", "/inference/v1/generate", "/completion")

    def name(self) -> str:
        after = self.faults.other_model_after
        return self.model if after is None or self.served <= after else "another"

    def draw(self, asked: Asked) -> Drawn:
        """Sample as asked. A greedy request's logprobs are raw."""
        temperature = 1.0 if self.faults.ignores_temperature else asked.temperature
        greedy = temperature == 0.0
        processing = {**asked.processing, "temperature": temperature or 1.0}
        if greedy:
            processing = {}
        reporting = {
            "raw": {},
            "temperature": {"temperature": processing.get("temperature", 1.0)},
            "processed": processing,
        }[self.logprobs]
        self.draws += 1
        rng = np.random.default_rng(self.draws + 10**6 if asked.seed is None else asked.seed)
        context, ids, reported = list(asked.prompt), [], []
        for at in range(asked.max_tokens):
            lps = self.tiny.logprobs(context, **processing)
            if asked.forced is not None:
                token = asked.forced[at]
            elif greedy:
                token = int(lps.argmax())
            else:
                token = min(int(np.exp(lps).cumsum().searchsorted(rng.random() * 0.9999999)), len(lps) - 1)
            ids.append(token)
            reported.append(self.tiny.logprobs(context, **reporting))
            context.append(token)
            if token == END and not asked.ignore_eos and asked.forced is None:
                return Drawn(ids=ids, reported=reported, finish_reason="stop")
        return Drawn(ids=ids, reported=reported, finish_reason="length")

    def prompt_rows(self, ids: Sequence[int]) -> list[np.ndarray | None]:
        """[T] raw logprobs of the whole vocabulary; None for the first position."""
        return [None, *(self.tiny.logprobs(ids[:at]) for at in range(1, len(ids)))]

    def shown_prompt(self, ids: list[int]) -> list[int]:
        return [vocabulary.BOS, *ids] if self.faults.wrong_prompt_ids else ids

    def shown_ids(self, ids: list[int]) -> list[int]:
        return [*ids[:-1], (ids[-1] + 1) % 200] if self.faults.wrong_ids and ids else ids

    def column(self, values: list[float], write: Any) -> list[Any]:
        """A column of logprobs as the server writes it, with what is planted."""
        odd = self.faults.odd_values
        written = [*odd[: len(values)], *(write(value) for value in values[len(odd) :])]
        return written[:-1] if self.faults.fewer_logprobs else written

    def reloaded(self) -> None:
        """After `reload_after` answers: other weights."""
        if self.faults.reload_after is not None and self.served == self.faults.reload_after:
            self.tiny = TinyModel(seed=self.faults.new_seed)
            self.weight_version = self.faults.new_version if self.weight_version else ""


def top_of(lps: np.ndarray, size: int) -> list[int]:
    return np.argsort(-lps, kind="stable")[:size].tolist()


def text_of(ids: Sequence[int]) -> str:
    return vocabulary.decode(np.asarray(ids, dtype=np.int32))


def ids_of(text: str, *, bos: bool) -> list[int]:
    return vocabulary.encode(text, add_special_tokens=bos).tolist()


def rendered(messages: Sequence[Mapping[str, str]], *, ready: bool) -> str:
    turns = "".join(f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in messages)
    return turns + ("<|im_start|>assistant\n" if ready else "")


def floored(value: float, floor: float = -9999.0) -> float:
    return floor if math.isnan(value) else max(value, floor)


def refused(message: str) -> Reply:
    return 400, {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400}


@dataclass(kw_only=True)
class OpenAiShaped(Dialect):
    """`/v1/models` and `/v1/completions` as all of them have it."""

    most_logprobs: int = 20

    def reply(self, method: str, path: str, body: Json) -> Reply | None:
        if path == "/v1/models":
            return 200, {"object": "list", "data": [self.card()]}
        if path == "/v1/completions" and method == "POST":
            return self.completion(body)
        return self.other(method, path, body)

    def card(self) -> Json:
        return {"id": self.name(), "object": "model", "created": 0, "owned_by": "stand-in"}

    def other(self, method: str, path: str, body: Json) -> Reply | None:
        return None

    def refusal(self, body: Json) -> str:
        """Why a body is refused; empty if it is not."""
        if body.get("model") != self.name():
            return f"The model `{body.get('model')}` does not exist."
        if (body.get("logprobs") or 0) > self.most_logprobs:
            return f"Requested sample logprobs of {body['logprobs']}, which is greater than max allowed: 20"
        return ""

    def asked(self, body: Json) -> Asked:
        prompt = body["prompt"]
        ids = ids_of(prompt, bos=body.get("add_special_tokens", True)) if isinstance(prompt, str) else list(prompt)
        given = {name: body[name] if body.get(name) is not None else default for name, default in BITING.items()}
        return Asked(
            prompt=[vocabulary.BOS, *ids] if self.faults.wrong_prompt_ids else ids,
            max_tokens=16 if body.get("max_tokens") is None else body["max_tokens"],
            seed=body.get("seed"),
            ignore_eos=body.get("ignore_eos", False),
            **{**given, "top_k": max(int(given["top_k"]), 0)},
        )

    def completion(self, body: Json) -> Reply:
        if refusal := self.refusal(body):
            return refused(refusal)
        asked = self.asked(body)
        if max(asked.prompt, default=0) >= vocabulary.VOCAB_SIZE:
            return refused(f"Token id {max(asked.prompt)} is out of vocabulary")
        if len(asked.prompt) + asked.max_tokens > self.max_length:
            return refused(
                f"This model's maximum context length is {self.max_length} tokens. However, you requested "
                f"{asked.max_tokens} output tokens and your prompt contains {len(asked.prompt)} input tokens."
            )
        drawn = self.draw(asked)
        choice = {
            "index": 0,
            "text": text_of(drawn.ids[:-1] if drawn.finish_reason == "stop" else drawn.ids),
            "finish_reason": drawn.finish_reason,
            "logprobs": self.listed(body, drawn),
        }
        self.complete(choice, body, asked, drawn)
        usage = {
            "prompt_tokens": len(asked.prompt),
            "completion_tokens": len(drawn.ids),
            "total_tokens": len(asked.prompt) + len(drawn.ids),
        }
        self.count(usage)
        answer = {"id": "cmpl-1", "object": "text_completion", "created": 0, "model": self.name(), "choices": [choice]}
        return 200, {**answer, "usage": usage}

    def complete(self, choice: Json, body: Json, asked: Asked, drawn: Drawn) -> None:
        """Add what this server has beside."""

    def count(self, usage: Json) -> None:
        """Add what this server counts beside."""

    def spelled(self, token: int, body: Json) -> str:
        return text_of([token])

    def listed(self, body: Json, drawn: Drawn) -> Json | None:
        """`logprobs` of a choice: top lists keyed by the token as it is spelled, the sampled one first."""
        if body.get("logprobs") is None:
            return None
        tops = []
        for lps, token in zip(drawn.reported, drawn.ids, strict=True):
            order = [token, *(other for other in top_of(lps, body["logprobs"]) if other != token)]
            tops.append({self.spelled(other, body): floored(float(lps[other])) for other in order})
        return {
            "tokens": [self.spelled(token, body) for token in self.shown_ids(drawn.ids)],
            "token_logprobs": self.column(drawn.logprobs, floored),
            "top_logprobs": tops,
            "text_offset": [0] * len(drawn.ids),
        }


@dataclass(kw_only=True)
class Vllm(OpenAiShaped):
    """vLLM 0.32. The sampled token is an entry of its list whether it belongs there or not: K or K + 1 entries."""

    developer: bool = False
    """VLLM_SERVER_DEV_MODE=1: /server_info, /weight_info, /reset_prefix_cache"""
    scale_out: bool = False
    """--enable-scale-out --enable-trace-replay: /inference/v1/generate"""
    cached_tokens: int | None = None
    """with --enable-prompt-tokens-details"""

    def card(self) -> Json:
        return {**super().card(), "root": self.root or self.model, "parent": None, "max_model_len": self.max_length}

    def other(self, method: str, path: str, body: Json) -> Reply | None:
        if path == "/tokenize":
            return 200, self.tokenized(body)
        simple = {
            "/version": {"version": "0.32.0"},
            "/health": {},
            "/detokenize": {"prompt": text_of(body.get("tokens", []))},
        }
        if self.developer:
            simple["/weight_info"] = {"weight_version": self.weight_version or "default"}
            simple["/server_info"] = {"vllm_config": "model='m', dtype=torch.bfloat16, max_seq_len=2048"}
            simple["/reset_prefix_cache"] = {}
        if path == "/inference/v1/generate" and self.scale_out:
            return self.generate(body)
        return (200, simple[path]) if path in simple else None

    def tokenized(self, body: Json) -> Json:
        if "messages" in body:
            text = rendered(body["messages"], ready=body.get("add_generation_prompt", True))
            ids = ids_of(text, bos=body.get("add_special_tokens", False))
        else:
            ids = ids_of(body["prompt"], bos=body.get("add_special_tokens", True))
        return {"count": len(ids), "max_model_len": self.max_length, "tokens": ids, "token_strs": None}

    def spelled(self, token: int, body: Json) -> str:
        return f"token_id:{token}" if body.get("return_tokens_as_token_ids") else text_of([token])

    def refusal(self, body: Json) -> str:
        if (body.get("prompt_logprobs") or 0) > self.most_logprobs:
            return f"Requested prompt logprobs of {body['prompt_logprobs']}, which is greater than max allowed: 20"
        return super().refusal(body)

    def complete(self, choice: Json, body: Json, asked: Asked, drawn: Drawn) -> None:
        choice["stop_reason"] = None
        if body.get("return_token_ids"):
            choice["prompt_token_ids"] = asked.prompt
            choice["token_ids"] = self.shown_ids(drawn.ids)
            if not body.get("skip_special_tokens", True):
                choice["text"] = text_of(drawn.ids)
        asks = body.get("prompt_logprobs") is not None and not self.faults.no_prompt_logprobs
        choice["prompt_logprobs"] = self.prompt_logprobs(asked.prompt, body["prompt_logprobs"]) if asks else None

    def count(self, usage: Json) -> None:
        if self.cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens}

    def prompt_logprobs(self, ids: list[int], size: int) -> list[Json | None]:
        rows = self.prompt_rows(ids)
        own = [float(row[token]) for row, token in zip(rows[1:], ids[1:], strict=True)]
        column: list[Any] = [None, *self.column(own, floored)]
        return [None, *(self.entries(rows[at], ids[at], size, column[at]) for at in range(1, len(column)))]

    def entries(self, lps: np.ndarray, token: int, size: int, own: Any) -> Json:
        order = np.argsort(-lps, kind="stable").tolist()
        rank = {other: at + 1 for at, other in enumerate(order)}
        listed = [token, *(other for other in order[:size] if other != token)]
        if self.faults.wrong_ids:
            listed[0] = (token + 1) % 200
        return {
            str(other): {
                "logprob": own if at == 0 else floored(float(lps[other])),
                "rank": rank[other],
                "decoded_token": text_of([other]),
            }
            for at, other in enumerate(listed)
        }

    def generate(self, body: Json) -> Reply:
        """Token in, token out; with `trace_decode_token_ids` it decodes along given ids."""
        params = body["sampling_params"]
        trace = params.get("trace_decode_token_ids")
        asked = self.asked({**params, "prompt": body["token_ids"], "model": self.name()})
        drawn = self.draw(Asked(**{**_fields(asked), "forced": trace}))
        content = [
            {
                "token_id": token,
                "logprob": floored(value),
                "rank": 1,
                "top_logprobs": [
                    {"token_id": other, "logprob": floored(float(lps[other]))}
                    for other in top_of(lps, params.get("logprobs") or 0)
                ],
            }
            for token, value, lps in zip(drawn.ids, drawn.logprobs, drawn.reported, strict=True)
        ]
        choice = {"index": 0, "finish_reason": drawn.finish_reason, "token_ids": drawn.ids}
        choices = [{**choice, "logprobs": {"content": content}, "weight_versions": None}]
        return 200, {"request_id": "1", "prompt_token_ids": asked.prompt, "prompt_logprobs": None, "choices": choices}


def _fields(asked: Asked) -> dict[str, Any]:
    return {name: getattr(asked, name) for name in Asked.__dataclass_fields__}


STRICT = frozenset(
    (
        "model",
        "prompt",
        "best_of",
        "echo",
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "max_tokens",
        "n",
        "presence_penalty",
        "seed",
        "stop",
        "stream",
        "stream_options",
        "suffix",
        "temperature",
        "top_p",
        "user",
        "lora_request",
        "prompt_ignore_length",
        "use_beam_search",
        "top_k",
        "top_p_min",
        "min_p",
        "repetition_penalty",
        "length_penalty",
        "early_stopping",
        "stop_token_ids",
        "include_stop_str_in_output",
        "ignore_eos",
        "min_tokens",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "truncate_prompt_tokens",
        "return_context_logits",
        "detokenize",
        "thinking_token_budget",
        "add_special_tokens",
        "response_format",
        "disaggregated_params",
        "priority",
        "conversation_params",
    )
)
"""fields of TensorRT-LLM's CompletionRequest (tensorrt_llm/serve/openai_protocol.py, August 2026)"""


@dataclass(kw_only=True)
class Trtllm(OpenAiShaped):
    """TensorRT-LLM: strict fields; ids come back only with `detokenize: false`, and then no text; lists by text."""

    def card(self) -> Json:
        return {**super().card(), "owned_by": "tensorrt_llm"}

    def other(self, method: str, path: str, body: Json) -> Reply | None:
        simple = {"/version": {"version": "1.2.0"}, "/health": {}, "/server_info": {"disaggregated_params": {}}}
        return (200, simple[path]) if path in simple else None

    def refusal(self, body: Json) -> str:
        if unknown := sorted(set(body) - STRICT):
            return f"[{{'type': 'extra_forbidden', 'loc': ('body', '{unknown[0]}'), 'msg': 'Extra inputs ...'}}]"
        if body.get("stream_options") or body.get("suffix"):
            return "not supported"
        return "" if (body.get("logprobs") or 0) <= self.most_logprobs else "logprobs must be at most 20"

    def listed(self, body: Json, drawn: Drawn) -> Json | None:
        return super().listed(body, drawn) if body.get("logprobs") else None

    def complete(self, choice: Json, body: Json, asked: Asked, drawn: Drawn) -> None:
        detokenize = body.get("detokenize", True)
        choice |= {"token_ids": None if detokenize else self.shown_ids(drawn.ids), "context_logits": None}
        choice |= {"text": choice["text"] if detokenize else "", "stop_reason": None, "disaggregated_params": None}

    def count(self, usage: Json) -> None:
        usage["prompt_tokens_details"] = {"cached_tokens": 0}


OPENAI = frozenset(
    (
        "model",
        "prompt",
        "best_of",
        "echo",
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "max_tokens",
        "n",
        "presence_penalty",
        "seed",
        "stop",
        "stream",
        "stream_options",
        "suffix",
        "temperature",
        "top_p",
        "user",
    )
)
"""fields of OpenAI's own"""


@dataclass(kw_only=True)
class OpenAi(OpenAiShaped):
    """A generic server. By default text alone: no ids back, at most 5 logprobs, lists keyed by text."""

    most_logprobs: int = 5
    returns_ids: Literal["", "token_ids", "tokens_as_ids"] = ""
    takes_ids: bool = True
    echoes: bool = False
    """`echo` with `logprobs` gives those of the prompt"""
    logprob_token_ids: bool = False
    """vLLM's field: logprobs of these ids at each sampled position, instead of the most likely"""
    strict: bool = False
    """no field but OpenAI's own"""
    refuses_top_k_zero: bool = False
    """as SGLang's completions do"""
    answers_as: str = ""
    """an alias stands for another name"""
    tokenizes: bool = False
    """/tokenize, as vLLM has it"""

    def other(self, method: str, path: str, body: Json) -> Reply | None:
        if path == "/tokenize" and self.tokenizes:
            return 200, Vllm.tokenized(self, body)
        return None

    def completion(self, body: Json) -> Reply:
        status, answer = super().completion(body)
        return status, answer | ({"model": self.answers_as} if self.answers_as and status == 200 else {})

    def refusal(self, body: Json) -> str:
        if self.strict and (unknown := sorted(set(body) - OPENAI)):
            return f"Unrecognized request argument supplied: {unknown[0]}"
        if self.refuses_top_k_zero and body.get("top_k") == 0:
            return "top_k must be -1 (disable), or at least 1, got 0."
        if not self.takes_ids and not isinstance(body["prompt"], str):
            return "prompt must be a string"
        return super().refusal(body)

    def spelled(self, token: int, body: Json) -> str:
        as_ids = self.returns_ids == "tokens_as_ids" and body.get("return_tokens_as_token_ids")
        return f"token_id:{token}" if as_ids else text_of([token])

    def complete(self, choice: Json, body: Json, asked: Asked, drawn: Drawn) -> None:
        if self.returns_ids == "token_ids" and body.get("return_token_ids"):
            choice["prompt_token_ids"] = asked.prompt
            choice["token_ids"] = self.shown_ids(drawn.ids)
        if self.echoes and body.get("echo") and not self.faults.no_prompt_logprobs:
            choice["text"] = text_of(asked.prompt) + choice["text"]
            choice["logprobs"] = self.echoed(choice["logprobs"], asked.prompt, body)

    def echoed(self, listed: Json | None, ids: list[int], body: Json) -> Json | None:
        """The logprobs of the prompt in front of those of what was sampled; null for the first token."""
        if listed is None:
            return None
        rows = self.prompt_rows(ids)
        tops: list[Json | None] = [None]
        for row, own in zip(rows[1:], ids[1:], strict=True):
            order = [own, *(other for other in top_of(row, body["logprobs"]) if other != own)]
            tops.append({self.spelled(other, body): floored(float(row[other])) for other in order})
        values = [float(row[own]) for row, own in zip(rows[1:], ids[1:], strict=True)]
        return {
            "tokens": [self.spelled(one, body) for one in self.shown_ids(ids)] + listed["tokens"],
            "token_logprobs": [None, *self.column(values, floored), *listed["token_logprobs"]],
            "top_logprobs": tops + listed["top_logprobs"],
            "text_offset": [0] * (len(ids) + len(listed["tokens"])),
        }

    def listed(self, body: Json, drawn: Drawn) -> Json | None:
        listed = super().listed(body, drawn)
        wanted = body.get("logprob_token_ids")
        if listed is not None and self.logprob_token_ids and wanted:
            listed["top_logprobs"] = [
                {self.spelled(other, body): floored(float(lps[other])) for other in [token, *wanted]}
                for lps, token in zip(drawn.reported, drawn.ids, strict=True)
            ]
        return listed


@dataclass(kw_only=True)
class Sglang(Dialect):
    """SGLang's own API. Echoed ids from vocab_size - 1 on are written as 0, as the real one does."""

    logprobs: Literal["raw", "processed", "temperature"] = "temperature"
    weight_version: str = "default"
    busy: bool = False
    """/flush_cache answers 400"""
    deterministic: bool = True
    """sampling_seed is heeded (--enable-deterministic-inference)"""
    cached_tokens: int = 0
    renders: bool = True
    """0.5.13 and later: chat answers say which ids the conversation became"""
    names_prompt: bool = True
    """likewise /generate, where it is asked to"""
    old_paths: bool = False
    """/get_model_info and /get_server_info alone"""
    aborts: bool = False

    def reply(self, method: str, path: str, body: Json) -> Reply | None:
        if path == "/generate":
            return self.generate(body)
        if path == "/v1/chat/completions":
            return 200, self.chat(body)
        if path == "/flush_cache":
            return (400, "Flush cache failed.") if self.busy else (200, "Cache flushed.")
        if path in ("/tokenize", "/v1/tokenize"):
            ids = ids_of(body["prompt"], bos=body.get("add_special_tokens", True))
            return 200, {"tokens": ids, "count": len(ids), "max_model_len": self.max_length}
        if path in ("/detokenize", "/v1/detokenize"):
            return 200, {"text": self.detokenized(body)}
        facts = self.facts()
        if self.old_paths:
            facts["/get_model_info"], facts["/get_server_info"] = facts.pop("/model_info"), facts.pop("/server_info")
        return (200, facts[path]) if path in facts else None

    def facts(self) -> dict[str, Json]:
        about = {
            "model_path": self.root or self.name(),
            "tokenizer_path": self.root or self.name(),
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": self.weight_version,
            "model_type": "llama",
        }
        args = {"served_model_name": self.name(), "dtype": "bfloat16", "context_length": self.max_length}
        served = {**args, "version": "0.5.9", "disable_radix_cache": False, "tp_size": 1}
        card = {"id": self.name(), "object": "model", "root": self.name(), "max_model_len": self.max_length}
        models = {"object": "list", "data": [card]}
        return {"/model_info": about, "/server_info": served, "/v1/models": models, "/health": {}}

    def chat(self, body: Json) -> Json:
        choice: Json = {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "length"}
        if self.renders and body.get("return_prompt_token_ids"):
            choice["prompt_token_ids"] = ids_of(rendered(body["messages"], ready=True), bos=False)
        return {"id": "1", "object": "chat.completion", "model": self.name(), "choices": [choice]}

    def detokenized(self, body: Json) -> str:
        drop = set(vocabulary.SPECIAL_TOKENS.values()) if body.get("skip_special_tokens", True) else set()
        return text_of([token for token in body["tokens"] if token not in drop])

    def generate(self, body: Json) -> Reply:
        inputs = body.get("input_ids")
        if inputs and isinstance(inputs[0], list):
            answers = [self.one(ids, body) for ids in inputs]
            return next((one for one in answers if one[0] != 200), (200, [one[1] for one in answers]))
        return self.one(inputs if inputs is not None else ids_of(body["text"], bos=True), body)

    def one(self, ids: list[int], body: Json) -> Reply:
        params = body.get("sampling_params") or {}
        given = {name: params.get(name, default) for name, default in BITING.items()}
        if given["top_k"] == 0 or given["top_k"] < -1:
            return 400, {"error": {"message": f"top_k must be -1 (disable) or at least 1, got {given['top_k']}."}}
        asked = Asked(
            prompt=self.shown_prompt(list(ids)),
            max_tokens=params.get("max_new_tokens", 128),
            seed=params.get("sampling_seed") if self.deterministic else None,
            ignore_eos=params.get("ignore_eos", False),
            **{**given, "top_k": max(given["top_k"], 0)},
        )
        if max(asked.prompt, default=0) >= vocabulary.VOCAB_SIZE:
            return 400, {"error": {"message": f"token id {max(asked.prompt)} is out of vocabulary"}}
        if len(asked.prompt) + asked.max_tokens > self.max_length:
            return 400, {"error": {"message": f"The input ({len(asked.prompt)} tokens) is longer than allowed."}}
        drawn = self.draw(asked)
        shown = [t for t in drawn.ids if not params.get("skip_special_tokens", True) or t < 256]
        reason: Json = {"type": drawn.finish_reason}
        reason |= {"matched": END} if drawn.finish_reason == "stop" else {"length": asked.max_tokens}
        meta = {
            "id": "1",
            "finish_reason": reason,
            "prompt_tokens": len(asked.prompt),
            "completion_tokens": len(drawn.ids),
            "cached_tokens": self.cached_tokens,
            "weight_version": self.weight_version,
        }
        if self.aborts:
            meta["finish_reason"] = {"type": "abort", "message": "out of memory"}
        if body.get("return_logprob"):
            meta |= self.listed(asked.prompt, drawn, body)
        named = self.names_prompt and body.get("return_prompt_token_ids")
        answer = {"text": text_of(shown), "output_ids": drawn.ids, "meta_info": meta}
        return 200, answer | ({"prompt_token_ids": asked.prompt} if named else {})

    def listed(self, prompt: list[int], drawn: Drawn, body: Json) -> Json:
        start = body.get("logprob_start_len", -1)
        rows = [] if start == -1 else [None, *self.prompt_rows(prompt)[start + 1 :]]
        ids = [] if start == -1 else prompt[start:]
        own = [float(row[token]) for row, token in zip(rows, ids, strict=True) if row is not None]
        column = [None, *self.column(own, self.written)] if ids else []
        echoed = [token if token < vocabulary.VOCAB_SIZE - 1 else 0 for token in ids]
        shown, found = self.shown_ids(echoed), self.column(drawn.logprobs, self.written)
        meta: Json = {
            "input_token_logprobs": [[value, token, None] for value, token in zip(column, shown, strict=False)],
            "output_token_logprobs": [
                [value, token, None] for value, token in zip(found, self.shown_ids(drawn.ids), strict=False)
            ],
        }
        if self.faults.no_prompt_logprobs:
            meta["input_token_logprobs"] = []
        if size := body.get("top_logprobs_num", 0):
            meta["input_top_logprobs"] = [None if row is None else self.tuples(row, top_of(row, size)) for row in rows]
            meta["output_top_logprobs"] = [self.tuples(row, top_of(row, size)) for row in drawn.reported]
        if chosen := body.get("token_ids_logprob"):
            meta["input_token_ids_logprobs"] = [None if row is None else self.tuples(row, chosen) for row in rows]
            meta["output_token_ids_logprobs"] = [self.tuples(row, chosen) for row in drawn.reported]
        return meta

    def written(self, value: float) -> float | None:
        return None if math.isnan(value) else max(value, LOWEST)

    def tuples(self, lps: np.ndarray, ids: Sequence[int]) -> list[list[Any]]:
        return [[self.written(float(lps[token])), token, None] for token in ids]


class StandIn:
    """One dialect behind a port of 127.0.0.1, in threads that end with it."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.requests: list[tuple[str, str, Json]] = []
        self.headers: list[dict[str, str]] = []
        self.most_at_once = 0
        self.sockets: set[socket.socket] = set()
        self.lock = threading.Lock()
        self.ended = threading.Event()
        self._at_once = 0
        self._port = 0
        self._http: _Listener | None = None
        self._thread: threading.Thread | None = None
        self._dying: threading.Thread | None = None
        self.revive()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def asked(self, path: str) -> list[Json]:
        """Bodies of the requests to one path, in order."""
        return [body for _, where, body in self.requests if where == path]

    def revive(self) -> None:
        """Listen, on the same port as before if there was one."""
        self.die()
        self.ended.clear()
        self._http = _Listener(("127.0.0.1", self._port), self)
        self._port = self._http.server_address[1]
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def die(self) -> None:
        """Refuse connections and break those that are open; returns when all threads have ended."""
        if self._dying is not None and self._dying is not threading.current_thread():
            self._dying.join()
        http, self._http = self._http, None
        if http is None:
            return
        self.ended.set()
        http.shutdown()
        with self.lock:
            for one in self.sockets:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
        http.server_close()
        assert self._thread is not None
        self._thread.join()

    def die_soon(self) -> None:
        """The same, from a thread that answers."""
        with self.lock:
            if self._dying is None or not self._dying.is_alive():
                self._dying = threading.Thread(target=self.die)
                self._dying.start()

    def answer(self, method: str, path: str, body: Json) -> Reply | None:
        """The reply, with the faults that count requests; None: break the connection."""
        question = self.dialect.is_question(path)
        with self.lock:
            self.requests.append((method, path, body))
            self._at_once += question
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            if question and self.dialect.faults.delay:
                self.ended.wait(self.dialect.faults.delay)
            with self.lock:
                return self._reply(method, path, body, question=question)
        finally:
            with self.lock:
                self._at_once -= question

    def _reply(self, method: str, path: str, body: Json, *, question: bool) -> Reply | None:
        faults = self.dialect.faults
        if question and faults.refuse > 0:
            faults.refuse -= 1
            return faults.refuse_status, {"error": "busy"}
        if question and faults.die_after is not None and self.dialect.served >= faults.die_after:
            return None
        if question:
            self.dialect.reloaded()
            self.dialect.served += 1
        return self.dialect.reply(method, path, body) or (404, {"detail": "Not Found"})


class _Listener(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 512

    def __init__(self, address: tuple[str, int], standin: StandIn) -> None:
        super().__init__(address, _Handler)
        self.standin = standin

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news; anything else is a mistake here."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Listener

    @property
    def standin(self) -> StandIn:
        return self.server.standin

    def setup(self) -> None:
        super().setup()
        with self.standin.lock:
            self.standin.sockets.add(self.connection)
            if self.standin.ended.is_set():
                self.connection.shutdown(socket.SHUT_RDWR)

    def finish(self) -> None:
        with self.standin.lock:
            self.standin.sockets.discard(self.connection)
        super().finish()

    def log_message(self, *_: Any) -> None:
        """Silent."""

    def do_GET(self) -> None:
        self.serve()

    def do_POST(self) -> None:
        self.serve()

    def serve(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        body = json.loads(self.rfile.read(length) or b"{}")
        self.standin.headers.append(dict(self.headers))
        faults = self.standin.dialect.faults
        if faults.redirect:
            self.send(307, b"", location=faults.redirect)
            return
        reply = self.standin.answer(self.command, self.path.partition("?")[0], body)
        if reply is None:
            self.close_connection = True
            self.standin.die_soon()
            return
        status, payload = reply
        content = payload.encode() if isinstance(payload, str) else json.dumps(payload).encode()
        if status == 200 and self.standin.dialect.is_question(self.path):
            self.send_planted(content, faults)
        else:
            extra = {"retry_after": faults.retry_after} if status in (429, 503) else {}
            self.send(status, content, **extra)

    def send_planted(self, content: bytes, faults: Faults) -> None:
        half = content[: len(content) // 2]
        if faults.endless:
            self.send_for_ever()
        elif faults.cut_json > 0:
            faults.cut_json -= 1
            self.send(200, half)
        elif faults.cut_body > 0:
            faults.cut_body -= 1
            self.close_connection = True
            self.send(200, half, length=len(content))
        else:
            self.send(200, content)

    def send(self, status: int, content: bytes, *, length: int | None = None, **headers: str) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content) if length is None else length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)
        self.wfile.flush()

    def send_for_ever(self) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        while not self.standin.ended.is_set():
            self.wfile.write(b" " * 2**16)


@contextmanager
def standing_in(dialect: Dialect) -> Iterator[StandIn]:
    """A server for the length of a block."""
    server = StandIn(dialect)
    try:
        yield server
    finally:
        server.die()


# -- what tests ask of an engine ------------------------------------------------------------------------------------


def spec_of(server: StandIn, tokenizer_folder: Path, **options: object) -> dict[str, object]:
    """The spec of a stand-in's engine. Nothing is tried again, so that a fault shows at once."""
    kind = type(server.dialect).__name__.lower()
    lacks = kind == "trtllm" or (isinstance(server.dialect, OpenAi) and not server.dialect.tokenizes)
    needs = {"tokenizer": str(tokenizer_folder)} if lacks else {}
    return {"engine": kind, "target": server.url, "retries": 0, **needs, **options}


def asked(*ids: int, seed: int = 1, name: str = "r") -> SampleInput:
    """A prompt to complete."""
    return SampleInput(rollout_id=name, prompt_ids=np.asarray(ids, dtype=np.int32), seed=seed)


def given(*ids: int, start: int = 1, report: Any = None) -> ScoreInput:
    """A sequence to score from `start` on."""
    token_ids = np.asarray(ids, dtype=np.int32)
    return ScoreInput(rollout_id="r", token_ids=token_ids, wanted=np.arange(len(ids)) >= start, report=report)
