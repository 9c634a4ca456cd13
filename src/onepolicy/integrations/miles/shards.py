"""The slices that context-parallel ranks of miles keep of a response, and the whole response again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onepolicy.dumps.fields import FieldError
from onepolicy.records.tokens import Float64


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the tokens of one sequence lie on the ranks.

    The sequence is padded to 2 x `ranks` chunks of one length; rank r holds the chunks r and 2 x `ranks` - 1 - r. The
    logprob of token i comes from position i - 1, so a rank keeps the logprobs of the tokens after its positions.
    Source: radixark/miles:miles/backends/training_utils/cp_utils.py (get_logits_and_tokens_offset_with_cp).
    """

    ranks: int
    total_length: int
    response_length: int
    padded_length: int
    """thd: the total length; bshd: the length to which the whole batch is padded"""

    def spans(self, rank: int) -> list[tuple[int, int]]:
        """Entries of the response that a rank keeps, in the order in which it keeps them; end not included."""
        chunk = -(-self.padded_length // (2 * self.ranks))
        first = self.total_length - self.response_length - 1
        found = []
        for place in (rank, 2 * self.ranks - 1 - rank):
            start, end = max(place * chunk, first), min((place + 1) * chunk, self.total_length - 1)
            if start < end:
                found.append((start - first, end - first))
        return found


def rejoined(slices: dict[int, Float64], layout: Layout, *, field: str) -> Float64:
    """The column of the whole response. Shape: a slice for each rank -> [R].

    Raises: FieldError if a slice is missing, or is not as long as its rank's part of the response.
    """
    missing = [rank for rank in range(min(layout.ranks, 1024)) if rank not in slices]
    if missing:
        raise FieldError(
            field,
            f"context-parallel rank {', '.join(map(str, missing))} of {layout.ranks} is missing; found: rank "
            f"{', '.join(map(str, sorted(slices)))}. Put the files of all ranks of this rollout into the folder",
        )
    whole = np.full(layout.response_length, np.nan)
    filled = 0
    for rank, values in slices.items():
        spans = layout.spans(rank)
        wanted = sum(end - start for start, end in spans)
        if len(values) != wanted:
            raise FieldError(
                field,
                f"{len(values)} entries on context-parallel rank {rank} of {layout.ranks}, whose chunks hold {wanted} "
                f"of the {layout.response_length} response tokens. Nothing is shifted to fit: record the row again",
            )
        taken = 0
        for start, end in spans:
            whole[start:end] = values[taken : taken + end - start]
            taken += end - start
        filled += taken
    if filled != layout.response_length:
        raise FieldError(field, f"the slices of all ranks hold {filled} of {layout.response_length} response tokens")
    return whole
