"""SGLang's server."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from onepolicy.integrations.fake import vocabulary
from standin.dialect import BITING, Asked, Dialect, Drawn, Json, Reply
from standin.model import LOWEST, ids_of, rendered, text_of, top_of


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
            min_tokens=params.get("min_new_tokens", 0),
            stop=tuple(params.get("stop") or ()),
            stop_token_ids=tuple(params.get("stop_token_ids") or ()),
            **{**given, "top_k": max(given["top_k"], 0)},
        )
        if max(asked.prompt, default=0) >= vocabulary.VOCAB_SIZE:
            return 400, {"error": {"message": f"token id {max(asked.prompt)} is out of vocabulary"}}
        if len(asked.prompt) + asked.max_tokens > self.max_length:
            return 400, {"error": {"message": f"The input ({len(asked.prompt)} tokens) is longer than allowed."}}
        drawn = self.draw(asked)
        shown = [t for t in drawn.ids if not params.get("skip_special_tokens", True) or t < 256]
        reason: Json = {"type": drawn.finish_reason}
        reason |= {"matched": drawn.stopped_by} if drawn.finish_reason == "stop" else {"length": asked.max_tokens}
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
