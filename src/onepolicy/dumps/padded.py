"""Batches that are padded to one length: each row without its padding, or the field that contradicts the padding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from onepolicy.dumps.completion_columns import entries
from onepolicy.dumps.fields import FieldError, misfit
from onepolicy.errors import DumpError
from onepolicy.records.tokens import BoolArray

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PaddedBatch:
    """B sequences of L positions; a response lies within the last R, where entry j of a column is position L - R + j.

    Padding may be on the left of the prompt, on its left and on the right of the response, or anywhere outside the two:
    `attention` says where, and nothing is read from the token ids.
    """

    sequences: Array
    """[B, L] token ids"""
    attention: BoolArray
    """[B, L] which positions are tokens"""
    response: BoolArray
    """[B, R] which of the last R positions are the response"""
    response_name: str
    """what the file calls `response`"""
    loss_name: str
    """which of the columns says what is trained on"""
    columns: dict[str, Array]
    """[B, R] each; only those that the file has"""

    def row(self, number: int) -> tuple[dict[str, Array], int]:
        """The columns over the response of one row and all its `token_ids`; how many tokens the response has.

        Raises: FieldError if the masks or the widths contradict each other.
        """
        attention, response = self.attention[number], self.response[number]
        self._check_widths(len(attention), len(response))
        tokens = np.flatnonzero(attention)
        if len(tokens) and tokens[-1] - tokens[0] + 1 != len(tokens):
            gap = int(tokens[-1] - tokens[0] + 1 - len(tokens))
            raise FieldError("attention_mask", f"leaves out {gap} positions between the first token and the last")
        places = np.flatnonzero(response) + len(attention) - len(response)
        self._check_response(places, tokens, attention)
        loss = self.columns.get(self.loss_name)
        outside = 0 if loss is None else int(np.count_nonzero(loss[number][~response]))
        if outside:
            raise FieldError(
                self.loss_name,
                f"marks {outside} positions outside the response of {len(places)} tokens (as {self.response_name} has "
                "it). A mask that is shifted by one does that",
            )
        fields = {name: column[number][response] for name, column in self.columns.items()}
        return fields | {"token_ids": self.sequences[number][tokens]}, len(places)

    def _check_widths(self, positions: int, window: int) -> None:
        if self.sequences.shape[1] != positions:
            raise FieldError(
                "attention_mask", misfit(positions, self.sequences.shape[1], of="positions of the sequence")
            )
        if window > positions:
            raise FieldError(self.response_name, f"has {window} positions, and the whole sequence {positions}")
        for name, column in self.columns.items():
            if column.shape[1] != window:
                raise FieldError(name, misfit(column.shape[1], window, of="positions of the response"))

    def _check_response(self, places: Array, tokens: Array, attention: BoolArray) -> None:
        padding = int(np.count_nonzero(~attention[places]))
        if padding:
            raise FieldError(self.response_name, f"marks {padding} positions that attention_mask says are padding")
        if not np.array_equal(places, tokens[len(tokens) - len(places) :]):
            raise FieldError(
                self.response_name,
                f"marks {len(places)} tokens that are not the last ones of the {len(tokens)} in attention_mask",
            )


def matrix(found: Mapping[str, Any], name: str, *, rows: int | None, where: str) -> Array | None:
    """A column [B, N] of numbers, None if the file has none.

    Raises: DumpError, as a batch whose columns have other rows cannot be read row by row.
    """
    if found.get(name) is None:
        return None
    array = entries(found[name])
    if array.ndim != 2 or array.dtype.kind not in "biuf" or rows not in (None, len(array)):
        wanted = f"[{'rows' if rows is None else rows}, positions]"
        raise DumpError(
            f"{where}: {name} has the shape {list(array.shape)} of {array.dtype}; {wanted} of numbers belongs."
        )
    return array


def needed(found: Mapping[str, Any], name: str, *, rows: int | None, where: str) -> Array:
    """As `matrix`. Raises: DumpError also if the file has no such column."""
    array = matrix(found, name, rows=rows, where=where)
    if array is None:
        raise DumpError(
            f"{where}: it has no {name}, without which tokens and padding cannot be told apart. It has: "
            f"{', '.join(sorted(map(str, found))) or 'nothing'}. Save the whole batch."
        )
    return array
