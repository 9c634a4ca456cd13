"""Fields of one JSON row as arrays: what is none of what belongs there is refused, with the field and the numbers.

A list of JSON is checked by packing it, which is faster than to look at each entry; only a list that does not pack, or
that may hold a `true` (an int to Python), is looked at entry by entry.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from onepolicy.dumps.contract import Column, Refusal
from onepolicy.records.tokens import (
    BoolArray,
    Float32,
    Float64,
    FloatArray,
    IntArray,
    StateArray,
    TokenState,
    states_of,
)

T = TypeVar("T")
LARGEST_ID = 2**31 - 1
_SHOWN = 40


class FieldError(Exception):
    """A field of a row holds what cannot stand there, or does not fit another one; `refusing` makes a Refusal of it."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}")
        self.field = field
        self.why = why


def refusing(where: str, build: Callable[[], T]) -> T | Refusal:
    """What `build` returns, or the refusal that its FieldError is."""
    try:
        return build()
    except FieldError as error:
        return Refusal(where=where, field=error.field, why=error.why)


def token_ids(field: str, given: Any) -> IntArray:
    """[T] int32. Raises: FieldError if it is no list of whole numbers from 0 to 2^31 - 1."""
    entries = _list(field, given, "token ids")
    try:
        ids = np.frombuffer(struct.pack(f"{len(entries)}i", *entries), dtype=np.int32)
    except struct.error:
        raise FieldError(field, _odd(entries, {int}, "a token id (0 to 2^31 - 1)")) from None
    unsure = (ids <= 1).nonzero()[0]  # a false or a true is one of these
    if not len(unsure):
        return ids
    if not set(map(type, entries[int(unsure[0]) : int(unsure[-1]) + 1])) <= {int}:
        raise FieldError(field, _odd(entries, {int}, "a token id"))
    if np.count_nonzero(ids < 0):
        at = int(np.argmax(ids < 0))
        raise FieldError(field, f"entry {at} is {int(ids[at])}; a token id is not negative. Write no padding into it")
    return ids


def numbers(field: str, given: Any) -> tuple[Float64, BoolArray | None]:
    """([N] float64 with NaN for null, [N] which are null). The second is None if none is.

    Raises: FieldError if it is no list of numbers and nulls.
    """
    return _numbers(field, given, "d", np.float64)


def numbers32(field: str, given: Any) -> tuple[Float32, BoolArray | None]:
    """As `numbers`, each the nearest float32; beyond the largest of them an infinity."""
    return _numbers(field, given, "f", np.float32)


def _numbers(field: str, given: Any, code: str, dtype: type[Any]) -> tuple[Any, BoolArray | None]:
    entries = _list(field, given, "numbers")
    try:
        values = np.frombuffer(struct.pack(f"{len(entries)}{code}", *entries), dtype=dtype)
        unsure = (values >= 0.0).nonzero()[0]  # a true or a false is one of these
        if not len(unsure) or set(map(type, entries[int(unsure[0]) : int(unsure[-1]) + 1])) <= {float, int}:
            return values, None
    except (struct.error, OverflowError):
        pass
    if not set(map(type, entries)) <= {float, int, type(None)}:
        raise FieldError(field, _odd(entries, {float, int, type(None)}, "a number"))
    try:
        values = np.asarray(entries, dtype=np.float64)  # NaN for null
    except OverflowError:
        raise FieldError(field, "holds a whole number that no float can hold. Write the logprobs as they are") from None
    with np.errstate(over="ignore"):
        values = values.astype(dtype, copy=False)
    return values, np.fromiter((entry is None for entry in entries), dtype=np.bool_, count=len(entries))


def mask(field: str, given: Any) -> BoolArray:
    """[N] from true and false, or from 1 and 0. Raises: FieldError if it holds anything else."""
    entries = _list(field, given, "true and false")
    try:
        ones = np.frombuffer(bytes(entries), dtype=np.uint8)
    except (TypeError, ValueError):  # a 1.0, or what cannot stand here
        ones = np.frombuffer(bytes(_one_or_zero(field, i, entry) for i, entry in enumerate(entries)), dtype=np.uint8)
    if np.count_nonzero(ones > 1):
        at = int(np.argmax(ones > 1))
        raise FieldError(field, f"entry {at} is {entries[at]}, where true, false, 1 or 0 belongs")
    return ones.view(np.bool_)


def number(field: str, given: Any) -> float | None:
    """One number, None for null and NaN. Raises: FieldError if it is something else."""
    if given is None:
        return None
    if type(given) not in (int, float):
        raise FieldError(field, f"{shown(given)} stands where a number belongs")
    try:
        value = float(given)
    except OverflowError:
        raise FieldError(field, "is a whole number that no float can hold") from None
    return None if value != value else value  # noqa: PLR0124 - NaN


def whole(field: str, given: Any) -> int | None:
    """One whole number from 0 on, None for null. Raises: FieldError if it is something else."""
    if given is None:
        return None
    if type(given) not in (int, float) or given != given // 1 or not 0 <= given < 2**63:
        raise FieldError(field, f"{shown(given)} stands where a whole number from 0 on belongs")
    return int(given)


def text(field: str, given: Any) -> str:
    """A name or a number as text, empty for null. Raises: FieldError if it is something else."""
    if given is None:
        return ""
    if type(given) not in (str, int):
        raise FieldError(field, f"{shown(given)} stands where a name or a whole number belongs")
    return str(given)


def column(
    values: FloatArray,
    compared: BoolArray,
    *,
    nulls: BoolArray | None = None,
    null: TokenState = TokenState.ABSENT,
    from_second: bool = False,
) -> Column:
    """A column over T tokens: MASKED where nothing is compared, the state `null` where the file says null.

    values: [T] nats, as they came. from_second: the first entry stands for no token's logprob, whatever it is, and is
    ABSENT if it is compared.
    """
    with np.errstate(over="ignore"):
        logprobs = values.astype(np.float32)
    states: StateArray = states_of(logprobs)
    if nulls is not None:
        states[nulls] = null
    if from_second:
        states[:1] = TokenState.ABSENT
    states[~compared] = TokenState.MASKED
    logprobs[states != TokenState.VALUE] = np.nan
    return Column(logprobs=logprobs, states=states)


def same_length(field: str, found: int, expected: int, *, of: str = "tokens") -> None:
    """Raises: FieldError with both numbers unless they are the same."""
    if found != expected:
        raise FieldError(field, misfit(found, expected, of=of))


def misfit(found: int, expected: int, *, of: str = "tokens") -> str:
    """Why two lengths contradict each other, and what usually does that."""
    usual = {
        1: ". One more is usually an EOS or a BOS that this side alone counts",
        -1: ". One fewer is usually an EOS or a BOS that the other side alone counts, or a list that is shifted by one",
    }.get(found - expected, "")
    return f"{found} entries for {expected} {of}{usual}. Nothing is cut or shifted to fit; record the row again"


def shared(values: Float64, trained: BoolArray) -> float | None:
    """The number that all trained tokens have, None if they have several or there is none. Shape: [T], [T]."""
    found = np.unique(values[trained])
    return float(found[0]) if len(found) == 1 and np.isfinite(found[0]) else None


def shown(given: Any) -> str:
    """Something that stands where it should not, as a message shows it."""
    if isinstance(given, list | dict):
        return f"a {type(given).__name__} of {len(given)}"
    spelled = repr(given)
    return spelled if len(spelled) <= _SHOWN else f"{spelled[:_SHOWN]}..."


def _list(field: str, given: Any, of: str) -> list[Any]:
    if not isinstance(given, list):
        raise FieldError(field, f"{'nothing' if given is None else shown(given)} stands where a list of {of} belongs")
    return given


def _odd(entries: Sequence[Any], allowed: set[type], belongs: str) -> str:
    at = next((i for i, entry in enumerate(entries) if type(entry) not in allowed), None)
    if at is None:  # of the right type, and too large
        at = next(i for i, entry in enumerate(entries) if not -LARGEST_ID <= entry <= LARGEST_ID)
    return f"entry {at} is {shown(entries[at])}, where {belongs} belongs"


def _one_or_zero(field: str, at: int, entry: Any) -> bool:
    if type(entry) not in (bool, int, float) or entry not in (0, 1):
        raise FieldError(field, f"entry {at} is {shown(entry)}, where true, false, 1 or 0 belongs")
    return bool(entry)
