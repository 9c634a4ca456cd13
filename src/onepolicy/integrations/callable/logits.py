"""The user's function that returns full logits, as one rank of a layout."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from onepolicy.engines.options import read_options
from onepolicy.engines.parallel import Layout, RankLogits
from onepolicy.engines.spec import EngineSpec
from onepolicy.errors import EngineError
from onepolicy.integrations.callable.batch import Batch
from onepolicy.integrations.callable.function import UserFunction, load_function
from onepolicy.integrations.callable.options import CallableOptions
from onepolicy.records.tokens import IntArray

_BITS = {"float32": np.uint32, "float16": np.uint16}


class CallableRank:
    """Calls `logits(token_ids: list[int]) -> [T, V]`, or None on a rank that has no logits.

    A function with a keyword of the layout's kind is given its degree, `logits(token_ids, tp=2)`; one process without
    a layout is the base run, and gives no keyword.
    """

    def __init__(self, function: UserFunction, *, layout: Layout | None) -> None:
        self.notes: tuple[str, ...] = ()
        self._name = function.name
        self._function = UserFunction(name=function.name, call=_one_at_a_time(function.call, layout))

    def logits(self, token_ids: IntArray, *, name: str) -> RankLogits | None:
        """What it returned, as bits. Raises: EngineError if it fails, or returns something else than logits."""
        answer = self._function.answer(Batch(rollout_ids=[name], token_ids=[token_ids]))
        where = f"{self._name}, sequence {name}"
        if answer is None:
            return None
        found = _bits(answer, where)
        shape = found[0].shape
        if len(shape) != 2 or shape[0] != len(token_ids):
            hint = "Drop the first axis." if shape[:2] == (1, len(token_ids)) else "Row i is of the token after i."
            raise EngineError(f"{where}: logits of the shape {list(shape)} for {len(token_ids)} tokens. {hint}")
        return found

    def encode(self, text: str, *, add_special_tokens: bool) -> IntArray:
        """Raises EngineError: a function has no tokenizer."""
        raise EngineError(
            f"callable:{self._name} cannot encode a suite's text. Give the ids: --run DIR of a recorded run, or --ids."
        )


def open_rank(spec: EngineSpec, layout: Layout | None) -> CallableRank:
    """The user's function on this rank. Raises: UsageError, EngineError as `load_function`."""
    read_options(spec, CallableOptions)
    return CallableRank(load_function(spec.target), layout=layout)


def _one_at_a_time(call: Callable[..., object], layout: Layout | None) -> Callable[..., object]:
    given: dict[str, Any] = {}
    parameters = inspect.signature(call).parameters
    if layout is not None and (layout.kind in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())):
        given = {layout.kind: layout.degree}

    def called(token_ids: list[list[int]]) -> object:
        return call(token_ids[0], **given)

    return called


def _bits(answer: Any, where: str) -> RankLogits:
    torch = sys.modules.get("torch")  # a tensor cannot exist before torch was imported
    if torch is not None and isinstance(answer, torch.Tensor):
        from onepolicy.logprobs.bits import bits_of  # noqa: PLC0415

        found = bits_of(answer)
        if found is not None:
            return found
        raise EngineError(f"{where}: logits in {answer.dtype}. Return them in float32, bfloat16 or float16.")
    if isinstance(answer, np.ndarray) and answer.dtype.name in _BITS:
        return np.ascontiguousarray(answer).view(_BITS[answer.dtype.name]), answer.dtype.name
    kind = f"an array of {answer.dtype}" if isinstance(answer, np.ndarray) else type(answer).__name__
    raise EngineError(f"{where}: {kind}. Return logits [T, V]: a tensor, or an array of float32 or float16.")
