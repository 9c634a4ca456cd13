"""Values from several places, the first of which counts: a request over a server's flags over its defaults."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from onepolicy.errors import UsageError
from onepolicy.records.processors import DEFAULT_ORDER, Processor, pairs_that_matter
from onepolicy.records.protocol import Constraint, SamplingProtocol
from onepolicy.sampling.convert import Note, ReadProtocol
from onepolicy.sampling.spellings import NO_LIMIT, Kind, Setting, json_text, same


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One place that values come from."""

    name: str
    """as a source is shown: "the request", "generation_config.json" """
    values: Mapping[str, Any]
    """their names; None is not set"""

    def has(self, name: str) -> bool:
        """Whether it says anything about a setting."""
        return self.values.get(name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """Settings of a framework that a protocol has no field for."""

    silent: frozenset[str] = frozenset()
    """names that change nothing of what is drawn: delivery, deployment"""
    neutral: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """names that do -> the values at which they do not; None always is one"""


def words(text: str) -> frozenset[str]:
    """Names that stand in one text."""
    return frozenset(text.split())


def is_parts(source: object, parts: Sequence[str]) -> bool:
    """Whether `source` is a mapping of parts such as "request" and "flags", and not one part itself.

    Raises: UsageError if it has a part and something else.
    """
    if not isinstance(source, Mapping) or not source:
        return False
    others = [name for name in source if name not in parts]
    if others and not _ALONE.isdisjoint(source):
        raise UsageError(f"there is no part {others[0]!r} beside the others. Give a mapping of: {', '.join(parts)}.")
    return not others


_ALONE = frozenset({"request", "flags", "config", "props", "generation_config"})
"""names of parts that are no setting of any framework"""


@dataclass(slots=True, kw_only=True)
class Reading:
    """A protocol that is being read."""

    framework: str
    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def put(self, name: str, value: Any, source: str) -> None:
        """Set a field of the protocol."""
        self.values[name] = value
        self.sources[name] = source

    def take(self, settings: Sequence[Setting], layers: Sequence[Layer]) -> None:
        """Set each field from the first layer that says something about it."""
        for setting in settings:
            layer = next((layer for layer in layers if layer.has(setting.theirs)), None)
            if layer is not None:
                where = f"{self.framework}: {setting.theirs} in {layer.name}"
                self.put(setting.field, setting.ours(layer.values[setting.theirs], where), layer.name)

    def note(self, name: str, value: Any, why: str, *, matters: bool = False) -> None:
        """Keep what a protocol does not say."""
        self.notes.append(Note(field=name, value=_shown(value), why=why, matters=matters))

    def rest(self, layer: Layer, *, known: Collection[str], elsewhere: Elsewhere) -> None:
        """Note what a layer says beyond the known names."""
        for name, value in layer.values.items():
            if name in known or name in elsewhere.silent or value is None:
                continue
            if name not in elsewhere.neutral:
                self.note(name, value, f"not understood: no setting of {self.framework} that is known", matters=True)
            elif not any(same(value, neutral) for neutral in elsewhere.neutral[name]):
                self.note(name, value, "it changes what is drawn, and a protocol has no field for it", matters=True)

    def constrain(self, kind: Kind, value: Any, *, name: str, source: str) -> None:
        """Set what the text must match; an empty text is nothing. Raises: UsageError if it is no text and no schema."""
        where = f"{self.framework}: {name} in {source}"
        if kind != "json_schema" and value is not None and not isinstance(value, str):
            raise UsageError(f"{where} = {value!r}: this is no text. Correct it there.")
        text = json_text(value, where) if value is not None else ""
        if text:
            self.put("constraint", Constraint(kind=kind, text=text), source)

    def seeds(self) -> None:
        """A seed in a request is one for all its samples; without one each sample is another at every run."""
        if "seed" in self.values:
            self.put("seed_policy", "each request", self.sources["seed"])
        else:
            self.put("seed_policy", "none", f"no seed is sent to {self.framework}")

    def unlimited(self, why: str) -> None:
        """Say so where only the context ends a completion and its length is not known."""
        if self.values.get("max_new_tokens") == NO_LIMIT and self.values.get("max_total_tokens") is None:
            self.note("max_new_tokens", "no limit", why, matters=True)

    def finish(self, *, order: tuple[Processor, ...], order_source: str) -> ReadProtocol:
        """The protocol. Raises: UsageError for a value that cannot be, with where it stands."""
        try:
            protocol = SamplingProtocol.model_validate(self.values)
            placed = protocol.model_copy(update={"processors": canonical_order(protocol, order)})
        except ValidationError as error:
            raise UsageError(self._said(error)) from error
        if placed.processors != order:
            order_source = f"the default; {self.framework}'s own order gives the same here"
        unsaid = dict.fromkeys(SamplingProtocol.model_fields, "not said")
        sources = {**unsaid, **self.sources, "processors": order_source}
        return ReadProtocol(protocol=placed, sources=sources, ignored=tuple(self.notes))

    def _said(self, error: ValidationError) -> str:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        why = first["msg"].removeprefix("Value error, ")
        if not name:
            return f"{self.framework}: {why}."
        source = self.sources.get(name, "?")
        return f"{self.framework}: {name} = {first['input']!r} from {source}: {why}. Correct it there."


def canonical_order(protocol: SamplingProtocol, order: tuple[Processor, ...]) -> tuple[Processor, ...]:
    """The default order where `order` gives the same distribution, so that one behaviour has one spelling."""
    return order if pairs_that_matter(order, DEFAULT_ORDER, protocol=protocol) else DEFAULT_ORDER


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."


_LONGEST = 4000
"""characters of a value in a note"""
