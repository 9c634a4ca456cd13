"""Does a conversation, rendered again with one more turn, still begin with what was sampled?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from onepolicy.records.verdict import Evidence, Status, Verdict
from onepolicy.tokens.causes import explain
from onepolicy.tokens.changed import Changed, changed, changed_inside
from onepolicy.tokens.render import Message
from onepolicy.tokens.sides import Side
from onepolicy.tokens.template.probes import (
    ANSWER,
    ARGUMENTS,
    ARGUMENTS_TEXT,
    OUTER_SPACE,
    PLAIN,
    REASON,
    REASONING_FIELD,
    SPACED,
    THINKING,
    THINKING_OFF,
    THINKING_TOOL_LOOP,
    TOOL_LOOP,
    TOOL_NAME,
    UNSPACED,
    WRITTEN_CALL,
    Book,
    Probe,
)
from onepolicy.tokens.template.words import note, passed, quoted

_OPENED = ("<think>\n", "<think>", "<thinking>\n", "<thinking>")
_MEANS = "Train on the sampled ids and never on a new rendering, or make each turn a sequence of its own."


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """A turn of a probe that a later rendering does not repeat."""

    turn: int
    """of the assistant, from 1"""
    change: Changed
    cause: str
    again: str
    """which rendering lost it: the finished turn, or the next prompt"""

    def __str__(self) -> str:
        lost = f"lacks {quoted(self.change.removed)}" if self.change.removed else ""
        gained = f"adds {quoted(self.change.added)}" if self.change.added else ""
        return f"turn {self.turn}: {self.again} {' and '.join(filter(None, (lost, gained)))} ({self.cause})"


def prefix_plain(book: Book) -> Verdict:
    """Plain turns, without reasoning and tools."""
    return _prefix("prefix_plain", book, PLAIN)


def prefix_thinking(book: Book) -> Verdict:
    """Reasoning that the answer carries as text, between think tags."""
    return _prefix("prefix_thinking", book, THINKING)


def prefix_reasoning_field(book: Book) -> Verdict:
    """Reasoning that a parser moved to `reasoning_content`."""
    if REASON not in book.text(REASONING_FIELD, 2):
        return note(
            "prefix_reasoning_field",
            "reasoning_content is not written at all: reasoning that a parser moves there is lost to the next turn. "
            "Keep it in the content.",
        )
    return _prefix("prefix_reasoning_field", book, REASONING_FIELD)


def prefix_tools(book: Book) -> Verdict:
    """A call, its result, an answer, and another turn."""
    return _tools("prefix_tools", book, TOOL_LOOP)


def prefix_thinking_tools(book: Book) -> Verdict:
    """The same with reasoning before the call and the answer."""
    if REASON not in book.text(THINKING_TOOL_LOOP, 2):
        return note("prefix_thinking_tools", "reasoning beside a tool call is not written; see prefix_reasoning_field.")
    return _tools("prefix_thinking_tools", book, THINKING_TOOL_LOOP)


def prefix_thinking_off(book: Book) -> Verdict | None:
    """Plain turns with the template's switch for thinking off; None if it has none."""
    if not book.variables & THINKING_OFF.variables.keys():
        return None
    return _prefix("prefix_thinking_off", book, THINKING_OFF)


def outer_whitespace(book: Book) -> Verdict:
    """An answer that begins or ends with whitespace."""
    spaced, plain = book.text(SPACED, 2), book.text(UNSPACED, 2)
    wanted = plain.replace(OUTER_SPACE.strip(), OUTER_SPACE)
    if spaced == wanted:
        message = "whitespace at both ends of an answer is kept, so it comes back in the next turn's history."
        return passed("outer_whitespace", message)
    change = changed(wanted, spaced)
    written = spaced[: len(spaced) - len(plain.rpartition(ANSWER)[2])]
    return Verdict(
        check="outer_whitespace",
        status=Status.FAIL,
        message=(
            f"an answer {quoted(OUTER_SPACE)} is written as {quoted(written.rpartition('>')[2])}: whitespace at its "
            "ends changes, so the history is not what was sampled. Keep the sampled ids as history."
        ),
        evidence=(Evidence(rollout_id=SPACED.name, position=change.at, note="turn 1: whitespace"),),
    )


def tool_arguments(book: Book) -> Verdict:
    """How a call's arguments are written again, as text and as an object."""
    if not _writes_calls(book):
        return note("tool_arguments", "tool calls are not written at all; keep the model's call in the content.")
    as_text, as_object = book.page(WRITTEN_CALL, 2), book.text(TOOL_LOOP, 2)
    style = _style_of_object(as_object)
    if book.text_arguments and ARGUMENTS_TEXT in getattr(as_text, "text", ""):
        message = "arguments are taken as text alone, and stay as the model wrote them; an object is refused."
        return passed("tool_arguments", message, required=False)
    if ARGUMENTS_TEXT in getattr(as_text, "text", ""):
        message = f"arguments that are given as text stay as the model wrote them; given as an object, {style}."
        return passed("tool_arguments", message, required=False)
    refused = getattr(as_text, "message", "")
    how = f"refused ({refused})" if refused else "changed: quoted once more, or parsed and written anew"
    return note(
        "tool_arguments",
        f"arguments given as text are {how}; given as an object, {style}. A model that spells its call otherwise "
        "gets another history than it sampled.",
    )


def _prefix(check: str, book: Book, probe: Probe) -> Verdict:
    breaks = tuple(breaks_in(book, probe))
    if not breaks:
        message = f"{probe.name}: every prompt begins with all that was sampled before it; one sequence can hold them."
        return passed(check, message)
    return Verdict(
        check=check,
        status=Status.FAIL,
        quantity="turns_that_change",
        value=len({b.turn for b in breaks}),
        limit=0,
        unit="turns",
        message=f"{probe.name}: {breaks[0]}. {_MEANS}",
        evidence=tuple(Evidence(rollout_id=probe.name, position=b.change.at, note=str(b)) for b in breaks),
    )


def _tools(check: str, book: Book, probe: Probe) -> Verdict:
    return (
        _prefix(check, book, probe)
        if _writes_calls(book, probe)
        else note(check, "tool calls are not written: the call is lost to the next turn. Keep it in the content.")
    )


def _writes_calls(book: Book, probe: Probe = TOOL_LOOP) -> bool:
    return TOOL_NAME in book.text(probe, 2)[len(book.text(probe, 1)) :]


def breaks_in(book: Book, probe: Probe) -> Iterator[Break]:
    """The first break at each of the assistant's turns."""
    places = [i for i, message in enumerate(probe.messages) if message["role"] == "assistant"]
    ends: list[int] = []
    for place, following in zip(places, [*places[1:], None], strict=True):
        prompt, finished = book.text(probe, place, prompt=True), book.text(probe, place + 1)
        sampled = prompt + _as_sampled(prompt, probe.messages[place])
        next_prompt = book.text(probe, following, prompt=True)
        ends.append(len(finished))
        for before, after, again in (
            (sampled, finished, "the finished turn"),
            (finished, next_prompt, "the next prompt"),
        ):
            if not after.startswith(before):
                change = changed_inside(before, after)
                turn = next((i for i, end in enumerate(ends, start=1) if change.at < end), len(ends))
                yield Break(turn=turn, change=change, cause=_cause(book, change, before, after), again=again)
                break


def _as_sampled(prompt: str, message: Message) -> str:
    """What the model writes after the prompt for a message: its content, without the tag that the prompt opens.

    Where a field holds the reasoning only the template knows how it was spelled; then nothing.
    """
    content = "" if "reasoning_content" in message else str(message.get("content") or "")
    opened = next((tag for tag in _OPENED if prompt.endswith(tag) and content.startswith(tag)), "")
    return content.removeprefix(opened)


def _cause(book: Book, change: Changed, before: str, after: str) -> str:
    if change.is_reasoning or REASON in change.removed:
        return "thinking removed" if len(change.removed) > len(change.added) else "thinking added"
    if change.is_whitespace:
        return "whitespace"
    found = explain(
        Side(name="earlier", text=before, reader=book.reader), Side(name="later", text=after, reader=book.reader)
    )
    assert found is not None, "the texts differ"
    return found.cause


def _style_of_object(text: str) -> str:
    for order, sort in (("in the order given", False), ("sorted", True)):
        for spacing, separators in (("compact", (",", ":")), ("with spaces", (", ", ": "))):
            for escapes, ascii_only in (("", False), (", other scripts as \\u escapes", True)):
                if json.dumps(ARGUMENTS, sort_keys=sort, separators=separators, ensure_ascii=ascii_only) in text:
                    return f"they are JSON {spacing}, keys {order}{escapes}"
    return "they are written in a form of the template's own"
