"""Engine specs: `engine:target?option=value&option=value`, or the same as a mapping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlencode

from onepolicy.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """Which engine, on what, with which options. Options are strings until the engine reads them."""

    engine: str
    target: str
    options: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        query = urlencode(sorted(self.options.items()), safe="/:,.")
        return f"{self.engine}:{self.target}" + (f"?{query}" if query else "")


def parse_spec(spec: str | Mapping[str, object] | EngineSpec) -> EngineSpec:
    """The spec that a string or a mapping describes.

    Example: `transformers:./model?dtype=bfloat16&batch_size=8`, or
    {"engine": "transformers", "target": "./model", "dtype": "bfloat16", "batch_size": 8}.

    Raises: UsageError if it has no engine or no target, or an option is written twice.
    """
    if isinstance(spec, EngineSpec):
        return spec
    found = _from_string(spec) if isinstance(spec, str) else _from_mapping(spec)
    try:
        f"{found.engine}{found.target}{found.options}".encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{found.target!a}: is not UTF-8, and a run keeps its specs as such. Give the file or folder another name."
        ) from error
    return found


def _from_string(text: str) -> EngineSpec:
    engine, colon, rest = text.partition(":")
    if not colon or not engine:
        raise UsageError(f"{text!r} names no engine. Write engine:target, for example transformers:./my-model.")
    target, _, query = rest.partition("?")
    if not target:
        raise UsageError(f"{text!r} names no target after {engine + ':'!r}: a folder, a file or a model's name.")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError as error:
        raise UsageError(f"{text!r}: the options after '?' must read name=value&name=value.") from error
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"{text!r} gives the option {twice[0]!r} more than once.")
    return EngineSpec(engine=engine, target=target, options=dict(pairs))


def _from_mapping(spec: Mapping[str, object]) -> EngineSpec:
    missing = [key for key in ("engine", "target") if not spec.get(key)]
    if missing:
        raise UsageError(f"an engine needs the keys 'engine' and 'target'; {missing[0]!r} is absent from {dict(spec)}.")
    options = {key: _text(value) for key, value in spec.items() if key not in ("engine", "target")}
    return EngineSpec(engine=str(spec["engine"]), target=str(spec["target"]), options=options)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
