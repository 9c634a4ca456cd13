"""Servers and trainers that score wrongly in a known way, around a sound model: faults that no option of an engine has.

Each is a function of token ids for the engine `callable`, as a person's own scoring function would be.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from onepolicy.engines.options import read_options
from onepolicy.engines.spec import parse_spec
from onepolicy.integrations.transformers.altered import cache_name
from onepolicy.integrations.transformers.load import load
from onepolicy.integrations.transformers.options import TransformersOptions
from onepolicy.integrations.transformers.target import model_folder

Ids = list[list[int]]
Rows = list[list[float]]
BLOCK = 16
"""tokens of a block of a prefix cache, as in vLLM"""


class Served:
    """A model behind a scoring function with a fault."""

    def __init__(self, spec: str, fault: str, value: float) -> None:
        """spec: of a sound engine of Transformers. value: what the fault is of, see its function."""
        parsed = parse_spec(spec)
        self.model: Any = load(model_folder(parsed.target), read_options(parsed, TransformersOptions)).model
        self._fault, self._value = FAULTS[fault], value

    def __call__(self, token_ids: Ids) -> Rows:
        """One row for each sequence; the first entry says nothing."""
        with torch.no_grad():
            return self._fault(self, token_ids, self._value)

    def logprobs(self, ids: list[int]) -> Tensor:
        """[T - 1, V] of the tokens from the second on."""
        logits: Tensor = self.model(torch.tensor([ids]), use_cache=False).logits[0, :-1]
        return logits.float().log_softmax(-1)

    def row(self, ids: list[int]) -> list[float]:
        """Right logprobs of a sequence."""
        return [0.0, *_taken(self.logprobs(ids), ids[1:])]


def _taken(logprobs: Tensor, ids: list[int]) -> list[float]:
    found: list[float] = logprobs.gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()
    return found


def _fitted(row: list[float], size: int) -> list[float]:
    """The end of a row; zeros before it where it is too short."""
    return ([0.0] * size + row)[-size:]


def second_bos(served: Served, token_ids: Ids, value: float) -> Rows:
    """A BOS in front of the one with which each sequence begins."""
    return [_fitted(served.row([ids[0], *ids]), len(ids)) for ids in token_ids]


def no_bos(served: Served, token_ids: Ids, value: float) -> Rows:
    """The context without its first token."""
    return [_fitted(served.row(ids[1:]), len(ids)) for ids in token_ids]


def no_system_turn(served: Served, token_ids: Ids, value: float) -> Rows:
    """The context without the `value` ids behind the BOS."""
    return [_fitted(served.row(ids[:1] + ids[1 + round(value) :]), len(ids)) for ids in token_ids]


def packed_without_walls(served: Served, token_ids: Ids, value: float) -> Rows:
    """The sequences of a batch in one row, in which each sees those before it."""
    joined = [token for ids in token_ids for token in ids]
    lps, rows, start = served.logprobs(joined), [], 0
    for ids in token_ids:
        rows.append([0.0, *_taken(lps[start : start + len(ids) - 1], ids[1:])])
        start += len(ids)
    return rows


def shifted(served: Served, token_ids: Ids, value: float) -> Rows:
    """Each logprob stands `value` positions too late; the first places have none."""
    lag = round(value)
    return [([math.nan] * (lag + 1) + served.row(ids)[1:])[: len(ids)] for ids in token_ids]


def most_likely(served: Served, token_ids: Ids, value: float) -> Rows:
    """The first entry of a list of candidates, whichever token was drawn."""
    return [[0.0, *served.logprobs(ids).max(-1).values.tolist()] for ids in token_ids]


def zeros(served: Served, token_ids: Ids, value: float) -> Rows:
    """Exactly 0.0 for every `value`-th token, as a cache that keeps no logprobs gives for what it holds."""
    every = round(value)
    return [[0.0 if at % every == 0 else one for at, one in enumerate(served.row(ids))] for ids in token_ids]


def sentinels(served: Served, token_ids: Ids, value: float) -> Rows:
    """-100 for every `value`-th token, the smallest logprob of some servers; -9999 no reading takes for a logprob."""
    every = round(value)
    return [[-100.0 if at % every == 0 else one for at, one in enumerate(served.row(ids))] for ids in token_ids]


def older_cache(served: Served, token_ids: Ids, value: float) -> Rows:
    """Keys and values of the first block are of weights that were `value` of their spread away."""
    older = copy.deepcopy(served.model)
    generator = torch.Generator().manual_seed(1)
    for weights in older.parameters():
        weights.add_(value * weights.std() * torch.randn(weights.shape, generator=generator))
    return [_behind(served, older, ids) for ids in token_ids]


def _behind(served: Served, older: Any, ids: list[int]) -> list[float]:
    """A row whose first block was computed by other weights; its own logprobs are right."""
    given = {cache_name(served.model): DynamicCache(config=served.model.config), "use_cache": True}
    older(torch.tensor([ids[:BLOCK]]), **given)
    rest = served.model(torch.tensor([ids[BLOCK:]]), **given).logits
    lps = torch.cat([served.logprobs(ids[: BLOCK + 1])[:BLOCK], rest[0].float().log_softmax(-1)])
    return [0.0, *_taken(lps[: len(ids) - 1], ids[1:])]


def sound(served: Served, token_ids: Ids, value: float) -> Rows:
    """Nothing is wrong."""
    return [served.row(ids) for ids in token_ids]


FAULTS: dict[str, Callable[[Served, Ids, float], Rows]] = {
    function.__name__: function
    for function in (
        second_bos,
        no_bos,
        no_system_turn,
        packed_without_walls,
        shifted,
        most_likely,
        zeros,
        sentinels,
        older_cache,
        sound,
    )
}
