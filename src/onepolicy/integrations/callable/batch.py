"""What one call of the user's function is about."""

from __future__ import annotations

from dataclasses import dataclass

from onepolicy.records.tokens import IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """Some sequences to score together."""

    rollout_ids: list[str]
    token_ids: list[IntArray]
    temperature: float = 1.0

    @property
    def label(self) -> str:
        """The rollouts, for a message."""
        first, last = self.rollout_ids[0], self.rollout_ids[-1]
        return f"rollout {first}" if first == last else f"rollouts {first} to {last}"
