"""Scoring functions as trainers and servers have had them, each wrong in one way; none shares code with the package.

Each takes a Transformers model and the ids of some sequences, and gives one list of logprobs for each. The first entry
of a list says nothing.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import transformers
from torch import Tensor

END = 0
BLOCK = 16
"""tokens of a block of a prefix cache"""
PROMPT = 8
"""tokens that a decoding function takes as the prompt"""
Ids = list[list[int]]
Logprobs = list[list[float]]


def loaded(folder: str) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def left(sequences: Ids) -> tuple[Tensor, Tensor]:
    """Ids padded on the left with the end token, and the mask by their lengths."""
    width = max(map(len, sequences))
    ids = torch.tensor([[END] * (width - len(one)) + one for one in sequences])
    mask = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in sequences])
    return ids, mask


def positions_of(mask: Tensor) -> Tensor:
    return (mask.cumsum(-1) - 1).clamp(min=0)


def taken(logits: Tensor, sequences: Ids) -> Logprobs:
    """[B, T, V] logits of sequences that end in the last column."""
    lps = logits.float().log_softmax(-1)
    out = []
    for row, one in enumerate(sequences):
        start = lps.shape[1] - len(one)
        out.append([0.0, *(float(lps[row, start + at - 1, one[at]]) for at in range(1, len(one)))])
    return out


@torch.no_grad()
def right_way(model: Any, sequences: Ids) -> Logprobs:
    ids, mask = left(sequences)
    return taken(model(input_ids=ids, attention_mask=mask, position_ids=positions_of(mask)).logits, sequences)


@torch.no_grad()
def mask_by_value(model: Any, sequences: Ids) -> Logprobs:
    """B40, B41: what equals the pad id is taken for padding, wherever it stands."""
    ids, _ = left(sequences)
    mask = (ids != END).long()
    return taken(model(input_ids=ids, attention_mask=mask, position_ids=positions_of(mask)).logits, sequences)


def stepwise(model: Any, ids: Tensor, calls: list[tuple[Tensor, Tensor | None, Tensor | None]]) -> Tensor:
    """Logits of several calls with one cache; a call: its ids, the mask so far, its positions."""
    cache, found = transformers.DynamicCache(config=model.config), []
    for part, mask, positions in calls:
        given = {"input_ids": part, "attention_mask": mask, "position_ids": positions}
        found.append(model(**given, cache=cache, use_cache=True).logits)
    return torch.cat(found, dim=1)


def cuts(width: int, start: int) -> list[tuple[int, int]]:
    return list(pairwise([0, *range(start, width + 1)]))


@torch.no_grad()
def width_positions_in_decode(model: Any, sequences: Ids) -> Logprobs:
    """B45: prefill by positions from the mask, decode by the column of the cache."""
    ids, mask = left(sequences)
    start = ids.shape[1] - min(map(len, sequences)) + PROMPT
    right = positions_of(mask)
    columns = torch.arange(ids.shape[1]).expand_as(ids)
    calls = [
        (ids[:, a:b], mask[:, :b], right[:, a:b] if a == 0 else columns[:, a:b]) for a, b in cuts(ids.shape[1], start)
    ]
    return taken(stepwise(model, ids, calls), sequences)


@torch.no_grad()
def mask_of_one_column_in_decode(model: Any, sequences: Ids) -> Logprobs:
    """B50: after the prefill, the mask of the whole cache is what the current column says: all ones."""
    ids, mask = left(sequences)
    start = ids.shape[1] - min(map(len, sequences)) + PROMPT
    right = positions_of(mask)
    ones = torch.ones_like(mask)
    calls = [(ids[:, a:b], mask[:, :b] if a == 0 else ones[:, :b], right[:, a:b]) for a, b in cuts(ids.shape[1], start)]
    return taken(stepwise(model, ids, calls), sequences)


@torch.no_grad()
def head_in_bfloat16(model: Any, sequences: Ids) -> Logprobs:
    """B89: a float32 body, and a head that multiplies in bfloat16."""
    ids, mask = left(sequences)
    hidden = model.get_decoder()(
        input_ids=ids, attention_mask=mask, position_ids=positions_of(mask), use_cache=False
    ).last_hidden_state
    return taken(hidden.bfloat16() @ model.lm_head.weight.bfloat16().T, sequences)


@torch.no_grad()
def under_autocast(model: Any, sequences: Ids) -> Logprobs:
    """B91: autocast came back on one path."""
    with torch.autocast("cpu", torch.bfloat16):
        return right_way(model, sequences)


@torch.no_grad()
def unfused_bfloat16(model: Any, sequences: Ids) -> Logprobs:
    """B92: the logsumexp is rounded to bfloat16, and subtracted from a logit that is rounded apart from it."""
    ids, mask = left(sequences)
    logits = model(input_ids=ids, attention_mask=mask, position_ids=positions_of(mask)).logits
    lse = logits.logsumexp(-1).bfloat16()
    out = []
    for row, one in enumerate(sequences):
        start = ids.shape[1] - len(one)
        at = [(start + n - 1, one[n]) for n in range(1, len(one))]
        out.append([0.0, *(float(logits[row, c, token] - lse[row, c]) for c, token in at)])
    return out


@torch.no_grad()
def without_final_norm(model: Any, sequences: Ids) -> Logprobs:
    """B93: the head reads what the last block gives."""
    ids, mask = left(sequences)
    norm, model.model.norm = model.model.norm, torch.nn.Identity()
    try:
        return taken(model(input_ids=ids, attention_mask=mask, position_ids=positions_of(mask)).logits, sequences)
    finally:
        model.model.norm = norm


_SEEN: dict[tuple[int, ...], bool] = {}
_BUFFER: list[float] = []


@torch.no_grad()
def cache_leaves_the_buffer(model: Any, sequences: Ids) -> Logprobs:
    """B104: positions that came from the prefix cache are not computed, and the buffer keeps another request's."""
    out = []
    for one, own in zip(sequences, right_way(model, sequences), strict=True):
        blocks = [tuple(one[:end]) for end in range(BLOCK, len(one), BLOCK)]
        cached = max((len(block) for block in blocks if block in _SEEN), default=0)
        _SEEN.update(dict.fromkeys(blocks, True))
        out.append([*_BUFFER[:cached], *own[len(_BUFFER[:cached]) :]])
        _BUFFER[:] = own
    return out


@torch.no_grad()
def cache_of_older_weights(model: Any, sequences: Ids, *, cleared: bool = False) -> Logprobs:
    """B105, B106: the first block's keys and values are of the weights before an update."""
    older = transformers.AutoModelForCausalLM.from_config(model.config).eval()
    older.load_state_dict(model.state_dict())
    with torch.random.fork_rng():
        torch.manual_seed(1)
        for parameter in older.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    out = []
    for one in sequences:
        ids, cache = torch.tensor([one]), transformers.DynamicCache(config=model.config)
        first = (model if cleared else older)(input_ids=ids[:, :BLOCK], cache=cache, use_cache=True).logits
        rest = model(input_ids=ids[:, BLOCK:], cache=cache, use_cache=True).logits if len(one) > BLOCK else first[:, :0]
        if not cleared:
            first = model(input_ids=ids[:, :BLOCK], use_cache=False).logits
        out += taken(torch.cat([first, rest], dim=1), [one])
    return out


def cache_cleared(model: Any, sequences: Ids) -> Logprobs:
    """B106 in the other order of calls: the cache was cleared before the update."""
    return cache_of_older_weights(model, sequences, cleared=True)


def logits_of_a_skipped_prefix(model: Any, sequences: Ids) -> Logprobs:
    """B107: logits exist for what was not cached, and are read from index 0 on."""
    with torch.no_grad():
        out = []
        for one in sequences:
            logits = model(input_ids=torch.tensor([one])).logits
            moved = torch.cat([logits[:, BLOCK:], logits[:, :BLOCK]], dim=1)
            out += taken(moved, [one])
        return out


def stale_boundary(model: Any, sequences: Ids) -> Logprobs:
    """B109: the first token after a reused prefix is scored by the logits that the last call left."""
    found = right_way(model, sequences)
    for row in found:
        if len(row) > BLOCK + 1:
            row[BLOCK] = row[BLOCK - 1] - 3.0
    return found


def absent_boundary(model: Any, sequences: Ids) -> Logprobs:
    """B109 where the server says that it has none."""
    found = right_way(model, sequences)
    for row in found:
        if len(row) > BLOCK + 1:
            row[BLOCK] = float("nan")
    return found


@torch.no_grad()
def packed_without_a_wall(model: Any, sequences: Ids) -> Logprobs:
    """B150: samples in one row attend to those before them, and positions go on."""
    joined = torch.tensor([[token for one in sequences for token in one]])
    lps, out, start = model(input_ids=joined).logits[0].float().log_softmax(-1), [], 0
    for one in sequences:
        out.append([0.0, *(float(lps[start + at - 1, one[at]]) for at in range(1, len(one)))])
        start += len(one)
    return out


@torch.no_grad()
def offset(model: Any, sequences: Ids) -> Logprobs:
    """1e-5 nats less on every token."""
    return [[value - 1e-5 for value in row] for row in right_way(model, sequences)]
