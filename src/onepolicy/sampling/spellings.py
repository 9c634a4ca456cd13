"""How frameworks spell the fields of a protocol: one line of a table for each, read and written by the same line."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal

from onepolicy.errors import UsageError
from onepolicy.records.protocol import SamplingProtocol

Kind = Literal["json_schema", "regex", "grammar"]
"""of a constraint"""
NO_LIMIT = 2**31 - 1
"""max_new_tokens of a completion that only the model's context ends"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A framework's name for a field of a protocol."""

    theirs: str
    field: str
    off: tuple[Any, ...] = ()
    """their spellings of the field's default; the first is the one that is written"""
    read: Callable[[Any, str], Any] | None = None
    """their value and where it stands -> ours; as it is if there is none"""
    write: Callable[[Any], Any] | None = None

    def ours(self, value: Any, where: str) -> Any:
        """Our value of theirs, which stands at `where`. Raises: UsageError if it is none."""
        if any(same(value, off) for off in self.off):
            return default_of(self.field)
        return self.read(value, where) if self.read else value

    def value_of(self, protocol: SamplingProtocol) -> Any:
        """What stands in the framework's configuration for a protocol."""
        value = getattr(protocol, self.field)
        if self.off and value == default_of(self.field):
            return self.off[0]
        return self.write(value) if self.write else value


def default_of(field: str) -> Any:
    """The default of a protocol's field."""
    return SamplingProtocol.model_fields[field].default


def same(one: Any, other: Any) -> bool:
    """Equal, and neither a number that stands for true or false nor text that stands for a number."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def texts(value: Any, where: str) -> tuple[str, ...]:
    """One text or several; an empty one alone is none. Raises: UsageError for anything else."""
    if isinstance(value, str):
        return (value,) if value else ()
    if not _is_list(value) or not all(isinstance(text, str) for text in value):
        raise UsageError(f"{where} = {value!r}: this is no text and no list of texts. Give one of them.")
    return tuple(value)


def ids(value: Any, where: str) -> tuple[int, ...]:
    """One token id or several. Raises: UsageError for anything else."""
    found = value if _is_list(value) else [value]
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in found):
        raise UsageError(f"{where} = {value!r}: this is no token id and no list of ids. Give whole numbers.")
    return tuple(found)


def limit(value: Any, where: str) -> int:
    """A number of tokens; -1 is no limit. Raises: UsageError for anything else."""
    if isinstance(value, int) and not isinstance(value, bool) and (value == -1 or value >= 0):
        return NO_LIMIT if value == -1 else value
    raise UsageError(f"{where} = {value!r}: this is no number of tokens. Give a whole number.")


def one_of(choices: Mapping[Any, Any]) -> Callable[[Any, str], Any]:
    """A reader of words: theirs -> ours."""

    def read(value: Any, where: str) -> Any:
        if isinstance(value, str | int) and value in choices:
            return choices[value]
        known = ", ".join(str(choice) for choice in choices)
        raise UsageError(f"{where} = {value!r}: not understood. Known: {known}.")

    return read


def finite(value: Any, where: str) -> float:
    """A finite number. Raises: UsageError for anything else."""
    try:
        found = math.nan if isinstance(value, bool) or not isinstance(value, int | float) else float(value)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise UsageError(f"{where} = {value!r}: this is no finite number. Correct it there.")
    return found


def listed(value: Sequence[Any]) -> list[Any]:
    """As JSON and YAML have it."""
    return list(value)


def mapping_of(source: Any, *, what: str, names: Sequence[str] = ()) -> dict[str, Any]:
    """The fields of a mapping, or of a framework's object: a dataclass, a struct, a model, a plain object.

    names: attributes to look for where the object does not list its own.
    Raises: UsageError if it is none of them, or has a key that is no text.
    """
    if source is None:
        return {}
    if isinstance(source, Mapping):
        found = dict(source)
    elif isinstance(source, str | bytes | int | float | list | tuple):
        raise UsageError(f"{what} is {source!r}: this is no mapping and no object with fields. Give one of them.")
    else:
        found = {name: getattr(source, name) for name in _names(source, names) if hasattr(source, name)}
    wrong = [key for key in found if not isinstance(key, str)]
    if wrong:
        raise UsageError(f"{what} has the key {wrong[0]!r}, which is no text. Correct it.")
    return found


def _names(source: Any, names: Sequence[str]) -> list[str]:
    declared = getattr(source, "__dataclass_fields__", None) or getattr(source, "__struct_fields__", None)
    declared = declared or getattr(type(source), "model_fields", None) or getattr(source, "__dict__", None)
    return [name for name in (declared or names) if not name.startswith("_")]


def json_text(value: Any, where: str) -> str:
    """A JSON schema as text. Raises: UsageError if it is neither text nor a mapping."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return json.dumps(value, ensure_ascii=False)
    raise UsageError(f"{where} = {value!r}: this is no JSON schema. Give a mapping, or its text.")


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence | Set) and not isinstance(value, str | bytes)
