"""The checks of a batch, in the order in which they are shown, and the answer that follows from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from onepolicy.judgement.decide import decide, sentence
from onepolicy.records.strict import Strict
from onepolicy.records.verdict import Status, Verdict
from onepolicy.signal.batch.advantage_spread import advantage_spread
from onepolicy.signal.batch.advantage_sums import advantage_sums
from onepolicy.signal.batch.batch import SignalBatch
from onepolicy.signal.batch.columns import Columns
from onepolicy.signal.batch.convert import columns_of
from onepolicy.signal.batch.duplicates import duplicates
from onepolicy.signal.batch.end_trained import end_trained
from onepolicy.signal.batch.kl_sign import kl_sign
from onepolicy.signal.batch.logprob_values import logprob_values
from onepolicy.signal.batch.loss_mask import loss_mask
from onepolicy.signal.batch.reward_values import reward_values
from onepolicy.signal.batch.value_inputs import value_inputs

CHECKS: tuple[Callable[[Columns], Verdict], ...] = (
    loss_mask,
    end_trained,
    reward_values,
    advantage_sums,
    advantage_spread,
    logprob_values,
    duplicates,
    kl_sign,
    value_inputs,
)


class BatchJudgement(Strict):
    """What a batch says of the signal that will be computed from it."""

    status: Status
    sentence: str
    """the answer in one sentence"""
    rows: int
    verdicts: tuple[Verdict, ...]

    @property
    def exit_status(self) -> int:
        """What a command ends with."""
        return self.status.exit_status

    def __str__(self) -> str:
        return self.sentence


def check_batch(batch: SignalBatch) -> BatchJudgement:
    """The answer of all checks.

    pass only if something was checked and nothing is wrong or open. Raises: AlignmentError if shapes differ, UsageError
    for values of another kind.
    """
    columns = columns_of(batch)
    verdicts = _checked(columns)
    return BatchJudgement(
        status=decide(verdicts), sentence=_sentence(verdicts, columns.rows), rows=columns.rows, verdicts=tuple(verdicts)
    )


def checked(batch: SignalBatch) -> list[Verdict]:
    """One verdict of each check. Raises: as `check_batch`."""
    return _checked(columns_of(batch))


def _checked(columns: Columns) -> list[Verdict]:
    with np.errstate(
        invalid="ignore", over="ignore"
    ):  # what is no number is a finding of some check, and no warning of the others
        return [check(columns) for check in CHECKS]


def _sentence(verdicts: Sequence[Verdict], rows: int) -> str:
    if decide(verdicts) is not Status.PASS:
        return sentence(verdicts)
    names = {kept: ", ".join(v.check for v in verdicts if v.required is kept) for kept in (True, False)}
    left_out = f" Not checked: {names[False]}." if names[False] else ""
    return f"Pass: {names[True]} of {rows} completions.{left_out}"
