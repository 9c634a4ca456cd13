"""How the losses of tokens become the loss of a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from onepolicy.signal.conformance.case import Case, Observed, differentiated, tensor
from onepolicy.signal.conformance.counts import BatchCounts
from onepolicy.signal.conformance.planted import normal, under_mask
from onepolicy.signal.conformance.subject import Call

ROLES = ("token_mean", "sequence_mean", "constant_length")
LENGTH = 9
ROWS = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 0, 0, 0, 0]])
EMPTY_ROW = torch.tensor([[1, 1, 1, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]])


def _total(call: Call, mask: Tensor, losses: Tensor, sizes: tuple[int, ...] = (4,)) -> Observed:
    """Sum over micro-batches of `sizes` rows of what a function gives for each."""
    marked = mask.sum(dim=1)
    counts = BatchCounts(
        tokens=int(marked.sum()),
        sequences=int((marked > 0).sum()),
        rows=len(mask),
        parts=len(sizes),
        length=LENGTH,
    )

    def total(at: Tensor) -> Tensor:
        parts = zip(torch.split(at, list(sizes)), torch.split(mask, list(sizes)), strict=True)
        return torch.stack([tensor(call(some, marks, counts)) for some, marks in parts]).sum()

    return differentiated(total, losses)


def _losses(mask: Tensor, junk: tuple[float, ...] = (0.0,)) -> Tensor:
    return under_mask(normal(*mask.shape, seed=14) + 0.5, mask, junk)


def _wider(call: Call) -> Observed:
    """The gradient is looked at without the added columns."""
    mask = torch.nn.functional.pad(ROWS, (0, 3))
    losses = torch.nn.functional.pad(_losses(ROWS), (0, 3))
    return {"value": _total(call, mask, losses)["value"]}


_PLANTED = (
    (
        "whole batch",
        "completions of 1 to 5 tokens, all at once",
        "Tokens weigh otherwise than the configuration says: short or long completions are favoured.",
        lambda call: _total(call, ROWS, _losses(ROWS)),
    ),
    (
        "micro-batches",
        "the same in two micro-batches of two, whose losses are added",
        "The gradient depends on how a batch is cut to fit into memory.",
        lambda call: _total(call, ROWS, _losses(ROWS), (2, 2)),
    ),
    (
        "unequal micro-batches",
        "the same in micro-batches of three and one",
        "With micro-batches by tokens, a completion weighs more beside few others.",
        lambda call: _total(call, ROWS, _losses(ROWS), (3, 1)),
    ),
    (
        "wider padding",
        "the same with three more columns of padding",
        "The learning rate depends on the longest completion of a batch.",
        _wider,
    ),
    (
        "NaN, inf and 1e4 under the mask",
        "losses that no token has, in positions that the mask leaves out",
        "One padded row makes the loss of the whole batch NaN or infinite.",
        lambda call: _total(call, ROWS, _losses(ROWS, (torch.nan, torch.inf, -torch.inf, 1e4))),
    ),
    (
        "zero length",
        "a completion without a token, in two micro-batches",
        "Aborted or filtered rollouts make the step of the others smaller, or NaN.",
        lambda call: _total(call, EMPTY_ROW, _losses(EMPTY_ROW), (2, 2)),
    ),
)
CASES = tuple(
    Case(role=role, name=name, planted=planted, otherwise=otherwise, puts_through=observe)
    for role in ROLES
    for name, planted, otherwise, observe in _PLANTED
)
