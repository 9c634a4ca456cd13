"""Reading the files of a run that anybody may have written: what is damaged or foreign is said, never guessed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from onepolicy.errors import RunError
from onepolicy.records.strict import Strict

StrictT = TypeVar("StrictT", bound=Strict)

_DAMAGE = (pa.ArrowException, OSError, ValueError)
"""what pyarrow raises for a damaged file; the last is a name that is no UTF-8"""


def open_parquet(path: Path, schema: pa.Schema) -> pq.ParquetFile:
    """Open a part and hold its columns against the schema. Raises: RunError if it is damaged or foreign."""
    try:
        file = pq.ParquetFile(path, memory_map=True, pre_buffer=False, page_checksum_verification=True)
        found = {field.name: field.type for field in file.schema_arrow}
    except _DAMAGE as error:
        raise RunError(
            f"{path}: cannot be read as Parquet ({_one_line(error)}). The file is cut off or not a part of a run; "
            "delete it and run the command that wrote it again with --resume."
        ) from error
    for field in schema:
        if found.get(field.name) != field.type:
            have = ", ".join(f"{name}: {kind}" for name, kind in found.items())
            file.close()
            raise RunError(
                f"{path}: a part of a run needs the column {field.name!r} of type {field.type}; this file has {have}."
            )
    return file


def read_row_group(path: Path, file: pq.ParquetFile, group: int, columns: list[str] | None) -> pa.Table:
    """One row group. Raises: RunError if its bytes are damaged."""
    try:
        table = file.read_row_group(group, columns=columns, use_threads=False)
        table.validate(full=True)  # offsets in order, and texts in UTF-8
        return table
    except _DAMAGE as error:
        raise RunError(
            f"{path}: row group {group} is damaged ({_one_line(error)}). Delete the file and run the command that "
            "wrote it again with --resume."
        ) from error


def raw_json(path: Path) -> dict[str, object]:
    """The JSON object in a file. Raises: RunError if it is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise RunError(f"{path}: is not JSON ({_one_line(error)}). The file is damaged.") from error
    if not isinstance(content, dict):
        raise RunError(f"{path}: holds no JSON object. The file is damaged.")
    return content


def read_json(path: Path, model: type[StrictT]) -> StrictT:
    """The value in a JSON file. Raises: RunError if it is damaged."""
    try:
        return model.model_validate(raw_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        raise RunError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}. The file is damaged.") from error


def column_index(file: pq.ParquetFile, name: str) -> int:
    """The place of a list column among the leaves of a file."""
    return next(i for i in range(len(file.schema)) if file.schema.column(i).path.split(".")[0] == name)


def _one_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
