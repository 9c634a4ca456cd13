"""Everything that is said about a template, or about the difference between two."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from onepolicy.errors import TokenizerError
from onepolicy.judgement.decide import decide, sentence
from onepolicy.records.strict import Strict
from onepolicy.records.verdict import Evidence, Status, Verdict
from onepolicy.tokens.causes import explain
from onepolicy.tokens.changed import changed
from onepolicy.tokens.render import PROBE_DATE, ChatTemplate, Message, Refusal, Rendering, template_of
from onepolicy.tokens.sides import Reader, Side
from onepolicy.tokens.template import ends, history, turns
from onepolicy.tokens.template.probes import PROBES, Book, Probe, RefusedError
from onepolicy.tokens.template.words import note, quoted
from onepolicy.tokens.tokenizer import StoredTokenizer

PROPERTIES: tuple[Callable[[Book], Verdict | None], ...] = (
    turns.writes_messages,
    ends.bos,
    history.prefix_plain,
    history.prefix_thinking_off,
    history.prefix_thinking,
    history.prefix_reasoning_field,
    history.prefix_tools,
    history.prefix_thinking_tools,
    history.outer_whitespace,
    turns.generation_prompt,
    ends.stop_token,
    turns.empty_content,
    turns.system_role,
    turns.default_system,
    history.tool_arguments,
    turns.per_message,
    ends.between_turns,
    ends.raw_text_bos,
    ends.typed_special,
)
"""in the order in which they are told. To add one: a function Book -> Verdict, and a line here"""
SPOKEN = tuple(
    probe
    for probe in PROBES
    if any(message["role"] == "user" for message in probe.messages)
    and not (probe.tools or probe.variables or probe.keep_nulls)
)
"""those that any server can be asked: messages alone"""
_NAMED = 4
"""conversations in a message; the evidence has all"""


class TemplateReport(Strict):
    """The properties of a template, or with `other` where two templates differ."""

    template: str
    """what was opened"""
    template_hash: str
    """first 16 hex digits of the SHA-256 of its source"""
    other: str = ""
    other_hash: str = ""
    variables: tuple[str, ...] = ()
    """names that the template reads and does not set: its switches are among them"""
    status: Status
    sentence: str
    verdicts: tuple[Verdict, ...]

    @property
    def exit_status(self) -> int:
        """What the command ends with."""
        return self.status.exit_status


class TemplateServer(Protocol):
    """A server that renders conversations itself."""

    origin: str

    def conversation(self, messages: Sequence[Message]) -> list[int] | str:
        """Ids of a conversation, ready for the answer; or why the server refuses it."""

    def spelled(self, ids: tuple[int, ...]) -> tuple[str, ...]:
        """The text of each id."""


def examine(book: Book) -> TemplateReport:
    """Every property of one template; the first alone if it does not write conversations."""
    first = _told(PROPERTIES[0], book)
    if first is not None and first.status is Status.FAIL:
        return _report(book, (first,))
    found = (first, *(_told(judge, book) for judge in PROPERTIES[1:]))
    return _report(book, tuple(verdict for verdict in found if verdict is not None))


def compare(book: Book, other: Book) -> TemplateReport:
    """Where two templates write the same conversation in two ways."""
    report = _report(book, (_same_rendering(book, other), _same_variables(book, other)))
    return report.model_copy(update={"other": other.template.origin, "other_hash": _hash(other.template)})


def compare_with_server(book: Book, server: TemplateServer) -> TemplateReport:
    """Where a server writes a conversation, ready for the answer, as other ids than a template does here.

    Raises: EngineError if the server fails.
    """
    report = _report(book, (_same(tuple(_other_ids(book, probe, server) for probe in SPOKEN)),))
    return report.model_copy(update={"other": server.origin})


def book_of(stored: StoredTokenizer, *, template: ChatTemplate | None = None, now: datetime = PROBE_DATE) -> Book:
    """A tokenizer's template, or another one with this tokenizer, ready to be examined."""
    chosen = template_of(stored, tools=True) if template is None else template
    return Book(chosen, reader=Reader(stored.tokenizer()), stop_ids=stop_ids_of(stored.origin), now=now)


def stop_ids_of(origin: str) -> frozenset[int] | None:
    """The ids at which `generation_config.json` beside a tokenizer ends generation; None without such a file."""
    path = Path(origin).expanduser()
    file = (path if path.is_dir() else path.parent) / "generation_config.json"
    if not file.is_file():
        return None
    try:
        ids = json.loads(file.read_bytes()).get("eos_token_id")
    except (ValueError, AttributeError) as error:
        raise TokenizerError(f"{file} is no JSON object ({error}). Save it again, or remove it.") from error
    return frozenset(ids if isinstance(ids, list) else [] if ids is None else [ids])


def _told(judge: Callable[[Book], Verdict | None], book: Book) -> Verdict | None:
    try:
        return judge(book)
    except RefusedError as refused:
        return note(judge.__name__, f"{refused}.")


def _report(book: Book, verdicts: tuple[Verdict, ...]) -> TemplateReport:
    return TemplateReport(
        template=book.template.origin,
        template_hash=_hash(book.template),
        variables=tuple(sorted(book.variables)),
        status=decide(verdicts),
        sentence=_sentence(verdicts),
        verdicts=verdicts,
    )


def _sentence(verdicts: tuple[Verdict, ...]) -> str:
    if decide(verdicts) is not Status.PASS:
        return sentence(verdicts)
    deciding = sum(verdict.required for verdict in verdicts)
    notes = sum(verdict.status is not Status.PASS for verdict in verdicts)
    return f"Pass: {deciding} of {deciding} properties that change training hold; {notes} notes."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """One conversation, as far as both write it."""

    name: str
    cuts: int = 0
    """that both wrote"""
    refused: int = 0
    """cuts that neither writes"""
    difference: Evidence | None = None
    """at the shortest cut that differs"""


def _same_rendering(book: Book, other: Book) -> Verdict:
    return _same(tuple(_in_both(book, other, probe) for probe in PROBES))


def _same(compared: Sequence[_Compared]) -> Verdict:
    differences = [one.difference for one in compared if one.difference is not None]
    if differences:
        return _of_differences(differences, len(compared))
    refused = [one.name for one in compared if one.refused]
    if not any(one.cuts for one in compared):
        return Verdict(
            check="same_rendering",
            status=Status.UNKNOWN,
            message=(
                f"both refuse all {len(compared)} conversations, so nothing was compared. Take templates that write "
                "plain turns."
            ),
            evidence=tuple(Evidence(rollout_id=name, note="both refuse it") for name in refused),
        )
    written = sum(bool(one.cuts) for one in compared)
    told = f"; both refuse, from some message on, {_named(refused)}" if refused else ""
    return Verdict(
        check="same_rendering",
        status=Status.PASS,
        message=f"both write {written} of {len(compared)} conversations, and alike{told}.",
        evidence=tuple(Evidence(rollout_id=name, note="both refuse it, or its end") for name in refused),
    )


def _named(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _of_differences(differences: Sequence[Evidence], of: int) -> Verdict:
    return Verdict(
        check="same_rendering",
        status=Status.FAIL,
        quantity="conversations_that_differ",
        value=len(differences),
        limit=0,
        unit="conversations",
        message=(
            f"{len(differences)} of {of} conversations are written otherwise: "
            f"{_named([evidence.rollout_id for evidence in differences])}. "
            f"First: {differences[0].note}. Give both engines one template, or render once and send ids."
        ),
        evidence=tuple(differences),
    )


def _in_both(book: Book, other: Book, probe: Probe) -> _Compared:
    """What two templates make of a probe, up to the shortest cut that differs."""
    cuts = refused = 0
    for count in range(1, len(probe.messages) + 1):
        for prompt in (False, True):
            a, b = book.page(probe, count, prompt=prompt), other.page(probe, count, prompt=prompt)
            if isinstance(a, Refusal) and isinstance(b, Refusal):
                refused += 1
                continue
            cuts += 1
            difference = _difference(book, probe, a, b)
            if difference is not None:
                return _Compared(name=probe.name, cuts=cuts, refused=refused, difference=difference)
    return _Compared(name=probe.name, cuts=cuts, refused=refused)


def _difference(book: Book, probe: Probe, a: Rendering | Refusal, b: Rendering | Refusal) -> Evidence | None:
    if isinstance(a, Refusal):
        return Evidence(rollout_id=probe.name, note=f"the first refuses it ({a})")
    if isinstance(b, Refusal):
        return Evidence(rollout_id=probe.name, note=f"the second refuses it ({b})")
    return None if a.text == b.text else _evidence(book, probe, (a.text, b.text))


def _evidence(book: Book, probe: Probe, texts: tuple[str, str]) -> Evidence:
    change = changed(*texts)
    found = explain(Side(name="first", text=texts[0], reader=book.reader), Side(name="second", text=texts[1]))
    cause = found.cause if found else "the same ids"
    if change.is_reasoning:
        cause = "thinking removed"
    return Evidence(
        rollout_id=probe.name,
        position=change.at,
        note=f"the first has {quoted(change.removed)}, the second {quoted(change.added)} ({cause})",
    )


def _other_ids(book: Book, probe: Probe, server: TemplateServer) -> _Compared:
    """The same against a server. After an assistant's message servers go on with that one, so these cuts are left."""
    cuts = refused = 0
    for count in range(1, len(probe.messages) + 1):
        if probe.messages[count - 1]["role"] != "user":
            continue
        page, theirs = book.page(probe, count, prompt=True), server.conversation(probe.messages[:count])
        if isinstance(page, Refusal) and isinstance(theirs, str):
            refused += 1
            continue
        cuts += 1
        difference = _difference_of_ids(book, probe, page, theirs, server)
        if difference is not None:
            return _Compared(name=probe.name, cuts=cuts, refused=refused, difference=difference)
    return _Compared(name=probe.name, cuts=cuts, refused=refused)


def _difference_of_ids(
    book: Book, probe: Probe, page: Rendering | Refusal, theirs: list[int] | str, server: TemplateServer
) -> Evidence | None:
    if isinstance(page, Refusal):
        return Evidence(rollout_id=probe.name, note=f"the first refuses it ({page})")
    if isinstance(theirs, str):
        return Evidence(rollout_id=probe.name, note=f"the second refuses it ({theirs})")
    first = Side(name="first", ids=book.reader.encode(page.text), reader=book.reader)
    found = explain(first, Side(name="second", ids=theirs, reader=book.reader))
    if found is None:
        return None
    a = quoted("".join(piece.text for piece in found.first))
    b = quoted("".join(server.spelled(tuple(theirs[found.position :][: len(found.second)]))))
    note = f"from token {found.position} the first has {a}, the second {b} ({found.cause})"
    return Evidence(rollout_id=probe.name, position=found.position, note=note)


def _same_variables(book: Book, other: Book) -> Verdict:
    only = [sorted(a.variables - b.variables) for a, b in ((book, other), (other, book))]
    if not any(only):
        return Verdict(check="same_variables", status=Status.PASS, required=False, message="both read the same names.")
    told = "; ".join(
        f"only the {which} reads {', '.join(names)}"
        for which, names in zip(("first", "second"), only, strict=True)
        if names
    )
    return note("same_variables", f"{told}. A switch that one side does not know changes nothing there.")


def _hash(template: ChatTemplate) -> str:
    return hashlib.sha256(template.source.encode(errors="replace")).hexdigest()[:16]
