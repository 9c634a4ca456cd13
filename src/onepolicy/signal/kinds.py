"""What the numbers of a column may be. Others are refused: torch cuts them down to something else without a word."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import SupportsIndex

import torch
from torch import Tensor

from onepolicy.errors import UsageError


def marked(loss_mask: Tensor) -> Tensor:
    """The mask as bool. Raises: UsageError where it holds something else than 0 and 1; a NaN would count as 1."""
    if loss_mask.dtype is torch.bool:
        return loss_mask
    if not bool(((loss_mask == 0) | (loss_mask == 1)).all()):
        raise UsageError(f"the mask holds something else than 0 and 1 ({loss_mask.dtype}). Give 1 for what counts.")
    return loss_mask.bool()


def floating(values: Tensor) -> Tensor:
    """The same numbers; whole ones in float64, so that nothing made of them is cut. Raises: UsageError if complex."""
    if values.is_complex():
        raise UsageError(f"values are {values.dtype}; they are real numbers. Give the real part: .real.")
    return values if values.is_floating_point() else values.to(torch.float64)


def whole_numbers(name: str, values: object) -> Tensor:
    """The same tensor. Raises: UsageError for fractions, which would be cut, or grouped by a NaN; and for no tensor."""
    if not isinstance(values, Tensor):
        raise UsageError(f"{name} are a {type(values).__name__}; they are a tensor of whole numbers: [B].")
    if values.is_floating_point() or values.is_complex():
        raise UsageError(f"{name} are {values.dtype}; they are whole numbers. If they are in truth: {name}.long().")
    return values


def ids(end_ids: Iterable[SupportsIndex]) -> list[int]:
    """Ids as numbers. Raises: UsageError for a single id, and for names and fractions."""
    try:
        return [index(one) for one in end_ids]
    except TypeError as error:
        raise UsageError(f"end_ids are {end_ids!r}; they are a list of token ids, such as [2].") from error
