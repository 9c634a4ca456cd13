"""The rollout value of a token is that of the most likely token, not of the one that was drawn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onepolicy.diagnosis.cause import Cause, Proof, Situation
from onepolicy.diagnosis.causes.temperature import raw_logprobs, statistics_of
from onepolicy.diagnosis.tokens import Tokens
from onepolicy.records.tokens import BoolArray, Float64

LEAST = 20
"""tokens that were second and far enough from the first to tell the two apart"""
TELLING = 10.0
"""times the noise that first and second must lie apart"""
SHARE = 0.9
"""of those tokens that must lie nearer to the first's value"""
NEAR = 4.0
"""times the noise that the value may be from the first's, in the median"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    name: str
    values: Float64
    """[M] that may be the first's"""
    own: Float64
    """[M] the token's logprob, by the other side"""
    first: Float64
    """[M] the most likely token's logprob by the other side: exact where `is_second`"""
    is_second: BoolArray
    """[M] where only one token is likelier, the mass above is its probability"""


def proof(tokens: Tokens, situation: Situation) -> Proof | None:
    """Where a token was second, one side says the first one's logprob."""
    scale = situation.noise.scale(tokens.p)
    for name, known in (("rollout", "trainer"), ("trainer", "rollout")):
        side = _side(tokens, situation, name, known)
        found = None if side is None else _judged(tokens, side, scale)
        if found is not None:
            return found
    return None


def _side(tokens: Tokens, situation: Situation, name: str, known: str) -> _Side | None:
    statistics = statistics_of(tokens, known)
    if "rank" not in statistics or "log_mass_above" not in statistics:
        return None
    return _Side(
        name=name,
        values=tokens.p if name == "rollout" else tokens.q,
        own=raw_logprobs(tokens, situation, known),
        first=statistics["log_mass_above"].astype(np.float64),
        is_second=statistics["rank"] == 1,
    )


def _judged(tokens: Tokens, side: _Side, scale: Float64) -> Proof | None:
    telling = side.is_second & (side.first - side.own > TELLING * scale)
    if np.count_nonzero(telling) < LEAST:
        return None
    from_first, from_own = np.abs(side.values - side.first)[telling], np.abs(side.values - side.own)[telling]
    share = float(np.mean(from_first < from_own))
    if share < SHARE or float(np.median(from_first / scale[telling])) > NEAR:
        return None
    at = int(np.flatnonzero(telling)[0])
    return Proof(
        label=f"the {side.name} side has the most likely token's logprob where another one was drawn",
        seen=f"{share:.0%} of {len(from_first)} tokens that were second have the first one's value; the first is "
        f"rollout {tokens.rollout_ids[int(tokens.rollout[at])]} at position {int(tokens.position[at])}: "
        f"{side.values[at]:.4g}, the first's is {side.first[at]:.4g}, its own {side.own[at]:.4g}",
    )


def remedy(situation: Situation, value: float) -> str:
    """Where the entry is looked up."""
    return (
        "look the logprob up by the sampled id, not by place: vLLM's output.logprobs[t] is a dict id -> Logprob, so "
        "[token_ids[t]].logprob and not next(iter(values())); an OpenAI server's top_logprobs[0] is the most likely "
        "token, token_logprobs[t] the sampled one; SGLang: output_token_logprobs, not output_top_logprobs"
    )


CAUSE = Cause(
    name="wrong entry",
    about="the logprob of the most likely token was taken for that of the sampled one",
    remedy=remedy,
    proof=proof,
    needs="statistics of one side (score with --statistics): the rank of a token and the mass above it",
)
