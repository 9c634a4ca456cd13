"""The conversations that a template is asked to write, each cut after every message."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from onepolicy.tokens.render import (
    PROBE_DATE,
    ChatTemplate,
    Conversation,
    Message,
    Refusal,
    Rendering,
    render_all,
)
from onepolicy.tokens.sides import Reader

QUESTION, ANSWER, REASON = "Which colour is the sky?", "Blue, mostly.", "They ask about daylight."
OUTER_SPACE = "  Blue, mostly.\n"
ARGUMENTS = {"town": "Zürich", "days": 2}
ARGUMENTS_TEXT = '{"town":"Zürich",  "days":2}'
"""the same as a model might write them: with a spacing that no serialiser gives"""
MARKER = "\ue000typed\ue001"
"""stands for a special token that a user types; private characters, so that no template knows it"""
TOOLS: tuple[dict[str, Any], ...] = (
    {
        "type": "function",
        "function": {
            "name": "get_forecast",
            "description": "The weather of the next days.",
            "parameters": {
                "type": "object",
                "properties": {
                    "town": {"type": "string", "description": "Name of a town."},
                    "days": {"type": "integer", "description": "How many days."},
                },
                "required": ["town"],
            },
        },
    },
)
TOOL_NAME = "get_forecast"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A conversation of several turns."""

    name: str
    messages: tuple[Message, ...]
    tools: bool = False
    variables: dict[str, Any] = field(default_factory=dict)
    keep_nulls: bool = False

    def cut(self, count: int, *, prompt: bool) -> Conversation:
        """Its first messages; with `prompt`, waiting for the assistant."""
        return Conversation(
            messages=self.messages[:count],
            tools=TOOLS if self.tools else None,
            variables=self.variables,
            generation_prompt=prompt,
            keep_nulls=self.keep_nulls,
        )

    def with_text_arguments(self) -> Probe:
        """The same with every call's arguments as JSON text, as OpenAI's messages have them."""
        return replace(self, messages=tuple(_with_text_arguments(message) for message in self.messages))


def user(text: str = QUESTION) -> Message:
    """A user's message."""
    return {"role": "user", "content": text}


def assistant(text: str = ANSWER, **more: Any) -> Message:
    """An assistant's message."""
    return {"role": "assistant", "content": text, **more}


def call(arguments: object = ARGUMENTS, **more: Any) -> Message:
    """An assistant's message that calls the tool; without content unless given."""
    function = {"name": TOOL_NAME, "arguments": arguments}
    return {"role": "assistant", **more, "tool_calls": [{"type": "function", "id": "call00001", "function": function}]}


def result(text: str = "Sunny, 21 degrees.") -> Message:
    """What the tool answers."""
    return {"role": "tool", "name": TOOL_NAME, "tool_call_id": "call00001", "content": text}


def _thought(text: str = ANSWER) -> Message:
    return assistant(f"<think>\n{REASON}\n</think>\n\n{text}")


def _with_text_arguments(message: Message) -> Message:
    calls = [
        {**one, "function": {**one["function"], "arguments": _as_text(one["function"]["arguments"])}}
        for one in message.get("tool_calls", ())
    ]
    return {**message, "tool_calls": calls} if calls else message


def _as_text(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _with_field(text: str = ANSWER) -> Message:
    return assistant(text, reasoning_content=REASON)


PLAIN = Probe(name="plain turns", messages=(user(), assistant(), user("And at night?"), assistant("Black."), user()))
SYSTEM = Probe(name="a system message", messages=({"role": "system", "content": "Be brief."}, *PLAIN.messages))
THINKING = Probe(
    name="reasoning in the content",
    messages=(user(), _thought(), user("And at night?"), _thought("Black."), user()),
)
REASONING_FIELD = Probe(
    name="reasoning in its own field",
    messages=(user(), _with_field(), user("And at night?"), _with_field("Black."), user()),
)
TOOL_LOOP = Probe(
    name="a tool loop",
    messages=(user(), call(content=""), result(), assistant(), user("And at night?"), assistant("Black."), user()),
    tools=True,
)
THINKING_TOOL_LOOP = Probe(
    name="a tool loop with reasoning",
    messages=(
        user(),
        call(content="", reasoning_content=REASON),
        result(),
        _with_field(),
        user("And at night?"),
        _with_field("Black."),
        user(),
    ),
    tools=True,
)
THINKING_OFF = Probe(
    name="plain turns with thinking off",
    messages=PLAIN.messages,
    variables={"enable_thinking": False, "thinking": False},
)
SPACED = Probe(name="an answer with outer whitespace", messages=(user(), assistant(OUTER_SPACE), user()))
UNSPACED = Probe(name="the same answer without", messages=(user(), assistant(OUTER_SPACE.strip()), user()))
RESULTS = Probe(name="several tool results", messages=(user(), call(content=""), result(), result()), tools=True)
NULL = Probe(
    name="content: null", messages=(user(), call(content=None), result(), assistant()), tools=True, keep_nulls=True
)
ABSENT = Probe(name="no content", messages=(user(), call(), result(), assistant()), tools=True)
EMPTY = Probe(name="empty content", messages=(user(), call(content=""), result(), assistant()), tools=True)
WRITTEN_CALL = Probe(
    name="arguments as text", messages=(user(), call(ARGUMENTS_TEXT, content=""), result()), tools=True
)
TYPED = Probe(name="a user types a special token", messages=(user(f"What is {MARKER} for?"), assistant()))
ALONE = tuple(
    Probe(name=f"{message['role']} alone", messages=(message,)) for message in (user(), assistant(), result())
)
PROBES = (
    PLAIN,
    SYSTEM,
    THINKING,
    REASONING_FIELD,
    TOOL_LOOP,
    THINKING_TOOL_LOOP,
    THINKING_OFF,
    SPACED,
    UNSPACED,
    RESULTS,
    NULL,
    ABSENT,
    EMPTY,
    WRITTEN_CALL,
    TYPED,
    *ALONE,
)
"""to add one: a line here, and a property that reads it"""


Key = tuple[str, int, bool]
"""name of a probe, number of its messages, whether it waits for the assistant"""


class RefusedError(Exception):
    """The template does not write a probe; the property that needs it says so."""

    def __init__(self, probe: Probe, refusal: Refusal) -> None:
        super().__init__(f"refuses {probe.name}: {refusal}")


class Book:
    """Every probe as one template writes it, and the tokenizer that goes with the template."""

    def __init__(
        self,
        template: ChatTemplate,
        *,
        reader: Reader,
        stop_ids: frozenset[int] | None = None,
        now: datetime = PROBE_DATE,
        probes: Sequence[Probe] = PROBES,
    ) -> None:
        """`stop_ids`: what ends generation, where the files say it; None where they do not."""
        self.template, self.reader, self.stop_ids = template, reader, stop_ids
        self._now = now
        self._pages, self.variables = self._rendered(probes)
        self.text_arguments = self._refuses(TOOL_LOOP) and not self._refuses(WRITTEN_CALL)
        """whether the template takes a call's arguments as text alone; then every probe has them so"""
        if self.text_arguments:
            self._pages |= self._rendered([probe.with_text_arguments() for probe in probes if probe.tools])[0]

    def _rendered(self, probes: Sequence[Probe]) -> tuple[dict[Key, Rendering | Refusal], frozenset[str]]:
        cuts = [(p, n, prompt) for p in probes for n in range(1, len(p.messages) + 1) for prompt in (False, True)]
        rendered = render_all(self.template, [p.cut(n, prompt=prompt) for p, n, prompt in cuts], now=self._now)
        keys = ((p.name, n, prompt) for p, n, prompt in cuts)
        return dict(zip(keys, rendered.results, strict=True)), rendered.variables

    def _refuses(self, probe: Probe) -> bool:
        return isinstance(self._pages[probe.name, 2, False], Refusal)

    def page(self, probe: Probe, count: int | None = None, *, prompt: bool = False) -> Rendering | Refusal:
        """The probe's first `count` messages (all if None) as the template writes them, or its refusal."""
        return self._pages[probe.name, len(probe.messages) if count is None else count, prompt]

    def text(self, probe: Probe, count: int | None = None, *, prompt: bool = False) -> str:
        """The same as text. Raises RefusedError if the template refuses."""
        page = self.page(probe, count, prompt=prompt)
        if isinstance(page, Refusal):
            raise RefusedError(probe, page)
        return page.text

    @property
    def uses_date(self) -> bool:
        """Whether any rendering asked for today's date."""
        return any(isinstance(page, Rendering) and page.uses_date for page in self._pages.values())

    def special(self, name: str) -> str:
        """A special token's text by its name in the configuration, empty if it has none."""
        return self.template.special.get(name, "")

    @property
    def bos(self) -> str:
        """The text of BOS. SmolLM2 calls the marker of its roles bos_token; that is none."""
        text = self.special("bos_token")
        return text if self.reader.tokenizer.token_to_id(text) in self.reader.boundaries.bos else ""
