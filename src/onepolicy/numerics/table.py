"""The named reductions that a judgement shows. docs/metrics.md is written from this table."""

from __future__ import annotations

from collections.abc import Callable

from onepolicy.numerics.measurement import Measurement

Reduction = Callable[[Measurement], float]


def _percentile(percent: float) -> Reduction:
    return lambda m: m.totals.abs_d_percentile(percent)


def _share(count: float, total: float) -> float:
    return count / total if total else float("nan")


REDUCTIONS: dict[str, tuple[str, str, Reduction]] = {
    "mean_d": ("nats", "mean of d = trainer - rollout", lambda m: m.mean("d")),
    "mean_abs_d": ("nats", "mean of |d|", lambda m: m.mean("abs_d")),
    "abs_d_p50": (
        "nats",
        "median of |d|, from a histogram with a relative error of at most 0.8 %",
        _percentile(50),
    ),
    "abs_d_p90": ("nats", "90th percentile of |d|, likewise", _percentile(90)),
    "abs_d_p99": ("nats", "99th percentile of |d|, likewise", _percentile(99)),
    "abs_d_p99_9": ("nats", "99.9th percentile of |d|, likewise", _percentile(99.9)),
    "max_abs_d": (
        "nats",
        "largest |d|",
        lambda m: m.max_abs_d if m.valid else float("nan"),
    ),
    "k1": (
        "nats per token",
        "mean of -d; unbiased for KL(rollout || trainer), never gates",
        lambda m: -m.mean("d"),
    ),
    "k2": ("nats per token", "mean of d squared over two", lambda m: m.mean("k2")),
    "k3": ("nats per token", "mean of exp(d) - 1 - d", lambda m: m.mean("k3")),
    "gate": (
        "nats per token",
        "what the mean_kl check decides on: hybrid KL where both sides have top lists, k3 elsewhere",
        lambda m: m.gate().value,
    ),
    "gate_standard_error": (
        "nats per token",
        "jackknife error of the same over prompt groups",
        lambda m: m.gate().standard_error,
    ),
    "mean_importance_ratio": (
        "",
        "mean of exp(d); 1 for tokens sampled from the rollout policy",
        lambda m: m.mean("ratio"),
    ),
    "mean_probability_difference": (
        "",
        "mean of |exp(trainer) - exp(rollout)|",
        lambda m: m.mean("probability_difference"),
    ),
    "max_probability_difference": (
        "",
        "largest |exp(trainer) - exp(rollout)|",
        lambda m: m.totals.max_probability_difference if m.valid else float("nan"),
    ),
    "correlation": (
        "",
        "Pearson correlation of the two columns of logprobs",
        lambda m: m.totals.correlation(),
    ),
    "bitwise_share": (
        "",
        "share of tokens whose two logprobs are the same float32",
        lambda m: _share(m.totals.bitwise_equal, m.valid),
    ),
    "bitwise_share_unsaturated": (
        "",
        "the same among tokens with a rollout logprob below -1e-3",
        lambda m: _share(m.totals.bitwise_equal_unsaturated, m.totals.unsaturated),
    ),
    "top1_agreement": (
        "",
        "share of tokens where both engines put the same token first, of those where both say",
        lambda m: _share(m.top1_equal, m.top1_known),
    ),
    "sequence_ratio_outside": (
        "",
        "share of rollouts whose exp(sum of d) lies outside [0.5, 2], of those with a compared token",
        lambda m: _share(m.sequence_outside, m.valid_rollouts),
    ),
    "max_abs_sequence_d": (
        "nats",
        "largest |sum of d| of a rollout",
        lambda m: m.max_abs_sum_d if m.valid else float("nan"),
    ),
}
"""name -> (unit, what it is, reduction). A released name never changes its meaning"""


def reductions(measured: Measurement) -> dict[str, float]:
    """Every reduction that has a value; one without (NaN) is left out, never filled."""
    values = {name: reduce(measured) for name, (_, _, reduce) in REDUCTIONS.items()}
    return {name: value for name, value in values.items() if value == value}  # noqa: PLR0124 - NaN is not itself
