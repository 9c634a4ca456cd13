"""Turning what the user's function returned into arrays, or saying what is wrong with it."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from onepolicy.errors import EngineError
from onepolicy.integrations.callable.batch import Batch
from onepolicy.records.tokens import Float64


def logprobs_of(answer: object, batch: Batch, *, name: str) -> list[Float64]:
    """One array for each sequence, of its length. `name` is the function's, for messages.

    Shape: B arrays [T]. Raises: EngineError if the answer is anything else.
    """
    if not isinstance(answer, list | tuple):
        raise EngineError(
            f"{name} returned {_kind(answer)} for {batch.label}. It must return a list with one 1-d array "
            f"of logprobs for each sequence."
        )
    if len(answer) != len(batch.token_ids):
        raise EngineError(
            f"{name} returned {len(answer)} arrays for {len(batch.token_ids)} sequences ({batch.label}). It "
            f"must return one array for each sequence, in the order given."
        )
    pairs = zip(batch.rollout_ids, batch.token_ids, answer, strict=True)
    return [_one(value, length=len(ids), where=f"{name}, rollout {rollout}") for rollout, ids, value in pairs]


def _one(value: object, *, length: int, where: str) -> Float64:
    array = _as_float64(value, where=where)
    if array.ndim != 1:
        raise EngineError(f"{where}: {_wrong_shape(array.shape, length)}")
    if len(array) != length:
        raise EngineError(f"{where}: {_wrong_length(len(array), length)}")
    return array


def _wrong_shape(shape: tuple[int, ...], length: int) -> str:
    found = f"an array of shape {shape} instead of ({length},)."
    if shape == (1, length):
        return f"{found} Drop the first axis: return one 1-d array for each sequence."
    if len(shape) == 2:
        return (
            f"{found} It looks like full logits, one row of the vocabulary for each token. Return each "
            f"token's logprob instead: the log-softmax of row i - 1, at token i; NaN for the first token."
        )
    return f"{found} Return one 1-d array for each sequence, with one logprob for each token."


def _wrong_length(found: int, length: int) -> str:
    if found == length - 1:
        return (
            f"{found} logprobs for {length} tokens, one too few. Entry i must belong to token i, and the "
            f"first token has no logprob: put a NaN in front, as in np.concatenate([[np.nan], logprobs])."
        )
    return (
        f"{found} logprobs for {length} tokens. Entry i must belong to token i: return one for each token, "
        f"the prompt's included and padding cut off."
    )


def _as_float64(value: object, *, where: str) -> Float64:
    if _is_tensor(value):
        return _from_tensor(value, where=where)
    if isinstance(value, np.ndarray | list | tuple):
        try:
            return np.asarray(value, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise EngineError(f"{where}: {_kind(value)} that holds more than numbers ({error}).") from error
    raise EngineError(f"{where}: {_kind(value)}. Return a 1-d numpy array, torch tensor or list of floats.")


def _is_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")  # a tensor cannot exist before torch was imported
    return torch is not None and isinstance(value, torch.Tensor)


def _from_tensor(value: Any, *, where: str) -> Float64:
    if type(value).__name__ == "DTensor":  # gathering is a collective, and only rank 0 comes here
        raise EngineError(f"{where}: a DTensor, which is spread over the ranks. Call .full_tensor() on every rank.")
    array: Float64 = value.detach().cpu().double().numpy()
    return array


def _kind(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
