"""Text to ids and back with a model's own tokenizer."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from onepolicy.engines.contract import Message
from onepolicy.integrations.transformers.quiet import quiet_transformers
from onepolicy.records.tokens import IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TextTokenizer:
    """A Transformers tokenizer with every choice that changes ids or text made here."""

    plain: PreTrainedTokenizerBase
    folder: Path

    def file(self) -> bytes | None:
        """The content of `tokenizer.json`; None for a tokenizer that is not a fast one."""
        stored = self.folder / "tokenizer.json"
        if stored.is_file():
            return stored.read_bytes()
        backend = getattr(self.plain, "backend_tokenizer", None)
        return None if backend is None else str(backend.to_str()).encode()

    def hash(self) -> str:
        """The first 16 hex digits of the SHA-256 of `file()`; empty if there is none."""
        content = self.file()
        return "" if content is None else hashlib.sha256(content).hexdigest()[:16]

    def decode(self, token_ids: IntArray) -> str:
        """Text of the ids, special tokens spelled out, spaces as they are."""
        return str(self.plain.decode(token_ids.tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def encode(self, text: str, *, add_special_tokens: bool) -> IntArray:
        """Ids of a text."""
        with quiet_transformers():
            return _ids(self.plain.encode(text, add_special_tokens=add_special_tokens))

    def encode_chat(self, messages: Sequence[Message]) -> IntArray:
        """Ids of a conversation in the model's template, ready for the answer.

        A model without a template gets the contents of the messages, in order, joined by one newline, and the
        special tokens that its tokenizer adds to any text (a BOS, where it has one). Roles are not written.
        """
        if not self.plain.chat_template:
            return self.encode("\n".join(message["content"] for message in messages), add_special_tokens=True)
        conversation = [dict(message) for message in messages]
        with quiet_transformers():
            return _ids(
                self.plain.apply_chat_template(
                    conversation, add_generation_prompt=True, tokenize=True, return_dict=False
                )
            )


def _ids(ids: Any) -> IntArray:
    return np.asarray(ids, dtype=np.int32)
