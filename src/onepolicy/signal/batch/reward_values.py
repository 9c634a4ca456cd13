"""Are rewards numbers, and precise enough that different ones stay different?"""

from __future__ import annotations

import numpy as np

from onepolicy.records.tokens import Float64
from onepolicy.records.verdict import Status, Verdict
from onepolicy.signal.batch.columns import Columns
from onepolicy.signal.batch.found import Found, not_checked, nothing, passed

CHECK = "reward_values"
_HALF = {"bfloat16": 8, "float16": 11}
"""type -> significant bits of a value"""
FEWEST = 8
"""different values of full precision from which on a rounding is told"""


def reward_values(columns: Columns) -> Verdict:
    """Fails if a reward is NaN or infinite, comes in half precision, or all were rounded to it before.

    Rounded: every reward has at most the significant bits of bfloat16 (or float16), many need nearly all of them, and
    no grid of equal steps, as of counts or of quarters of a point, explains that.
    """
    rewards = columns.rewards
    if rewards is None:
        return not_checked(CHECK, "it takes `rewards`")
    if not len(rewards):
        return nothing(CHECK)
    if not np.isfinite(rewards).all():
        return _not_finite(rewards)
    if columns.reward_type in _HALF:
        return _half(f"rewards come in {columns.reward_type}", columns.reward_type, columns)
    rounded = next((name for name, bits in _HALF.items() if _is_rounded(rewards, bits)), None)
    if rounded is not None:
        return _half(f"rewards come in {columns.reward_type} and were rounded to {rounded} before", rounded, columns)
    return passed(CHECK, f"{len(rewards)} rewards are finite {columns.reward_type}.", looked_at=len(rewards))


def _not_finite(rewards: Float64) -> Verdict:
    found = Found()
    for row in np.flatnonzero(~np.isfinite(rewards)).tolist():
        found.add(f"row {row}", f"reward {rewards[row]}")
    message = (
        f"{found.count} of {len(rewards)} rewards are no finite numbers; the first is {found.first}. Every advantage "
        "of the same prompt becomes one too. Leave such completions out, or repair what scored them."
    )
    return found.failed(CHECK, message, quantity="rewards_not_finite")


def _half(what: str, kind: str, columns: Columns) -> Verdict:
    assert columns.rewards is not None
    largest = float(np.abs(columns.rewards).max())
    step = 2.0 ** (np.floor(np.log2(largest)) + 1 - _HALF[kind]) if largest else 0.0
    message = (
        f"{what}: near {largest:.4g}, two of them differ by {step:.3g} or not at all, so that different completions "
        f"tie, and means and deviations of a prompt are rounded likewise. Score and keep rewards in float32."
    )
    return Verdict(
        check=CHECK, status=Status.FAIL, quantity="smallest_difference", value=step, unit="reward", message=message
    )


def _is_rounded(rewards: Float64, bits: int) -> bool:
    values = np.unique(np.abs(rewards[rewards != 0]))
    if not len(values):
        return False
    mantissa, exponent = np.frexp(values)
    whole = np.round(np.ldexp(mantissa, 53)).astype(np.int64)
    trailing = np.log2((whole & -whole).astype(np.float64)).astype(np.int64)
    significant = 53 - trailing
    spanned = int(exponent.max()) - int((exponent - significant).min())
    return bool(significant.max() <= bits < spanned and (significant >= bits - 1).sum() >= FEWEST)
