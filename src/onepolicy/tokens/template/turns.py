"""What a template adds around messages, and what it makes of messages that lack something."""

from __future__ import annotations

import re

from onepolicy.records.verdict import Evidence, Status, Verdict
from onepolicy.tokens.changed import changed, changed_inside
from onepolicy.tokens.render import Refusal
from onepolicy.tokens.sides import common_prefix
from onepolicy.tokens.template.probes import (
    ABSENT,
    ALONE,
    ANSWER,
    EMPTY,
    MARKER,
    NULL,
    PLAIN,
    QUESTION,
    RESULTS,
    SYSTEM,
    TYPED,
    Book,
    Probe,
)
from onepolicy.tokens.template.words import note, passed, quoted

_OPEN_TAG = re.compile(r"(<(think|thinking|reasoning|thought)>|\[THINK\])\s*$")
_YEAR = re.compile(r"\b(19|20)\d\d\b")


def writes_messages(book: Book) -> Verdict:
    """Whether the content of every message is written as it is; without it no other property means anything."""
    text, typed = book.text(PLAIN), book.text(TYPED)
    at = [text.find(str(message["content"])) for message in PLAIN.messages[:-1]]
    if -1 not in at and at == sorted(at) and MARKER in typed:
        return passed("writes_messages", "the content of every message is written, in order.")
    return Verdict(
        check="writes_messages",
        status=Status.FAIL,
        message=f"plain turns are written as {quoted(text)}: content is missing, changed or out of order, so the model "
        "does not see the conversation. Nothing else was asked.",
    )


def generation_prompt(book: Book) -> Verdict:
    """What is written for the assistant to go on from, and whether it is written only where it is asked for."""
    without, with_prompt = book.text(PLAIN), book.text(PLAIN, prompt=True)
    if not with_prompt.startswith(without):
        return _generation_fault("changes what stands before it, so no completion can be cut off by its length.")
    added = with_prompt[len(without) :]
    finished = book.text(PLAIN, 2)
    if not added:
        header = book.text(PLAIN, 1)
        if finished.startswith(header) and not finished[len(header) :].startswith(ANSWER):
            return note("generation_prompt", "none is written; the model has to write the assistant's header itself.")
        return _generation_fault("is written always, also after a finished conversation or as part of the user's turn.")
    if finished.endswith(added):
        return _generation_fault(
            f"{quoted(added)} also ends a finished conversation: every training row ends with a header and no answer."
        )
    if _OPEN_TAG.search(added):
        return note(
            "generation_prompt",
            f"adds {quoted(added)}, which opens the reasoning: completions hold only the closing tag. A format reward "
            "or a parser that waits for the opening tag finds none; let it start inside the reasoning.",
        )
    return passed("generation_prompt", f"adds {quoted(added)}, and only where it is asked for.")


def per_message(book: Book) -> Verdict:
    """Whether messages rendered one at a time are the conversation."""
    merged = _merged_results(book)
    if merged:
        return note("per_message", merged)
    whole = book.text(PLAIN, 2)
    parts = [_alone(book, probe) for probe in ALONE[:2]]
    refused = next((part for part in parts if isinstance(part, Refusal)), None)
    if refused:
        return note("per_message", f"a message alone is refused ({refused}); render the whole and mask by offsets.")
    joined = "".join(map(str, parts))
    if joined == whole:
        return passed("per_message", "messages rendered one at a time are the conversation.", required=False)
    change = changed(whole, joined)
    return note(
        "per_message",
        f"messages rendered one at a time are not the conversation: at character {change.at} they have "
        f"{quoted(change.added)}, the whole {quoted(change.removed)}. A loss mask that is built message by message "
        "trains other tokens; render the whole and mask by offsets.",
    )


def empty_content(book: Book) -> Verdict:
    """A call whose content is null, absent or empty: three ways to say the same."""
    pages = {probe.name: book.page(probe, 2) for probe in (NULL, ABSENT, EMPTY)}
    texts = {name: page.text for name, page in pages.items() if not isinstance(page, Refusal)}
    refused = {name: page for name, page in pages.items() if isinstance(page, Refusal)}
    if len(refused) == len(pages):
        return note("empty_content", f"refuses tool calls: {next(iter(refused.values()))}.")
    if len(set(texts.values())) > 1:
        (first, a), (second, b) = _two_that_differ(texts)
        change = changed(a, b)
        return Verdict(
            check="empty_content",
            status=Status.FAIL,
            message=(
                f"a call with {second} is written with {quoted(change.added)} where {first} has "
                f"{quoted(change.removed)}: engines hand over one or the other, so the prompt depends on the engine. "
                "Drop entries that are null before you render."
            ),
            evidence=(Evidence(rollout_id=second, position=change.at, note=f"{first} and {second} differ"),),
        )
    if refused:
        name, page = next(iter(refused.items()))
        return note("empty_content", f"refuses a call with {name} ({page}); hand over an empty text instead.")
    return passed("empty_content", "content that is null, absent or empty is written alike.")


def default_system(book: Book) -> Verdict:
    """What stands before the first message though nobody wrote it."""
    injected = injected_system(book)
    date = " It depends on today's date: a prompt rendered on another day is another prompt." if book.uses_date else ""
    if not injected.strip():
        text = f"nothing is written before the first message.{date}"
        return note("default_system", text) if date else passed("default_system", text, required=False)
    year = " It names a date." if _YEAR.search(injected) and not date else ""
    return note(
        "default_system",
        f"{quoted(injected)} is written before a conversation without a system message.{date}{year} An engine with a "
        "template of its own lacks it; write your system message yourself.",
    )


def system_role(book: Book) -> Verdict:
    """Whether a system message is written."""
    if "Be brief." in book.text(SYSTEM, 2):
        return passed("system_role", "a system message is written.", required=False)
    return note("system_role", "a system message is left out without a word; put it into the user's message.")


def injected_system(book: Book) -> str:
    """The text before the first message's header, without BOS."""
    text = book.text(PLAIN, 3)
    head = text[: text.index(QUESTION)].removeprefix(book.bos) if QUESTION in text else ""
    between = text[text.rindex(ANSWER) + len(ANSWER) : text.rindex("And at night?")]
    end = book.text(PLAIN, 2).rpartition(ANSWER)[2]
    if between.startswith(end):
        return head.removesuffix(between.removeprefix(end))
    return head[: len(head) - common_prefix(head[::-1], between[::-1])]


def _merged_results(book: Book) -> str:
    """The words for it if a tool's result is written otherwise after another one; empty if it is not."""
    cuts = [book.page(RESULTS, count) for count in (2, 3, 4)]
    texts = [cut.text for cut in cuts if not isinstance(cut, Refusal)]
    if len(texts) < len(cuts):
        return ""
    call, one, two = texts
    if two.startswith(one):
        alike = not one.startswith(call) or one.removeprefix(call) == two.removeprefix(one)
        how = "" if alike else f"the second adds {quoted(two.removeprefix(one))}, the first {quoted(one[len(call) :])}"
    else:
        change = changed_inside(one, two)
        how = (
            f"with a second one, {quoted(change.removed)} after the first is gone"
            if change.removed
            else (f"a second one stands before {quoted(one[change.at :])}, in the turn of the first")
        )
    return how and (
        f"neighbouring tool results are merged: {how}. Results that are rendered one at a time get turns of their own; "
        "render the whole and mask by offsets."
    )


def _alone(book: Book, probe: Probe) -> str | Refusal:
    page = book.page(probe)
    return page if isinstance(page, Refusal) else page.text


def _two_that_differ(texts: dict[str, str]) -> tuple[tuple[str, str], tuple[str, str]]:
    (first, text), *others = reversed(texts.items())
    return (first, text), next((name, other) for name, other in others if other != text)


def _generation_fault(what: str) -> Verdict:
    return Verdict(
        check="generation_prompt",
        status=Status.FAIL,
        message=f"the generation prompt {what} Ask for it only where the model is to go on.",
    )
