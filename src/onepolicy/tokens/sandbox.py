"""The process that renders chat templates: `python -m onepolicy.tokens.sandbox`, JSON lines in, JSON lines out.

A template is a program of a stranger. Each request is answered by a fork of this process that has no files, a bounded
memory and a bounded time of its own and ends with it, so what a template does to it does not matter. This process only
passes the answer on; `onepolicy.tokens.rendering` starts it, and ends both.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import traceback
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

Answer = dict[str, Any]


class TooLongError(Exception):
    """The template wrote more than it may."""


class Page:
    """What one rendering wrote so far."""

    def __init__(self) -> None:
        self.blocks: list[str] = []
        self.length = 0
        self.spans: list[tuple[int, str]] = []
        """start and text of each generation block"""
        self.asked_for_date = False

    def write(self, blocks: Iterable[str], *, at_most: int) -> None:
        """Take the blocks of a template as they come."""
        for block in blocks:
            self.blocks.append(block)
            self.length += len(block)
            if self.length > at_most:
                raise TooLongError

    def answer(self) -> Answer:
        """The text, and where the generation blocks lie in it; None for these if a macro moved one elsewhere."""
        text = "".join(self.blocks)
        placed = all(text.startswith(body, start) for start, body in self.spans)
        spans = [(start, start + len(body)) for start, body in self.spans] if placed else None
        return {"text": text, "spans": spans, "date": self.asked_for_date}


class PlainDict:
    """`dict` of a template: it can be called, and gives nothing of Python away."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        """As of Python's dict."""
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """As of Python's dict."""
        return dict.fromkeys(*args)


class PlainNamespace(Namespace):
    """`namespace` of a template, without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _refuse_underscore(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscore(name)
        Namespace.__setitem__(self, name, value)


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with what Transformers adds to it (`utils/chat_template_utils.py` there, release 5.24)."""

    def __init__(self, now: datetime) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols])
        self.now, self.page = now, Page()
        self.filters["tojson"] = _to_json
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": self._strftime_now,
            "dict": PlainDict(),
            "namespace": PlainNamespace,
        }

    def _strftime_now(self, format: str) -> str:  # noqa: A002 - the name that templates use
        self.page.asked_for_date = True
        return self.now.strftime(format)


class GenerationBlock(Extension):
    """`{% generation %}` ... `{% endgeneration %}`: what the assistant wrote."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        """A call of `_write` with the block's body."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_write"), [], [], body).set_lineno(line)

    def _write(self, caller: Callable[[], str]) -> str:
        assert isinstance(self.environment, Sandbox)
        page, body = self.environment.page, caller()
        page.spans.append((page.length, body))
        return body


def answer(request: dict[str, Any]) -> Answer:
    """Render every conversation of a request with its template."""
    sandbox = Sandbox(datetime.fromisoformat(request["now"]))
    try:
        tree = sandbox.parse(request["source"])
        template = sandbox.from_string(tree)
    except jinja2.TemplateSyntaxError as error:
        return {"syntax": {"message": error.message or "", "line": error.lineno}}
    reading = next(tree.find_all((nodes.Include, nodes.Extends, nodes.Import, nodes.FromImport)), None)
    if reading is not None:
        return {"forbidden": f"line {reading.lineno} reads another file"}
    left = request["characters"]
    rendered = []
    for conversation in request["conversations"]:
        rendered.append(_render(sandbox, template, conversation, left))
        if "forbidden" in rendered[-1]:
            return rendered[-1]
        left -= len(rendered[-1].get("text", ""))
    return {"rendered": rendered, "variables": sorted(_variables(tree))}


def _variables(tree: nodes.Template) -> set[str]:
    """Names that are read and not set, or asked whether they are defined before a default is set."""
    stored = {name.name for name in tree.find_all(nodes.Name) if name.ctx == "store"}
    asked = {test.node.name for test in tree.find_all(nodes.Test) if isinstance(test.node, nodes.Name)}
    return {name for name in meta.find_undeclared_variables(tree) if name not in stored or name in asked}


def _render(sandbox: Sandbox, template: jinja2.Template, conversation: dict[str, Any], at_most: int) -> Answer:
    page = sandbox.page = Page()
    try:
        page.write(template.generate(**conversation), at_most=at_most)
    except (TooLongError, MemoryError, RecursionError) as error:
        return {"limit": type(error).__name__}
    except SecurityError as error:
        return {"forbidden": f"line {_line(error)}: {error}"}
    except Exception as error:  # whatever a template can raise
        return {"refusal": {"message": str(error), "kind": type(error).__name__, "line": _line(error)}}
    return page.answer()


def _line(error: Exception) -> int | None:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
    return lines[-1] if lines else None


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _refuse_underscore(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a template may not keep {name!r} in a namespace.")


def _bound(cpu_seconds: int, memory: int) -> None:
    """Bound this process, where the system can."""
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def main() -> None:
    """Answer each request on stdin with a line on stdout, until stdin ends."""
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(json.dumps(_forked(line)).encode() + b"\n")
        sys.stdout.buffer.flush()


def _forked(line: bytes) -> dict[str, Any]:
    """Exit status of a process that answers the request, and what it wrote: the answer, or why there is none."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        os._exit(_answered(line))
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        written = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return {"status": status, "written": written.decode(errors="replace")}


def _answered(line: bytes) -> int:
    """Write the answer to one request; the exit status."""
    try:
        request = json.loads(line)
        _bound(request["cpu_seconds"], request["memory"])
        try:
            found = answer(request)
        except (MemoryError, RecursionError) as error:
            found = {"limit": type(error).__name__}
        sys.stdout.write(json.dumps(found))
        sys.stdout.flush()
    except BaseException:  # a fork must never go on as its parent would
        traceback.print_exc()
        sys.stderr.flush()
        return 1
    return 0


if __name__ == "__main__":
    main()
