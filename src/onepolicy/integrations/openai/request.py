"""Requests that leave the server as few defaults to act on as it lets us."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from onepolicy.engines.contract import SampleInput
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.tokens import IntArray

Body = dict[str, Any]
NEUTRAL: Body = {"n": 1, "stream": False, "echo": False, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""fields of OpenAI's own that a protocol does not have, at the value that changes nothing"""
MORE: Body = {
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "ignore_eos": False,
    "add_special_tokens": False,
    "skip_special_tokens": False,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
}
"""fields that many servers have besides"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """Which fields a server takes."""

    more: Body = field(default_factory=dict)
    off: int | None = None
    """the top_k that keeps everything; None if the server takes no top_k"""


DIALECTS = (Dialect(more=MORE, off=0), Dialect(more=MORE, off=-1), Dialect())
"""in the order in which they are tried; vLLM and TensorRT-LLM write 0, SGLang refuses it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Bodies for `/v1/completions` of one server."""

    model: str
    dialect: Dialect

    def completion(self, item: SampleInput, protocol: SamplingProtocol, *, top: int) -> Body:
        """The body that samples one completion."""
        body = self._body(item.prompt_ids, temperature=protocol.temperature, top_k=protocol.top_k, top=top)
        body |= {"max_tokens": protocol.max_new_tokens, "top_p": protocol.top_p, "seed": item.seed}
        return body | ({"min_p": protocol.min_p} if "min_p" in self.dialect.more else {})

    def first_token(
        self, token_ids: IntArray, *, temperature: float = 1.0, top_k: int = 0, top: int, seed: int = 0
    ) -> Body:
        """The body that asks for the distribution of the first position after some ids."""
        return self._body(token_ids, temperature=temperature, top_k=top_k, top=top) | {"seed": seed}

    def next_token(self, token_ids: IntArray, tokens: list[int], *, top: int) -> Body:
        """The same, with the logprobs of given tokens, where the server takes such a list (vLLM's field)."""
        return self.first_token(token_ids, top=top) | {"logprob_token_ids": tokens}

    def echoed(self, token_ids: IntArray, *, top: int) -> Body:
        """The body that gives the prompt back with its logprobs, and one token that nobody reads."""
        return self.first_token(token_ids, top=top) | {"echo": True}

    def takes(self, protocol: SamplingProtocol) -> bool:
        """Whether the server has a field for each part of a protocol."""
        return self.dialect.off is not None or not (protocol.top_k or protocol.min_p)

    def _body(self, token_ids: IntArray, *, temperature: float, top_k: int, top: int) -> Body:
        body = NEUTRAL | self.dialect.more
        if self.dialect.off is not None:
            body["top_k"] = top_k or self.dialect.off
        return body | {
            "model": self.model,
            "prompt": token_ids.tolist(),
            "max_tokens": 1,
            "temperature": temperature,
            "top_p": 1.0,
            "logprobs": top,
        }
