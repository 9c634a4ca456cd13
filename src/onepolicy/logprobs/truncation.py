"""Which tokens top-k, top-p and min-p keep, exactly as Transformers' logits warpers decide it.

All three keep a suffix of the tokens sorted by logit, so a kept set is a count. Only where the tokens at its
edge are equally likely does the count not name the set: top-k keeps all of them, top-p the highest ids.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from onepolicy.records.protocol import Meaning


def truncates(meaning: Meaning) -> bool:
    """Whether some tokens have probability zero under it."""
    return meaning.truncates


def ascending(logits: Tensor) -> Tensor:
    """Each row sorted, the most likely last. [N, V] -> [N, V]."""
    if logits.device.type == "cpu":
        # numpy sorts values with vector instructions: 0.11 ms for 49,152 floats where torch.sort takes 3.0.
        return torch.from_numpy(np.sort(logits.contiguous().numpy(), axis=-1))
    return torch.sort(logits, dim=-1).values


def kept_count(ordered: Tensor, meaning: Meaning) -> Tensor:
    """How many tokens are kept: top-k first, then top-p of what is left, then min-p of what is left.

    Shape: [N, V] ascending, temperature applied -> [N] int64, at least 1.
    Source: TopKLogitsWarper, TopPLogitsWarper and MinPLogitsWarper of Transformers 5.
    """
    vocabulary = ordered.shape[1]
    count = torch.full((ordered.shape[0],), vocabulary, device=ordered.device)
    if meaning.top_k > 0:
        edge = ordered[:, [-min(meaning.top_k, vocabulary)]]
        count = (ordered >= edge).sum(dim=1)
    if meaning.top_p < 1.0:
        cumulative = _only_last(ordered, count).softmax(dim=1).cumsum(dim=1)
        count = vocabulary - (cumulative <= 1 - meaning.top_p).sum(dim=1)
    if meaning.min_p > 0.0:
        probabilities = _only_last(ordered, count.clamp(min=1)).softmax(dim=1)
        count = torch.minimum(count, (probabilities >= meaning.min_p * probabilities[:, [-1]]).sum(dim=1))
    return count.clamp(min=1)


def _only_last(ordered: Tensor, count: Tensor) -> Tensor:
    """The ascending rows with -inf in front of the last `count` of each."""
    place = torch.arange(ordered.shape[1], device=ordered.device)
    return ordered.masked_fill(place < ordered.shape[1] - count[:, None], -torch.inf)


def truncated(logits: Tensor, meaning: Meaning) -> Tensor:
    """The logits with -inf for the tokens that are not kept.

    Shape: [N, V] temperature applied -> [N, V].
    """
    ordered = ascending(logits)
    count = kept_count(ordered, meaning)
    edge = ordered.gather(1, ordered.shape[1] - count[:, None])
    kept = logits >= edge
    if bool((kept.sum(dim=1) != count).any()):
        kept = _without_surplus_ties(logits, edge, count)
    return logits.masked_fill(~kept, -torch.inf)


def _without_surplus_ties(logits: Tensor, edge: Tensor, count: Tensor) -> Tensor:
    """The kept set where more tokens lie at the edge than fit: a stable sort keeps the highest ids."""
    above, tied = logits > edge, logits == edge
    seats = count - above.sum(dim=1)
    from_the_end = tied.flip(1).cumsum(dim=1).flip(1)
    return above | (tied & (from_the_end <= seats[:, None]))


def scores(logits: Tensor, meaning: Meaning) -> Tensor:
    """The logits whose log-softmax the meaning speaks of. [N, V] float32 -> [N, V] float32."""
    if meaning.is_raw:
        return logits
    tempered = logits if meaning.temperature == 1.0 else logits / meaning.temperature
    return truncated(tempered, meaning) if truncates(meaning) else tempered
