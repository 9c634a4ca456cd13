"""Limits from a preset's name or a YAML file."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from onepolicy.errors import UsageError
from onepolicy.judgement.floor import with_floor
from onepolicy.judgement.limits import Limits
from onepolicy.records.yaml_file import mapping_in, read_text

PRESETS = ("strict", "bf16", "quantised", "bitwise")
"""each a YAML file in `presets/` that says where its numbers come from"""
_SHOWN = 80
"""characters of a value in a message"""


def load_limits(source: str, *, changes: dict[str, float] | None = None) -> Limits:
    """The limits of a preset, or of a YAML file that may start from one (`preset: bf16`); `changes` go over them.

    A file may name a noise floor (`floor: trainer.floor.json`, beside it) and limits that are multiples of it.
    Raises: UsageError for a file that is absent or no YAML mapping, an unknown key (with the known ones), a bad value.
    """
    return limits_in(source, _values(source), changes=changes)


def limits_in(source: str, mapping: Mapping[str, Any], *, changes: dict[str, float] | None = None) -> Limits:
    """The limits of a mapping as such a file holds it; messages and a floor's path start from `source`."""
    values = dict(mapping)
    start = values.pop("preset", None)
    if start is not None and start not in PRESETS:
        raise UsageError(f"{source}: there is no preset {start!r}. Presets: {', '.join(PRESETS)}.")
    base = _values(str(start)) if start else {}
    return _valid(source, with_floor(source, base | values, changes=changes or {}))


def _values(source: str) -> dict[str, Any]:
    if source not in PRESETS and not Path(source).is_file():
        raise UsageError(f"there is no preset and no file {source!r}. Presets: {', '.join(PRESETS)}.")
    try:
        return mapping_in(_text(source), what="limits are a YAML mapping, such as `mean_kl: 1e-3`")
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from error


def _text(source: str) -> str:
    if source in PRESETS:
        return (files("onepolicy.judgement") / "presets" / f"{source}.yaml").read_text(encoding="utf-8")
    return read_text(Path(source), hint="Limits are a YAML file.")


def _valid(source: str, values: dict[str, Any]) -> Limits:
    try:
        return Limits.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = ", ".join(["preset", *Limits.model_fields])
            raise UsageError(f"{source}: there is no limit {name!r}. Known: {known}.") from error
        given = repr(first["input"])
        shown = given if len(given) <= _SHOWN else f"{given[:_SHOWN]}…"
        raise UsageError(f"{source}: {name} = {shown}: {first['msg']}.") from error
