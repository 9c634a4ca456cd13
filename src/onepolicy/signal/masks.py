"""Masks, and sums over what they mark. Everything else is selected away, not multiplied by 0: 0 times NaN is NaN."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from onepolicy.errors import AlignmentError
from onepolicy.signal.kinds import floating, ids, marked, whole_numbers

SAME = 1e-6
"""of the root mean square of some numbers: a deviation below is rounding, as of equal float32 numbers and their mean"""


def mask_from_lengths(lengths: Tensor, *, width: int) -> Tensor:
    """True at the first `length` columns of each row: the loss mask of right-padded completions.

    The end token is counted in the length, so it is trained even where it is also the id of padding.
    Shape: [B] integers -> [B, width] bool. Raises: AlignmentError for a length below 0 or above the width; UsageError
    for lengths that are no integers.
    """
    whole_numbers("lengths", lengths)
    if lengths.ndim != 1:
        raise AlignmentError(f"lengths have shape {list(lengths.shape)}; they are one number for each row: [B].")
    if lengths.numel() and not 0 <= int(lengths.min()) <= int(lengths.max()) <= width:
        raise AlignmentError(f"lengths go from {int(lengths.min())} to {int(lengths.max())}; columns: {width}.")
    return torch.arange(width, device=lengths.device) < lengths[:, None]


def mask_from_ends(token_ids: Tensor, end_ids: Sequence[int]) -> Tensor:
    """True up to and with the first end token of each row, and everywhere in a row that has none.

    Right only if what is padded begins with the first token: a prompt that holds an end token ends there.
    Shape: [B, T] -> [B, T] bool. Raises: UsageError for end_ids that are no list of ids.
    """
    ends = torch.isin(token_ids, torch.as_tensor(ids(end_ids), dtype=token_ids.dtype, device=token_ids.device))
    return (ends.long().cumsum(dim=1) - ends.long()) == 0


def selected(values: Tensor, loss_mask: Tensor) -> Tensor:
    """The values that the mask marks, and 0 elsewhere: no value or gradient of anything else enters, NaN or not.

    Select logprobs, and not only the losses of them: exp of an infinity that is selected away later has a gradient of
    0 times infinity, which is NaN. Shape: [B, T], [B, T] -> [B, T]. Raises: AlignmentError if the shapes differ;
    UsageError for a mask that holds something else than 0 and 1.
    """
    if values.shape != loss_mask.shape:
        raise AlignmentError(f"values have shape {list(values.shape)} and the mask {list(loss_mask.shape)}.")
    return torch.where(marked(loss_mask), values, torch.zeros_like(values))


def masked_sum(values: Tensor, loss_mask: Tensor, dim: int | None = None) -> Tensor:
    """Sum of what the mask marks. Shape: [B, T], [B, T] -> [] or [B]. Raises: as `selected`."""
    chosen = selected(values, loss_mask)
    if dim is not None and not -chosen.ndim <= dim < chosen.ndim:
        raise AlignmentError(f"values have shape {list(values.shape)}, and so no dimension {dim}. Give [B, T].")
    return chosen.sum() if dim is None else chosen.sum(dim=dim)


def masked_mean(values: Tensor, loss_mask: Tensor, dim: int | None = None) -> Tensor:
    """Mean of what the mask marks; NaN where it marks nothing, as nothing has no mean. Shape: as `masked_sum`."""
    mask = marked(loss_mask)
    total = masked_sum(floating(values), mask, dim)
    return total / (mask.sum() if dim is None else mask.sum(dim=dim))


def sequence_logprobs(logprobs: Tensor, loss_mask: Tensor) -> Tensor:
    """Logprob of each completion: the sum over its tokens; 0 for one without tokens. Shape: [B, T] -> [B], nats."""
    return masked_sum(logprobs, loss_mask, dim=1)


def whitened(values: Tensor, loss_mask: Tensor) -> Tensor:
    """Values of mean 0 and variance 1 over all marked tokens of the batch (n - 1 in the variance); 0 elsewhere.

    Not what GRPO does, which knows groups: this is PPO's. All equal, up to rounding, or fewer than two: 0. A marked NaN
    makes all of them NaN. Shape: [B, T], [B, T] -> [B, T]; of whole numbers, in float64. Raises: as `selected`.
    """
    mask = marked(loss_mask)
    count = mask.sum()
    kept = selected(floating(values), mask).double()
    centred = selected(kept - kept.sum() / count, mask)
    spread = (centred.square().sum() / (count - 1).clamp(min=1)).sqrt()
    is_flat = (count < 2) | (spread <= SAME * (kept.square().sum() / count).sqrt())
    return selected(centred / spread.masked_fill(is_flat, torch.inf), mask).to(floating(values).dtype)
