"""Does the server give the scores that the trainer's model gives, on the same scale?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onepolicy.errors import EngineError, UsageError
from onepolicy.records.tokens import Float64
from onepolicy.records.verdict import Verdict
from onepolicy.signal.reward.found import failed, not_checked, passed
from onepolicy.signal.reward.scalar_head import unnamed
from onepolicy.signal.reward.scorer import Scorer, TakesIds
from onepolicy.signal.reward.subject import ROUNDED, Subject, alone, read, spread_of

CHECK = "served"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """One way in which served scores may follow from those of the trainer's side."""

    what: str
    residual: float
    """what it leaves over: root mean square, in spreads of the served scores"""


def served(subject: Subject) -> Verdict:
    """Fails if served scores are others, and says if they are the same ones after a sigmoid, a softmax or a line."""
    if subject.served is None:
        return not_checked(CHECK, "no served reward model was named; give it with --served.")
    raw = alone(subject.served, subject.answers)
    scores = read(raw, subject.served.info)
    if raw.shape[1] > 1 and subject.served.info.label is None:
        return failed(CHECK, f"of {subject.served.info.name}: {unnamed(raw.shape[1])}")
    plain = Fit(what="equal", residual=residual(subject.scores, scores))
    numbers = {"quantity": "served_residual", "value": plain.residual, "limit": ROUNDED, "unit": "spreads"}
    order = _order(subject.scores, scores)
    if plain.residual <= ROUNDED:
        message = f"served scores are those of the trainer's side, up to {plain.residual:.2g} spreads. {order}"
        return passed(CHECK, message, **numbers)
    cause = _explained(subject, scores) or _by_ids(subject, subject.served) or _unexplained()
    return failed(CHECK, f"served scores differ by {plain.residual:.2g} spreads: {cause} {order}", **numbers)


def residual(expected: Float64, found: Float64) -> float:
    """Root mean square of the difference, in spreads of what was found. Infinite if that has none and differs."""
    difference, spread = float(np.sqrt(np.mean((expected - found) ** 2))), spread_of(found)
    if spread == 0:
        return 0.0 if difference == 0 else float("inf")
    return difference / spread


def line(x: Float64, y: Float64) -> tuple[float, float]:
    """Scale and shift of the least squares y = scale x + shift. Shape: [N], [N]."""
    away = x - x.mean()
    scale = float((away * (y - y.mean())).sum() / (away**2).sum()) if away.any() else 0.0
    return scale, float(y.mean() - scale * x.mean())


def processed(raw: Float64, column: int) -> dict[str, Float64]:
    """What a server may make of raw outputs, by name. Shape: [N, L] -> [N] each."""
    scores = raw[:, column]
    found = {"a sigmoid of": _sigmoid(scores), "the logarithm of a sigmoid of": -np.logaddexp(0.0, -scores)}
    found["tanh of"] = np.tanh(scores)
    if raw.shape[1] > 1 and np.isfinite(raw).all():
        shifted = np.exp(raw - raw.max(axis=1, keepdims=True))
        found["a softmax of"] = shifted[:, column] / shifted.sum(axis=1)
    return found


def _explained(subject: Subject, scores: Float64) -> str:
    """Post-processing on one side, or another scale; empty if neither."""
    made_of = processed(subject.raw, subject.column)
    forward = [Fit(what=what, residual=residual(made, scores)) for what, made in made_of.items()]
    best = min(forward, key=lambda fit: fit.residual)
    if best.residual <= ROUNDED:
        return (
            f"they are {best.what} the trainer's (left over {best.residual:.2g}). Ask the server for raw scores (vLLM: "
            '"use_activation": false), or apply it on both sides.'
        )
    back = residual(_sigmoid(scores), subject.scores)
    if back <= ROUNDED:
        return f"the trainer's are a sigmoid of them (left over {back:.2g}). Take it away, or apply it on both sides."
    scale, shift = line(subject.scores, scores)
    left = residual(scale * subject.scores + shift, scores)
    if left > ROUNDED:
        return ""
    effect = (
        "Advantages that are divided by the standard deviation stay; thresholds, clipping and a KL coefficient do not."
        if scale > 0
        else "The sign is turned round, and with it what is learned."
    )
    return f"they are {scale:.3g} times the trainer's plus {shift:.3g} (left over {left:.2g}). {effect}"


def _by_ids(subject: Subject, server: Scorer) -> str:
    """Whether the same ids get the same scores, so that it is the text that becomes other ids; empty if not."""
    if subject.open is None or not isinstance(server, TakesIds):
        return ""
    texts = subject.open.encode(subject.answers, limit=subject.open.info.max_length)
    try:
        scores = read(server.score_ids(texts), server.info)
    except (EngineError, UsageError):
        return ""
    left = min(residual(made, scores) for made in (subject.scores, *processed(subject.raw, subject.column).values()))
    if left > ROUNDED:
        return ""
    return (
        f"but from the trainer's ids the server makes the trainer's scores (left over {left:.2g}), so it encodes the "
        "text otherwise. Compare chat template and special tokens: onepolicy tokens compare."
    )


def _unexplained() -> str:
    return (
        "no sigmoid, softmax, scale or shift explains it. Compare the weights (onepolicy weights), the chat template "
        "(onepolicy tokens), and which token each side reads (`reads_end`)."
    )


def _order(trainer: Float64, scores: Float64) -> str:
    same = np.sign(trainer[::2] - trainer[1::2]) == np.sign(scores[::2] - scores[1::2])
    return f"{int(same.sum())} of {len(same)} pairs stand in the same order on both sides."


def _sigmoid(x: Float64) -> Float64:
    found: Float64 = np.exp(-np.logaddexp(0.0, -x))
    return found
