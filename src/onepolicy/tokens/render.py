"""Conversations as a chat template writes them, exactly as Transformers would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from onepolicy.errors import TemplateError, UsageError
from onepolicy.tokens.rendering import RenderingProcess, StoppedError
from onepolicy.tokens.tokenizer import StoredTokenizer

Message = Mapping[str, Any]
PROBE_DATE = datetime(2024, 7, 26, 12, 0, 0)
"""what `strftime_now` says where no date is given; a fixed one, so that a rendering does not change overnight"""
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
"""names of a message's reasoning; Transformers copies whichever is there to the first two"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplate:
    """The Jinja source of a template and the special tokens that it may write."""

    source: str
    special: Mapping[str, str] = field(default_factory=dict)
    """bos_token, eos_token ... -> text"""
    origin: str = "the template"
    """named in messages"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What a template is given."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None = None
    """JSON schemas"""
    documents: Sequence[Mapping[str, Any]] | None = None
    generation_prompt: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)
    """what else the template reads, such as enable_thinking"""
    keep_nulls: bool = False
    """give the template `content: null` as it is; Transformers 5 leaves such entries out, other engines do not"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """What the template wrote."""

    text: str
    assistant: tuple[tuple[int, int], ...] | None
    """start and end of each `{% generation %}` block in the text; None if the template moves one about"""
    uses_date: bool
    """whether it asked for today's date"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The template raised an error for this conversation."""

    message: str
    kind: str
    """TemplateError is the template's own `raise_exception`"""
    line: int | None

    def __str__(self) -> str:
        where = f" (line {self.line})" if self.line else ""
        return f"{self.message.strip() or self.kind}{where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a template may use; it is a stranger's program."""

    cpu_seconds: int = 10
    wall_seconds: float = 60.0
    memory: int = 1 << 30
    """bytes of the rendering process"""
    characters: int = 1 << 24
    """written over all conversations of one call"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """All renderings of one call, in the order of the conversations."""

    results: tuple[Rendering | Refusal, ...]
    variables: frozenset[str]
    """names that the template reads and does not set itself"""


def template_of(stored: StoredTokenizer, *, name: str = "", tools: bool = False) -> ChatTemplate:
    """A tokenizer's template: the named one, else `tool_use` for a conversation with tools, else `default`.

    Raises: UsageError if it has none, or none of that name.
    """
    known = stored.templates
    if not known:
        raise UsageError(f"{stored.origin} has no chat template. Give one as a .jinja file, with --tokenizer.")
    wanted = name or ("tool_use" if tools and "tool_use" in known else "default")
    if wanted not in known:
        raise UsageError(f"{stored.origin} has no chat template {wanted!r}. It has: {', '.join(sorted(known))}.")
    return ChatTemplate(source=known[wanted], special=stored.special, origin=stored.origin)


def render(
    template: ChatTemplate,
    conversation: Conversation,
    *,
    now: datetime = PROBE_DATE,
    budget: Budget = Budget(),
    process: RenderingProcess | None = None,
) -> Rendering:
    """One conversation. Raises TemplateError also if the template refuses it."""
    result = render_all(template, [conversation], now=now, budget=budget, process=process).results[0]
    if isinstance(result, Refusal):
        raise TemplateError(f"{template.origin} refuses the conversation: {result}. Change what it names.")
    return result


def render_all(
    template: ChatTemplate,
    conversations: Sequence[Conversation],
    *,
    now: datetime = PROBE_DATE,
    budget: Budget = Budget(),
    process: RenderingProcess | None = None,
) -> Rendered:
    """Every conversation, in one process of its own that is bounded in time, memory and output.

    process: asked instead of one that is started for this call; worth it for many calls, and bounds each likewise.
    Raises: TemplateError if the source cannot be read as a template, or a rendering does not end within the budget.
    """
    request = {
        "source": template.source,
        "now": now.isoformat(),
        "conversations": [_variables(template, conversation) for conversation in conversations],
        "cpu_seconds": budget.cpu_seconds,
        "memory": budget.memory,
        "characters": budget.characters,
    }
    found = _ask(template, request, budget, process)
    if "syntax" in found:
        error = found["syntax"]
        raise TemplateError(
            f"{template.origin}: line {error['line']} is not valid Jinja: {error['message']} Mend that line; an engine "
            "that loads this template fails in the same place."
        )
    if "forbidden" in found:
        raise TemplateError(
            f"{template.origin}: {found['forbidden']}. A chat template only reads the conversation; do not load this "
            "one anywhere before you know what it is for."
        )
    results = [found] if "limit" in found else found["rendered"]
    return Rendered(
        results=tuple(_result(template, budget, result) for result in results),
        variables=frozenset(found.get("variables", ())),
    )


def plain_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as Transformers 5 hands them to a template: without null entries, reasoning under both usual names."""
    plain = []
    for message in messages:
        kept = {key: value for key, value in message.items() if value is not None}
        reasoning = next((kept[name] for name in REASONING_FIELDS if name in kept), None)
        plain.append(kept if reasoning is None else {"thinking": reasoning, **kept, "reasoning_content": reasoning})
    return plain


def with_prompt(conversation: Conversation) -> Conversation:
    """The same, ready for the assistant's answer."""
    return replace(conversation, generation_prompt=True)


def _variables(template: ChatTemplate, conversation: Conversation) -> dict[str, Any]:
    if not conversation.messages:
        raise UsageError("a conversation without messages cannot be rendered. Give at least one message.")
    messages = conversation.messages if conversation.keep_nulls else plain_messages(conversation.messages)
    return {
        **template.special,
        **conversation.variables,
        "messages": [dict(message) for message in messages],
        "tools": conversation.tools,
        "documents": conversation.documents,
        "add_generation_prompt": conversation.generation_prompt,
    }


def _ask(
    template: ChatTemplate, request: dict[str, Any], budget: Budget, process: RenderingProcess | None
) -> dict[str, Any]:
    with nullcontext(process) if process else RenderingProcess() as asked:
        try:
            return asked.ask(request, cpu_seconds=budget.cpu_seconds, wall_seconds=budget.wall_seconds)
        except StoppedError as error:
            raise _unbounded(template, str(error)) from error


def _result(template: ChatTemplate, budget: Budget, result: dict[str, Any]) -> Rendering | Refusal:
    if "limit" in result:
        said = {
            "TooLongError": f"writes more than {budget.characters:,} characters",
            "MemoryError": f"needs more than {budget.memory >> 20} MiB",
            "RecursionError": "calls itself without end",
        }
        raise _unbounded(template, said[result["limit"]])
    if "refusal" in result:
        return Refusal(**result["refusal"])
    spans = result["spans"]
    return Rendering(
        text=result["text"],
        assistant=None if spans is None else tuple((start, end) for start, end in spans),
        uses_date=result["date"],
    )


def _unbounded(template: ChatTemplate, what: str) -> TemplateError:
    return TemplateError(
        f"{template.origin}: rendering was stopped: the template {what}. Look for a loop, a repetition or a macro "
        "without an end in it, and do not load it elsewhere."
    )
