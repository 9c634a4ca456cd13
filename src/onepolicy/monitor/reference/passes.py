"""Passes of the reference over fixed ids, as it is and with dropout off, that leave the training as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from onepolicy.errors import UsageError
from onepolicy.monitor.reference.model import Reference

LENGTH = 32
_SPREAD = 2654435761
"""odd, near 2^32 / golden ratio: consecutive multiples lie apart (Knuth, TAOCP 3, 6.4)"""


def canary_of(model: Any) -> Tensor:
    """Ids that are spread over the vocabulary, always the same. Shape: [1, LENGTH] int64.

    Raises: UsageError for a model that does not say how many tokens it knows.
    """
    size = _vocabulary_of(model)
    if not size:
        raise UsageError(f"a {type(model).__name__} does not say how many tokens it knows; give `canary`, ids [B, T].")
    return torch.tensor([_SPREAD * number % size for number in range(LENGTH)])[None]


@contextmanager
def left_as_it_was(*models: nn.Module) -> Iterator[None]:
    """Whatever is entered or switched inside: modes, what is trained, and the random state come back."""
    modules = [(module, module.training) for model in models for module in model.modules()]
    trained = [(weights, weights.requires_grad) for model in models for weights in model.parameters()]
    devices = {weights.device for weights, _ in trained if weights.device.type == "cuda"}
    with torch.random.fork_rng(devices=sorted(devices, key=str)), torch.no_grad():
        try:
            yield
        finally:
            for module, mode in modules:
                module.training = mode
            for weights, requires in trained:
                if weights.requires_grad != requires:
                    weights.requires_grad_(requires)


def at_rest(model: nn.Module) -> None:
    """Eval mode, whatever a module does when it is asked for it."""
    for module in model.modules():
        module.training = False


class Passes:
    """Over the canary. Each is [N] float32 on the host."""

    def __init__(self, reference: Reference) -> None:
        """Raises: UsageError if its canary is none."""
        ids = canary_of(reference.model) if reference.canary is None else reference.canary
        whole = isinstance(ids, Tensor) and ids.dtype in (torch.int32, torch.int64)
        if not whole or ids.ndim != 2 or ids.shape[1] < 2 or not ids.numel():
            raise UsageError(f"`canary` is {_shown(ids)}; give whole ids, int64 [B, T] with T of 2 or more.")
        self._reference, self._ids = reference, ids.to(reference.device)
        self._first, self._last = int(ids.min()), int(ids.max())

    def as_it_is(self) -> Tensor:
        """The reference in the modes that its modules have now."""
        with left_as_it_was(self._reference.model), self._reference.entered():
            return self._over(self._reference.model)

    def at_rest(self, score: Callable[[Any], Tensor] | None = None) -> Tensor:
        """The reference without dropout; over the canary, or whatever `score` scores."""
        with left_as_it_was(self._reference.model), self._reference.entered():
            at_rest(self._reference.model)
            return self._over(self._reference.model, score)

    def of_the_policy(self, policy: nn.Module, score: Callable[[Any], Tensor] | None = None) -> Tensor:
        """The policy without dropout, in the adapters that it has on now."""
        with left_as_it_was(policy):
            at_rest(policy)
            return self._over(policy, score)

    def _over(self, model: Any, score: Callable[[Any], Tensor] | None = None) -> Tensor:
        if score is None:
            self._check_known(model)
        found = self._reference.score(model, self._ids) if score is None else score(model)
        if not isinstance(found, Tensor) or not found.numel() or not found.is_floating_point():
            raise UsageError(f"`score` returned {_shown(found)}; it must return a tensor of logprobs, [B, T - 1].")
        return found.detach().float().flatten().cpu()

    def _check_known(self, model: Any) -> None:
        """Raises: UsageError if the canary has ids that the model does not know, as far as it says what it knows."""
        size = _vocabulary_of(model)
        if self._first >= 0 and (not size or self._last < size):
            return
        raise UsageError(
            f"the canary has ids from {self._first} to {self._last}, which a {type(model).__name__} does not know all: "
            f"its own begin at 0{f' and end at {size - 1}' if size else ''}. Give `Reference(canary=...)` ids that "
            "reference and policy know, or the model that belongs to them."
        )


def _vocabulary_of(model: Any) -> int:
    """How many tokens a model knows; 0 if it does not say."""
    try:
        embedding = model.get_input_embeddings() if hasattr(model, "get_input_embeddings") else None
    except NotImplementedError:  # Transformers, of a model without one
        return 0
    return int(getattr(embedding, "num_embeddings", 0))


def _shown(found: object) -> str:
    return f"{found.dtype} {list(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"


def dropout_in(model: nn.Module) -> list[str]:
    """Names of the modules that drop something now."""
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p > 0
    ]
