"""Do both columns of a training's steps come from two computations, or is one a copy, or are both filled in?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from onepolicy.judgement.limits import Limits
from onepolicy.numerics.checks.two_columns import BITWISE, MIN_TOKENS, MOST_CERTAIN, MOST_EQUAL
from onepolicy.records.step import StepRecord
from onepolicy.records.verdict import Status, Verdict


@dataclass(slots=True, kw_only=True)
class Columns:
    """Counts over the steps that hold them."""

    tokens: int = 0
    """with a logprob on both sides"""
    zeros: int = 0
    zero_rollout_tokens: int = 0
    unsaturated: int = 0
    rollouts: int = 0
    """with a token to compare"""
    equal_rollouts: int = 0

    def add(self, record: StepRecord) -> None:
        """Take in a step; one of an earlier version has no counts, and nothing is known from it."""
        found = record.columns
        if found is None:
            return
        self.tokens += record.valid
        self.zeros += found.zeros
        self.zero_rollout_tokens += found.zero_rollout_tokens
        self.unsaturated += found.unsaturated
        self.rollouts += record.rollouts - (record.empty_rollouts or 0)
        self.equal_rollouts += found.equal_rollouts

    def verdicts(self, limits: Limits) -> Iterator[Verdict]:
        """Unknown where the numbers may not be computed; nothing otherwise."""
        if not self.tokens:
            return
        why = self._filled(limits) or self._few() or ("" if limits.mean_kl <= BITWISE else self._copied())
        if why:
            yield Verdict(check="two_columns", status=Status.UNKNOWN, message=why)

    def _filled(self, limits: Limits) -> str:
        """In words; empty if the zeros may be there by right."""
        whole = self.zero_rollout_tokens > (1 - limits.coverage) * self.tokens
        if not whole and self.zeros <= MOST_CERTAIN * self.tokens:
            return ""
        found = (
            f"{self.zero_rollout_tokens:,} of {self.tokens:,} tokens are in rollouts that have nothing but 0.0"
            if whole
            else f"{self.zeros:,} of {self.tokens:,} tokens have a logprob of exactly 0.0"
        )
        return (
            f"{found} on both sides. A 0.0 is a certain token, or a placeholder that somebody filled in: nothing is "
            "known of these. Hand over the logprobs that were computed, or leave such tokens out of the mask."
        )

    def _few(self) -> str:
        """In words; empty if enough tokens say something."""
        if self.unsaturated >= MIN_TOKENS:
            return ""
        return (
            f"{self.unsaturated:,} of {self.tokens:,} tokens are not certain (below a probability of 0.999); "
            f"{MIN_TOKENS} are needed, since certain tokens agree whatever the engines do. Record more."
        )

    def _copied(self) -> str:
        """In words; empty if the numbers come from two computations."""
        if self.equal_rollouts <= MOST_EQUAL * self.rollouts:
            return ""
        return (
            f"{self.equal_rollouts:,} of {self.rollouts:,} rollouts are the same in every bit on both sides: one "
            "column may be a copy of the other (a trainer that takes over the rollout side's logprobs). If both were "
            "computed, and bit for bit is what you expect, say so with the limits `bitwise`."
        )
