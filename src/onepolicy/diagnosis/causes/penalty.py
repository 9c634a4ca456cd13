"""One side's logprobs are after a repetition penalty that the other side does not know."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np

from onepolicy.diagnosis.cause import Cause, Situation
from onepolicy.diagnosis.causes.temperature import meaning_of, statistics_of
from onepolicy.diagnosis.likelihood import Family
from onepolicy.diagnosis.tokens import Tokens
from onepolicy.records.tokens import BoolArray, Float64

KEPT = 1.1
"""penalty of the statistic `logprob_repetition_1_1`"""
GRID = (1.002, 1.005, 1.01, 1.02, 1.03, 1.05, 1.08, 1.1, 1.12, 1.15, 1.2, 1.3)
"""what models' generation_config.json and servers have; between them the value is fitted"""
ONE_SIGN = 0.75
"""share of the new tokens beyond the noise that must gain; noise as large as their gain turns about a quarter"""
_NEEDED = {"logprob_repetition_1_1", "log_normaliser"}
_HALVINGS = 50


def families(tokens: Tokens, situation: Situation) -> Iterable[Family]:
    """The penalty on either side, by the other side's raw logprobs.

    By that side's statistics, and not by the penalised one's: what it would say under a penalty is near to what it
    says, whatever the other side does, and would explain any difference.
    """
    seen = is_seen(tokens)
    for faulty, known in (("rollout", "trainer"), ("trainer", "rollout")):
        is_known = set(statistics_of(tokens, known)) >= _NEEDED and meaning_of(situation, known).is_raw
        if is_known and _is_likely(tokens, situation, seen, faulty):
            yield _family(tokens, _Unpenalised.of(tokens, seen, known), faulty)


def _family(tokens: Tokens, known: _Unpenalised, faulty: str) -> Family:
    def corrected(value: float) -> Float64:
        moved = known.penalised(value)
        return moved - tokens.p if faulty == "rollout" else tokens.q - moved

    return Family(
        cause=CAUSE.name,
        values=GRID,
        corrected=corrected,
        scale=lambda value, noise: noise + known.error(value),
        label=lambda value: f"repetition penalty {value:.2f} on the {faulty} side",
        is_continuous=True,
        seen=said(tokens, known.seen),
    )


def _is_likely(tokens: Tokens, situation: Situation, seen: BoolArray, faulty: str) -> bool:
    """A penalty takes from the tokens that were there before and gives to every new one: none of them loses.

    Other weights help tokens that happen to be new as well, and a fit would take that for a part of the difference.
    """
    beyond = ~seen & (np.abs(tokens.d) > situation.noise.scale(tokens.p))
    if not beyond.any():
        return bool(seen.any())
    gains = tokens.d[beyond] < 0 if faulty == "rollout" else tokens.d[beyond] > 0
    return bool(gains.mean() >= ONE_SIGN)


def is_seen(tokens: Tokens) -> BoolArray:
    """[M] whether the token stands before in its rollout, prompt included."""
    found = [_is_repeated(tokens.sequences[row])[tokens.position[part]] for row, part in tokens.parts()]
    return np.concatenate(found) if found else np.zeros(0, dtype=np.bool_)


def _is_repeated(ids: np.ndarray) -> BoolArray:
    repeated: BoolArray = np.ones(len(ids), dtype=np.bool_)
    repeated[np.unique(ids, return_index=True)[1]] = False
    return repeated


def said(tokens: Tokens, seen: BoolArray) -> str:
    """d of tokens that were there before, and of new ones."""
    if not seen.any() or seen.all():
        return ""
    return (
        f"trainer - rollout is {tokens.d[seen].mean():+.2g} nats for tokens that were there before and "
        f"{tokens.d[~seen].mean():+.2g} for new ones"
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Unpenalised:
    """The distributions of the side without a penalty, [M] each, and what a penalty would make of them.

    A seen token's own logit is known, and so is the normaliser without a penalty and at `KEPT`; at other penalties r it
    depends on how the mass of the seen tokens is shared among them. Two models of it, each of which is exact at
    `KEPT`: one token has all of it, S with the logit L + log S; or n tokens have equal parts. The normaliser is taken
    between them, and their distance is what it may be wrong by.
    """

    seen: BoolArray
    logit: Float64
    normaliser: Float64
    counts: tuple[Float64, Float64]
    """seen tokens of the two models"""
    masses: tuple[Float64, Float64]
    """S of them"""
    rest: Float64
    """nats of the change at `KEPT` that neither explains"""

    @classmethod
    def of(cls, tokens: Tokens, seen: BoolArray, side: str) -> Self:
        statistics = statistics_of(tokens, side)
        normaliser = statistics["log_normaliser"].astype(np.float64)
        logit = (tokens.q if side == "trainer" else tokens.p) + normaliser
        change = _scaled(logit, seen, KEPT) - statistics["logprob_repetition_1_1"].astype(np.float64) - normaliser
        one, count = np.ones(len(tokens)), _different_before(tokens)
        masses = _mass_of_seen(change, normaliser, one), _mass_of_seen(change, normaliser, count)
        return cls(
            seen=seen,
            logit=logit,
            normaliser=normaliser,
            counts=(one, count),
            masses=masses,
            rest=change - _log_change(masses[0], normaliser, one, KEPT),
        )

    def penalised(self, value: float) -> Float64:
        """[M] logprobs under a penalty."""
        first, other = self._changes(value)
        # What no mass explains at `KEPT` grows with the penalty.
        change = 0.5 * (first + other) + self.rest * (value - 1.0) / (KEPT - 1.0)
        found: Float64 = _scaled(self.logit, self.seen, value) - self.normaliser - change
        return found

    def error(self, value: float) -> Float64:
        """[M] nats that `penalised` may be wrong by."""
        first, other = self._changes(value)
        return np.abs(first - other)

    def _changes(self, value: float) -> list[Float64]:
        return [
            _log_change(mass, self.normaliser, count, value)
            for mass, count in zip(self.masses, self.counts, strict=True)
        ]


def _different_before(tokens: Tokens) -> Float64:
    """[M] how many different tokens stand before one; at least 1."""
    found = []
    for row, part in tokens.parts():
        known = np.cumsum(~_is_repeated(tokens.sequences[row]))
        found.append(known[np.maximum(tokens.position[part] - 1, 0)])
    return np.concatenate(found).astype(np.float64) if found else np.zeros(0)


def _scaled(logit: Float64, seen: BoolArray, penalty: float) -> Float64:
    """Source: RepetitionPenaltyLogitsProcessor of Transformers 5."""
    return np.where(seen, np.where(logit < 0, logit * penalty, logit / penalty), logit)


def _log_change(mass: Float64, normaliser: Float64, count: Float64, penalty: float) -> Float64:
    """[M] log of the normaliser under a penalty less the one without; `count` seen tokens share the mass equally."""
    logit = normaliser + np.log(np.maximum(mass, 1e-30) / count)
    moved = count * np.exp(_scaled(logit, np.ones(len(logit), dtype=np.bool_), penalty) - normaliser)
    change: Float64 = np.log(np.maximum(1.0 - mass + moved, 1e-30))
    return change


def _mass_of_seen(change: Float64, normaliser: Float64, count: Float64) -> Float64:
    """[M] the mass at which `_log_change` at `KEPT` is what it is; by halving, as it falls with the mass."""
    low = np.minimum(count * np.exp(np.minimum(-normaliser, 0.0)), 1.0)  # a logit of 0, which no penalty moves
    high = np.ones(len(change))
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        is_less = _log_change(middle, normaliser, count, KEPT) > change
        low, high = np.where(is_less, middle, low), np.where(is_less, high, middle)
    return 0.5 * (low + high)


def remedy(situation: Situation, value: float) -> str:
    """What to set, by engine."""
    if situation.rollout.engine.name == "vllm":
        return (
            "send repetition_penalty 1.0 (and presence_penalty 0, frequency_penalty 0) with every request, or start "
            "vLLM with --generation-config vllm: it takes what is not sent from the model's generation_config.json "
            "(verl: actor_rollout_ref.rollout.repetition_penalty; TRL: repetition_penalty)"
        )
    return (
        "set repetition_penalty 1.0, presence_penalty 0 and frequency_penalty 0 explicitly: what is not sent comes "
        "from the model's generation_config.json (verl: actor_rollout_ref.rollout.repetition_penalty; TRL: "
        "repetition_penalty; llama.cpp: repeat_penalty)"
    )


CAUSE = Cause(
    name="penalty",
    about="one side makes tokens that were there before less likely, the other does not",
    remedy=remedy,
    families=families,
    needs="statistics of the side without the penalty (score with --statistics): the logprob under a penalty of 1.1",
)
