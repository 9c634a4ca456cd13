"""Limits that are a multiple of a noise floor: from `mean_kl: 3 x floor` to a number, as long as the floor holds."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onepolicy.errors import UsageError
from onepolicy.judgement.limits import Limits
from onepolicy.records.floor import FLOORS, Floor, read_floor
from onepolicy.records.reading import ReadingInfo

_MULTIPLE = re.compile(r"\s*(\d+\.?\d*(?:[eE][+-]?\d+)?)\s*x\s*floor\s*")


def with_floor(source: str, values: Mapping[str, Any], *, changes: Mapping[str, float]) -> dict[str, Any]:
    """The values of a limits file with `changes` over them, and multiples of its floor as numbers.

    The floor is kept beside them only while a limit rests on it. A floor that is written out, as in a judgement's
    `limits.json`, stays. Raises: UsageError for what is no multiple, and for a floor that is absent, not used or zero.
    """
    multiples, found = _multiples(source, values), {**values, **changes}
    if not multiples:
        _refuse_unused(source, found.get("floor"))
        return found
    given = found.pop("floor", None)
    if given is None:
        name = next(iter(multiples))
        raise UsageError(f"{source}: {name} is a multiple of a floor, and no `floor: FILE` says of which.")
    left = {name: times for name, times in multiples.items() if name not in changes}
    if not left:
        return found
    floor = _floor(source, given)
    return found | {name: _number(source, floor, name, times) for name, times in left.items()} | {"floor": floor}


def refuse_expired(limits: Limits, sides: Sequence[ReadingInfo]) -> None:
    """Raise UsageError if limits rest on a floor that holds for neither side; it says what changed since."""
    floor = limits.floor
    if floor is None:
        return
    if not sides:
        raise UsageError(
            "the limits are multiples of a noise floor, and columns of logprobs do not say which engine they come "
            "from. Compare readings of a run, or give the limits as numbers."
        )
    closest = min(sides, key=lambda side: (side.engine.name != floor.engine.name, len(floor.changes(side))))
    changed = floor.changes(closest)
    if changed:
        raise UsageError(
            f"the limits are multiples of a noise floor of {floor.engine.name}:{floor.engine.model} that holds for "
            f"neither reading. Changed since, in {closest.name!r}: {'; '.join(changed)}. Measure it again with: "
            f"{floor.command(closest.request.engine)}"
        )


def _refuse_unused(source: str, given: object) -> None:
    if isinstance(given, str):
        raise UsageError(
            f"{source}: no limit is a multiple of the floor {given!r}. Write one, such as `mean_kl: 3 x floor`, or "
            "take `floor` out."
        )


def _multiples(source: str, values: Mapping[str, Any]) -> dict[str, float]:
    """Limit -> how many times the floor it is."""
    found: dict[str, float] = {}
    for name in Limits.numbers():
        value = values.get(name)
        if not isinstance(value, str) or _is_number(value):
            continue
        match = _MULTIPLE.fullmatch(value)
        times = float(match[1]) if match else 0.0
        if name not in FLOORS:
            raise UsageError(
                f"{source}: {name} = {value!r}: write a number. Multiples of a floor are for {', '.join(FLOORS)}."
            )
        if not 0 < times < math.inf:
            raise UsageError(
                f"{source}: {name} = {value!r}: write a number, or a multiple of the floor that is above 0, such as "
                "`3 x floor`."
            )
        found[name] = times
    return found


def _is_number(text: str) -> bool:
    """YAML reads 1e-3 as a text."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _floor(source: str, given: object) -> Floor:
    if isinstance(given, str):
        return read_floor(Path(source).parent / given)
    raise UsageError(f"{source}: floor = {given!r}: name the file that `onepolicy calibrate` wrote.")


def _number(source: str, floor: Floor, name: str, times: float) -> float:
    value: float = getattr(floor, name).value
    if value == 0:
        measured = ", ".join(variation.name for variation in floor.variations)
        raise UsageError(
            f"{source}: the {name} floor of {floor.engine.name}:{floor.engine.model} is exactly 0, as its logprobs "
            f"came back bit for bit ({measured}). A multiple of 0 is no limit: take `preset: bitwise`, or a number."
        )
    return times * value
