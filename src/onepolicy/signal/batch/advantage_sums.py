"""Do the advantages of one prompt's completions add up to 0?"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from onepolicy.records.tokens import Float64
from onepolicy.records.verdict import Verdict
from onepolicy.signal.batch.columns import Columns, Integers
from onepolicy.signal.batch.found import Found, not_checked, passed
from onepolicy.signal.batch.rows import row_advantages

CHECK = "advantage_sums"
MOST = 1e-3
"""of the sum of |advantage|: above the rounding of float32 rewards that are a thousand times their spread"""


def advantage_sums(columns: Columns) -> Verdict:
    """Fails if the advantages of a prompt do not add up to 0, as a reward minus its prompt's mean does in any order.

    A sum over windows of neighbouring rows that is 0 where that over a prompt is not tells why: the batch is not in the
    order that was assumed.
    """
    if columns.prompts is None or not columns.group_relative:
        why = "advantages are not relative to a prompt" if columns.prompts else "it takes `prompts`"
        return not_checked(CHECK, why)
    advantages = row_advantages(columns)
    if isinstance(advantages, str):
        return not_checked(CHECK, advantages)
    whole = _whole(columns, advantages)
    if not whole:
        return not_checked(CHECK, "no prompt has all its completions here and in the loss")
    most = max(MOST, 4 * columns.advantage_step)
    off = {prompt: rows for prompt, rows in whole.items() if _is_off(advantages[rows], most)}
    if not off:
        return passed(CHECK, f"the advantages of each of {len(whole)} prompts add up to 0.", looked_at=len(whole))
    return _failed(off, advantages, whole, _order(advantages, whole, most))


def _whole(columns: Columns, advantages: Float64) -> dict[str, Integers]:
    groups = columns.members().items()
    wanted = columns.group_size or 1
    return {prompt: rows for prompt, rows in groups if len(rows) >= wanted and np.isfinite(advantages[rows]).all()}


def _is_off(advantages: Float64, most: float) -> bool:
    return bool(abs(advantages.sum()) > most * np.abs(advantages).sum())


def _order(advantages: Float64, whole: dict[str, Integers], most: float) -> str:
    """What other grouping makes the sums 0; empty if none is found."""
    sizes = {len(rows) for rows in whole.values()}
    size = min(sizes)
    if len(sizes) != 1 or size < 2 or len(advantages) % size or not np.isfinite(advantages).all():
        return ""
    neighbours = advantages.reshape(-1, size)
    if _all_even(neighbours, most):
        return f"0 by position, not by id: over every {size} neighbouring rows they do, but these are of other prompts"
    if _all_even(advantages.reshape(size, -1).T, most):
        return f"0 by position, not by id: over every {len(neighbours)}th row they do, but these are of other prompts"
    return ""


def _all_even(windows: Iterable[Float64], most: float) -> bool:
    return not any(_is_off(window, most) for window in windows)


def _failed(off: dict[str, Integers], advantages: Float64, whole: dict[str, Integers], order: str) -> Verdict:
    found = Found()
    for prompt, rows in off.items():
        found.add(f"prompt {prompt!r}", f"the advantages of {len(rows)} rows add up to {advantages[rows].sum():.4g}")
    why = f" They are {order}. Group by id." if order else " A reward minus the mean of its prompt does, in any order."
    if all(len(rows) == 1 for rows in off.values()):
        why = " These prompts have one completion, which there is nothing to compare with."
    message = (
        f"the advantages of {len(off)} of {len(whole)} prompts do not add up to 0; the first is {found.first}, where "
        f"{found.evidence[0].note}.{why}"
    )
    return found.failed(CHECK, message, quantity="prompts_with_a_sum", unit="prompts")
