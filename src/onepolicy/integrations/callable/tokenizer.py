"""The tokenizer file that the user names for the token checks."""

from __future__ import annotations

import json
from pathlib import Path

from onepolicy.errors import EngineError


def read_tokenizer(path: str) -> bytes:
    """The content of a `tokenizer.json`, given its path or its folder's. Raises EngineError if it is none."""
    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise EngineError(f"tokenizer={path}: there is no file {file}. Name a tokenizer.json or its folder.")
    content = file.read_bytes()
    try:
        is_tokenizer = "model" in json.loads(content)
    except ValueError as error:
        raise EngineError(f"tokenizer={path}: {file} is not JSON: {error}") from error
    if not is_tokenizer:
        raise EngineError(f"tokenizer={path}: {file} has no key 'model', so it is no tokenizer.json.")
    return content
