"""A model that is called as `Circumstances` say, behind the interface that `compute_logprobs` uses."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DynamicCache

from onepolicy.engines.contract import ScoreInput, Wanted
from onepolicy.engines.legs import CACHED
from onepolicy.errors import EngineError
from onepolicy.integrations.transformers.circumstances import Circumstances
from onepolicy.integrations.transformers.cuts import Cuts, cuts_of
from onepolicy.integrations.transformers.packed import Packed, packed
from onepolicy.integrations.transformers.quiet import quiet_transformers
from onepolicy.integrations.transformers.score import ScoreSettings, score_batch
from onepolicy.logprobs.compute import uses_hidden_states
from onepolicy.records.reading import ReadingRow
from onepolicy.records.tokens import TokenState

TRAIN_SEED = 0
"""of dropout, so that a reading in train mode repeats"""
Inputs = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Call:
    """How the batch at hand is called."""

    columns: tuple[int, ...] = ()
    """where one call ends and the next begins, the first and last column included; none: one call"""
    positions: Tensor | None = None
    """[1, T] of packed sequences, instead of a mask"""


def altered(model: Any, how: Circumstances) -> AlteredModel | None:
    """The model as the circumstances say; None if there are none. Raises: EngineError if the model cannot be so."""
    return None if how.are_plain else AlteredModel(model, how)


class AlteredModel:
    """Called with the inputs of one forward pass, it makes the calls that the circumstances say."""

    def __init__(self, model: Any, how: Circumstances) -> None:
        self.device = model.device
        self.forward = model.forward  # its signature says which inputs the model takes
        self._model = model
        self._how = how
        self._head = _other_head(model, how.head) if how.head else _plain_head(model)
        self._call: _Call | None = None
        uses_hidden_states(self)  # asked now, while calls are plain, so that it is what the plain model says

    def score(self, batch: Sequence[ScoreInput], wanted: Wanted, settings: ScoreSettings) -> list[ReadingRow]:
        """One row for each sequence, as `score_batch` gives it; from a cache, with how much came from there.

        Raises: EngineError if packed sequences are to report other tokens, or to keep statistics; or if the model
        cannot be called so, such as one without a KV cache, or has no memory left for it.
        """
        try:
            if self._how.rows:
                return self._score(batch[::-1], wanted, settings)[::-1]
            return self._score(batch, wanted, settings)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:  # of memory too
            raise EngineError(f"{type(self._model).__name__} cannot be called so: {error}") from error

    def _score(self, batch: Sequence[ScoreInput], wanted: Wanted, settings: ScoreSettings) -> list[ReadingRow]:
        if self._how.packed and len(batch) > 1:
            return self._score_packed(packed(batch, wanted, settings), wanted, settings)
        cuts = cuts_of(batch, self._how, settings)
        with self._calling(_Call(columns=cuts.columns)):
            rows = score_batch(self, batch, wanted, replace(settings, starts=cuts.starts))
        return rows if self._how.cache is None else [_with_count(row, at, cuts) for at, row in enumerate(rows)]

    def _score_packed(self, one: Packed, wanted: Wanted, settings: ScoreSettings) -> list[ReadingRow]:
        with self._calling(_Call(positions=one.positions.to(self.device))):
            (row,) = score_batch(self, [one.joined], wanted, replace(settings, max_length=None))
        return one.rows(row)

    # -- what compute_logprobs calls ----------------------------------------------------------------------------

    def get_output_embeddings(self) -> nn.Linear | None:
        """The LM head, in another precision if that is asked for."""
        return self._head

    def get_decoder(self) -> Callable[..., Any]:
        """What gives the last hidden states."""
        return self._decode

    def __call__(self, *, logits_to_keep: int = 0, **inputs: Any) -> Any:
        """The logits of all columns. Shape: [B, T] -> [B, T, V]."""
        del logits_to_keep  # calls over some columns each are put together to all of them
        if self._how.head:
            assert self._head is not None, "one of another precision was made"
            return SimpleNamespace(logits=self._head(self._decode(**inputs).last_hidden_state))
        return SimpleNamespace(logits=self._called(self._model, inputs, "logits"))

    def _decode(self, **inputs: Any) -> Any:
        hidden = self._called(self._model.get_decoder(), inputs, "last_hidden_state")
        return SimpleNamespace(last_hidden_state=hidden.to(self._head.weight.dtype) if self._head else hidden)

    def _called(self, module: nn.Module, inputs: dict[str, Any], output: str) -> Tensor:
        given = {name: value for name, value in inputs.items() if name != "use_cache"}
        if self._call is None:
            return getattr(module(**given, use_cache=False), output)  # type: ignore[no-any-return]
        given = self._without(given, self._call)
        with quiet_transformers():  # of padding without a mask, which is what is asked for
            if not self._call.columns:
                return getattr(module(**given, use_cache=False), output)  # type: ignore[no-any-return]
            return torch.cat(list(self._parts(module, given, output)), dim=1)

    def _without(self, given: Inputs, call: _Call) -> Inputs:
        left_out = {"attention_mask", "position_ids"} if self._how.mask else set()
        left_out |= {"position_ids"} if self._how.positions else set()
        if call.positions is not None:
            given, left_out = given | {"position_ids": call.positions}, {"attention_mask"}
        return {name: value for name, value in given.items() if name not in left_out}

    def _parts(self, module: nn.Module, given: Inputs, output: str) -> Iterator[Tensor]:
        """The output of each call; a call sees what those before it left in the cache."""
        assert self._call is not None
        cache, name = DynamicCache(config=self._model.config), cache_name(module)
        for start, end in pairwise(self._call.columns):
            part = {key: value[:, (0 if key == "attention_mask" else start) : end] for key, value in given.items()}
            yield getattr(module(**part, use_cache=True, **{name: cache}), output)

    @contextmanager
    def _calling(self, call: _Call) -> Iterator[None]:
        """Calls are altered inside; train mode too, with a random state of its own."""
        self._call = call
        try:
            if not self._how.mode:
                yield
                return
            with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
                torch.manual_seed(TRAIN_SEED)
                self._model.train()
                yield
        finally:
            self._model.eval()
            self._call = None


def _with_count(row: ReadingRow, at: int, cuts: Cuts) -> ReadingRow:
    count = np.where(row.states == TokenState.VALUE, cuts.cached(at, len(row.states)), np.nan).astype(np.float32)
    return replace(row, statistics=row.statistics | {CACHED: count})


def _plain_head(model: Any) -> nn.Linear | None:
    """None where logits are more than the product with it: then the model's own logits are used, as when plain."""
    return model.get_output_embeddings() if uses_hidden_states(model) else None


def _other_head(model: Any, dtype: str) -> nn.Linear:
    """A copy: the head may be one with the embedding, which stays as it is."""
    if not uses_hidden_states(model):
        raise EngineError(
            f"head={dtype}: the logits of {type(model).__name__} are not its last hidden states times one matrix, so "
            f"there is no head to multiply in {dtype}. Leave the option out."
        )
    plain = model.get_output_embeddings()
    with torch.no_grad():
        head = nn.Linear(
            plain.in_features,
            plain.out_features,
            bias=plain.bias is not None,
            device=plain.weight.device,
            dtype=getattr(torch, dtype),
        ).requires_grad_(False)
        head.weight.copy_(plain.weight)
        if plain.bias is not None:
            head.bias.copy_(plain.bias)
    return head


def cache_name(module: nn.Module) -> str:
    """How the forward of this version of Transformers calls its KV cache."""
    return "cache" if "cache" in inspect.signature(module.forward).parameters else "past_key_values"
