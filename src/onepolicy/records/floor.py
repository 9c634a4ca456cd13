"""The noise floor of an engine: how far it differs from itself when nothing that matters is changed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, model_validator

from onepolicy.errors import UsageError
from onepolicy.records.protocol import Meaning
from onepolicy.records.reading import EngineInfo, ReadingInfo
from onepolicy.records.strict import Strict

KNOWN_VARIATIONS = ("repeat", "order", "batch", "padding")
"""what is looked for in every engine; those that one does not have are named in its floor"""
FLOORS = ("mean_kl", "max_abs_d", "worst_rollout_kl")
"""fields of `Floor`, and the limits of the same names that may be a multiple of them"""
_FLOOR_OF = {"mean_kl": "mean_k3", "max_abs_d": "max_abs_d", "worst_rollout_kl": "worst_rollout_k3"}


class FloorBucket(Strict):
    """The tokens to which the base reading gave a probability from `low` to below `high`; d in nats."""

    low: float
    high: float
    tokens: int
    mean_abs_d: float
    rms_d: float
    """root mean square of d"""
    max_abs_d: float


class Variation(Strict):
    """One harmless change, held against the base reading; exact statements about these tokens."""

    name: str
    """repeat, order, batch, padding ..."""
    changes: dict[str, str] = Field(default_factory=dict)
    """options of the engine that differ from the base reading's"""
    reading: str
    """its name in the run"""
    prompts: int
    tokens: int = Field(ge=1)
    """with a logprob in both readings"""
    tokens_without: int
    """that lack one in either"""
    mean_k3: float
    worst_rollout_k3: float
    """largest mean k3 of a rollout"""
    mean_abs_d: float
    max_abs_d: float
    bitwise_share: float
    """share of tokens with the same float32 in both"""
    by_confidence: tuple[FloorBucket, ...]
    """those that hold a token"""


class Largest(Strict):
    """The largest value over the variations, and which of them had it."""

    value: float
    variation: str


class Floor(Strict):
    """`onepolicy calibrate --output FILE`. It is that of one engine in one environment, and of no other."""

    format_version: Literal[1] = 1
    engine: EngineInfo
    environment: dict[str, str]
    """hardware and versions, as in `reading.json`"""
    meaning: Meaning
    """of the logprobs that were compared"""
    suite: str
    suite_hash: str
    command_options: tuple[str, ...] = ()
    """of the calibrate command that made it, but for --engine"""
    base: str
    """name of the reading that all others were held against"""
    variations: tuple[Variation, ...] = Field(min_length=1)
    absent: tuple[str, ...] = ()
    """known variations that this engine does not have"""
    mean_kl: Largest
    """mean k3 over these tokens, in nats per token"""
    max_abs_d: Largest
    """nats"""
    worst_rollout_kl: Largest
    """mean k3 of a rollout, in nats per token"""

    @model_validator(mode="after")
    def _says_where(self) -> Floor:
        if "onepolicy" not in self.environment:
            raise ValueError("its environment does not say which onepolicy measured it; the file was changed")
        return self

    @model_validator(mode="after")
    def _says_the_largest(self) -> Floor:
        for name in FLOORS:
            if getattr(self, name) != largest(self.variations, name):
                raise ValueError(f"{name} is not the largest of its variations; the file was changed")
        return self

    def changes(self, reading: ReadingInfo) -> list[str]:
        """What is not as it was when the floor was measured: `torch 2.9 -> 2.10`. Empty if it holds for the reading.

        Options that a variation changes may differ. A package that only the reading had loaded is none of the floor's.
        """
        varied = {option for variation in self.variations for option in variation.changes}
        then, now = self.engine, reading.engine
        if then.name != now.name:
            return [f"engine {then.name} -> {now.name}"]
        found = list(_differing(_identity(then, varied), _identity(now, varied)))
        found += _differing({"meaning": str(self.meaning)}, {"meaning": str(reading.meaning)})
        return found + environment_changes(self.environment, reading.environment)

    def command(self, engine: str) -> str:
        """What to type to measure it again, with this spec."""
        return shlex.join(["onepolicy", "calibrate", "--engine", engine, *self.command_options])


def largest(variations: tuple[Variation, ...], name: str) -> Largest:
    """The largest of one of `FLOORS`; of equal ones the first."""
    worst = max(variations, key=lambda variation: getattr(variation, _FLOOR_OF[name]))
    return Largest(value=getattr(worst, _FLOOR_OF[name]), variation=worst.name)


def environment_changes(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What was there then and is not the same now."""
    return list(_differing(then, {name: now.get(name, "absent") for name in then}))


def read_floor(path: Path) -> Floor:
    """The floor in a file. Raises: UsageError if it is absent, damaged or of another format version."""
    make = f"Make it with: onepolicy calibrate --engine SPEC --output {shlex.quote(str(path))}"
    try:
        return Floor.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: the noise floor cannot be read ({error.strerror}). {make}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "content"
        raise UsageError(f"{path}: is no noise floor of format version 1 ({where}: {first['msg']}). {make}") from error


def _identity(engine: EngineInfo, varied: set[str]) -> dict[str, str]:
    """All that the engine said about itself, but for the options that are variations."""
    fields = engine.model_dump(exclude={"name", "options"})
    said = {name: "" if value is None else str(value) for name, value in fields.items()}
    return said | {f"option {name}": value for name, value in engine.options.items() if name not in varied}


def _differing(then: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for name in {**then, **now}:
        before, after = then.get(name, "not given"), now.get(name, "not given")
        if before != after:
            yield f"{name.replace('_', ' ')} {before or 'unknown'} -> {after or 'unknown'}"
