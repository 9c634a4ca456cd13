"""What a run is to hold, worked out before anything is computed, so that a resumed run does the same."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from onepolicy.engines.contract import Message
from onepolicy.errors import UsageError
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.suites import Prompt, Suite

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRollout:
    """One sample to draw."""

    rollout_id: str
    prompt_id: str
    messages: Sequence[Message]
    seed: int
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """The part of a plan that one of several processes does."""

    index: int = 0
    count: int = 1

    def __str__(self) -> str:
        return f"{self.index + 1}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> Shard:
        """`2/4` is the second of four. Raises: UsageError."""
        index, _, count = text.partition("/")
        if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
            raise UsageError(f"shard {text!r}: write it as 2/4 for the second of four.")
        return cls(index=int(index) - 1, count=int(count))


def plan_samples(
    suite: Suite,
    protocol: SamplingProtocol,
    *,
    budget: int | None = None,
    recorded: Collection[str] = (),
) -> list[PlannedRollout]:
    """Every sample of every prompt; with a budget, as many whole prompts, spread over the suite, as surely fit.

    budget: completion tokens; each sample counts with `max_new_tokens`. recorded: ids of the rollouts of a run that
    grows, of whole prompts; they count towards the budget, and their prompts are not planned again.
    Raises: UsageError if the budget holds no prompt.
    """
    prompts: Sequence[Prompt] = [p for p in suite.prompts if not _is_recorded(p, protocol, recorded)]
    if budget is not None:
        there = len(recorded) // protocol.samples_per_prompt
        count = budget // (protocol.max_new_tokens * protocol.samples_per_prompt)
        prompts = spread(prompts, max(count - there, 0))
        _check_budget(count, budget)
    return [
        PlannedRollout(
            rollout_id=f"{prompt.id}/{sample}",
            prompt_id=prompt.id,
            messages=prompt.messages,
            seed=protocol.seed_for(f"{prompt.id}/{sample}"),
            tags=prompt.tags,
        )
        for prompt in prompts
        for sample in range(protocol.samples_per_prompt)
    ]


def _is_recorded(prompt: Prompt, protocol: SamplingProtocol, recorded: Collection[str]) -> bool:
    return any(f"{prompt.id}/{sample}" in recorded for sample in range(protocol.samples_per_prompt))


def spread(items: Sequence[T], count: int) -> Sequence[T]:
    """This many of the items, evenly over all: a suite is sorted by language, so its beginning is no sample of it."""
    if count >= len(items):
        return items
    return [items[i * len(items) // count] for i in range(count)]


def within_budget(lengths: Sequence[int], budget: int | None) -> int:
    """How many of the sequences fit into a budget of completion tokens. Raises: UsageError if none does."""
    if budget is None:
        return len(lengths)
    total = count = 0
    for length in lengths:
        total += length
        if total > budget:
            break
        count += 1
    _check_budget(count, budget)
    return count


def batches(items: Sequence[T], size: int, shard: Shard) -> list[Sequence[T]]:
    """The batches of one shard. They do not depend on what is already done, so a repeated batch is the same batch."""
    whole = [items[i : i + size] for i in range(0, len(items), size)]
    return whole[shard.index :: shard.count]


def _check_budget(count: int, budget: int) -> None:
    if not count:
        raise UsageError(
            f"a budget of {budget} tokens holds not even one prompt. Raise --budget, or lower --max-new-tokens where "
            "tokens are sampled."
        )
