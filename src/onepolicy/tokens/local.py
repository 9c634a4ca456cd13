"""A tokenizer that lies here, for a server that encodes nothing itself: texts and conversations to ids, and back."""

from __future__ import annotations

import json
import weakref
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from onepolicy.errors import EngineError, OnePolicyError
from onepolicy.records.tokens import IntArray
from onepolicy.tokens.open import open_tokenizer
from onepolicy.tokens.render import Conversation, render, template_of
from onepolicy.tokens.rendering import RenderingProcess

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class LocalTokenizer:
    """What an engine needs of a tokenizer. It is taken to be the server's; whose ids they are is checked elsewhere."""

    def __init__(self, target: str) -> None:
        self._stored = open_tokenizer(target)
        self._rendering = RenderingProcess()
        weakref.finalize(self, self._rendering.close)  # at the latest when Python ends

    def encode_chat(self, messages: Sequence[Mapping[str, str]], *, generation_prompt: bool = True) -> IntArray:
        """Ids of a conversation in the tokenizer's template, ready for the answer; else as it stands."""
        conversation = Conversation(messages=messages, generation_prompt=generation_prompt)
        template = template_of(self._stored)
        text = render(template, conversation, now=datetime.now(), process=self._rendering).text
        return self.encode(text, add_special_tokens=False)

    def encode(self, text: str, *, add_special_tokens: bool) -> IntArray:
        """Ids of a text."""
        return np.asarray(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids, dtype=np.int32)

    def decode(self, token_ids: IntArray) -> str:
        """Text of the ids, special tokens spelled out."""
        return str(self._tokenizer.decode(token_ids.tolist(), skip_special_tokens=False))

    def file(self) -> bytes:
        """The content of its `tokenizer.json`."""
        return json.dumps(self._stored.pipeline, ensure_ascii=False).encode()

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return self._stored.tokenizer()


def local_tokenizer(option: str, *, folder: str = "") -> LocalTokenizer | None:
    """The tokenizer of an option, else of the folder that a server names if it can be read here, else None.

    Raises: TokenizerError if the option names none.
    """
    if option:
        return LocalTokenizer(option)
    try:
        return LocalTokenizer(folder) if folder else None
    except OnePolicyError:
        return None


def needed(tokenizer: LocalTokenizer | None, *, server: str, what: str) -> LocalTokenizer:
    """The tokenizer. Raises: EngineError that says how to give one if there is none."""
    if tokenizer is None:
        raise EngineError(
            f"{server} {what}, and no tokenizer was given. Name its folder, tokenizer.json or GGUF file with "
            "?tokenizer=PATH."
        )
    return tokenizer
