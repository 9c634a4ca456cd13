"""The hot path: logprobs and most likely tokens in one pass over blocks that stay in the cache."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from onepolicy.logprobs.source import LogitSource

BLOCK = 2**23
"""entries of a block: 32 MiB of float32. Measured by `benchmarks/logprobs_from_hidden.py` on a machine with 32 MiB of
L3 cache: half of it is 1 % faster on idle cores, but each block has parallel steps that wait for the slowest thread,
and on busy cores half as many of them took 4.0 s instead of 5.1"""
MOST_ROWS = 4096
FEWEST_COLUMNS = 1024
GROUP = 64


def spans(length: int, step: int) -> Iterator[slice]:
    """Consecutive slices that cover `length`."""
    return (slice(start, min(start + step, length)) for start in range(0, length, step))


def stream_logprobs(source: LogitSource, token_ids: Tensor, *, temperature: float) -> tuple[Tensor, Tensor]:
    """Logprobs of the tokens at a temperature, and the most likely tokens.

    Shape: [N] -> [N] float32, [N] int64. Scratch memory: one block, whatever N and V are.
    """
    count, vocabulary = source.shape
    logprobs = torch.empty(count, dtype=torch.float32, device=source.device)
    top1 = torch.empty(count, dtype=torch.int64, device=source.device)
    step = min(max(count, 1), MOST_ROWS)
    columns = list(spans(vocabulary, max(BLOCK // step, FEWEST_COLUMNS)))
    scratch = torch.empty(step * min(columns[0].stop, vocabulary), dtype=torch.float32, device=source.device)
    for rows in spans(count, step):
        partial = _Partial(token_ids[rows], len(columns))
        for number, part in enumerate(columns):
            out = scratch[: (rows.stop - rows.start) * (part.stop - part.start)].view(
                rows.stop - rows.start, part.stop - part.start
            )
            block = source.block(rows, part, out=out)
            if temperature != 1.0:
                block = torch.div(block, temperature, out=out)
            partial.add(number, block, first=part.start, out=out)
        logprobs[rows], top1[rows] = partial.result()
    return logprobs, top1


def _maximum(block: Tensor) -> tuple[Tensor, Tensor]:
    """The maximum of each row and where it is, as `block.max(dim=1)`, at a third of its time.

    Torch computes only the maximum without its index with vector instructions: the index is sought in one group.
    """
    rows, columns = block.shape
    if columns % GROUP:
        maximum, index = block.max(dim=1)
        return maximum, index
    groups = block.reshape(rows, columns // GROUP, GROUP)
    maximum, group = groups.amax(dim=2).max(dim=1)
    inside = groups[torch.arange(rows, device=block.device), group].argmax(dim=1)
    return maximum, group * GROUP + inside


class _Partial:
    """Per block of the vocabulary: the maximum, where it is, and the sum of exponentials relative to it."""

    def __init__(self, token_ids: Tensor, blocks: int) -> None:
        shape, device = (len(token_ids), blocks), token_ids.device
        self._token_ids = token_ids
        self._logits = torch.full((len(token_ids),), torch.nan, device=device)
        self._maxima = torch.empty(shape, device=device)
        self._sums = torch.empty(shape, device=device)
        self._argmax = torch.empty(shape, dtype=torch.int64, device=device)

    def add(self, number: int, block: Tensor, *, first: int, out: Tensor) -> None:
        """Take in block `number`, whose first column is the id `first`; `out` is overwritten."""
        width = block.shape[1]
        local = self._token_ids - first
        logit = block.gather(1, local.clamp(0, width - 1)[:, None])[:, 0]
        self._logits = torch.where((local >= 0) & (local < width), logit, self._logits)
        maximum, index = _maximum(block)
        self._maxima[:, number], self._argmax[:, number] = maximum, index + first
        # exp(-inf - -inf) is NaN where nothing in the block is possible; the sum there is 0.
        reference = maximum.masked_fill(maximum == -torch.inf, 0.0)
        self._sums[:, number] = torch.sub(block, reference[:, None], out=out).exp_().sum(dim=1)

    def result(self) -> tuple[Tensor, Tensor]:
        """Logprobs [n] and most likely tokens [n]."""
        maximum, number = self._maxima.max(dim=1)
        total = (self._sums * (self._maxima - maximum[:, None]).exp()).sum(dim=1)
        # (x - max) first: max + log(total) would round at the size of the logits.
        logprobs = (self._logits - maximum) - total.log()
        return logprobs, self._argmax.gather(1, number[:, None])[:, 0]
