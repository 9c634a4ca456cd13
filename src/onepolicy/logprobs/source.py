"""Where logits come from: blocks of tokens x vocabulary, in float32, without the whole matrix."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

EVERYTHING = slice(None)


class LogitSource(Protocol):
    """The logits of N tokens over a vocabulary of V, produced block by block."""

    @property
    def shape(self) -> tuple[int, int]:
        """(N, V)."""

    @property
    def device(self) -> torch.device:
        """Where the blocks are."""

    def block(self, rows: slice, columns: slice, *, out: Tensor | None = None) -> Tensor:
        """The logits of some tokens over a part of the vocabulary.

        Shape: [n, v] float32. It is `out` itself or a tensor that must not be written to: write into `out`.
        """


class HeldLogits:
    """Logits that somebody computed: any float dtype, one row a token, or the rows that `index` picks."""

    def __init__(self, logits: Tensor, index: Tensor | None = None) -> None:
        self._logits = logits
        self._index = index

    @property
    def shape(self) -> tuple[int, int]:
        """(N, V)."""
        rows = self._logits if self._index is None else self._index
        return rows.shape[0], self._logits.shape[1]

    @property
    def device(self) -> torch.device:
        """Where the blocks are."""
        return self._logits.device

    def block(self, rows: slice, columns: slice, *, out: Tensor | None = None) -> Tensor:
        """See `LogitSource.block`."""
        picked: slice | Tensor = rows if self._index is None else self._index[rows]
        block = self._logits[picked, columns]
        if block.dtype == torch.float32:
            return block
        return block.float() if out is None else out.copy_(block)


class HeadProduct:
    """Logits as the product of hidden states and the LM head, multiplied in the dtype of the model."""

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        self._hidden = hidden
        self._weight = weight
        self._bias = bias

    @property
    def shape(self) -> tuple[int, int]:
        """(N, V)."""
        return self._hidden.shape[0], self._weight.shape[0]

    @property
    def device(self) -> torch.device:
        """Where the blocks are."""
        return self._hidden.device

    def block(self, rows: slice, columns: slice, *, out: Tensor | None = None) -> Tensor:
        """See `LogitSource.block`."""
        hidden, head = self._hidden[rows], self._weight[columns].T
        direct = out if hidden.dtype == torch.float32 else None
        if self._bias is None:
            block = torch.mm(hidden, head, out=direct)
        else:  # in one step, as nn.Linear does: in half precision a product that is rounded first is another number
            block = torch.addmm(self._bias[columns], hidden, head, out=direct)
        if block.dtype == torch.float32:
            return block
        return block.float() if out is None else out.copy_(block)
