"""The cases of every role, one file for each subject matter."""

from __future__ import annotations

from onepolicy.signal.conformance.cases import (
    advantages,
    aggregation,
    completions,
    kl,
    masks,
    policy_loss,
    scoring,
    shaping,
    statements,
    values,
)

CASES = (
    *scoring.CASES, *completions.CASES, *masks.CASES, *kl.CASES, *advantages.CASES, *values.CASES,
    *policy_loss.CASES, *aggregation.CASES, *shaping.CASES, *statements.CASES,
)  # fmt: skip
