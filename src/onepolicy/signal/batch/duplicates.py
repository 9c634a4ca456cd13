"""Are completions of one prompt drawn independently?"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from onepolicy.records.tokens import BoolArray, digest_of_ids
from onepolicy.records.verdict import Verdict
from onepolicy.signal.batch.columns import Columns
from onepolicy.signal.batch.found import Found, not_checked, passed, unknown

CHECK = "duplicate_samples"
ALPHA = 1e-3
"""chance of a false alarm in a batch"""


def duplicates(columns: Columns) -> Verdict:
    """Fails if two completions of one prompt are equal though their probability makes that very unlikely.

    Of B completions, one with a probability of at most p = ALPHA / B^2 equals another with a chance below ALPHA in all.
    Likelier ones, as short answers are, may coincide. Without logprobs a coincidence is unknown.
    """
    which = columns.extent if columns.extent is not None else columns.loss_mask
    if columns.token_ids is None or columns.prompts is None or which is None:
        return not_checked(CHECK, "it takes `token_ids`, `prompts`, and `lengths` or a mask")
    if len(columns.members()) == columns.rows:
        return not_checked(CHECK, "no prompt has two completions")
    pairs = list(_pairs(columns, which))
    if not pairs:
        sizes = [int(which[rows].any(axis=1).sum()) for rows in columns.members().values()]
        compared = sum(size for size in sizes if size > 1)
        return passed(CHECK, f"no two of {columns.rows} completions of one prompt are equal.", looked_at=compared)
    count = f"{len(pairs)} of {columns.rows} completions equal an earlier one of the same prompt"
    if columns.rollout_logprobs is None:
        message = f"{count}, the first is row {pairs[0][0]}; by chance, or drawn twice: give `rollout_logprobs`."
        return unknown(CHECK, message)
    drawn = which if columns.sampled is None else which & columns.sampled
    logprobs = np.where(drawn, columns.rollout_logprobs, 0.0).sum(axis=1)
    return _judged(pairs, logprobs.tolist(), count)


def _judged(pairs: list[tuple[int, int]], logprobs: list[float], count: str) -> Verdict:
    most = math.log(ALPHA) - 2 * math.log(len(logprobs))
    found = Found()
    for row, earlier in pairs:
        if logprobs[row] <= most:
            found.add(f"row {row}", f"equals row {earlier}, logprob {logprobs[row]:.4g}")
    if found.count:
        message = (
            f"{count}, {found.count} of them with a logprob below {most:.3g}, which is not by chance; the first is "
            f"{found.first}. Give each sample a seed of its own, and each rank other prompts."
        )
        return found.failed(CHECK, message, quantity="coinciding_samples")
    if any(math.isnan(logprobs[row]) for row, _ in pairs):
        return unknown(CHECK, f"{count}; whether by chance cannot be said: their logprobs are NaN.")
    return passed(CHECK, f"{count}; all are likely enough for that.", looked_at=len(pairs))


def _pairs(columns: Columns, which: BoolArray) -> Iterator[tuple[int, int]]:
    """A row and the first one that it equals. Completions without a token are not looked at."""
    assert columns.token_ids is not None
    for rows in columns.members().values():
        first: dict[str, int] = {}
        for row in rows.tolist():
            ids = columns.token_ids[row][which[row]]
            earlier = first.setdefault(digest_of_ids(ids), row)
            if earlier != row and len(ids):
                yield row, earlier
