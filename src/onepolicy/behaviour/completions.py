"""What two sides answered to the same prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onepolicy.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One completion."""

    rollout_id: str
    prompt_id: str
    prompt_digest: str
    """of the prompt's token ids"""
    token_ids: tuple[int, ...]
    """[C] what was sampled, end token included"""
    text: str | None
    """without special tokens; None where it is not known"""
    finish_reason: str = ""
    """empty where it is not known"""
    reward: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """All completions under one configuration."""

    completions: Sequence[Observed]
    greedy: bool = False
    """nothing is drawn at random"""

    @property
    def copies(self) -> bool:
        """Whether the samples of a prompt are one sample: of a greedy side, or if no two of any prompt differ."""
        samples = len({(one.prompt_id, one.token_ids) for one in self.completions})
        return self.greedy or samples == len({one.prompt_id for one in self.completions})

    @property
    def counted(self) -> Sequence[Observed]:
        """The completions that count: all of them, or the first of each prompt if the others are copies."""
        if not self.copies:
            return self.completions
        first: dict[str, Observed] = {}
        for one in sorted(self.completions, key=lambda one: one.rollout_id):
            first.setdefault(one.prompt_id, one)
        return list(first.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPair:
    """The completions of one prompt under both configurations."""

    prompt_id: str
    a: tuple[Observed, ...]
    b: tuple[Observed, ...]

    @property
    def both(self) -> tuple[Observed, ...]:
        """[a + b] those of A first."""
        return self.a + self.b


def paired(a: Side, b: Side) -> list[PromptPair]:
    """The prompts that both sides have, sorted by id as their samples are. Raises: UsageError if there is none.

    The order of a run's rollouts is that of its part files, which must not change what a seed gives.
    """
    of_a, of_b = _by_prompt(a.counted), _by_prompt(b.counted)
    pairs = [PromptPair(prompt_id=p, a=tuple(of_a[p]), b=tuple(of_b[p])) for p in sorted(of_a) if p in of_b]
    if not pairs:
        raise UsageError(
            f"A has {len(of_a)} prompts and B {len(of_b)}, and none of them under the same id. Record both with the "
            "same suite."
        )
    return pairs


def _by_prompt(completions: Sequence[Observed]) -> dict[str, list[Observed]]:
    found: dict[str, list[Observed]] = {}
    for one in sorted(completions, key=lambda one: one.rollout_id):
        found.setdefault(one.prompt_id, []).append(one)
    return found
