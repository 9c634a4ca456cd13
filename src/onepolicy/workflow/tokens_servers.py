"""The token tools on a live server's own tokenizer and template: `vllm:http://...`, `llamacpp:http://...`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from onepolicy.engines.contract import Sampler
from onepolicy.engines.http import StatusError
from onepolicy.engines.readable import readable
from onepolicy.engines.spec import parse_spec
from onepolicy.errors import EngineError
from onepolicy.integrations import open_sampler
from onepolicy.tokens.compare import (
    Answers,
    Ids,
    LocalAnswers,
    TokenizerComparison,
    compare_answers,
    compare_tokenizers,
    special_tokens,
)
from onepolicy.tokens.open import open_tokenizer
from onepolicy.tokens.parts import parts_of
from onepolicy.tokens.render import Message
from onepolicy.tokens.sides import Reader
from onepolicy.tokens.template.probes import Book
from onepolicy.tokens.template.report import TemplateReport, compare_with_server

if TYPE_CHECKING:
    from tokenizers import Tokenizer

AT_ONCE = 16
"""requests in flight"""
REFUSED = (400, 422)
"""statuses by which a server refuses a text"""
_SERVER = re.compile(r"\w+:https?://")
_REPLACEMENT = "\ufffd"


def names_server(target: str) -> bool:
    """Whether a target is an engine at a URL and no tokenizer that lies here."""
    return _SERVER.match(target) is not None


@contextmanager
def server_tokenizer(target: str) -> Iterator[ServerTokenizer]:
    """The tokenizer of the server that a spec names, until the block ends. Raises: EngineError, UsageError."""
    engine = open_sampler(parse_spec(target))
    server = ServerTokenizer(engine, origin=target)
    try:
        yield server
    finally:
        server.close()
        engine.close()


def compare_targets(a: str, b: str) -> TokenizerComparison:
    """Compare two tokenizers: in full if both lie here, by their answers if one is a server's.

    Raises: TokenizerError, EngineError, UsageError.
    """
    if not (names_server(a) or names_server(b)):
        return compare_tokenizers(open_tokenizer(a), open_tokenizer(b))
    special: dict[str, None] = {}
    with ExitStack() as stack:
        sides = [_answers(target, special, stack) for target in (a, b)]
        return compare_answers(*sides, special=special)


def template_against(book: Book, target: str) -> TemplateReport:
    """Where a server's template gives other ids than one that lies here. Raises: EngineError, UsageError."""
    with server_tokenizer(target) as server:
        return compare_with_server(book, server)


def reader_for(target: str, stack: ExitStack) -> Reader:
    """A tokenizer by name, or a server's until the stack is closed, as the round trip uses it."""
    if names_server(target):
        return Reader(cast("Tokenizer", stack.enter_context(server_tokenizer(target))))
    return Reader(open_tokenizer(target).tokenizer())


def _answers(target: str, special: dict[str, None], stack: ExitStack) -> Answers:
    """A side, and into `special` the special tokens that it names; a server names none."""
    if names_server(target):
        return stack.enter_context(server_tokenizer(target))
    stored = open_tokenizer(target)
    built = stored.tokenizer()
    special |= special_tokens(stored, parts_of(stored, built))
    return LocalAnswers(built, origin=target)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEncoding:
    """What `tokenizers.Encoding` is asked for here."""

    ids: list[int]


class ServerTokenizer:
    """What comparing and the round trip ask of a tokenizer, answered by a server.

    It has the methods of a `tokenizers.Tokenizer` that they use. Which of its tokens are special is not known, nor the
    bytes of a token that forms no character alone, unless the engine knows them.
    """

    truncation = padding = decoder = None

    def __init__(self, engine: Sampler, *, origin: str) -> None:
        self.engine, self.origin = engine, origin
        self._known: dict[int, bytes | None] = {}

    def encoded(self, texts: Sequence[str], *, with_ends: bool) -> list[Ids]:
        """The ids of each text; None of one that the server refuses. Raises: EngineError if it fails."""
        return self._each(lambda text: self._encoded(text, with_ends=with_ends), texts)

    def decoded(self, ids: Sequence[Ids]) -> list[str]:
        """The text of each sequence, special tokens spelled out. Raises: EngineError if it fails."""
        return self._each(self._decoded, ids)

    def spelled(self, ids: Ids) -> tuple[str, ...]:
        """The text of each token."""
        return tuple(self._each(self._piece, ids or ()))

    def encode(self, text: str, add_special_tokens: bool = True) -> ServerEncoding:
        """Ids of a text. Raises: EngineError also for one that the server refuses."""
        with readable(self.origin):
            return ServerEncoding(ids=self.engine.encode(text, add_special_tokens=add_special_tokens).tolist())

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[ServerEncoding]:
        """The same of many."""
        return self._each(lambda text: self.encode(text, add_special_tokens), texts)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Text of ids, special tokens spelled out."""
        assert not skip_special_tokens, "nothing here leaves special tokens out"
        return self._decoded(tuple(ids))

    def decode_batch(self, ids: Sequence[Sequence[int]], skip_special_tokens: bool = False) -> list[str]:
        """The same of many."""
        assert not skip_special_tokens, "nothing here leaves special tokens out"
        return self.decoded([tuple(one) for one in ids])

    def get_added_tokens_decoder(self) -> dict[int, Any]:
        """None are known."""
        return {}

    def bytes_of(self, token_id: int) -> bytes | None:
        """What a token stands for; None if that is not known."""
        if token_id not in self._known:
            self._known[token_id] = self._read(token_id)
        return self._known[token_id]

    def _read(self, token_id: int) -> bytes | None:
        told = getattr(self.engine, "bytes_of", None)
        if told is not None:
            found: bytes | None = told(token_id)
            return found
        try:
            text = self._decoded((token_id,))
        except StatusError as error:
            if error.status in REFUSED:
                return None
            raise
        return None if _REPLACEMENT in text else text.encode()

    def _piece(self, token_id: int) -> str:
        content = self.bytes_of(token_id)
        return f"<{token_id}>" if content is None else content.decode("utf-8", errors="backslashreplace")

    def _encoded(self, text: str, *, with_ends: bool) -> Ids:
        try:
            return tuple(self.encode(text, with_ends).ids)
        except StatusError as error:
            if error.status in REFUSED:
                return None
            raise

    def _decoded(self, ids: Ids) -> str:
        if not ids:
            return ""
        with readable(self.origin):
            text = self.engine.decode(np.asarray(ids, dtype=np.int32))
        if text is None:
            raise EngineError(f"{self.origin} does not decode ids, so its texts cannot be compared.")
        return text

    def _each(self, ask: Any, asked: Sequence[Any]) -> list[Any]:
        return list(self._pool.map(ask, asked))

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(max_workers=AT_ONCE, thread_name_prefix="tokens")

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(cancel_futures=True)

    def conversation(self, messages: Sequence[Message]) -> list[int] | str:
        """Ids of a conversation in the server's template, ready for the answer; or why the server refuses it."""
        try:
            with readable(self.origin):
                return [int(token) for token in self.engine.encode_chat(messages)]
        except StatusError as error:
            if error.status in REFUSED:
                return error.said
            raise
