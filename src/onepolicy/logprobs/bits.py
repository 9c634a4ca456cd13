"""Logits as their bits, so that they can be compared exactly outside of torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_INTEGERS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}


def bits_of(logits: Tensor) -> tuple[npt.NDArray[Any], str] | None:
    """The bits of a tensor as unsigned integers, and its dtype by torch's name; None for another dtype.

    Shape: [...] -> [...]. A DTensor is gathered, in which every rank of its mesh must take part.
    """
    if logits.dtype not in _INTEGERS:
        return None
    whole = logits.detach()
    if hasattr(whole, "full_tensor"):
        whole = whole.full_tensor()
    signed = whole.contiguous().view(_INTEGERS[logits.dtype]).cpu().numpy()
    unsigned = np.uint32 if signed.dtype == np.int32 else np.uint16
    return signed.view(unsigned), str(logits.dtype).removeprefix("torch.")
