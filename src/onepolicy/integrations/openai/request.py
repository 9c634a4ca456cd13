"""Requests that leave the server as few defaults to act on as it lets us."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from onepolicy.engines.contract import SampleInput
from onepolicy.engines.obeyed import for_request, one_token
from onepolicy.integrations.openai.protocol import write_protocol
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.tokens import IntArray

Body = dict[str, Any]
BESIDE: Body = {"stream": False, "echo": False}
"""fields of OpenAI's own that a protocol does not have, at the value that changes nothing"""
MORE: Body = {
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "min_tokens": 0,
    "stop_token_ids": [],
    "ignore_eos": False,
    "include_stop_str_in_output": True,
    "add_special_tokens": False,
    "skip_special_tokens": False,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
}
"""fields that many servers have besides. What a server does not know it may drop in silence, so but for top_k and min_p
they are sent at the value that changes nothing, and a protocol that has another one is refused"""


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
        """The body that samples one completion.

        Raises: UsageError if OpenAI's API cannot say something that changes what is drawn; EngineError without room.
        """
        body = BESIDE | self.dialect.more | openai_fields(for_request(item, protocol))
        if self.dialect.off is not None:
            body["top_k"] = protocol.top_k or self.dialect.off
        if "min_p" in self.dialect.more:
            body["min_p"] = protocol.min_p
        return body | {"model": self.model, "prompt": item.prompt_ids.tolist(), "logprobs": top}

    def first_token(
        self, token_ids: IntArray, *, temperature: float = 1.0, top_k: int = 0, top: int, seed: int = 0
    ) -> Body:
        """The body that asks for the distribution of the first position after some ids."""
        item, protocol = one_token(token_ids, temperature=temperature, top_k=top_k, seed=seed)
        return self.completion(item, protocol, top=top)

    def next_token(self, token_ids: IntArray, tokens: list[int], *, top: int) -> Body:
        """The same, with the logprobs of given tokens, where the server takes such a list (vLLM's field)."""
        return self.first_token(token_ids, top=top) | {"logprob_token_ids": tokens}

    def echoed(self, token_ids: IntArray, *, top: int) -> Body:
        """The body that gives the prompt back with its logprobs, and one token that nobody reads."""
        return self.first_token(token_ids, top=top) | {"echo": True}

    def takes(self, protocol: SamplingProtocol) -> bool:
        """Whether the server has a field for each part of a protocol."""
        return self.dialect.off is not None or not (protocol.top_k or protocol.min_p)


def openai_fields(protocol: SamplingProtocol) -> Body:
    """What OpenAI's own fields for completions say of a request's protocol; top_k and min_p are not among them.

    Raises: UsageError if they cannot say something else that changes what is drawn.
    """
    written = write_protocol(protocol.model_copy(update={"top_k": 0, "min_p": 0.0})).content
    assert isinstance(written, dict)
    fields = dict(written["request"])
    return {"max_tokens": fields.pop("max_completion_tokens")} | fields
