"""Pairs of answers to one prompt, the first one better: those of the package, or a JSONL file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from onepolicy.errors import UsageError
from onepolicy.records.strict import Strict, Text
from onepolicy.suites.load import Message

OURS = "pairs.v1.jsonl"
"""a released file is never edited; a change is a new version"""
FEWEST = 4
"""pairs: with fewer nothing can be said of a spread or a slope"""
FILLERS = (
    "That is what there is to say about it.",
    "The above is meant as it is written.",
    "This is the answer to the question that was asked.",
    "Nothing else needs to be mentioned here.",
    "With this the matter is described.",
    "These lines say what was to be said.",
    "The answer given above remains the answer.",
    "So much for this question.",
)
"""sentences that add length and nothing else, for pairs that bring none; each pair takes the next"""


class Pair(Strict):
    """A conversation that waits for an answer, and two answers."""

    id: str = Field(min_length=1)
    messages: tuple[Message, ...] = Field(min_length=1)
    chosen: Text = Field(min_length=1)
    """the better answer"""
    rejected: Text = Field(min_length=1)
    filler: Text = Field(default="", max_length=400)
    """a sentence in the language of the answers that adds length and nothing else"""

    def answered(self, answer: str) -> Conversation:
        """The conversation with an answer of the assistant at its end."""
        return (*self.messages, {"role": "assistant", "content": answer})


Conversation = tuple[Message, ...]
"""messages, the last one is the answer that is scored"""


def load_pairs(path: Path | None) -> tuple[Pair, ...]:
    """The pairs of a JSONL file; those of the package without one.

    A line is {"id", "messages" or "prompt", "chosen", "rejected"}; answers are texts, or lists of messages as
    preference data has them, with the prompt in front or beside.
    Raises: UsageError if the file is absent, a line is malformed, an id or a pair stands twice, or there are too few.
    """
    where = "the pairs of the package" if path is None else str(path)
    read = [(f"{where}, line {number}", line) for number, line in enumerate(_lines(path), 1) if line.strip()]
    pairs = [_pair(place, line, number) for number, (place, line) in enumerate(read)]
    ids = [pair.id for pair in pairs]
    if twice := next((one for one in ids if ids.count(one) > 1), None):
        raise UsageError(f"{where}: the id {twice!r} stands twice. Give every pair an id of its own, or none.")
    said = [repr((pair.messages, pair.chosen, pair.rejected)) for pair in pairs]
    if again := next((at for at, one in enumerate(said) if said.index(one) < at), None):
        raise UsageError(f"{read[again][0]}: has the pair of {read[said.index(said[again])][0]}. Give every pair once.")
    if len(pairs) < FEWEST:
        raise UsageError(f"{where}: has {len(pairs)} pairs; with fewer than {FEWEST} nothing can be said. Give more.")
    return tuple(pairs)


def _lines(path: Path | None) -> list[str]:
    try:
        source = files("onepolicy.signal.reward") / OURS if path is None else path
        return source.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError as error:
        raise UsageError(f"there is no file {path}. Give a JSONL file of pairs, or leave it out.") from error
    except (UnicodeDecodeError, OSError) as error:
        raise UsageError(f"{path}: cannot be read as a JSONL file in UTF-8 ({error}).") from error


def _pair(place: str, line: str, number: int) -> Pair:
    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{place}: is not JSON ({error}).") from error
    if not isinstance(given, dict) or not {"chosen", "rejected"} <= given.keys():
        raise UsageError(f'{place}: a pair is an object with "messages" or "prompt", "chosen" and "rejected".')
    named = {"id": f"pair-{number + 1}", "filler": FILLERS[number % len(FILLERS)]} | given
    try:
        pair = Pair.model_validate({name: named[name] for name in ("id", "filler")} | _parts(given))
    except (ValidationError, ValueError) as error:
        raise UsageError(f"{place}: {_first(error)}") from error
    if pair.chosen == pair.rejected:
        raise UsageError(f"{place}: both answers are the same text, so no score can tell them apart.")
    return pair


def _parts(given: dict[str, Any]) -> dict[str, Any]:
    """Prompt and both answers of any of the forms that preference data comes in."""
    answers = [given["chosen"], given["rejected"]]
    beside = [given[name] for name in ("messages", "prompt") if given.get(name) is not None]
    prompts = [[{"role": "user", "content": one}] if isinstance(one, str) else one for one in beside]
    prompts += [one[:-1] for one in answers if isinstance(one, list) and len(one) > 1]
    if not prompts:
        raise ValueError('there is no prompt. Give it as "messages" or "prompt", or in front of both answers.')
    if any(one != prompts[0] for one in prompts):
        raise ValueError("what stands before the last messages differs, or is not the prompt beside them.")
    return {"messages": prompts[0], "chosen": _answer(answers[0]), "rejected": _answer(answers[1])}


def _answer(given: object) -> object:
    if isinstance(given, list) and given and isinstance(given[-1], dict):
        return given[-1].get("content")
    return given


def _first(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}."


def answers_of(pairs: Sequence[Pair]) -> list[Conversation]:
    """All conversations: of each pair the chosen answer, then the rejected one."""
    return [pair.answered(answer) for pair in pairs for answer in (pair.chosen, pair.rejected)]
