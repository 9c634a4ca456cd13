"""Is there anything to learn from the batch?"""

from __future__ import annotations

import numpy as np

from onepolicy.records.tokens import BoolArray, Float64
from onepolicy.records.verdict import Verdict
from onepolicy.signal.batch.columns import Columns
from onepolicy.signal.batch.found import Found, not_checked, nothing, passed, unknown
from onepolicy.signal.batch.rows import spread_groups

CHECK = "advantage_spread"


def advantage_spread(columns: Columns) -> Verdict:
    """Fails if an advantage in the loss is no finite number, or all are 0 though rewards of a prompt differ.

    All 0, and no prompt whose rewards differ: unknown, as a hard batch is no fault and yet teaches nothing.
    """
    spread = spread_groups(columns)
    if columns.advantages is None:
        return _of_rewards(spread)
    if not _in_loss(columns, np.ones(columns.advantages.shape, dtype=np.bool_)).any():
        return nothing(CHECK)
    wrong, any_other = _in_loss(columns, ~np.isfinite(columns.advantages)), _in_loss(columns, columns.advantages != 0)
    if wrong.any():
        return _not_finite(columns.advantages, wrong)
    if not any_other.any():
        return _all_zero(spread, columns.rows)
    told = "" if spread is None else f"; rewards differ within {spread[0]} of {spread[1]} prompts"
    given = int(any_other.sum())
    return passed(CHECK, f"{given} of {columns.rows} completions have an advantage{told}.", looked_at=given)


def _in_loss(columns: Columns, marked: BoolArray) -> BoolArray:
    """[B] the rows with a marked advantage that is in the loss."""
    mask = columns.loss_mask
    if marked.ndim == 1:
        return marked if mask is None else marked & mask.any(axis=1)
    rows: BoolArray = np.logical_or.reduce(marked if mask is None else marked & mask, axis=1)
    return rows


def _of_rewards(spread: tuple[int, int] | None) -> Verdict:
    if spread is None or not spread[1]:
        return not_checked(CHECK, "it takes `advantages`, or `rewards` and `prompts` with several completions each")
    if not spread[0]:
        return unknown(CHECK, _nothing(f"none of {spread[1]} prompts has completions with different rewards"))
    return passed(CHECK, f"rewards differ within {spread[0]} of {spread[1]} prompts.", looked_at=spread[1])


def _all_zero(spread: tuple[int, int] | None, rows: int) -> Verdict:
    if spread is None or not spread[0]:
        return unknown(CHECK, _nothing(f"all advantages of {rows} completions are 0"))
    found = Found(count=spread[0])
    message = (
        f"all advantages are 0, though rewards differ within {spread[0]} of {spread[1]} prompts: they were lost "
        "between reward and advantage, or grouped one by one."
    )
    return found.failed(CHECK, message, quantity="prompts_without_their_advantages", unit="prompts")


def _nothing(what: str) -> str:
    return f"{what}: this batch teaches nothing. If it stays so, look at the reward, or at how hard the prompts are."


def _not_finite(advantages: Float64, wrong: BoolArray) -> Verdict:
    found = Found()
    for row in np.flatnonzero(wrong).tolist():
        values = np.atleast_1d(advantages[row])
        found.add(f"row {row}", f"an advantage is {values[~np.isfinite(values)][0]}")
    message = (
        f"{found.count} of {len(wrong)} completions have an advantage that is no finite number; the first is "
        f"{found.first}. The loss becomes one too, and then the weights. Look at the rewards of its prompt."
    )
    return found.failed(CHECK, message, quantity="advantages_not_finite")
