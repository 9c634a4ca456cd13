"""A step's record -> the numbers that a trainer logs."""

from __future__ import annotations

from onepolicy.records.step import StepRecord

PREFIX = "onepolicy/"


def numbers_of(record: StepRecord, *, outliers: int) -> dict[str, float]:
    """Name -> number; one without a value is left out, never filled."""
    own = [(cell.tokens, cell.k3) for cell in record.by_confidence]
    stale = [(cell.tokens, cell.tokens * cell.mean_k3) for cell in record.by_lag if cell.lag > 0]
    found = {
        "k3": record.metrics.get("k3"),
        "kl_high": record.high,
        "mean_abs_d": record.metrics.get("mean_abs_d"),
        "max_abs_d": record.metrics.get("max_abs_d"),
        "same_version_k3": _mean(own),
        "stale_k3": _mean(stale),
        "coverage": record.valid / record.compared if record.compared else None,
        "invalid_tokens": record.invalid,
        "outlier_rollouts": outliers,
        "masked_rollouts": record.masked_rollouts,
        "alarm": len(record.alarms),
        "step": record.step,
    }
    return {PREFIX + name: float(value) for name, value in found.items() if value is not None}


def _mean(cells: list[tuple[int, float]]) -> float | None:
    tokens = sum(count for count, _ in cells)
    return sum(k3 for _, k3 in cells) / tokens if tokens else None
