"""A case: one planted batch and what is observed of a function on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from onepolicy.signal.conformance.subject import Call

Observed = Mapping[str, Tensor]
"""part (value, gradient, sign ...) -> what was found"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A function agrees if what is observed of it is what is observed of the reference."""

    role: str
    name: str
    planted: str
    """what is special about the batch"""
    otherwise: str
    """what goes wrong in training with a function that does not agree"""
    observe: Callable[[Call], Observed]
    """makes the batch anew for each call, so that nothing a function does to it is seen by the next"""


def differentiated(call: Callable[[Tensor], Tensor], at: Tensor) -> dict[str, Tensor]:
    """Value at a point, and the gradient of a sum of its entries weighted unequally; 0 if nothing depends on it."""
    point = at.detach().clone().requires_grad_()
    value = tensor(call(point))
    if value.requires_grad:
        weights = torch.linspace(1.0, 2.0, max(value.numel(), 1), dtype=value.dtype)[: value.numel()]
        (value * weights.view(value.shape)).sum().backward()  # type: ignore[no-untyped-call]
    gradient = torch.zeros_like(point) if point.grad is None else point.grad
    return {"value": value.detach(), "gradient": gradient}


def tensor(found: object) -> Tensor:
    """What a function returned. Raises: TypeError if it is no tensor."""
    if not isinstance(found, Tensor):
        raise TypeError(f"it returned a {type(found).__name__} and not a tensor")
    return found


def answer(found: object, *, truth: bool) -> Observed:
    """What a function that states something said; one that says None states nothing that could be wrong.

    Raises: TypeError if it is neither a bool nor None.
    """
    if found is None:
        return {"answer": torch.tensor(truth)}
    if isinstance(found, Tensor) and found.dtype is torch.bool and found.numel() == 1:
        return {"answer": found.detach().view(())}
    if not isinstance(found, bool):
        raise TypeError(f"it returned a {type(found).__name__} and not a bool or None")
    return {"answer": torch.tensor(found)}
