"""The checks of the training signal on verl's batch, now and then: they look at it on the host."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from onepolicy.errors import OnePolicyError
from onepolicy.integrations.verl.rollouts import ADVANTAGES, MASK, ROLLOUT, SAMPLED, SCORES, Padded
from onepolicy.monitor.numbers import PREFIX
from onepolicy.records.verdict import Status, Verdict
from onepolicy.signal.batch.batch import SignalBatch
from onepolicy.signal.batch.check import checked
from onepolicy.visible import visible

logger = logging.getLogger("onepolicy.monitor")

FAILED = f"{PREFIX}signal/failed"
GROUP_RELATIVE = frozenset({"grpo", "grpo_vectorized", "rloo", "rloo_vectorized"})
"""verl's estimators whose advantages add up to 0 over a prompt"""


@dataclass(slots=True, kw_only=True)
class SignalChecks:
    """Says each failed check once in the log, and how many failed among the numbers."""

    every: int = 10
    """steps; 0: never"""
    end_ids: Sequence[int] = ()
    """ids that end a completion; without them it is not checked whether the end is trained"""
    group_relative: bool = True
    """whether advantages are a reward minus the mean of its prompt"""
    _said: set[str] = field(default_factory=set)

    def look(self, rows: Padded, *, step: int) -> dict[str, float]:
        """How many checks failed, by the name of its number; empty if none is due in this step."""
        if not self.every or step % self.every != 1 % self.every:
            return {}
        try:
            failed = [verdict for verdict in checked(self._batch(rows)) if verdict.status is Status.FAIL]
        except OnePolicyError as error:
            self._say("", f"the training signal of step {step} cannot be checked: {error}")
            return {}
        for verdict in failed:
            self._say(verdict.check, _sentence(verdict, step))
        return {FAILED: float(len(failed))}

    def _batch(self, rows: Padded) -> SignalBatch:
        columns, mask = rows.tensors, rows.tensors[MASK]
        scores = next((columns[name] for name in SCORES if name in columns), None)
        is_thinned = SAMPLED in columns and not bool((columns[SAMPLED] == mask).all())
        return SignalBatch(
            token_ids=columns["responses"],
            attention_mask=columns["response_there"],
            loss_mask=mask,
            sampled=mask if is_thinned else None,  # what rejection took out is not missing
            lengths=columns["response_there"].sum(dim=1),
            end_ids=self.end_ids,
            prompts=[str(uid) for uid in rows.names["uid"]] if "uid" in rows.names else None,
            group_relative=self.group_relative and not rows.is_split,
            rewards=None if scores is None else scores.sum(dim=1),
            advantages=columns.get(ADVANTAGES),
            rollout_logprobs=columns[ROLLOUT],
            reference_logprobs=columns.get("ref_log_prob"),
        )

    def _say(self, check: str, text: str) -> None:
        if check not in self._said:
            self._said.add(check)
            logger.warning("%s This is not said again.", visible(text))


def _sentence(verdict: Verdict, step: int) -> str:
    return f"step {step}: the training signal fails {verdict.check}: {verdict.message}"
