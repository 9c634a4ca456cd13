"""What a server's logprobs mean, measured from its own answers and not taken from its documentation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from onepolicy.records.protocol import Meaning, SamplingProtocol
from onepolicy.records.tokens import IntArray

CLOSE = 0.1
"""nats; bfloat16 servers repeat a first position to about 0.02, and what is looked for moves it by four times this"""
COLD = 0.5
"""the temperature at which a second answer is asked for"""

PROMPTS = ([5, 6, 7], [100, 200, 250], [11, 12])
"""ids after which a model is unsure, so that a temperature shows; any vocabulary has them"""
KEEPS = 2
"""top_k of the request that shows whether logprobs are renormalised"""

NEARLY_GREEDY = 0.01
"""a temperature at which a token 0.1 nats below the most likely is drawn once in 20,000 times"""
DRAWS = 8
"""tokens drawn at that temperature, each with a seed of its own"""
_CHANCE = 1e-3
"""that a server which ignores the temperature draws as if it did not"""

Answer = Literal["raw", "processed", "unknown"]
Obeys = Literal["yes", "no", "unknown"]
TopList = Mapping[Any, float]
"""token id -> logprob; where a server gives no ids, the text of a token"""
Ask = Callable[[IntArray, float, int], TopList]
"""ids, temperature and top_k -> the most likely tokens of the position after the ids"""
Draw = Callable[[IntArray], Sequence[Any]]
"""ids -> `DRAWS` tokens for the position after them, drawn at `NEARLY_GREEDY`, spelled as `Ask` spells them"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredMeaning:
    """Of one kind of call."""

    temperature: Answer
    """processed: divided by the request's temperature before the softmax"""
    truncation: Answer
    """processed: renormalised over what top-k keeps"""

    @property
    def is_raw(self) -> bool:
        """Whether logprobs are those of the model's own distribution, whatever the request says."""
        return self.temperature == "raw" and self.truncation == "raw"

    @property
    def is_processed(self) -> bool:
        """Whether logprobs are those of the distribution that was sampled from."""
        return self.temperature == "processed" and self.truncation == "processed"

    def under(self, protocol: SamplingProtocol) -> Meaning | None:
        """What logprobs sampled under `protocol` mean; None if that takes what could not be measured.

        Each processing counts only where the protocol uses it: SGLang divides by the temperature, and renormalises over
        nothing. A greedy choice needs no distribution; its logprobs are taken to be raw.
        """
        if protocol.is_greedy:
            return Meaning()
        asked = Meaning.processed_by(protocol)
        if asked.temperature != 1.0 and self.temperature == "unknown":
            return None
        if asked.truncates and self.truncation == "unknown":
            return None
        if asked.beyond and not self.is_raw:
            return asked if self.is_processed else None
        temperature = asked.temperature if self.temperature == "processed" else 1.0
        if self.truncation != "processed":
            return Meaning(temperature=temperature)
        return Meaning(temperature=temperature, top_p=asked.top_p, top_k=asked.top_k, min_p=asked.min_p)

    def __str__(self) -> str:
        if self.is_raw or self.is_processed:
            return self.temperature
        return f"temperature {self.temperature}, truncation {self.truncation}"


def measure(ask: Ask) -> MeasuredMeaning:
    """What a server's logprobs mean, by three requests for one token after each of up to three prompts."""
    for prompt in PROMPTS:
        ids = _as_ids(prompt)
        plain, cold, kept = ask(ids, 1.0, 0), ask(ids, COLD, 0), ask(ids, 1.0, KEEPS)
        found = measured_meaning(plain=plain, cold=cold, kept=kept, keeps=KEEPS)
        if "unknown" not in (found.temperature, found.truncation):
            break
    return found


def measure_temperature(ask: Ask, draw: Draw) -> Obeys:
    """Whether a server draws at the temperature that it is asked for, after the first prompt that can tell.

    Raw logprobs are the same at every temperature, so only what is drawn shows it.
    """
    answers = (obeys_temperature(ask(ids, 1.0, 0), draw(ids)) for ids in map(_as_ids, PROMPTS))
    return next((answer for answer in answers if answer != "unknown"), "unknown")


def obeys_temperature(plain: TopList, drawn: Sequence[Any]) -> Obeys:
    """What tokens drawn at `NEARLY_GREEDY` say. plain: the most likely tokens at temperature 1.

    no: one was drawn that is `CLOSE` or more below the most likely. yes: none was, and under temperature 1 that would
    have happened by chance once in a thousand times at most. unknown: the model is too sure here.
    """
    if not plain or not drawn:
        return "unknown"
    most = max(plain.values())
    first = {token: value for token, value in plain.items() if value > most - CLOSE}
    if not set(drawn) <= set(first):
        return "no"
    mass = math.fsum(math.exp(value) for value in first.values())
    return "yes" if mass ** len(drawn) <= _CHANCE else "unknown"


def measured_meaning(*, plain: TopList, cold: TopList, kept: TopList, keeps: int) -> MeasuredMeaning:
    """What three answers for the first position after one prompt say.

    plain: the most likely tokens at temperature 1. cold: the same at temperature `COLD`. kept: the same at temperature
    1 with top_k = `keeps`. Unit: nats. Needs at least two tokens that are in both lists.
    """
    return MeasuredMeaning(temperature=_temperature(plain, cold), truncation=_truncation(plain, kept, keeps))


def _temperature(plain: TopList, cold: TopList) -> Answer:
    """By how far tokens lie below the most likely one, which no normaliser changes: T divides that."""
    shared = sorted(set(plain) & set(cold), key=lambda token: -plain[token])
    below = [(plain[shared[0]] - plain[token], cold[shared[0]] - cold[token]) for token in shared[1:]]
    if not below or max(p for p, _ in below) < 4 * CLOSE:
        return "unknown"
    return _nearer(*(math.sqrt(math.fsum((c - p / t) ** 2 for p, c in below) / len(below)) for t in (1.0, COLD)))


def _truncation(plain: TopList, kept: TopList, keeps: int) -> Answer:
    """By the mass that the `keeps` most likely tokens have together."""
    first = sorted(plain, key=lambda token: -plain[token])[:keeps]
    if len(first) < keeps or not set(first) <= set(kept):
        return "unknown"
    mass = math.fsum(math.exp(plain[token]) for token in first)
    renormalised = math.fsum(math.exp(kept[token]) for token in first)
    if -math.log(mass) < 4 * CLOSE:
        return "unknown"
    return _nearer(abs(math.log(renormalised / mass)), abs(math.log(renormalised)))


def _as_ids(prompt: Sequence[int]) -> IntArray:
    return np.asarray(prompt, dtype=np.int32)


def _nearer(raw: float, processed: float) -> Answer:
    if raw <= CLOSE < processed:
        return "raw"
    return "processed" if processed <= CLOSE < raw else "unknown"
