"""What the trainer says of its steps, and when that changed."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from onepolicy.records.step import StepRecord

NEAR = 5
"""a change is named with a jump if it is at most so many steps before the step that shows it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """rollout_engine "vllm 0.11" -> "vllm 0.12"."""

    step: int
    name: str
    before: str
    after: str

    def __str__(self) -> str:
        return f'{self.name} "{self.before}" -> "{self.after}" at step {self.step}'


@dataclass(slots=True, kw_only=True)
class Changes:
    """Online: the last changes. What changes at every step, such as a learning rate, is no reason for anything."""

    _now: dict[str, str] = field(default_factory=dict)
    _changed: dict[str, int] = field(default_factory=dict)
    """name -> how often"""
    _steps: int = 0
    _last: deque[Change] = field(default_factory=lambda: deque(maxlen=16))

    def add(self, record: StepRecord) -> tuple[Change, ...]:
        """What changed with this step."""
        self._steps += 1
        found = tuple(
            Change(step=record.step, name=name, before=self._now[name], after=value)
            for name, value in record.about.items()
            if self._now.get(name, value) != value
        )
        self._now.update(record.about)
        for change in found:
            self._changed[change.name] = self._changed.get(change.name, 0) + 1
        rare = tuple(change for change in found if self._changed[change.name] <= max(3, self._steps // 20))
        self._last.extend(rare)
        return rare

    def near(self, step: int) -> str:
        """A sentence that names the changes at or just before a step, or what to look for if there is none."""
        near = [str(change) for change in self._last if 0 <= step - change.step <= NEAR]
        if near:
            return f" What changed then: {'; '.join(near)}."
        return " Nothing that the trainer names changed: look for another engine, precision or configuration."
