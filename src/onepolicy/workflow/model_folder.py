"""A model's `generation_config.json` held against the `config.json` beside it: are they of one model?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from onepolicy.errors import UsageError
from onepolicy.records.json_text import json_in
from onepolicy.records.yaml_file import read_text
from onepolicy.sampling.convert import Note
from onepolicy.sampling.vocabulary import refuse_beyond

GENERATION = "generation_config.json"
_SPECIAL = ("eos_token_id", "bos_token_id", "pad_token_id")
_NESTED = ("text_config", "thinker_config", "decoder")
"""where the configuration of a model of several kinds of input keeps what its language model has"""


def notes_of_config(path: Path, generation: object) -> tuple[Note, ...]:
    """What the model's own configuration says against a `generation_config.json`; nothing if none lies beside it.

    path: of the file. generation: what it holds. Raises: UsageError for a special token that the model does not have,
    with both files, or a config.json that cannot be read.
    """
    beside = path.with_name("config.json")
    if path.name != GENERATION or not isinstance(generation, Mapping) or not beside.exists():
        return ()
    parts = list(_parts(_config(beside)))
    sizes = [size for part in parts if isinstance(size := part.get("vocab_size"), int)]
    for name in _SPECIAL:
        refuse_beyond(
            _ids(generation.get(name)), max(sizes, default=None), where=f"{path}: {name}", of=f"the model of {beside}"
        )
    given, own = _ids(generation.get("eos_token_id")), {i for part in parts for i in _ids(part.get("eos_token_id"))}
    if not given or not own or own.intersection(given):
        return ()
    why = f"{beside} has {', '.join(map(str, sorted(own)))} and none of these; it may be that of another model"
    return (Note(field="eos_token_id", value=", ".join(map(str, given)), why=why, matters=True),)


def _config(path: Path) -> dict[str, Any]:
    try:
        found = json_in(read_text(path, hint="Give the model's folder as it was saved."))
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    if not isinstance(found, dict):
        raise UsageError(f"{path}: a model's configuration is a JSON object; this is {type(found).__name__}.")
    return found


def _parts(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield config
    for name in _NESTED:
        if isinstance(inner := config.get(name), Mapping):
            yield from _parts(inner)


def _ids(value: object) -> list[int]:
    """One id or several; what else stands there is for the reader to refuse."""
    found = value if isinstance(value, list) else [value]
    return [token for token in found if isinstance(token, int) and not isinstance(token, bool)]
