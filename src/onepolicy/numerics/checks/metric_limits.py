"""Limits on any row of the table of metrics."""

from __future__ import annotations

from onepolicy.errors import UsageError
from onepolicy.judgement.limits import Limits, MetricLimit
from onepolicy.numerics.measurement import Measurement
from onepolicy.numerics.table import REDUCTIONS
from onepolicy.records.verdict import Status, Verdict

TOKENS_NEEDED = {"abs_d_p50": 6, "abs_d_p90": 30, "abs_d_p99": 300, "abs_d_p99_9": 3000}
"""three over the share beyond the percentile: none of so many tokens beyond a limit bounds their share at 95 %"""


def metric_limits(measured: Measurement, limits: Limits) -> list[Verdict]:
    """One verdict for each limit under `metrics`; unknown if the metric has no value or the meanings differ.

    Unknown too for a percentile of fewer tokens than it takes to see one beyond it.

    Raises: UsageError for a name that is no metric.
    """
    refuse_unknown_metrics(limits)
    return [_held(name, limit, measured) for name, limit in limits.metrics.items()]


def refuse_unknown_metrics(limits: Limits) -> None:
    """Raise UsageError for a limit on what is no row of the table of metrics."""
    for name in limits.metrics:
        if name not in REDUCTIONS:
            raise UsageError(
                f"the limits name the metric {name!r}, which there is not. Metrics: {', '.join(REDUCTIONS)}."
            )


def _held(name: str, limit: MetricLimit, measured: Measurement) -> Verdict:
    unit, what, reduce = REDUCTIONS[name]
    value = reduce(measured)
    bound, word = (limit.at_most, "at most") if limit.at_most is not None else (limit.at_least, "at least")
    assert bound is not None
    enough = measured.valid >= TOKENS_NEEDED.get(name, 0)
    known = value == value and measured.same_meaning and enough  # noqa: PLR0124 - NaN is not itself
    why = "there is no value" if enough else f"{measured.valid} tokens say nothing of it, {TOKENS_NEEDED[name]} may"
    within = value <= bound if limit.at_most is not None else value >= bound
    return Verdict(
        check=f"metrics.{name}",
        status=(Status.PASS if within else Status.FAIL) if known else Status.UNKNOWN,
        required=limit.required,
        quantity=name,
        value=value if known else None,
        limit=bound,
        unit=unit,
        message=f"{what}: {value:.3g}, {word} {bound:g} is asked for." if known else f"{what}: {why}.",
    )
