"""Which ids begin and which end a sequence, as a tokenizer adds them or names them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_BEGIN = re.compile(r"[<\[]\|?(s|bos|sos|startoftext)\|?[>\]]|.*begin.?of.?(text|sentence).*", re.IGNORECASE)
_END = re.compile(
    r"[<\[]\|?(/s|eos|endoftext|im_end|eot_id|eom_id|end|end_of_turn)\|?[>\]]|.*end.?of.?(text|sentence).*",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundaries:
    """Ids that begin and that end a sequence; either may be empty."""

    bos: frozenset[int] = frozenset()
    eos: frozenset[int] = frozenset()
    adds_bos: bool = False
    """whether the tokenizer puts one in front of a text that is encoded with special tokens"""


def boundaries_of(tokenizer: Tokenizer) -> Boundaries:
    """From what the tokenizer adds around a text, and from the names of its special tokens.

    A token that a configuration calls `bos_token` and nothing adds is not one of them: SmolLM2 names the marker of its
    roles so, which rightly stands at the front of every message.
    """
    special = {i: str(token.content) for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    around = tokenizer.encode("a", add_special_tokens=True).ids
    front, back = around[:1], around[-1:]
    adds = bool(front) and front[0] in special
    named_bos = {i for i, text in special.items() if _BEGIN.fullmatch(text)}
    named_eos = {i for i, text in special.items() if _END.fullmatch(text)}
    return Boundaries(
        bos=frozenset(named_bos | (set(front) & special.keys())),
        eos=frozenset(named_eos | (set(back) & special.keys())),
        adds_bos=adds,
    )
