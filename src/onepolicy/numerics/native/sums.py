"""The sums from which every framework-native number follows, gathered block by block in flat memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from onepolicy.numerics.native.moments import Moments, Spread
from onepolicy.numerics.native.table import NATIVE
from onepolicy.numerics.pair import Pair
from onepolicy.records.tokens import Float64

_RUN_TOKENS = 1 << 15
_SUMMED = (
    *("d", "abs_d", "k2", "k3", "k3_swapped", "log_cosh", "ratio", "exp_abs_d", "clamped_ratio_squared", "different"),
    "probability_difference",
)
"""of the names of `per_token`; the others are for the rollouts' means and the moments"""
_EXTREMES = ("abs_d", "k3", "probability_difference")
"""of these some framework shows the largest"""
VERL_CLAMP = 20.0
"""nats; SAFETY_BOUND in verl-project/verl:verl/trainer/ppo/rollout_corr_helper.py"""
MILES_CLAMP = 10.0
"""nats; the largest k3 of a token in radixark/miles:miles/utils/ppo_utils.py, `low_var_kl`"""
TORCHTITAN_SAME = 1e-6
"""nats; up to here pytorch/torchtitan calls two logprobs equal"""


def _moments() -> Moments:
    return Moments(columns=("rollout_probability", "trainer_probability", "probability_difference", "k3"))


@dataclass(slots=True, kw_only=True, eq=False)
class NativeSums:
    """Spreads over tokens and over rollouts; `add` is the only thing that changes them.

    Tokens are those with a logprob on both sides. Rollouts are those with such a token, and those in which nothing was
    to be compared: verl, slime and miles count the latter too, as no difference. A rollout that should have been
    compared and has no logprob counts nowhere.
    """

    tokens: defaultdict[str, Spread] = field(default_factory=lambda: defaultdict(Spread))
    """the names of `per_token` -> over all tokens"""
    rollouts: defaultdict[str, Spread] = field(default_factory=lambda: defaultdict(Spread))
    """the names of `per_rollout_means` -> over all rollouts"""
    moments: Moments = field(default_factory=_moments)

    def add(self, pair: Pair) -> None:
        """Take in one block."""
        counted = (np.diff(pair.offsets) > 0) | (pair.wanted == 0)
        for first, last in _runs(pair.offsets):
            tokens = slice(int(pair.offsets[first]), int(pair.offsets[last]))
            p, q = pair.p[tokens].astype(np.float64), pair.q[tokens].astype(np.float64)
            columns = per_token(p, q)
            lengths = np.diff(pair.offsets[first : last + 1])
            means = per_rollout_means(columns, lengths)
            self._take(columns, {name: values[counted[first:last]] for name, values in means.items()})

    def values(self) -> dict[str, dict[str, float]]:
        """Framework -> name on its dashboard -> number. One without a value (NaN) is left out, never filled."""
        everything = {
            framework: {name: function(self) + 0.0 for name, (_, _, function) in metrics.items()}  # no -0.0
            for framework, metrics in NATIVE.items()
        }
        return {
            framework: {name: value for name, value in metrics.items() if not np.isnan(value)}
            for framework, metrics in everything.items()
        }

    def _take(self, columns: dict[str, Float64], means: dict[str, Float64]) -> None:
        for name in _SUMMED:
            self.tokens[name].add(columns[name], extremes=name in _EXTREMES)
        for name, values in means.items():
            self.rollouts[name].add(values, extremes=True)
        self.moments.add(np.stack([columns[name] for name in self.moments.columns]))


def per_token(p: Float64, q: Float64) -> dict[str, Float64]:
    """What is summed over tokens, from rollout logprobs p and trainer logprobs q.

    Shape: [n], [n] -> [n] each. Unit: nats and powers of them, but probabilities and ratios. A ratio beyond float64
    is infinite.
    """
    d = q - p
    with np.errstate(over="ignore"):
        ratio_minus_1, inverse_minus_1 = np.expm1(d), np.expm1(-d)
    k3 = ratio_minus_1 - d
    return {
        "rollout_logprob": p,
        "d": d,
        "abs_d": np.abs(d),
        "k2": d * d / 2,
        "k3": k3,
        "clamped_k3": np.minimum(k3, MILES_CLAMP),
        "k3_swapped": inverse_minus_1 + d,
        "log_cosh": np.log1p(2 * np.sinh(d / 4) ** 2),
        "ratio": ratio_minus_1 + 1,
        "exp_abs_d": np.maximum(ratio_minus_1, inverse_minus_1) + 1,
        "clamped_ratio_squared": np.exp(2 * np.clip(d, -VERL_CLAMP, VERL_CLAMP)),
        "different": (np.abs(d) > TORCHTITAN_SAME).astype(np.float64),
        **_probabilities(p, q),
    }


def per_rollout_means(columns: dict[str, Float64], lengths: npt.NDArray[np.int64]) -> dict[str, Float64]:
    """What is averaged over rollouts, from the tokens of whole rollouts that lie one after the other.

    Shape: [n] each, [r] -> [r] each. Unit: nats, but perplexities and ratios. A rollout without tokens has mean 0.
    """
    names = ("rollout_logprob", "d", "abs_d", "clamped_k3")
    sums = {name: _sum_by_rollout(columns[name], lengths) for name in names}
    p, d, abs_d, clamped_k3 = (sums[name] / np.maximum(lengths, 1) for name in names)
    with np.errstate(over="ignore"):
        return {
            "d": d,
            "abs_mean_d": np.abs(d),
            "inverse_geometric_ratio": np.exp(-d),
            "clamped_ratio_squared": np.exp(2 * np.clip(sums["d"], -VERL_CLAMP, VERL_CLAMP)),
            "rollout_log_ppl": -p,
            "rollout_ppl": np.exp(-p),
            "trainer_log_ppl": -p - d,
            "trainer_ppl": np.exp(-p - d),
            "abs_d": abs_d,
            "clamped_k3": clamped_k3,
        }


def _probabilities(p: Float64, q: Float64) -> dict[str, Float64]:
    rollout, trainer = np.exp(p), np.exp(q)
    return {
        "rollout_probability": rollout,
        "trainer_probability": trainer,
        "probability_difference": np.abs(trainer - rollout),
    }


def _sum_by_rollout(values: Float64, lengths: npt.NDArray[np.int64]) -> Float64:
    sums, filled = np.zeros(len(lengths)), lengths > 0
    if filled.any():
        sums[filled] = np.add.reduceat(values, (np.cumsum(lengths) - lengths)[filled])
    return sums


def _runs(offsets: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Ranges of whole rollouts of about `_RUN_TOKENS` tokens."""
    starts = np.searchsorted(offsets, np.arange(0, offsets[-1], _RUN_TOKENS))
    return pairwise(np.unique([0, *starts.tolist(), len(offsets) - 1]).tolist())
