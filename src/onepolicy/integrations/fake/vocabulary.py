"""The fake engine's vocabulary: one id for each byte, and three special tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import numpy as np

from onepolicy.engines.contract import Message
from onepolicy.records.tokens import IntArray

SPECIAL_TOKENS = {"<|bos|>": 256, "<|im_start|>": 257, "<|im_end|>": 258}
BOS, END = SPECIAL_TOKENS["<|bos|>"], SPECIAL_TOKENS["<|im_end|>"]
VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)

_BYTES_OF = [bytes([byte]) for byte in range(256)] + [token.encode() for token in SPECIAL_TOKENS]
_SPECIAL = re.compile(f"({'|'.join(map(re.escape, SPECIAL_TOKENS))})")


def encode(text: str, *, add_special_tokens: bool) -> IntArray:
    """Ids of a text: its UTF-8 bytes, with special tokens recognised where they are spelled out.

    `add_special_tokens` puts <|bos|> in front.
    """
    ids = [BOS] if add_special_tokens else []
    for part in _SPECIAL.split(text):
        ids.extend([SPECIAL_TOKENS[part]] if part in SPECIAL_TOKENS else part.encode())
    return np.array(ids, dtype=np.int32)


def decode(token_ids: IntArray) -> str:
    """Text of the ids, special tokens spelled out; bytes that are no UTF-8 become U+FFFD."""
    return b"".join(_BYTES_OF[token] for token in token_ids.tolist()).decode("utf-8", "replace")


def render_chat(messages: Sequence[Message]) -> str:
    """The conversation as text, ready for the assistant's answer."""
    turns = [f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in messages]
    return "".join(turns) + "<|im_start|>assistant\n"


def tokenizer_json() -> bytes:
    """A `tokenizer.json` whose ids and texts are those of `encode` and `decode`."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(token, token_id) for token, token_id in SPECIAL_TOKENS.items()],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": _bos_in_front(),
        "decoder": byte_level,
        "model": _bpe_without_merges(),
    }
    return json.dumps(content, ensure_ascii=False, indent=1).encode()


def _added_token(token: str, token_id: int) -> dict[str, object]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": token_id, "content": token, **flags}


def _bos_in_front() -> dict[str, object]:
    bos = {"SpecialToken": {"id": "<|bos|>", "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    special = {"<|bos|>": {"id": "<|bos|>", "ids": [BOS], "tokens": ["<|bos|>"]}}
    return {
        "type": "TemplateProcessing",
        "single": [bos, first],
        "pair": [bos, first, second],
        "special_tokens": special,
    }


def _bpe_without_merges() -> dict[str, object]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": {character: byte for byte, character in enumerate(_byte_level_alphabet())},
        "merges": [],
    }


def _byte_level_alphabet() -> list[str]:
    """The character that stands for each byte in GPT-2's byte-level BPE."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return [chr(byte) if byte in visible else chr(256 + hidden.index(byte)) for byte in range(256)]
