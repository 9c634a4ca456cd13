"""`sampling_config.yaml`: a protocol as people read and write it."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from onepolicy.errors import UsageError
from onepolicy.records.files import write_text_atomically
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.yaml_file import in_one_line, mapping_in, read_text

_HINT = "Give a protocol; `onepolicy protocol write yaml RUN` writes that of a run."
_WHAT = "a protocol is a mapping of its fields, such as temperature: 0.7"
_HEAD = (
    "The one sampling protocol. A field that is left out is at its default, which changes nothing; an unknown one is "
    "an error. `onepolicy protocol lock` keeps its hash."
)
_WIDTH = 100
"""characters of a comment's line"""


def read_protocol_file(path: Path) -> SamplingProtocol:
    """The protocol in a file.

    A field without a value is at its default. Raises: UsageError if it cannot be read, is no YAML mapping, has an
    unknown field (with the known ones) or one twice, or a value that is not possible.
    """
    try:
        return protocol_in(mapping_in(read_text(path, hint=_HINT), what=_WHAT))
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def protocol_in(values: Mapping[Any, Any]) -> SamplingProtocol:
    """The protocol that a mapping says. Raises: UsageError that names the field, what it is, and why it cannot be."""
    known = SamplingProtocol.model_fields
    unknown = [name for name in values if name not in known]
    if unknown:
        raise UsageError(f"there is no field {unknown[0]!r}. The fields of a protocol: {', '.join(known)}.")
    try:
        return SamplingProtocol.model_validate({name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        raise UsageError(_said(error)) from error


def _said(error: ValidationError) -> str:
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"])
    why = first["msg"].removeprefix("Value error, ")
    return f"{name} = {first['input']!r}: {why}." if name else f"{why}."


def write_protocol_file(path: Path, protocol: SamplingProtocol) -> None:
    """Write the file whole or not at all, over one that is there."""
    write_text_atomically(path, protocol_text(protocol))


def protocol_text(protocol: SamplingProtocol) -> str:
    """All fields with a comment each; those at their defaults are commented out."""
    blocks = ["\n".join(_comment(_HEAD))]
    values = protocol.model_dump(mode="json")
    for name, field in SamplingProtocol.model_fields.items():
        line = f"{'' if name in protocol.changed else '# '}{name}: {in_one_line(values[name])}"
        blocks.append("\n".join([*_comment(field.description or ""), line]))
    return "\n\n".join(blocks) + "\n"


def _comment(text: str) -> list[str]:
    lines = textwrap.wrap(" ".join(text.split()), _WIDTH - 2, break_long_words=False, break_on_hyphens=False)
    return [f"# {line}" for line in lines]
