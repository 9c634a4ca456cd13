"""A case: one planted batch and what is observed of a function on it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from onepolicy.signal.conformance.subject import Call

Observed = Mapping[str, Tensor]
"""part (value, gradient, sign ...) -> what was found"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A function agrees if what is observed of it is what is observed of the reference, or is the truth."""

    role: str
    name: str
    planted: str
    """what is special about the batch"""
    otherwise: str
    """what goes wrong in training with a function that does not agree"""
    puts_through: Callable[[Call], Observed]
    """calls a function on the batch, and says what is observed of it"""
    truth: bool | None = None
    """of a case in which a function states something, which the reference may leave open"""

    def observe(self, call: Call) -> Observed:
        """What is observed of a function that is given copies, in a torch as it is when nothing was set.

        So nothing that it, or its module on import, does to a batch or to torch is seen by another.
        Raises: NotImplementedError if it declines the batch or says unknown; whatever else it raises.
        """
        with _torch_unset(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a framework's deprecations are no answer
            return self.puts_through(
                lambda *given: call(*(one.clone() if isinstance(one, Tensor) else one for one in given))
            )


@contextmanager
def _torch_unset() -> Iterator[None]:
    """Gradients on, no autocast, float32, no default device; afterwards as it was before."""
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    try:
        with torch.inference_mode(mode=False), torch.enable_grad(), torch.autocast("cpu", enabled=False):
            yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_default_device(None if device.type == "cpu" else device)


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
    """What a function returned. Raises: TypeError if it is no tensor, or none whose numbers can be compared."""
    if not isinstance(found, Tensor):
        raise TypeError(f"it returned a {type(found).__name__} and not a tensor")
    is_odd = found.is_complex() or found.is_quantized or found.is_nested or found.layout is not torch.strided
    if is_odd or found.device.type != "cpu":
        kind = f"{found.dtype}, {'nested' if found.is_nested else found.layout}, on {found.device}"
        raise TypeError(f"it returned a tensor ({kind}) that is not dense, real and on the CPU")
    return found


def answer(found: object) -> Observed:
    """What a function that states something said.

    Raises: NotImplementedError if that is None: nothing that could be wrong; TypeError for what is no bool.
    """
    if found is None:
        raise NotImplementedError("it says unknown, which cannot be wrong")
    if isinstance(found, Tensor) and found.dtype is torch.bool and found.numel() == 1:
        return {"answer": tensor(found).detach().reshape(())}
    if not isinstance(found, bool):
        raise TypeError(f"it returned a {type(found).__name__} and not a bool or None")
    return {"answer": torch.tensor(found)}
