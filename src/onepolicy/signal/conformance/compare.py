"""Whether two observations are the same, and if not, the largest difference in words."""

from __future__ import annotations

import torch
from torch import Tensor

from onepolicy.signal.conformance.case import Observed

RELATIVE, ABSOLUTE = 1e-5, 1e-7
"""Batches are in float64. A constant of 1e-6 beside a standard deviation of 0.5 is within; one of 1e-4 is not."""


def difference(found: Observed, expected: Observed) -> str:
    """The parts that differ, in words; empty if none does."""
    parts = ((name, _part(found[name], expected[name])) for name in expected)
    return "; ".join(f"{name} {text}" for name, text in parts if text)


def _part(found: Tensor, expected: Tensor) -> str:
    if found.shape != expected.shape:
        return f"has shape {list(found.shape)}, should have {list(expected.shape)}"
    if expected.dtype is torch.bool and not expected.ndim and found.dtype is torch.bool:
        return "" if bool(found) == bool(expected) else f"is {bool(found)}, should be {bool(expected)} or unknown"
    here, there = found.detach().to(torch.float64), expected.detach().to(torch.float64)
    same = torch.isclose(here, there, rtol=RELATIVE, atol=ABSOLUTE, equal_nan=True)
    if bool(same.all()):
        return ""
    distance = (here - there).abs().nan_to_num(nan=torch.inf).masked_fill(same, -1.0)
    place = tuple(int(i) for i in torch.unravel_index(distance.argmax(), here.shape)) if here.ndim else ()
    is_flag = expected.dtype is torch.bool
    one, other = _shown(float(here[place]), float(there[place]), is_flag=is_flag)
    if here.ndim and not is_flag and not bool(here.any()):
        return f"is 0 everywhere, should be {other}{_where(place)}"
    return f"{one}{_where(place)}, should be {other}"


def _shown(one: float, other: float, *, is_flag: bool) -> tuple[str, str]:
    """Four digits, or seven where those do not tell them apart. What should be a flag may be another number."""
    if is_flag:
        return str(bool(one)) if one in (0.0, 1.0) else f"{one:.4g}", str(bool(other))
    digits = 4 if f"{one:.4g}" != f"{other:.4g}" else 7
    return f"{one:.{digits}g}", f"{other:.{digits}g}"


def _where(place: tuple[int, ...]) -> str:
    return f" at {list(place)}" if place else ""
