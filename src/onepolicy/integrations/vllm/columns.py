"""The answer to a scored prompt as columns: two dicts for each token cost a client more than all else it does.

`[null,{"17":{"logprob":-0.5,"rank":1,"decoded_token":"x"}},...]` is how vLLM lists a prompt of which no other tokens
were asked for. Without texts and names it is one flat list of numbers. Only an answer that is this and nothing else is
read so; any other goes the common way.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
from pydantic_core import from_json

from onepolicy.engines.columns import column_of
from onepolicy.records.tokens import Float32, Float64, IntArray, StateArray

_LISTED = re.compile(rb'"prompt_logprobs": ?\[null, ?\{')
# A quote inside a string is written \", so nothing inside one can look like these.
_TEXTS = (
    (re.compile(rb',"decoded_token":"[^"\\]*+(?:\\.[^"\\]*+)*+"\}\}(?:,\{)?'), b'"":{"logprob":,"rank":'),
    (re.compile(rb', "decoded_token": "[^"\\]*+(?:\\.[^"\\]*+)*+"\}\}(?:, \{)?'), b'"": {"logprob": , "rank": '),
)
"""the end of an entry, from its text to the next entry, as vLLM writes it and as Python does; and what is left of an
entry without it, and without its numbers"""
_NUMBER = b"0123456789+-.eE"
_LARGEST = np.iinfo(np.int32).max
_SEPARATED = bytes.maketrans(b"{", b",")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OwnTokens:
    """What is listed for the T tokens of a prompt, of which the first has no logprob."""

    ids: IntArray
    """[T] -1 for the first"""
    logprobs: Float64
    """[T] as they came, sentinels included; NaN for the first"""
    ranks: npt.NDArray[np.int64]
    """[T] 1 is the most likely token, 0 stands for the first"""

    def __len__(self) -> int:
        return len(self.logprobs)

    def column(self, token_ids: IntArray) -> tuple[Float32, StateArray]:
        """[T] logprobs and states; the first token, and one that another is listed for, are ABSENT."""
        return column_of(self.logprobs, absent=self.ids != token_ids)

    @property
    def top1(self) -> IntArray:
        """[T] the token itself where it is the most likely one, else -1."""
        return np.where(self.ranks == 1, self.ids, np.int32(-1))


def parsed(text: bytes) -> Any:
    """The JSON value of a text, with `OwnTokens` in place of a choice's `prompt_logprobs`. Raises: ValueError."""
    listed = _LISTED.search(text)
    if listed is not None:
        pattern, left = _TEXTS[text[listed.end() - 2 : listed.end() - 1] == b" "]
        *entries, after = pattern.split(text[listed.end() :])
        own = _own_tokens(entries, left)
        answer = None if own is None else _value(text[: listed.end() - 1].rstrip() + b"0" + after)
        match answer:
            case {"choices": [{"prompt_logprobs": [None, 0]} as choice]}:
                choice["prompt_logprobs"] = own
                return answer
    return from_json(text)


def _own_tokens(entries: list[bytes], left: bytes) -> OwnTokens | None:
    """Columns of the entries, the texts of which are gone; None if one of them has another form."""
    joined = b",".join([b"", *entries])
    if joined.translate(None, _NUMBER) != (b"," + left) * len(entries):
        return None
    # the one brace of an entry becomes the comma before its logprob
    numbers = _value(b"[-1,0,0%s]" % joined.translate(_SEPARATED, b'":logprbank'))
    if numbers is None or len(numbers) != 3 * (len(entries) + 1):
        return None
    ids, ranks = np.array(numbers[::3]), np.array(numbers[2::3])
    if not ids.dtype == ranks.dtype == np.int64:
        return None
    if ids.max() > _LARGEST:
        raise OverflowError(f"{ids.max()} stands where the id of a token belongs")
    logprobs = np.array(numbers[1::3], dtype=np.float64)
    logprobs[0] = np.nan
    return OwnTokens(ids=ids.astype(np.int32), logprobs=logprobs, ranks=ranks)


def _value(text: bytes) -> Any:
    """The JSON value of a text; None if it is none."""
    try:
        return orjson.loads(text)
    except ValueError:
        return None
