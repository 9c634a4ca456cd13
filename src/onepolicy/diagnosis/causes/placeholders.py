"""Values that stand where no logprob was computed: zeros, sentinels, one number again and again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from onepolicy.diagnosis.cause import Cause, Proof, Situation
from onepolicy.diagnosis.tokens import Tokens
from onepolicy.records.reading import ReadingInfo
from onepolicy.records.tokens import BoolArray, Float64, IntArray
from onepolicy.records.verdict import Status

ROUNDING = 1e-3
"""nats above 0 that a log-softmax in 16 bit may come out at"""
SENTINELS = (-100.0, -1000.0, -999.0, -9999.0, -10000.0)
"""exact values; -100 is PyTorch's ignored label, -9999 is vLLM's for what it has none of"""
LOWEST = -9999.0
"""no token is drawn at it, and clamps of a dtype lie below: -65504, -3.4e38"""
DOUBT = 1.0
"""nats below 0 at which the other side denies a certain token"""
NEAR = 0.01
"""nats below 0 at which a value is nearly certain, and no filler"""
SPIKE = 3
"""times as many zeros as values just below 0 that the other side denies too"""
LEAST_ZEROS = 3
LEAST_REPEATS = 10
FAR = 0.5
"""nats: median distance of the other side from a repeated constant; from a real value it is as far as the noise"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    name: str
    values: Float64
    """[M]"""
    other: Float64
    """[M] of the other side"""
    info: ReadingInfo
    other_top1: IntArray | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    what: str
    places: BoolArray
    """[M]"""


def proof(tokens: Tokens, situation: Situation) -> Proof | None:
    """The first kind of filler that either side has; what is no logprob at all was taken out before, and counted."""
    invalid = situation.verdict("valid_logprobs")
    if invalid is not None and invalid.status is Status.FAIL:
        return Proof(label="values that are no logprobs", seen=invalid.message)
    for side in (
        _Side(name="rollout", values=tokens.p, other=tokens.q, info=situation.rollout, other_top1=tokens.trainer_top1),
        _Side(name="trainer", values=tokens.q, other=tokens.p, info=situation.trainer, other_top1=tokens.rollout_top1),
    ):
        for found in _kinds(tokens, side):
            if found.places.any():
                return _proof(tokens, side, found)
    return None


def _kinds(tokens: Tokens, side: _Side) -> Iterable[_Found]:
    yield _Found(what="values above 0, which no logprob has", places=side.values > ROUNDING)
    # -inf is no filler: a side over a kept set has it where the two see an edge elsewhere.
    low = (side.values <= LOWEST) & np.isfinite(side.values)
    yield _Found(what="sentinel values", places=np.isin(side.values, SENTINELS) | low)
    yield _Found(what="placeholders of exactly 0.0", places=_zeros(tokens, side))
    yield _Found(what="one constant in place of logprobs", places=_constant(side))


def _zeros(tokens: Tokens, side: _Side) -> BoolArray:
    """[M] certain tokens that the other side denies.

    A side that is over a kept set says 0.0 by right of its only token, which is then the most likely one of the other.
    """
    zeros: BoolArray = (side.values == 0.0) & (side.other < -DOUBT)
    if side.info.meaning.truncates and side.other_top1 is None:
        return np.zeros_like(zeros)
    if side.other_top1 is not None:
        zeros &= side.other_top1 != tokens.token_ids
    # A nearly certain model has values just below 0 too, and a shift or another context denies them as well.
    near = (side.values < 0.0) & (side.values > -NEAR) & (side.other < -DOUBT)
    count = int(np.count_nonzero(zeros))
    is_spike = count >= LEAST_ZEROS and count > SPIKE * int(np.count_nonzero(near))
    return zeros if is_spike else np.zeros_like(zeros)


def _constant(side: _Side) -> BoolArray:
    """[M] tokens whose value stands at many others too, where the other side says something else each time."""
    values, inverse, counts = np.unique(side.values, return_inverse=True, return_counts=True)
    least = max(LEAST_REPEATS, 0.01 * len(side.values))
    for at in np.flatnonzero((counts >= least) & (values < -ROUNDING))[:100].tolist():
        places: BoolArray = inverse == at
        other = side.other[places]
        if np.median(np.abs(other - values[at])) > FAR and len(np.unique(other)) > len(other) / 2:
            return places
    return np.zeros(len(side.values), dtype=np.bool_)


def _proof(tokens: Tokens, side: _Side, found: _Found) -> Proof:
    first = int(np.flatnonzero(found.places)[0])
    count, rollouts = int(np.count_nonzero(found.places)), len(np.unique(tokens.rollout[found.places]))
    return Proof(
        label=f"{found.what} on the {side.name} side",
        seen=f"{count} tokens of {rollouts} rollouts; the first is rollout "
        f"{tokens.rollout_ids[int(tokens.rollout[first])]} at position {int(tokens.position[first])}: {side.name} "
        f"{side.values[first]:g} where the other side says {side.other[first]:.4g}",
    )


def remedy(situation: Situation, value: float) -> str:
    """What fills such places, by engine."""
    above = "values a little above 0 come from a subtraction in 16 bits: take logit - logsumexp in float32"
    if situation.rollout.engine.name in ("vllm", "llamacpp"):
        return (
            "mark such places absent (NaN and a mask), and turn speculative decoding off while logprobs are recorded "
            "(vLLM: --speculative-config, llama.cpp: --model-draft): tokens of the draft come without their logprobs; "
            f"or take the logprobs from a scoring pass; {above}"
        )
    return (
        "mark such places absent (NaN and a mask) instead of filling them, and compute them with a scoring pass; a "
        "framework that pads with 0.0 or -9999 needs its mask beside the values (verl: response_mask, TRL: "
        f"completion_mask); {above}"
    )


CAUSE = Cause(
    name="placeholders",
    about="one side has fillers where no logprob was computed",
    remedy=remedy,
    proof=proof,
)
