"""A file that describes two configurations of one engine -> what to start, and what differs.

Relative paths in the file start from its own folder, which is also where the command runs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError

from onepolicy.errors import UsageError
from onepolicy.records.bisection import Switch
from onepolicy.records.strict import Number, Strict
from onepolicy.records.yaml_file import mapping_in, read_text
from onepolicy.workflow.config import Config, config_in

MOST_SWITCHES = 64
ALL_SWITCHES = "switches"
PORT = "{port}"
_PLACE = re.compile(r"\{([A-Za-z][A-Za-z0-9_. -]*)\}")
"""of a placeholder; JSON's braces have a quote or nothing behind them"""
_HINT = "docs/bisect.md has an example."
_WHAT = "a bisection is a YAML mapping with the keys command, good, bad and check"


def _words(value: object) -> object:
    if isinstance(value, str):
        try:
            return tuple(shlex.split(value))
        except ValueError as error:
            raise ValueError(f"{value!r} is no list of arguments ({error}). Write it as a YAML list") from error
    if isinstance(value, int) and not isinstance(value, bool):
        return (str(value),)
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return tuple(value)
    raise ValueError(f"{value!r} is neither text, a whole number nor a list of texts. Quote it")


def _choice(value: object) -> object:
    if value is None:
        return {}
    return value if isinstance(value, dict) else {"args": value}


Words = Annotated[tuple[str, ...], BeforeValidator(_words)]


class Choice(Strict):
    """What a switch is in one of the configurations: arguments, environment variables, both or nothing."""

    args: Words = ()
    env: dict[str, str] = Field(default_factory=dict)

    def __str__(self) -> str:
        words = [*(f"{name}={shlex.quote(value)}" for name, value in self.env.items()), *map(shlex.quote, self.args)]
        return " ".join(words) or "(nothing)"


Choices = dict[str, Annotated[Choice, BeforeValidator(_choice)]]


class JudgeFixed(Strict):
    """Instead of a whole check: the engine scores the ids of a recorded run, and is held against a reading of it."""

    run: str
    engine: str
    """a spec with {port}"""
    against: str = "trainer"
    """the reading"""
    limits: str = "strict"


class BisectConfig(Strict):
    """Everything that `bisect` can be asked."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    command: Words = Field(min_length=1)
    """Starts the engine; {port} is the port, {switches} all switches' arguments, {name} those of one switch."""
    good: Choices
    """Switch -> its arguments in the configuration that passes. One that is not named has none."""
    bad: Choices
    """The same of the configuration that fails."""
    check: str | dict[str, Any] | None = None
    """What `onepolicy check` takes, a file or a mapping; {port} stands in the spec of the engine that is started."""
    judge: JudgeFixed | None = None
    """Instead of check: score the ids of a recorded run."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables of the engine's process, beside those that onepolicy has."""
    health: str = "http://127.0.0.1:{port}/health"
    """The URL that answers with 200 once the engine is ready."""
    port: int | None = Field(default=None, ge=1, le=65535, strict=True)
    """A fixed port; a free one for each start if not given."""
    start_seconds: Number = Field(default=600.0, gt=0, allow_inf_nan=False)
    """An engine that is not healthy by then counts as not started."""
    check_seconds: Number = Field(default=3600.0, gt=0, allow_inf_nan=False)
    """A check that takes longer is ended, and its outcome unknown."""
    stop_seconds: Number = Field(default=30.0, gt=0, allow_inf_nan=False)
    """So long the engine may take to end by itself, before it is killed."""

    @property
    def names(self) -> tuple[str, ...]:
        """The switches that differ, in the order of the file."""
        everything = dict.fromkeys([*self.good, *self.bad])
        return tuple(name for name in everything if self.choice(name, bad=False) != self.choice(name, bad=True))

    @property
    def switches(self) -> tuple[Switch, ...]:
        """The same with what they are on either side."""
        return tuple(
            Switch(name=name, good=str(self.choice(name, bad=False)), bad=str(self.choice(name, bad=True)))
            for name in self.names
        )

    def choice(self, name: str, *, bad: bool) -> Choice:
        """What a switch is in one of the configurations."""
        return (self.bad if bad else self.good).get(name, Choice())

    def command_of(self, switches: tuple[str, ...], *, port: int) -> list[str]:
        """The command with these switches as in the bad configuration, and all others as in the good one."""
        chosen = {n: self.choice(n, bad=n in switches).args for n in dict.fromkeys([*self.good, *self.bad])}
        placed = {name for word in self.command for name in _PLACE.findall(word)}
        chosen[ALL_SWITCHES] = tuple(arg for name, args in chosen.items() if name not in placed for arg in args)
        chosen["port"] = (str(port),)
        return [word for template in self.command for word in _filled(template, chosen)]

    def environment_of(self, switches: tuple[str, ...]) -> dict[str, str]:
        """Its variables, those of the switches last."""
        found = dict(self.environment)
        for name in dict.fromkeys([*self.good, *self.bad]):
            found |= self.choice(name, bad=name in switches).env
        return found

    def check_config(self, *, port: int, folder: Path) -> Config:
        """What to check with the engine at this port. Raises: UsageError."""
        values, start = self.check, folder
        if isinstance(values, str):
            file = folder / values
            values, start = mapping_in(read_text(file, hint=_HINT), what="a config is a YAML mapping"), file.parent
        assert values is not None
        placed = {n: _with_port(v, port) if n in ("rollout", "trainer") else v for n, v in values.items()}
        if placed == values and self.port is None:
            raise UsageError(f"check: neither rollout nor trainer holds {PORT}, so the engine would not be asked.")
        return config_in(placed, folder=start)


def load_bisect_config(path: Path) -> BisectConfig:
    """What a file asks for. Raises: UsageError that names the file, and what in it cannot be run."""
    try:
        config = _valid(mapping_in(read_text(path, hint=_HINT), what=_WHAT))
        _refuse_odd(config)
        if config.check is not None:
            config.check_config(port=config.port or 1, folder=path.parent)
        return config
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def _valid(values: Mapping[str, Any]) -> BisectConfig:
    try:
        return BisectConfig.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            inner: dict[str, type[Strict]] = {"judge": JudgeFixed, "good": Choice, "bad": Choice}
            known = inner.get(str(first["loc"][0]), BisectConfig)
            raise UsageError(f"there is no key {name!r}. Known: {', '.join(known.model_fields)}.") from error
        if first["type"] == "missing":
            raise UsageError(f"the key {name!r} is absent. {_HINT}") from error
        said = str(first["ctx"]["error"]) if first["type"] == "value_error" else first["msg"]
        raise UsageError(f"{name}: {said.removesuffix('.')}.") from error


def _refuse_odd(config: BisectConfig) -> None:
    names = config.names
    if not names:
        raise UsageError("good and bad are the same: there is nothing to bisect. Write what differs under each.")
    if len(names) > MOST_SWITCHES:
        raise UsageError(f"{len(names)} switches differ; at most {MOST_SWITCHES} can be. Put some of them together.")
    if (config.check is None) == (config.judge is None):
        raise UsageError("say how an engine is tested: with either the key check or the key judge.")
    if config.judge is not None and PORT not in config.judge.engine and config.port is None:
        raise UsageError(f"judge.engine {config.judge.engine!r}: does not hold {PORT}.")
    if config.port is None and not any(PORT in word for word in config.command):
        raise UsageError(f"command: does not hold {PORT}. Put it there, or say with the key port where it listens.")
    _refuse_places(config)


def _refuse_places(config: BisectConfig) -> None:
    known = list(dict.fromkeys([*config.good, *config.bad]))
    odd = next((name for name in ("port", ALL_SWITCHES) if name in known), None)
    if odd is not None:
        raise UsageError(f"a switch cannot be called {odd!r}, which is a placeholder of the command.")
    placed = {name for word in config.command for name in _PLACE.findall(word)}
    unknown = sorted(placed - {*known, "port", ALL_SWITCHES})
    if unknown:
        raise UsageError(f"command: {{{unknown[0]}}} is no switch. Known: port, {ALL_SWITCHES}, {', '.join(known)}.")
    given = {n for side in (config.good, config.bad) for n, choice in side.items() if choice.args}
    left = sorted(given - placed)
    if left and ALL_SWITCHES not in placed:
        raise UsageError(f"command: has no place for {left[0]!r}. Put {{{ALL_SWITCHES}}} where arguments go.")
    for side in ((), config.names):
        config.command_of(side, port=config.port or 1)


def _filled(template: str, chosen: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The words that a word of the command becomes: several only if it is nothing but a placeholder."""
    alone = _PLACE.fullmatch(template)
    if alone:
        return chosen[alone[1]]
    for name in _PLACE.findall(template):
        if len(chosen[name]) != 1:
            raise UsageError(
                f"command: {template!r} holds {{{name}}}, which is {len(chosen[name])} arguments and not one. Make the "
                "placeholder a word of its own."
            )
    return (_PLACE.sub(lambda found: chosen[found[1]][0], template),)


def _with_port(value: Any, port: int) -> Any:
    if isinstance(value, dict):
        return {name: _with_port(one, port) for name, one in value.items()}
    return value.replace(PORT, str(port)) if isinstance(value, str) else value
