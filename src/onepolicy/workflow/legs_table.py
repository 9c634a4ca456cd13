"""The legs: one entry for each condition under which an engine is read again.

How a leg changes the options of a spec is said by the engine itself (`EngineOptions.legs` and `.variations`); what
changes in the request, the order of the rollouts, is the same for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from onepolicy.engines.legs import LegChange
from onepolicy.engines.options import read_options
from onepolicy.engines.spec import EngineSpec
from onepolicy.errors import UsageError
from onepolicy.integrations import options_of
from onepolicy.numerics.legs.ladder import Kind, NotHere
from onepolicy.workflow.calibrate import ORDER_SEED

PLAIN = "plain"
"""what most legs are held against: the engine as its spec says"""
SAMPLED = "sampled"
"""the leg whose reading was recorded when the engine sampled"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """One rung of the ladder."""

    name: str
    what: str
    kind: Kind = "must hold"
    of_request: bool = False
    """the request alone changes, so that every engine has this leg"""
    shuffle: int | None = None
    cached: bool = False
    """about a cache: it needs proof that one was used"""
    preset: str = ""
    """of limits, where the leg cannot be held against those of one precision"""


LEGS = (
    Leg(name="repeat", what="the same again", of_request=True),
    Leg(name="order", what="another order, so other neighbours", of_request=True, shuffle=ORDER_SEED),
    Leg(name="rows", what="the same neighbours in reversed order"),
    Leg(name="batch", what="another batch size; one alone where there are several"),
    Leg(name="padding", what="padding on the other side, with positions"),
    Leg(name="no-positions", what="padding on the left, no position ids", kind="what if"),
    Leg(name="no-mask", what="padding on the left, no attention mask", kind="what if"),
    Leg(name=SAMPLED, what="as reported when it sampled"),
    Leg(name="decode", what="decode against prefill"),
    Leg(name="warm", what="a warm cache against a cold one", cached=True),
    Leg(name="turns", what="turn by turn from a cache", cached=True),
    Leg(name="chunked", what="chunked prefill against whole"),
    Leg(name="packed", what="several sequences in one row"),
    Leg(name="speculative", what="a few tokens a call, as drafts are verified"),
    Leg(name="train", what="train mode against eval mode"),
    Leg(name="float32", what="in float32", kind="what if", preset="bf16"),
    Leg(name="bfloat16", what="in bfloat16", kind="what if", preset="bf16"),
    Leg(name="float16", what="in float16", kind="what if", preset="bf16"),
    Leg(name="head", what="the LM head in float32", kind="what if", preset="bf16"),
)
"""in the order in which they are climbed: what changes least comes first"""
NAMES = tuple(leg.name for leg in LEGS)
_OF_VARIATIONS = ("batch", "padding")
"""legs that calibrate knows too, by the same names"""
_NO_OPTION = "this engine has no option for it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One reading to have: an engine under a condition."""

    spec: EngineSpec
    shuffle: int | None = None
    name: str
    """by which it is called in the run, after the name of the ladder"""
    anew: bool = False
    """computed again, though the plain reading is of the same request"""
    recorded: str = ""
    """name in the run of a reading that was recorded, and is not to be computed"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A leg that is possible: its reading, and the one it is held against."""

    leg: Leg
    base: Wanted
    reading: Wanted
    cold_because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a ladder is made of."""

    plain: Wanted
    legs: tuple[Planned, ...] = ()
    not_here: tuple[NotHere, ...] = ()

    @property
    def wanted(self) -> tuple[Wanted, ...]:
        """Every reading once, the plain one first."""
        found = [self.plain, *(one for leg in self.legs for one in (leg.base, leg.reading))]
        return tuple({one.name: one for one in found}.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which legs are asked for."""

    only: tuple[str, ...] = ()
    """by name, and then they decide, whatever kind they are; none: all"""
    without: tuple[str, ...] = ()
    known: tuple[str, ...] = field(default=NAMES)

    def refuse_unknown(self) -> None:
        """Raise UsageError for a name that is no leg."""
        for name in (*self.only, *self.without):
            if name not in self.known:
                raise UsageError(f"there is no leg {name!r}. Legs: {', '.join(self.known)}.")

    def has(self, name: str) -> bool:
        """Whether a leg is asked for."""
        return name not in self.without and (not self.only or name in self.only)

    def kind(self, leg: Leg) -> Leg:
        """The leg; one that was asked for by name decides."""
        return replace(leg, kind="must hold") if leg.name in self.only else leg


def plan_legs(spec: EngineSpec, choice: Choice) -> Plan:
    """What to read of an engine for the legs that are asked for. The leg `sampled` is left to who knows the run."""
    changes = _changes(spec)
    plain = Wanted(spec=spec, name=PLAIN)
    legs: list[Planned] = []
    not_here: list[NotHere] = []
    for leg in (choice.kind(leg) for leg in LEGS if choice.has(leg.name) and leg.name != SAMPLED):
        change = LegChange(options={}) if leg.of_request else changes.get(leg.name, _NO_OPTION)
        if isinstance(change, str):
            not_here.append(NotHere(name=leg.name, what=leg.what, why=change, asked=leg.name in choice.only))
        else:
            legs.append(_planned(leg, change, plain))
    return Plan(plain=plain, legs=tuple(legs), not_here=tuple(not_here))


def _changes(spec: EngineSpec) -> dict[str, LegChange | str]:
    options = read_options(spec, options_of(spec.engine))
    known = {name: change for name, change in options.variations().items() if name in _OF_VARIATIONS}
    return {name: LegChange(options=change) for name, change in known.items()} | options.legs(spec.target)


def _planned(leg: Leg, change: LegChange, plain: Wanted) -> Planned:
    base = plain
    if change.base:
        base = Wanted(spec=_with(plain.spec, change.base), name="-".join(_spelled(change.base)))
    anew = leg.of_request and leg.shuffle is None
    reading = Wanted(spec=_with(plain.spec, change.options), shuffle=leg.shuffle, name=leg.name, anew=anew)
    return Planned(leg=leg, base=base, reading=reading, cold_because=change.cold_because)


def _with(spec: EngineSpec, changes: Mapping[str, object]) -> EngineSpec:
    options = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in changes.items()}
    return replace(spec, options={**spec.options, **options})


def _spelled(changes: Mapping[str, object]) -> Iterator[str]:
    for name, value in changes.items():
        yield from (name, str(value))
