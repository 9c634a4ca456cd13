"""TensorRT-LLM's server."""

from __future__ import annotations

from dataclasses import dataclass

from standin.completions import OpenAiShaped
from standin.dialect import Asked, Drawn, Json, Reply
from standin.model import END

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
        choice |= {
            "text": choice["text"] if detokenize else "",
            "stop_reason": None if drawn.stopped_by == END else drawn.stopped_by,
            "disaggregated_params": None,
        }

    def count(self, usage: Json) -> None:
        usage["prompt_tokens_details"] = {"cached_tokens": 0}
