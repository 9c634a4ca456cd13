"""One advantage for each completion, and what its prompt makes of it."""

from __future__ import annotations

import numpy as np

from onepolicy.records.tokens import Float64
from onepolicy.signal.batch.columns import Columns


def row_advantages(columns: Columns) -> Float64 | str:
    """[B] the advantage of each completion, NaN for one without a token in the loss; or why there is no such thing."""
    found, mask = columns.advantages, columns.loss_mask
    if found is None:
        return "it takes `advantages`"
    if found.ndim == 1:
        return found if mask is None else np.where(mask.any(axis=1), found, np.nan)
    if mask is None:
        return "advantages of tokens take a `loss_mask`"
    low, high = (
        edge(np.where(mask, found, fill), axis=1, initial=fill) for edge, fill in ((np.min, np.inf), (np.max, -np.inf))
    )
    marked = mask.any(axis=1)
    if (high[marked] - low[marked] > columns.advantage_step * np.abs(high[marked])).any():
        return "advantages differ within a completion, so they are not of groups"
    return np.where(marked, high, np.nan)


def spread_groups(columns: Columns) -> tuple[int, int] | None:
    """How many prompts have completions with different rewards, of how many with several; None if that is not known."""
    rewards, members = columns.rewards, columns.members()
    if rewards is None or not members:
        return None
    groups = [rewards[rows] for rows in members.values() if len(rows) > 1]
    return sum(bool(np.ptp(group) > 1e-6 * np.abs(group).max()) for group in groups), len(groups)
