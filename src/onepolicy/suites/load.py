"""Reading a suite: one that is shipped, by its name, or a JSONL file of the user's."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from onepolicy.errors import UsageError

SUITES = {
    "quick": "quick.v1.jsonl",
    "standard": "standard.v1.jsonl",
    "fixed-quick": "fixed-quick.v1.jsonl",
    "fixed-standard": "fixed-standard.v1.jsonl",
}
"""name -> data file. A released file is never edited; a change is a new version"""


def _has_role_and_content(message: dict[str, str]) -> dict[str, str]:
    absent = sorted({"role", "content"} - message.keys())
    if absent:
        raise ValueError(f"a message has a role and a content, this one has no {absent[0]}")
    return message


Message = Annotated[dict[str, str], AfterValidator(_has_role_and_content)]


class Prompt(BaseModel):
    """A conversation that waits for an answer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(min_length=1)
    messages: tuple[Message, ...] = Field(min_length=1)
    tags: dict[str, str] = Field(default_factory=dict)


class FixedSequence(BaseModel):
    """A prompt and the completion whose tokens are compared."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(min_length=1)
    prompt: str = Field(min_length=1)
    completion: str = Field(min_length=1)
    tags: dict[str, str] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Prompts for fresh rollouts, or fixed sequences; never both."""

    name: str
    hash: str
    """first 16 hex digits of the file's SHA-256"""
    prompts: tuple[Prompt, ...] = ()
    sequences: tuple[FixedSequence, ...] = field(default=())

    @property
    def is_fixed(self) -> bool:
        """Whether the completions come with the suite."""
        return bool(self.sequences)


def load_suite(name: str) -> Suite:
    """The shipped suite of this name, or the JSONL file at this path.

    A line is {"id", "messages", "tags"} (a prompt) or {"id", "prompt", "completion", "tags"} (a fixed sequence).
    Raises: UsageError if it is absent, empty, mixed, has an id twice, or a line is malformed.
    """
    content = _content(name)
    lines = [(i, line) for i, line in enumerate(content.decode("utf-8").split("\n"), start=1) if line.strip()]
    if not lines:
        raise UsageError(f"suite {name!r} is empty: nothing could be compared. Give a suite with at least 12 prompts.")
    items = {number: _item(name, number, line) for number, line in lines}
    _check_items(name, items)
    prompts = tuple(item for item in items.values() if isinstance(item, Prompt))
    sequences = tuple(item for item in items.values() if isinstance(item, FixedSequence))
    return Suite(
        name=name if name in SUITES else Path(name).stem,
        hash=hashlib.sha256(content).hexdigest()[:16],
        prompts=prompts,
        sequences=sequences,
    )


def _content(name: str) -> bytes:
    if name in SUITES:
        return (files("onepolicy.suites") / "data" / SUITES[name]).read_bytes()
    path = Path(name)
    if not path.is_file():
        raise UsageError(f"there is no suite {name!r} and no such file. Shipped suites: {', '.join(SUITES)}.")
    content = path.read_bytes()
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"suite {name!r}, line {number}: is not UTF-8 (byte {error.start} of the file). A suite is a JSONL file in "
            "UTF-8."
        ) from error
    return content


def _item(name: str, number: int, line: str) -> Prompt | FixedSequence:
    try:
        value = json.loads(line)
        if not isinstance(value, dict):
            raise UsageError(f"suite {name!r}, line {number}: is no JSON object.")
        return Prompt.model_validate(value) if "messages" in value else FixedSequence.model_validate(value)
    except RecursionError as error:
        raise UsageError(f"suite {name!r}, line {number}: is nested too deeply.") from error
    except json.JSONDecodeError as error:
        raise UsageError(f"suite {name!r}, line {number}: is not JSON ({error.msg}, column {error.colno}).") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"suite {name!r}, line {number}: {where}: {first['msg']}.") from error


def _check_items(name: str, items: dict[int, Prompt | FixedSequence]) -> None:
    lines: dict[str, int] = {}
    kind = type(next(iter(items.values())))
    for number, item in items.items():
        where = f"suite {name!r}, line {number}:"
        if item.id in lines:
            raise UsageError(f"{where} the id {item.id!r} stands twice, first in line {lines[item.id]}.")
        if type(item) is not kind:
            raise UsageError(f"{where} mixes prompts and fixed sequences. Put them into two files.")
        lines[item.id] = number
