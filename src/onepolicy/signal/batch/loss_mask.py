"""Is the loss computed over what the policy sampled, and nothing else?"""

from __future__ import annotations

import numpy as np

from onepolicy.records.tokens import BoolArray
from onepolicy.records.verdict import Verdict
from onepolicy.signal.batch.columns import Columns
from onepolicy.signal.batch.found import Found, not_checked, passed, unknown

CHECK = "loss_mask"


def loss_mask(columns: Columns) -> Verdict:
    """Fails if the mask marks padding or a prompt, or leaves out a sampled token of a completion that is in the loss.

    A completion without any marked token was left out on purpose. Gaps inside completions are unknown where nothing
    says what the policy sampled: a tool's answer is such a gap.
    """
    mask, completion = columns.loss_mask, columns.completion
    if mask is None or completion is None:
        return not_checked(CHECK, "it takes `loss_mask`, and `lengths` or `attention_mask`")
    outside, missing = mask & ~completion, completion & ~mask & mask.any(axis=1, keepdims=True)
    if outside.any():
        return _outside(outside, missing, mask, completion)
    if missing.any():
        has_gaps = columns.sampled is None and _gaps(mask).any()
        return _gap(missing) if has_gaps else _missing(missing)
    left_out = int((completion.any(axis=1) & ~mask.any(axis=1)).sum())
    told = f"; {left_out} completions are left out whole" if left_out else ""
    tokens = int(mask.sum())
    return passed(CHECK, f"the loss is over the {tokens:,} sampled tokens and no other{told}.", looked_at=tokens)


def _outside(outside: BoolArray, missing: BoolArray, mask: BoolArray, completion: BoolArray) -> Verdict:
    found = _found(outside, "in the loss, and no sampled token")
    by = next((s for s in (1, -1) if np.array_equal(np.roll(completion, s, axis=1), mask)), None)
    if by is not None:
        why = f" The mask is that of the completions, moved by one column to the {'right' if by == 1 else 'left'}."
    else:
        why = f" It leaves out {int(missing.sum()):,} sampled ones." if missing.any() else ""
    message = (
        f"{found.count} of {len(mask)} completions have {int(outside.sum()):,} tokens in the loss that were not "
        f"sampled (padding, or the prompt); the first is {_place(outside)}.{why} Build the mask from lengths: "
        "mask_from_lengths."
    )
    return found.failed(CHECK, message, quantity="rows_with_padding_in_the_loss")


def _missing(missing: BoolArray) -> Verdict:
    found = _found(missing, "sampled, and not in the loss")
    message = (
        f"{found.count} of {len(missing)} completions have {int(missing.sum()):,} sampled tokens that the loss leaves "
        f"out; the first is {_place(missing)}. Build the mask from lengths, or say with `sampled` that they are not "
        "the policy's."
    )
    return found.failed(CHECK, message, quantity="rows_with_tokens_outside_the_loss")


def _gap(missing: BoolArray) -> Verdict:
    message = (
        f"{int(missing.any(axis=1).sum())} completions have gaps in their loss mask ({int(missing.sum()):,} tokens, "
        f"the first is {_place(missing)}): a tool's answer, or sampled tokens that are lost. Say which with `sampled`."
    )
    return unknown(CHECK, message)


def _gaps(mask: BoolArray) -> BoolArray:
    """[B, T] what is not marked and lies between marked tokens."""
    before = np.logical_or.accumulate(mask, axis=1)
    after = np.logical_or.accumulate(mask[:, ::-1], axis=1)[:, ::-1]
    return ~mask & before & after


def _found(marked: BoolArray, note: str) -> Found:
    found = Found()
    for row in np.flatnonzero(marked.any(axis=1)).tolist():
        found.add(f"row {row}", f"{int(marked[row].sum())} tokens {note}", column=int(marked[row].argmax()))
    return found


def _place(marked: BoolArray) -> str:
    row, column = np.argwhere(marked)[0].tolist()
    return f"column {column} of row {row}"
