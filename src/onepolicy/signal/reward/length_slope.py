"""Is it a length meter? The same answers with sentences that say nothing at their end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onepolicy.judgement.statistics import t_quantile
from onepolicy.records.tokens import Float64
from onepolicy.records.verdict import Verdict
from onepolicy.signal.reward.found import failed, not_checked, passed, undecided
from onepolicy.signal.reward.pairs import FEWEST, Pair
from onepolicy.signal.reward.subject import Subject

CHECK = "length_slope"
LIMIT = 0.25
"""spreads that an answer may gain by being twice as long without saying more"""
LEVEL = 0.95
_TIMES = (1.5, 2.0, 3.0)
"""lengths, in those of the plain answer"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slope:
    """Mean change of the score for a doubling of the length, over prompts. Unit: spreads."""

    value: float
    low: float
    high: float
    prompts: int


def length_slope(subject: Subject) -> Verdict:
    """Fails if the interval of the slope lies above `LIMIT`; unknown, and informs, if it holds it."""
    if subject.spread == 0:
        return not_checked(CHECK, "all pairs have one score for both answers; see `response_swap`.")
    slopes = _slopes(subject)
    if len(slopes) < FEWEST:
        return not_checked(CHECK, f"only {len(slopes)} prompts differ and leave the model room for longer answers.")
    found = interval(slopes)
    numbers = {"quantity": "score_per_doubling", "value": found.value, "low": found.low, "high": found.high}
    said = (
        f"an answer that is twice as long and says no more gains {found.value:+.2g} spreads "
        f"({LEVEL:.0%} interval {found.low:+.2g} to {found.high:+.2g}, {found.prompts} prompts, limit {LIMIT:+g})"
    )
    if found.low > LIMIT:
        message = f"{said}: the score measures length. Take the slope out, or train on pairs of equal length. "
        return failed(CHECK, message + _of_pairs(subject), limit=LIMIT, unit="spreads", **numbers)
    if found.high > LIMIT:
        message = f"not decided: {said}; the interval holds the limit. Give more pairs. "
        return undecided(CHECK, message + _of_pairs(subject), limit=LIMIT, unit="spreads", **numbers)
    return passed(CHECK, f"{said}. {_of_pairs(subject)}", limit=LIMIT, unit="spreads", **numbers)


def interval(slopes: Float64) -> Slope:
    """Mean with Student's two-sided interval; prompts are independent. Shape: [P], at least two."""
    error = float(slopes.std(ddof=1)) / np.sqrt(len(slopes))
    half = t_quantile(len(slopes) - 1, (1 - LEVEL) / 2) * error
    mean = float(slopes.mean())
    return Slope(value=mean, low=mean - half, high=mean + half, prompts=len(slopes))


def _slopes(subject: Subject) -> Float64:
    """[P] of each prompt, the mean of its pairs, as pairs of one prompt are not independent."""
    found: dict[str, list[float]] = {}
    for pair in subject.pairs:
        if (slope := _slope_of(subject, pair)) is not None:
            found.setdefault(repr(pair.messages), []).append(slope)
    return np.array([np.mean(slopes) for slopes in found.values()])


def _slope_of(subject: Subject, pair: Pair) -> float | None:
    """Least squares of score on log2 of length, the mean of both answers; None if none fits into the model."""
    slopes = [_slope_of_answer(subject, pair, answer) for answer in (pair.chosen, pair.rejected)]
    known = [slope for slope in slopes if slope is not None]
    return float(np.mean(known)) if known else None


def _slope_of_answer(subject: Subject, pair: Pair, answer: str) -> float | None:
    texts = list(dict.fromkeys([answer, *(_longer(answer, pair.filler, times) for times in _TIMES)]))
    texts = [text for text in texts if _fits(subject, pair, text)]
    if len(texts) < 2:
        return None
    scores = subject.rewards([pair.answered(text) for text in texts]) / subject.spread
    lengths = np.log2([len(text) for text in texts])
    away = lengths - lengths.mean()
    return float((away * scores).sum() / (away**2).sum())


def _longer(answer: str, filler: str, times: float) -> str:
    """The answer with whole sentences behind it, so many that it is about so many times as long; at least one."""
    count = max(1, round((times - 1) * len(answer) / (len(filler) + 1)))
    return " ".join([answer, *[filler] * count])


def _fits(subject: Subject, pair: Pair, text: str) -> bool:
    if subject.open is None or subject.open.info.max_length is None:
        return True
    return len(subject.open.encode([pair.answered(text)])[0].ids) <= subject.open.info.max_length


def _of_pairs(subject: Subject) -> str:
    """How often the longer one of two answers scores higher."""
    longer = np.array([np.sign(len(pair.chosen) - len(pair.rejected)) for pair in subject.pairs])
    higher = np.sign(subject.scores[::2] - subject.scores[1::2])
    unequal = longer != 0
    agreeing, counted = int((longer == higher)[unequal].sum()), int(unequal.sum())
    return f"Of the answers of a pair the longer one scores higher in {agreeing} of {counted}."
