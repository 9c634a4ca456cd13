"""A configuration file -> what to check.

Relative paths in a file start from its own folder: the suite, the limits, an engine's target and the options that name
a file. On the command line they start from the working directory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, InstanceOf, ValidationError

from onepolicy.engines.models import is_packaged
from onepolicy.engines.spec import EngineSpec, parse_spec
from onepolicy.errors import UsageError
from onepolicy.judgement.limits import Limits
from onepolicy.judgement.load import PRESETS, limits_in, load_limits
from onepolicy.records.protocol import COMMON_FIELDS, SamplingProtocol
from onepolicy.records.strict import Strict
from onepolicy.records.yaml_file import mapping_in, read_text
from onepolicy.sampling.file import read_protocol_file
from onepolicy.sampling.lock import read_lock
from onepolicy.suites import SUITES
from onepolicy.workflow.check import CheckRequest

PATH_OPTIONS = ("adapter", "tokenizer")
"""options of engines that name a file or a folder"""
PATH_ENDINGS = (".gguf", ".py")
"""a target that ends so is a path and no name"""


def _spec(value: object) -> EngineSpec:
    if isinstance(value, EngineSpec):
        return value
    if isinstance(value, dict):
        _refuse_odd_options(value)
    elif not isinstance(value, str):
        raise ValueError(f"{value!r} is no engine. Write engine:target, or a mapping with the keys engine and target")
    try:
        return parse_spec(value)
    except UsageError as error:
        raise ValueError(str(error)) from error


def _refuse_odd_options(spec: dict[object, object]) -> None:
    for name, value in spec.items():
        if not isinstance(name, str) or not isinstance(value, (str, int, float)):
            raise ValueError(
                f"the engine's key {name!r} is {value!r}; each key has one text or number, or true or false"
            )


def _numbers(value: object) -> object:
    """As it is. YAML's true and false are no numbers, and pydantic would read them as 1 and 0."""
    items = value.items() if isinstance(value, dict) else ()
    found = [key for key, one in items if isinstance(one, bool) and key in COMMON_FIELDS]
    if found:
        raise ValueError(f"{found[0]!r} is true or false and must be a number")
    return value


def _limits_source(value: object) -> object:
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return value
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no preset, no file and no mapping such as {{preset: bf16, mean_kl: 2e-3}}")
    return value


Side = Annotated[InstanceOf[EngineSpec], BeforeValidator(_spec)]


class Config(Strict):
    """Everything that `check` can be asked. A field's description is the comment that `init` writes over it."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    rollout: Side | None = None
    """The engine that samples: engine:target?option=value, or a mapping with the keys engine, target and options."""
    trainer: Side | None = None
    """The engine that scores the same tokens; written likewise."""
    also: tuple[Side, ...] = ()
    """More trainer sides to score with. The trainer in the rollout's precision tells whether precision alone accounts
    for a difference."""
    suite: str = Field(default="quick", min_length=1, description=f"{', '.join(SUITES)}, or a JSONL file.")
    sampling: Annotated[SamplingProtocol, BeforeValidator(_numbers)] = SamplingProtocol()
    """How completions are sampled: the fields of a protocol, or a file with them such as sampling_config.yaml."""
    budget: int | None = Field(default=None, ge=1, strict=True)
    """Completion tokens at most; the suite's last prompts are left out. null is no limit."""
    top: int = Field(default=20, ge=0, strict=True)
    """Most likely tokens to keep at each position; 0 is none."""
    keep_text: bool = Field(default=True, strict=True)
    """false keeps and shows no text; token ids and the tokenizer stay in the run."""
    statistics: bool = Field(default=False, strict=True)
    """Keep per-token statistics for offline diagnosis."""
    limits: Annotated[str | dict[str, Any], BeforeValidator(_limits_source)] = Field(
        default="strict",
        description=f"{', '.join(PRESETS)}; a YAML file of limits; or a mapping that may start from a preset.",
    )


def load_config(path: Path) -> Config:
    """What a file asks for. Its relative paths come back as seen from the working directory.

    A key without a value is as if it were not there.
    Raises: UsageError if it cannot be read or is no YAML mapping, has an unknown key (with the known ones) or a key
    twice, or a value that is not possible.
    """
    try:
        return config_in(mapping_in(read_text(path, hint=_HINT), what=_WHAT), folder=path.parent)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def _protocol_at(path: Path) -> SamplingProtocol:
    """The protocol in a file beside a config: a protocol or a lock."""
    return read_lock(path).protocol if path.suffix == ".lock" else read_protocol_file(path)


def config_in(found: Mapping[str, Any], *, folder: Path) -> Config:
    """The same of what a file in `folder` holds. Raises: UsageError that does not name the file."""
    values = {name: value for name, value in found.items() if value is not None}
    if isinstance(values.get("sampling"), str):
        values["sampling"] = _protocol_at(folder / values["sampling"])
    config = moved(_valid(values), start=folder, end=Path())
    _refuse_remote_code(config)
    if not isinstance(config.limits, str):
        limits_of(config)  # a file of limits is named in its own messages
    return config


def _refuse_remote_code(config: Config) -> None:
    """A file may come from anywhere, also with the model whose code it would have run."""
    for spec in (config.rollout, config.trainer, *config.also):
        if spec is not None and spec.options.get("trust_remote_code", "false").lower() not in ("false", "0", "no"):
            raise UsageError(
                f"{spec}: trust_remote_code runs Python code that comes with the model, which a file cannot ask for. "
                "Give this side on the command line."
            )


def overlaid(config: Config, given: Mapping[str, Any]) -> Config:
    """The config with other values over its own, by name; of `sampling` only the fields that are named change.

    Raises: UsageError for a value that is not possible.
    """
    changes = dict(given)
    if "sampling" in changes:
        changes["sampling"] = config.sampling.model_dump() | changes["sampling"]
    return _valid(dict(config) | changes)


def check_request(config: Config, *, limits: Mapping[str, float] | None = None) -> CheckRequest:
    """What `check` takes; `limits` go over the config's. Raises: UsageError if a side or a limit is not there."""
    if config.rollout is None or config.trainer is None:
        side = "rollout" if config.rollout is None else "trainer"
        raise UsageError(
            f"no {side} engine is given. Say it with --{side} SPEC, or as the key {side!r} of a config file; "
            "`onepolicy init` writes one, and `onepolicy check onepolicy.yaml` runs it."
        )
    return CheckRequest(
        rollout=config.rollout,
        trainer=config.trainer,
        also=config.also,
        suite=config.suite,
        protocol=config.sampling,
        limits=limits_of(config, changes=limits),
        budget=config.budget,
        top=config.top,
        keep_text=config.keep_text,
        statistics=config.statistics,
    )


def limits_of(config: Config, *, changes: Mapping[str, float] | None = None) -> Limits:
    """The limits that a config asks for, with changes over them. Raises: UsageError."""
    if isinstance(config.limits, str):
        return load_limits(config.limits, changes=dict(changes or {}))
    return limits_in("limits", config.limits, changes=dict(changes or {}))


# -- paths ------------------------------------------------------------------------------------------------------


def moved(config: Config, *, start: Path, end: Path) -> Config:
    """The same config with the relative paths that started from one folder as seen from another.

    Raises: UsageError for a target that is a name in the one and a path in the other.
    """
    if start.resolve() == end.resolve():
        return config
    sides = {name: None if side is None else _moved_spec(side, start, end) for name, side in _sides(config).items()}
    also = tuple(_moved_spec(side, start, end) for side in config.also)
    suite = config.suite if config.suite in SUITES else _moved_path(config.suite, start, end)
    limits = _moved_limits(config.limits, start, end)
    return config.model_copy(update={**sides, "also": also, "suite": suite, "limits": limits})


def _sides(config: Config) -> dict[str, EngineSpec | None]:
    return {"rollout": config.rollout, "trainer": config.trainer}


def _moved_limits(limits: str | dict[str, Any], start: Path, end: Path) -> str | dict[str, Any]:
    if isinstance(limits, str):
        return limits if limits in PRESETS else _moved_path(limits, start, end)
    floor = limits.get("floor")
    return {**limits, "floor": _moved_path(floor, start, end)} if isinstance(floor, str) else limits


def _moved_spec(spec: EngineSpec, start: Path, end: Path) -> EngineSpec:
    target = spec.target
    if _is_path(target, start):
        target = _moved_path(target, start, end)
    elif _is_path(target, end):
        raise UsageError(
            f"{spec}: {target!r} is there in {end.resolve()} and not in {start.resolve()}, where paths start. Write "
            "the path from there, or an absolute one."
        )
    options = {
        name: _moved_path(value, start, end) if name in PATH_OPTIONS and value else value
        for name, value in spec.options.items()
    }
    return replace(spec, target=target, options=options)


def _is_path(target: str, folder: Path) -> bool:
    """Whether a target is a path, and not the name of a packaged model, a hub or a module."""
    if is_packaged(target):
        return False
    file = target.partition(":")[0]  # callable:path/to/file.py:function
    return target.startswith(("./", "../")) or file.endswith(PATH_ENDINGS) or os.path.exists(folder / target)


def _moved_path(path: str, start: Path, end: Path) -> str:
    if os.path.isabs(path) or path.startswith("~"):
        return path
    seen = os.path.relpath(start.resolve() / path, end.resolve())
    return seen if seen.startswith("..") else f"./{seen}"


# -- reading ----------------------------------------------------------------------------------------------------

_HINT = "`onepolicy init` writes a config."
_WHAT = "a config is a YAML mapping with keys such as rollout and trainer"


def _valid(values: Mapping[str, Any]) -> Config:
    try:
        return Config.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        where = [str(part) for part in first["loc"]]
        name = ".".join(where)
        if first["type"] in ("extra_forbidden", "invalid_key"):
            known = SamplingProtocol if where[0] == "sampling" else Config
            raise UsageError(f"there is no key {name!r}. Known: {', '.join(known.model_fields)}.") from error
        if first["type"] == "value_error":
            raise UsageError(f"{name}: {str(first['ctx']['error']).removesuffix('.')}.") from error
        raise UsageError(f"{name} = {first['input']!r}: {first['msg']}.") from error
