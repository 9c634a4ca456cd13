"""The numeric checks. To add one: a file with a function (Measurement, Limits) -> Verdict, and one line here."""

from __future__ import annotations

from collections.abc import Callable

from onepolicy.judgement.limits import Limits
from onepolicy.numerics.checks.alignment import alignment
from onepolicy.numerics.checks.coverage import coverage
from onepolicy.numerics.checks.mask_ends import mask_ends
from onepolicy.numerics.checks.max_abs_d import max_abs_d
from onepolicy.numerics.checks.mean_kl import mean_kl
from onepolicy.numerics.checks.mean_ratio import mean_ratio
from onepolicy.numerics.checks.meaning import meaning
from onepolicy.numerics.checks.outlier_rollouts import outlier_rollouts
from onepolicy.numerics.checks.placeholder_zeros import placeholder_zeros
from onepolicy.numerics.checks.sampled_as_reported import sampled_as_reported
from onepolicy.numerics.checks.valid_logprobs import valid_logprobs
from onepolicy.numerics.checks.worst_rollout import worst_rollout
from onepolicy.numerics.measurement import Measurement
from onepolicy.records.verdict import Verdict

Check = Callable[[Measurement, Limits], Verdict]

CHECKS: tuple[Check, ...] = (
    meaning,
    valid_logprobs,
    placeholder_zeros,
    coverage,
    alignment,
    mask_ends,
    mean_kl,
    mean_ratio,
    sampled_as_reported,
    worst_rollout,
    outlier_rollouts,
    max_abs_d,
)
"""in the order in which they are shown; all run, whatever the others say"""
