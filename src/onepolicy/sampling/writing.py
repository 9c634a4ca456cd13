"""A protocol as a framework's configuration: what it can say, what it cannot, and which of that is an error."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from onepolicy.errors import UsageError
from onepolicy.records.processors import Processor, pairs_that_matter
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.yaml_file import in_one_line
from onepolicy.sampling.convert import Note, Written
from onepolicy.sampling.layers import canonical_order
from onepolicy.sampling.spellings import Setting, default_of

BESIDE = frozenset({"seed", "seed_policy", "padding_side", "use_cache", "dtype", "logprobs", "schedule"})
"""fields that leave the distribution and the lengths alone: a framework that lacks one is no reason to stop"""


@dataclass(slots=True, kw_only=True)
class Writing:
    """A framework's configuration that is being written."""

    framework: str
    protocol: SamplingProtocol
    said: set[str] = field(default_factory=set)
    """fields that need no further word"""
    lost: list[Note] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def settings(self, settings: Sequence[Setting]) -> dict[str, Any]:
        """Their names and values for a table; all of them, so that no default of a server acts."""
        self.said.update(setting.field for setting in settings)
        return {setting.theirs: setting.value_of(self.protocol) for setting in settings}

    def uses(self, name: str) -> bool:
        """Whether a field is not at its default."""
        return bool(getattr(self.protocol, name) != default_of(name))

    def cannot(self, name: str, why: str) -> None:
        """A field that the framework has nothing for: an error if it is used and changes what is drawn, else a note."""
        self.said.add(name)
        if self.uses(name) and name not in BESIDE:
            self.refused.append(f"{name} = {self._value(name)} ({why})")
        elif self.uses(name):
            self.note(name, why, matters=True)
        else:
            self.lost.append(Note(field=name, value=self._value(name), why=why, is_unused=True))

    def refuse(self, name: str, why: str) -> None:
        """A value that the framework takes for another one, or not at all."""
        self.said.add(name)
        self.refused.append(f"{name} = {self._value(name)} ({why})")

    def note(self, name: str, why: str, *, matters: bool = False) -> None:
        """Something about a field that the one who uses the configuration has to know."""
        self.said.add(name)
        self.lost.append(Note(field=name, value=self._value(name), why=why, matters=matters))

    def seed(self, *, random: tuple[int, ...] = ()) -> int | None:
        """The seed that a request carries; None for none. random: numbers that the framework takes for no seed."""
        self.said.update(("seed", "seed_policy"))
        policy = self.protocol.seed_policy
        if policy == "each request" and self.protocol.seed in random:
            for name in ("seed", "seed_policy"):
                self.note(name, f"{self.framework} takes {self.protocol.seed} for no seed", matters=True)
        elif policy == "each request":
            return self.protocol.seed
        elif policy == "each rollout":
            why = "give each request the seed of its rollout, as SamplingProtocol.seed_for gives it"
            self.note("seed_policy", why)
            self.note("seed", why)
        elif self.uses("seed"):
            self.note("seed", "seed_policy is none: no seed is sent")
        return None

    def json_schema(self, text: str) -> Any:
        """A schema as the value that it is, for a framework that takes no text. Raises: UsageError if it is no JSON."""
        try:
            schema = json.loads(text)
        except ValueError as error:
            raise UsageError(f"constraint: the text is no JSON ({error}). Correct the schema.") from error
        if json.dumps(schema, ensure_ascii=False) != text:
            self.note("constraint", "the schema is the same, spaced otherwise")
        return schema

    def no_seeds(self, why: str) -> None:
        """The framework's requests carry no seed."""
        self.cannot("seed", why)
        self.said.add("seed_policy")
        if self.protocol.seed_policy != "none":
            self.note("seed_policy", why, matters=self.uses("seed_policy"))

    def order(self, order: tuple[Processor, ...]) -> None:
        """The framework's own order of the processors, which a protocol's must amount to."""
        ours = self.protocol.processors
        if pairs_that_matter(ours, order, protocol=self.protocol):
            self.refuse("processors", f"it always has {', '.join(order)}: write this order if it is meant")
        elif ours != canonical_order(self.protocol, order):
            self.note("processors", f"it has {', '.join(order)}, which is the same for what is switched on here")
        self.said.add("processors")

    def finish(self, content: dict[str, Any] | list[str]) -> Written:
        """The configuration. Raises: UsageError that names everything that changes what is drawn and cannot be said."""
        self._schedule()
        for name in SamplingProtocol.model_fields:
            if name not in self.said:
                self.cannot(name, f"{self.framework} has no setting for it")
        if self.refused:
            raise UsageError(
                f"{self.framework} cannot say {'; '.join(self.refused)}. Change the protocol, or sample with another "
                "engine: what is drawn would not be what the protocol says."
            )
        return Written(
            content=content, hash=self.protocol.hash, lost=tuple(sorted(self.lost, key=lambda note: not note.matters))
        )

    def _schedule(self) -> None:
        """A configuration has one temperature: that of the end, which is what is served."""
        schedule = self.protocol.schedule
        if schedule is None or not schedule.moves or "schedule" in self.said:
            return
        why = (
            f"the schedule moves from {schedule.start:g} to {schedule.end:g} over {schedule.steps} steps; what is "
            "written has one temperature, the last. Before that step, send protocol.at_step(step).temperature"
        )
        self.note("schedule", why, matters=True)

    def _value(self, name: str) -> str:
        return in_one_line(self.protocol.model_dump(mode="json")[name])
