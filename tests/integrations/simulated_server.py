"""A server of known settings: what it draws is worked out here, with no code of the package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

VOCABULARY = 64
OFF = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
VLLM = ("penalties", "temperature", "min_p", "top_k", "top_p")
LLAMACPP = ("penalties", "top_k", "top_p", "min_p", "temperature")


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def penalised(scores: np.ndarray, prompt: np.ndarray, counts: np.ndarray, use: Mapping[str, Any]) -> np.ndarray:
    """counts: [B, V] of the completion; prompt: [B, V] whether a token stands in the prompt."""
    repeated = np.where(scores > 0, scores / use["repetition_penalty"], scores * use["repetition_penalty"])
    scores = np.where(prompt | (counts > 0), repeated, scores)
    return scores - use["presence_penalty"] * (counts > 0) - use["frequency_penalty"] * counts


def cut_top_k(scores: np.ndarray, k: int) -> np.ndarray:
    if not 0 < k < VOCABULARY:
        return scores
    return np.where(scores >= np.sort(scores, axis=-1)[:, -k, None], scores, -np.inf)


def cut_top_p(scores: np.ndarray, p: float) -> np.ndarray:
    if p >= 1.0:
        return scores
    order = np.argsort(-scores, axis=-1)
    ordered = np.take_along_axis(softmax(scores), order, axis=-1)
    before = np.cumsum(ordered, axis=-1) - ordered
    kept = np.zeros(scores.shape, dtype=bool)
    np.put_along_axis(kept, order, before < p, axis=-1)
    return np.where(kept, scores, -np.inf)


def cut_min_p(scores: np.ndarray, p: float) -> np.ndarray:
    found = softmax(scores)
    return np.where(found >= p * found.max(axis=-1, keepdims=True), scores, -np.inf)


@dataclass(kw_only=True)
class Server:
    """Draws with Gumbel noise from a seed."""

    defaults: Mapping[str, Any] = field(default_factory=dict)
    order: Sequence[str] = VLLM
    model: int = 0
    jitter: float = 0.0
    """standard deviation of what is added to each logit, other numbers at each request"""
    heeds_seeds: bool = True
    drops: tuple[str, ...] = ()
    refuses: tuple[str, ...] = ()
    stops_at: int | None = None
    """an id that ends a completion unless the request says stop_token_ids"""
    repeats: float = 1.5
    """nats by which a token is likelier after itself"""
    prompts: int = 8
    per_prompt: int = 8
    length: int = 16
    requests: int = 0

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.model)
        self.table = rng.normal(size=(VOCABULARY, VOCABULARY)) * 2.0 - 1.0
        self.table += self.repeats * np.eye(VOCABULARY)
        self.starts = rng.integers(0, VOCABULARY, size=(self.prompts, 6))
        self.noise = np.random.default_rng([self.model, 1])

    def contexts(self) -> list[list[int]]:
        return self.starts.tolist()

    def draw(self, fields: Mapping[str, Any]) -> list[list[int]] | None:
        asked = np.repeat(self.starts, self.per_prompt, axis=0)
        return self._completed(asked, fields, self.length)

    def list_after(self, ids: Sequence[int]) -> dict[int, float]:
        logprobs = np.log(softmax(self.table[[ids[-1]]]))[0]
        return {int(token): float(logprobs[token]) for token in np.argsort(-logprobs)[:20]}

    def drawn_after(self, ids: Sequence[int], fields: Mapping[str, Any], *, length: int, count: int):
        return self._completed(np.repeat([list(ids)], count, axis=0), fields, length)

    def _completed(self, asked: np.ndarray, fields: Mapping[str, Any], length: int) -> list[list[int]] | None:
        self.requests += 1
        if any(name in fields for name in self.refuses):
            return None
        sent = {name: value for name, value in fields.items() if name not in self.drops}
        use = {**OFF, **self.defaults, **sent}
        gumbel = np.random.default_rng(7 if self.heeds_seeds else 100 + self.requests)
        prompt = np.zeros((len(asked), VOCABULARY), dtype=bool)
        np.put_along_axis(prompt, asked, True, axis=1)
        counts, last, found = np.zeros(prompt.shape), asked[:, -1], []
        for _ in range(length):
            scores = self.table[last] + self.jitter * self.noise.normal(size=prompt.shape)
            scores = self._processed(scores, prompt, counts, use)
            last = (scores + gumbel.gumbel(size=scores.shape) * (use["temperature"] > 0)).argmax(axis=-1)
            counts[np.arange(len(last)), last] += 1
            found.append(last)
        return [self._cut(one, sent) for one in np.stack(found, axis=1).tolist()]

    def _cut(self, ids: list[int], sent: Mapping[str, Any]) -> list[int]:
        if "stop_token_ids" in sent or self.stops_at not in ids:
            return ids
        return ids[: ids.index(self.stops_at) + 1]

    def _processed(self, scores: np.ndarray, prompt: np.ndarray, counts: np.ndarray, use: Mapping[str, Any]):
        acts = {
            "penalties": lambda s: penalised(s, prompt, counts, use),
            "temperature": lambda s: s / (use["temperature"] or 1.0),
            "top_k": lambda s: cut_top_k(s, use["top_k"]),
            "top_p": lambda s: cut_top_p(s, use["top_p"]),
            "min_p": lambda s: cut_min_p(s, use["min_p"]),
        }
        for name in self.order:
            scores = acts[name](scores)
        return scores
