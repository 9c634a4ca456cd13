"""Generic servers in OpenAI's style."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from standin.completions import OpenAiShaped
from standin.dialect import Asked, Drawn, Json, Reply
from standin.model import floored, text_of, top_of

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
            return 200, self.tokenized(body)
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
