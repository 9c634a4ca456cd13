"""vLLM's server."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from standin.completions import OpenAiShaped
from standin.dialect import Asked, Drawn, Json, Reply
from standin.model import END, floored, text_of, top_of


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

    def spelled(self, token: int, body: Json) -> str:
        return f"token_id:{token}" if body.get("return_tokens_as_token_ids") else text_of([token])

    def refusal(self, body: Json) -> str:
        if (body.get("prompt_logprobs") or 0) > self.most_logprobs:
            return f"Requested prompt logprobs of {body['prompt_logprobs']}, which is greater than max allowed: 20"
        for name in ("presence_penalty", "frequency_penalty"):
            if not -2.0 <= body.get(name, 0.0) <= 2.0:
                return f"{name} must be in [-2, 2], got {body[name]}."
        if (body.get("min_tokens") or 0) > body.get("max_tokens", 16):
            return f"min_tokens must be less than or equal to max_tokens={body.get('max_tokens')}"
        return super().refusal(body)

    def complete(self, choice: Json, body: Json, asked: Asked, drawn: Drawn) -> None:
        choice["stop_reason"] = None if drawn.stopped_by == END else drawn.stopped_by
        if body.get("return_token_ids"):
            choice["prompt_token_ids"] = asked.prompt
            choice["token_ids"] = self.shown_ids(drawn.ids)
            if not body.get("skip_special_tokens", True):
                choice["text"] = shown_text(body, drawn)
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
        drawn = self.draw(replace(asked, forced=trace))
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


def shown_text(body: Json, drawn: Drawn) -> str:
    """Up to and with a stop string where the request wants it, else without."""
    text = text_of(drawn.ids)
    if not isinstance(drawn.stopped_by, str):
        return text
    at = text.index(drawn.stopped_by)
    return text[: at + len(drawn.stopped_by)] if body.get("include_stop_str_in_output") else text[:at]
