"""What was measured on a server, put over what a reader of its framework says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from onepolicy.errors import EngineError
from onepolicy.records.processors import Processor
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.sampling.convert import Note, ReadProtocol
from onepolicy.sampling.layers import canonical_order
from onepolicy.sampling.measured.left_out import LeftOut
from onepolicy.sampling.measured.order import Order, order_from
from onepolicy.sampling.measured.search import NOT_KNOWN, Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """The protocol of a live server."""

    read: ReadProtocol
    measured: Mapping[str, Measured] = field(default_factory=dict)
    """fields that are known to a resolution only"""
    own_ends: tuple[int, ...] = ()
    """ids that end a completion as the model's own end tokens: as stop ids they change nothing"""


@dataclass(slots=True, kw_only=True)
class Overlay:
    """Values that go over a protocol."""

    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def put(self, name: str, value: Any, source: str) -> None:
        """Set a field."""
        self.values[name] = value
        self.sources[name] = source

    def unknown(self, name: str, why: str) -> None:
        """Say that a field is not known, which no comparison can pass over."""
        self.sources[name] = NOT_KNOWN
        self.notes.append(Note(field=name, value=NOT_KNOWN, why=why, matters=True))

    def take(self, found: LeftOut, *, neutral: Sequence[str] = ()) -> None:
        """What was measured. neutral: fields that were sent as they change nothing, all together."""
        for name, one in found.fields.items():
            if one.value is None:
                self.unknown(name, one.why)
            else:
                self.put(name, one.value, str(one))
        if not found.together.compared:
            return
        if not found.holds:
            why = f"sent all together as measured, {found.together} differ from those that are drawn without them"
            self.notes.append(Note(field="all together", value="other tokens", why=why, matters=True))
        for name in neutral:
            if found.holds:
                self.sources[name] = f"measured: sent as it is here, the same {found.together.compared} tokens"
            else:
                self.unknown(name, "sent with all others as it is here, other tokens are drawn")

    def order(self, found: Sequence[Order], like: Sequence[Processor]) -> tuple[Processor, ...]:
        """The order as measured; `like` where no two that are on would act otherwise."""
        for one in found:
            if not one.known:
                self.unknown("processors", str(one) if not one.draws else f"the draws do not tell: {one}")
        shown = "; ".join(str(one) for one in found if one.known)
        if shown:
            self.sources["processors"] = f"measured: {shown}"
        elif not found:
            self.sources["processors"] = "no two that are on act otherwise in another order"
        return order_from(found, like=like)

    def over(self, read: ReadProtocol, *, order: tuple[Processor, ...] | None = None) -> ReadProtocol:
        """The protocol with these values. Raises: EngineError if they cannot be together."""
        try:
            protocol = SamplingProtocol.model_validate(read.protocol.model_dump() | self.values)
            if order is not None:
                protocol = protocol.model_copy(update={"processors": canonical_order(protocol, order)})
        except ValidationError as error:
            raise EngineError(f"what was measured is no protocol: {error.errors()[0]['msg']}.") from error
        notes = (*(note for note in read.ignored if note.field not in self.values), *self.notes)
        return replace(read, protocol=protocol, sources={**read.sources, **self.sources}, ignored=notes)
