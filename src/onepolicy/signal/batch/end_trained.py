"""Is the end token in the loss, also where padding has the same id?"""

from __future__ import annotations

import numpy as np

from onepolicy.records.tokens import BoolArray
from onepolicy.records.verdict import Verdict
from onepolicy.signal.batch.columns import Columns, Integers
from onepolicy.signal.batch.found import Found, not_checked, nothing, passed, unknown

CHECK = "end_trained"


def end_trained(columns: Columns) -> Verdict:
    """Fails if completions end with an end token that the loss leaves out, while the token before it is in the loss.

    Without lengths, an end token after the last marked one is a lost end or padding of the same id: unknown.
    """
    ids, mask = columns.token_ids, columns.loss_mask
    if ids is None or mask is None or not len(columns.end_ids):
        return not_checked(CHECK, "it takes `token_ids`, `loss_mask` and `end_ids`")
    if not mask.any():
        return nothing(CHECK)
    is_end = np.isin(ids, columns.end_ids)
    if columns.lengths is None:
        return _without_lengths(is_end, mask)
    assert columns.completion is not None
    last = _last(columns.completion)
    rows = np.flatnonzero((last > 0) & is_end[np.arange(len(ids)), last])
    lost = rows[~mask[rows, last[rows]] & mask[rows, last[rows] - 1]]
    ended = int(mask[rows, last[rows]].sum()) + len(lost)
    if not ended:
        return not_checked(CHECK, "no completion that is in the loss ends with an end token")
    if len(lost):
        return _lost(lost, last, ids, ended)
    return passed(CHECK, f"{ended} completions end in the loss.", looked_at=ended)


def _without_lengths(is_end: BoolArray, mask: BoolArray) -> Verdict:
    last = _last(mask)
    rows = np.flatnonzero((last >= 0) & (last + 1 < mask.shape[1]))
    followed = rows[is_end[rows, last[rows] + 1] & ~is_end[rows, last[rows]]]
    trained = int((is_end & mask).any(axis=1).sum())
    if len(followed):
        message = (
            f"{len(followed)} completions are followed by an end token that is not in the loss (the first is row "
            f"{followed[0]}): the end itself, which is then never learnt, or padding with its id. Give `lengths`, as "
            "counted by the engine that sampled."
        )
        return unknown(CHECK, message)
    if not trained:
        return not_checked(CHECK, "no completion that is in the loss ends with an end token")
    message = f"{trained} completions end in the loss, and none is followed by an end token outside it."
    return passed(CHECK, message, looked_at=trained)


def _lost(lost: Integers, last: Integers, ids: Integers, ended: int) -> Verdict:
    found = Found()
    for row in lost.tolist():
        found.add(f"row {row}", f"end token {ids[row, last[row]]} is not in the loss", column=int(last[row]))
    message = (
        f"{found.count} of {ended} completions end with an end token that the loss leaves out; the first is "
        f"{found.first}. The policy never learns to stop. A mask that hides padding by its id hides the end too where "
        "both have one id: build it from lengths."
    )
    return found.failed(CHECK, message, quantity="ends_outside_the_loss")


def _last(mask: BoolArray) -> Integers:
    """[B] the last marked column; -1 in a row without one."""
    width = mask.shape[1]
    return np.where(mask.any(axis=1), width - 1 - mask[:, ::-1].argmax(axis=1), -1).astype(np.int64)
