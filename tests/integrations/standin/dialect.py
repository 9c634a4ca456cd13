"""What all stand-in servers have: a model, what goes wrong, and how tokens are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from onepolicy.integrations.fake import vocabulary
from standin.model import END, TinyModel, text_of, without

Json = dict[str, Any]
Reply = tuple[int, Any]
BITING = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.0}
"""defaults of every server here, as from a model's generation_config.json"""


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
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
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
    stopped_by: int | str | None = None
    """an id or a stop string; the end token counts as one"""

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
            ends = [*([] if asked.ignore_eos else [END]), *asked.stop_token_ids]
            if len(ids) < asked.min_tokens:
                lps = without(lps, ends)
            if asked.forced is not None:
                token = asked.forced[at]
            elif greedy:
                token = int(lps.argmax())
            else:
                token = min(int(np.exp(lps).cumsum().searchsorted(rng.random() * 0.9999999)), len(lps) - 1)
            ids.append(token)
            reported.append(self.tiny.logprobs(context, **reporting))
            context.append(token)
            stopped_by = self.stopped_by(ids, ends, asked)
            if stopped_by is not None and asked.forced is None:
                return Drawn(ids=ids, reported=reported, finish_reason="stop", stopped_by=stopped_by)
        return Drawn(ids=ids, reported=reported, finish_reason="length")

    def stopped_by(self, ids: list[int], ends: list[int], asked: Asked) -> int | str | None:
        """By an id, or by the text of all tokens together."""
        if ids[-1] in ends:
            return ids[-1]
        text = text_of(ids) if asked.stop and len(ids) >= asked.min_tokens else ""
        return next((stop for stop in asked.stop if stop in text), None)

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


def refused(message: str) -> Reply:
    return 400, {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400}
