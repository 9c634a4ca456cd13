"""The model behind the stand-in servers, and how its ids, texts and logprobs are written."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.special import log_softmax

from onepolicy.integrations.fake import vocabulary
from onepolicy.integrations.fake.weights import make_weights

LOWEST = -3.4028234663852886e38
"""what SGLang and llama.cpp write for minus infinity"""
END = vocabulary.END


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


def without(lps: np.ndarray, ids: Sequence[int]) -> np.ndarray:
    """Logprobs renormalised over the other tokens."""
    rest = lps.copy()
    rest[list(ids)] = -np.inf
    return log_softmax(rest)


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
