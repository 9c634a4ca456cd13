"""Limits from a preset's name or a YAML file."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from onepolicy.errors import UsageError
from onepolicy.judgement.limits import Limits

PRESETS = ("strict", "bf16", "quantised", "bitwise")
"""each a YAML file in `presets/` that says where its numbers come from"""


def load_limits(source: str, *, changes: dict[str, float] | None = None) -> Limits:
    """The limits of a preset, or of a YAML file that may start from one (`preset: bf16`); `changes` go over them.

    Raises: UsageError for a file that is absent or no YAML mapping, an unknown key (with the known ones), a bad value.
    """
    values = _values(source)
    start = values.pop("preset", None)
    if start is not None and start not in PRESETS:
        raise UsageError(f"{source}: there is no preset {start!r}. Presets: {', '.join(PRESETS)}.")
    base = _values(str(start)) if start else {}
    return _valid(source, base | values | (changes or {}))


def _values(source: str) -> dict[str, Any]:
    try:
        found = yaml.safe_load(_text(source))
    except yaml.YAMLError as error:
        raise UsageError(f"{source}: is no YAML ({str(error).splitlines()[0]}).") from error
    found = {} if found is None else found
    if not isinstance(found, dict):
        raise UsageError(
            f"{source}: limits are a YAML mapping, such as `mean_kl: 1e-3`; this is {type(found).__name__}."
        )
    return found


def _text(source: str) -> str:
    if source in PRESETS:
        return (files("onepolicy.judgement") / "presets" / f"{source}.yaml").read_text(encoding="utf-8")
    path = Path(source)
    if not path.is_file():
        raise UsageError(f"there is no preset and no file {source!r}. Presets: {', '.join(PRESETS)}.")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{source}: is not UTF-8.") from error


def _valid(source: str, values: dict[str, Any]) -> Limits:
    try:
        return Limits.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = ", ".join(["preset", *Limits.model_fields])
            raise UsageError(f"{source}: there is no limit {name!r}. Known: {known}.") from error
        raise UsageError(f"{source}: {name} = {first['input']!r}: {first['msg']}.") from error
