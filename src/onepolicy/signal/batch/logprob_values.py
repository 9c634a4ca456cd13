"""Can the logprobs of the sampled tokens be logprobs?"""

from __future__ import annotations

import numpy as np

from onepolicy.records.tokens import LARGEST_ROUNDING, BoolArray, Float64
from onepolicy.records.verdict import Verdict
from onepolicy.signal.batch.columns import Columns
from onepolicy.signal.batch.found import Found, not_checked, passed, unknown

CHECK = "logprob_values"


def logprob_values(columns: Columns) -> Verdict:
    """Fails if a sampled token has a logprob above 0, by more than rounding, of the policy or of the reference.

    One without a finite logprob is unknown.
    """
    which = columns.trained
    given = {"rollout": columns.rollout_logprobs, "reference": columns.reference_logprobs}
    sides = {name: values for name, values in given.items() if values is not None}
    if not sides or which is None:
        return not_checked(CHECK, "it takes `rollout_logprobs` or `reference_logprobs`, and `lengths` or a mask")
    for name, values in sides.items():
        above = which & (values > LARGEST_ROUNDING)
        if above.any():
            return _above(name, values, above)
    missing, tokens = sum((~np.isfinite(values[which])).sum() for values in sides.values()), int(which.sum())
    if missing:
        return unknown(CHECK, f"{missing} logprobs of {tokens:,} sampled tokens are not finite; give those of all.")
    return passed(CHECK, f"the {' and '.join(sides)} logprobs of {tokens:,} tokens are at most 0.", looked_at=tokens)


def _above(name: str, values: Float64, above: BoolArray) -> Verdict:
    found = Found()
    for row in np.flatnonzero(above.any(axis=1)).tolist():
        column = int(above[row].argmax())
        found.add(f"row {row}", f"{name} logprob {values[row, column]:.4g}", column=column)
    message = (
        f"{found.count} of {len(values)} completions have {int(above.sum()):,} {name} logprobs above 0, which no "
        f"probability has; the first is {found.first}, {found.evidence[0].note}. Give the logarithms themselves: not "
        "their negatives, as a loss has them, nor logits or probabilities."
    )
    return found.failed(CHECK, message, quantity="rows_above_0")
