"""What the reference policy is: a model, how it is entered, its own weights, and how its logprobs are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from onepolicy.errors import UsageError
from onepolicy.logprobs.compute import compute_logprobs
from onepolicy.weights.digest import Rounded, WeightsDigest
from onepolicy.weights.live import digest_of
from onepolicy.weights.tensor import plain_name

Score = Callable[[Any, Tensor], Tensor]
"""a model and ids [B, T] -> [B, T - 1] logprobs of the ids after the first, nats"""
_OF_WRAPPERS = ("base_layer", "original_module")
"""what PEFT puts into the name of a weight that it wraps"""


def teacher_forced(model: Any, ids: Tensor) -> Tensor:
    """The reference implementation of logprobs. Shape: [B, T] -> [B, T - 1] float32."""
    real = torch.ones_like(ids)
    scored = real.clone()
    scored[:, 0] = 0
    found = compute_logprobs(model, input_ids=ids, attention_mask=real, completion_mask=scored)
    return found.report.logprobs.view(ids.shape[0], -1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reference:
    """A model of its own, or a part of the policy's; for the latter see `without_adapters` and `with_adapter`."""

    model: nn.Module
    entered: Callable[[], AbstractContextManager[object]] = nullcontext
    """within it, the model is the reference"""
    adapters: tuple[str, ...] | None = None
    """PEFT's names of the adapters that are part of it; None: whatever the model holds"""
    score: Score = teacher_forced
    """the trainer's own function, which has the temperature in it, or else plain logprobs"""
    canary: Tensor | None = None
    """[B, T] fixed ids that are scored again and again; None: some that are spread over the vocabulary"""

    def __post_init__(self) -> None:
        """Raises: UsageError for a model that cannot be scored."""
        check_model(self.model, "the reference")

    def weights(self) -> dict[str, Tensor]:
        """Its weights by the names that they have in the model's file, on their devices."""
        state = {plain_name(name): value for name, value in self.model.state_dict().items() if hasattr(value, "detach")}
        if self.adapters is not None:
            owners = _owners(self.model)
            state = {name: value for name, value in state.items() if owners(name) in ("", *self.adapters)}
        if not hasattr(self.model, "peft_config"):
            return state
        return {_name_in_file(name): value for name, value in state.items()}

    def digest(self, *, rounded_to: Rounded | None = None) -> WeightsDigest:
        """Of its own weights alone. Every rank of a sharded model must call this."""
        found = digest_of(_Weights(self.weights()), rounded_to=rounded_to)
        return found.model_copy(update={"source": "the reference"})

    @property
    def device(self) -> torch.device:
        """Of its first weight."""
        return next(self.model.parameters()).device


def check_model(model: object, what: str) -> None:
    """Raises: UsageError for what is no module, has no weights, or has some without values."""
    kind = type(model).__name__
    if not isinstance(model, nn.Module):
        raise UsageError(f"{what} is a {kind}; give the model itself, a torch.nn.Module.")
    on_meta = [weights.is_meta for weights in model.parameters()]
    if not on_meta:
        raise UsageError(f"{what}, a {kind}, has no weights; give the model itself.")
    if any(on_meta):
        raise UsageError(
            f"{what}, a {kind}, has {sum(on_meta)} of its {len(on_meta)} weights on the device meta, where they have "
            "no values. Load them first."
        )


def without_adapters(model: Any, *, score: Score = teacher_forced) -> Reference:
    """The reference is the policy's PEFT model with its adapters off. Raises: UsageError if it has none."""
    _check_adapter(model, None)
    return Reference(model=model, entered=model.disable_adapter, adapters=(), score=score)


def with_adapter(model: Any, name: str, *, score: Score = teacher_forced) -> Reference:
    """The reference is the policy's PEFT model with another adapter. Raises: UsageError if there is none so called."""
    _check_adapter(model, name)

    @contextmanager
    def entered() -> Iterator[None]:
        before = model.active_adapter
        model.set_adapter(name)
        try:
            yield
        finally:
            model.set_adapter(before)

    return Reference(model=model, entered=entered, adapters=(name,), score=score)


def adapters_of(model: Any) -> tuple[str, ...]:
    """PEFT's names of a model's adapters."""
    return tuple(getattr(model, "peft_config", None) or ())


def _check_adapter(model: Any, name: str | None) -> None:
    known = adapters_of(model)
    if not known or not hasattr(model, "disable_adapter"):
        raise UsageError(f"a {type(model).__name__} is no PEFT model; give the reference model itself.")
    if name is not None and name not in known:
        raise UsageError(f"the model has no adapter {name!r}; it has {', '.join(known)}.")


class _Weights:
    """Some tensors as `digest_of` reads a module."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self._tensors = tensors

    def state_dict(self) -> dict[str, Tensor]:
        return self._tensors

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        return iter(())


def _owners(model: nn.Module) -> Callable[[str], str]:
    """Name of a weight -> the adapter that it belongs to, "" for those of the base."""
    folders = {
        f"{plain_name(path)}.{layer}"
        for path, module in model.named_modules()
        for layer in getattr(module, "adapter_layer_names", ())
    }

    def owner(name: str) -> str:
        ends = (at for at, letter in enumerate(name) if letter == ".")
        inside = next((name[end + 1 :] for end in ends if name[:end] in folders), "")
        return inside.split(".")[0]

    return owner


def _name_in_file(name: str) -> str:
    parts = name.removeprefix("base_model.model.").split(".")
    return ".".join(part for part in parts if part not in _OF_WRAPPERS)
