"""Specs of a run's engines with something changed: what experiments are made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from onepolicy.diagnosis.cause import Experiment, SideName, Situation
from onepolicy.engines.spec import EngineSpec, parse_spec

IN_PROCESS = "transformers"
"""the engine whose spec says how its model is called, so that it can be called otherwise"""
BATCHED = (IN_PROCESS, "callable")
"""engines that are handed several sequences at a time and may be given one"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side's engine as the run knows it."""

    name: SideName
    spec: EngineSpec

    @property
    def other(self) -> str:
        """The other side, as a person says it."""
        return "rollout side" if self.name == "trainer" else "trainer"

    @property
    def called(self) -> str:
        """This side, as a person says it."""
        return "trainer" if self.name == "trainer" else "rollout side"


def sides(situation: Situation, engines: Sequence[str] = (IN_PROCESS,)) -> list[Side]:
    """The sides whose engine is one of these, the trainer first."""
    both: tuple[tuple[SideName, str], ...] = (
        ("trainer", situation.trainer.request.engine),
        ("rollout", situation.rollout.request.engine),
    )
    found = [Side(name=name, spec=parse_spec(text)) for name, text in both if ":" in text]
    return [side for side in found if side.spec.engine in engines]


def again(situation: Situation, engines: Sequence[str] = (IN_PROCESS,)) -> list[Side]:
    """The sides that a second reading repeats but for what is changed.

    One that decoded does not: read anew it no longer does, and whatever was wrong with its decoding is gone too.
    """
    conditions = {"trainer": situation.trainer.condition, "rollout": situation.rollout.condition}
    return [side for side in sides(situation, engines) if conditions[side.name].path != "decode"]


def spec_of(situation: Situation, name: SideName) -> EngineSpec | None:
    """That side's spec, whatever its engine; None of a side that was recorded elsewhere and says none."""
    text = (situation.trainer if name == "trainer" else situation.rollout).request.engine
    return parse_spec(text) if ":" in text.rstrip(":") else None


def side_named(situation: Situation, name: SideName) -> Side | None:
    """That side, if its engine is of Transformers."""
    return next((side for side in sides(situation) if side.name == name), None)


def with_options(spec: EngineSpec, **changes: object) -> EngineSpec:
    """The spec with other options; None takes one away."""
    kept = {name: value for name, value in spec.options.items() if name not in changes}
    new = {name: str(value) for name, value in changes.items() if value is not None}
    return replace(spec, options=kept | new)


def without_option(cause: str, option: str, situation: Situation, label: str) -> Iterator[Experiment]:
    """Each side that declares an option, read without it. label: what `{side}` is then."""
    for side in sides(situation):
        if option in side.spec.options:
            spec = with_options(side.spec, **{option: None})
            yield Experiment(cause=cause, label=label.format(side=side.called), engine=spec, side=side.name)
