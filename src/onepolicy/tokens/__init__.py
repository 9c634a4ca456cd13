"""Same tokens: what the two sides read from, and write for, the same ids."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onepolicy.tokens.open import open_tokenizer
    from onepolicy.tokens.parts import fingerprint

_WHERE = {"fingerprint": "parts", "open_tokenizer": "open"}

__all__ = ["fingerprint", "open_tokenizer"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'onepolicy.tokens' has no attribute {name!r}")
    return getattr(import_module(f"onepolicy.tokens.{_WHERE[name]}"), name)
