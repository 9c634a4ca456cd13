"""Does the value model see the tokens that the policy sees, in the same columns?"""

from __future__ import annotations

import numpy as np

from onepolicy.records.tokens import BoolArray
from onepolicy.records.verdict import Verdict
from onepolicy.signal.batch.columns import Columns, Integers
from onepolicy.signal.batch.found import Found, not_checked, passed

CHECK = "value_inputs"


def value_inputs(columns: Columns) -> Verdict:
    """Fails if an id or the padding of a row differs between the two models' inputs; says the first place and what.

    Ids under padding are not compared. Without masks, all are.
    """
    if columns.token_ids is None or columns.value_token_ids is None:
        return not_checked(CHECK, "it takes `token_ids` and `value_token_ids`")
    if (columns.attention_mask is None) != (columns.value_attention_mask is None):
        return not_checked(CHECK, "it takes the attention masks of both models, or of neither")
    found, causes, looked_at = Found(), set[str](), 0
    for row in range(columns.rows):
        policy = _attended(columns.token_ids[row], columns.attention_mask, row)
        value = _attended(columns.value_token_ids[row], columns.value_attention_mask, row)
        looked_at += len(policy)
        if not np.array_equal(policy, value):
            cause, column, note = _difference(policy, value)
            causes.add(cause)
            found.add(f"row {row}", note, column=column)
    if not found.count:
        return passed(CHECK, f"both models are given the same {columns.rows} rows.", looked_at=looked_at)
    message = (
        f"the value model is given other input than the policy in {found.count} of {columns.rows} rows "
        f"({', '.join(sorted(causes))}); {found.first}: {found.evidence[0].note}. Its values are then of other states. "
        "Give both the same ids and mask, made once."
    )
    return found.failed(CHECK, message, quantity="rows_with_other_input")


def _attended(ids: Integers, mask: BoolArray | None, row: int) -> Integers:
    """[N, 2] the columns of a row that are no padding, and the ids there."""
    columns = np.arange(len(ids)) if mask is None else np.flatnonzero(mask[row])
    return np.stack([columns, ids[columns]], axis=1)


def _difference(policy: Integers, value: Integers) -> tuple[str, int | None, str]:
    """What it is, the policy's column where it begins, and the words for it."""
    ours, theirs = policy[:, 1], value[:, 1]
    if np.array_equal(ours, theirs):
        return "padding", _column(policy, 0), f"the same tokens, from column {policy[0, 0]} and from {value[0, 0]} on"
    if np.array_equal(ours[1:], theirs):
        return "BOS", _column(policy, 0), f"the value model lacks the first token, {ours[0]}"
    if np.array_equal(ours, theirs[1:]):
        return "BOS", _column(policy, 0), f"the value model has {theirs[0]} in front of the policy's first token"
    both = min(len(ours), len(theirs))
    at = next((n for n in range(both) if ours[n] != theirs[n]), both)
    if at == both:
        longer = "policy" if len(ours) > both else "value model"
        note = f"they agree over {both} tokens; the {longer} has {abs(len(ours) - len(theirs))} more"
        return "length", _column(policy, at), note
    return "ids", _column(policy, at), f"token {at} is {ours[at]} for the policy and {theirs[at]} for the value model"


def _column(policy: Integers, at: int) -> int | None:
    return int(policy[at, 0]) if at < len(policy) else None
