"""What a trainer hands over for one micro-batch, checked by its shapes and types alone: no value is read."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from onepolicy.errors import AlignmentError, UsageError
from onepolicy.numerics.steps.summary import CLUSTERS

UNKNOWN_VERSION = -1
UNKNOWN_LAG = -(2**62)
"""where a version is not known; no distance of two versions comes to it"""
LARGEST_VERSION = 2**61
Numbers = Tensor | Sequence[int | None]
Groups = Tensor | Sequence[int] | Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Given:
    """The arguments of `Monitor.update`, as they came."""

    rollout_logprobs: Tensor
    trainer_logprobs: Tensor
    sampled: Tensor
    loss_mask: Tensor | None = None
    token_ids: Tensor | None = None
    prompt_ids: Tensor | None = None
    prompt_mask: Tensor | None = None
    rollout_versions: Numbers | None = None
    trainer_version: int | None = None
    advantages: Tensor | None = None
    groups: Groups | None = None
    tags: Sequence[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """B rollouts of T positions, on one device."""

    rollout_logprobs: Tensor
    """[B, T] float32"""
    trainer_logprobs: Tensor
    """[B, T] float32"""
    sampled: Tensor
    """[B, T] bool"""
    loss_mask: Tensor
    """[B, T] bool"""
    compared: Tensor
    """[B, T] bool: the sampled tokens; of a rollout without any, the tokens of its loss mask"""
    odd_masks: Tensor
    """[] float64: entries of the masks that are neither 0 nor 1"""
    lags: Tensor
    """[B] int64 steps by which the weights that sampled are behind the trainer's; negative: ahead; or `UNKNOWN_LAG`"""
    groups: Tensor
    """[B] int64: number of the prompt group, or the CRC-32 of its name"""
    advantages: Tensor
    """[B] float64, NaN where there is none"""
    ids: Tensor | None
    """[B, T]"""
    prompt_ids: Tensor | None
    """[B, P]"""
    prompt_mask: Tensor | None
    """[B, P] bool"""

    @property
    def size(self) -> int:
        """B."""
        return self.compared.shape[0]

    def split(self, rows: int) -> list[Batch]:
        """The same in parts of so many rollouts; the odd masks count with the first."""
        if self.size <= rows:
            return [self]
        return [self._part(slice(first, first + rows)) for first in range(0, self.size, rows)]

    def _part(self, part: slice) -> Batch:
        whole = ((name, getattr(self, name)) for name in _COLUMNS)
        columns: dict[str, Any] = {name: None if column is None else column[part] for name, column in whole}
        return Batch(**columns, odd_masks=self.odd_masks if not part.start else torch.zeros_like(self.odd_masks))


_COLUMNS = tuple(f.name for f in fields(Batch) if f.name != "odd_masks")


def batch_of(given: Given, *, first_group: int) -> Batch:
    """The same in the types that are computed with; rollouts without a group get groups of their own.

    first_group: number of the first of these. Raises: UsageError, AlignmentError.
    """
    try:
        return _batch_of(given, first_group)
    except (TypeError, ValueError, AttributeError, RuntimeError, LookupError, ArithmeticError) as error:
        raise UsageError(
            f"a micro-batch cannot be read ({type(error).__name__}: {error}). Give plain tensors and sequences, as "
            "docs/monitor.md says."
        ) from error


def _batch_of(given: Given, first_group: int) -> Batch:
    shape = _checked(given)
    device = given.trainer_logprobs.device
    sampled, odd = _mask(given.sampled)
    loss_mask, odd_loss = (sampled, odd) if given.loss_mask is None else _mask(given.loss_mask)
    compared = torch.where(sampled.any(dim=1, keepdim=True), sampled, loss_mask)
    return Batch(
        rollout_logprobs=given.rollout_logprobs.detach().to(torch.float32),
        trainer_logprobs=given.trainer_logprobs.detach().to(torch.float32),
        sampled=sampled,
        loss_mask=loss_mask,
        compared=compared,
        odd_masks=odd if given.loss_mask is None else odd + odd_loss,
        lags=_lags(given, shape[0], device),
        groups=_group_numbers(given.groups, shape[0], first_group, device),
        advantages=_advantages(given.advantages, shape[0], device),
        ids=None if given.token_ids is None else given.token_ids.detach(),
        prompt_ids=None if given.prompt_ids is None else given.prompt_ids.detach(),
        prompt_mask=None if given.prompt_mask is None else given.prompt_mask.detach() != 0,
    )


def on_device(values: Sequence[int], device: torch.device) -> Tensor:
    """[N] int64, sent without waiting for the device."""
    host = torch.tensor(values, dtype=torch.int64, device="cpu")
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)


def _checked(given: Given) -> tuple[int, int]:
    """B and T."""
    q = given.trainer_logprobs
    for name in ("rollout_logprobs", "trainer_logprobs"):
        _check_type(name, getattr(given, name), floating=True)
    _check_type("sampled", given.sampled)
    if q.ndim != 2:
        raise UsageError(f"`trainer_logprobs` has the shape {_shape(q)}; give one row for each rollout: [B, T].")
    for name in ("rollout_logprobs", "sampled", "loss_mask", "token_ids"):
        _check_shape(name, getattr(given, name), q, tuple(q.shape))
    _check_prompts(given, q)
    for name in ("rollout_versions", "groups", "tags", "advantages"):
        _check_rows(name, getattr(given, name), q)
    for name in ("token_ids", "prompt_ids"):
        ids = getattr(given, name)
        if ids is not None and (ids.is_floating_point() or ids.dtype == torch.bool):
            raise UsageError(f"`{name}` is {ids.dtype}; token ids are whole numbers.")
    _check_version(given.trainer_version)
    return q.shape[0], q.shape[1]


def _check_version(version: object) -> None:
    if isinstance(version, Tensor):  # reading it would wait for the device
        raise UsageError("`trainer_version` is a tensor; give the number itself, as the host knows it.")
    if version is not None and not (isinstance(version, Integral) and int(version) <= LARGEST_VERSION):
        raise UsageError(f"`trainer_version` is {str(version)[:40]!r}; give the number of the weights, or None.")


def _check_type(name: str, value: object, *, floating: bool = False) -> None:
    if not isinstance(value, Tensor):
        raise UsageError(f"`{name}` is a {type(value).__name__}; give the trainer's tensor, on its device.")
    if value.is_nested or value.layout != torch.strided or value.is_quantized:
        raise UsageError(f"`{name}` is a nested, sparse or quantised tensor; pad it to [B, T].")
    if floating and not value.is_floating_point():
        raise UsageError(f"`{name}` is {value.dtype}; logprobs are floating-point numbers in nats.")
    if value.is_complex():
        raise UsageError(f"`{name}` is {value.dtype}; give real numbers.")


def _check_shape(name: str, value: object, q: Tensor, shape: tuple[int, ...]) -> None:
    if value is None:
        return
    _check_type(name, value)
    assert isinstance(value, Tensor)
    if tuple(value.shape) != shape:
        raise AlignmentError(
            f"`{name}` has the shape {_shape(value)} and `trainer_logprobs` {_shape(q)}. Entry [b, t] of both belongs "
            "to token t of rollout b: cut both to the same positions."
        )
    if value.device != q.device:
        raise UsageError(f"`{name}` is on {value.device} and `trainer_logprobs` on {q.device}; put them on one device.")


def _check_prompts(given: Given, q: Tensor) -> None:
    if given.prompt_ids is None:
        if given.prompt_mask is not None:
            raise UsageError("`prompt_mask` goes with `prompt_ids`.")
        return
    _check_type("prompt_ids", given.prompt_ids)
    if given.prompt_ids.ndim != 2 or given.prompt_ids.shape[0] != q.shape[0]:
        raise AlignmentError(
            f"`prompt_ids` has the shape {_shape(given.prompt_ids)}, and there are {q.shape[0]} rollouts: give [B, P]."
        )
    _check_shape("prompt_ids", given.prompt_ids, q, tuple(given.prompt_ids.shape))
    _check_shape("prompt_mask", given.prompt_mask, q, tuple(given.prompt_ids.shape))


def _check_rows(name: str, value: Tensor | Sequence[object] | None, q: Tensor) -> None:
    if value is None:
        return
    if isinstance(value, Tensor):
        _check_type(name, value)
    shape = tuple(value.shape) if isinstance(value, Tensor) else (len(value),)
    if isinstance(value, str) or shape != (q.shape[0],):
        found = "a string" if isinstance(value, str) else f"of the shape {list(shape)}"
        raise AlignmentError(f"`{name}` is {found}, and there are {q.shape[0]} rollouts: give one entry for each.")
    if isinstance(value, Tensor) and value.device != q.device:
        raise UsageError(f"`{name}` is on {value.device} and `trainer_logprobs` on {q.device}; put them on one device.")
    if isinstance(value, Tensor) and name != "advantages" and (value.is_floating_point() or value.is_complex()):
        raise UsageError(f"`{name}` is {value.dtype}; give whole numbers.")


def _mask(values: Tensor) -> tuple[Tensor, Tensor]:
    values = values.detach()
    if values.dtype == torch.bool:
        return values, torch.zeros((), dtype=torch.float64, device=values.device)
    return values != 0, ((values != 0) & (values != 1)).sum().to(torch.float64)


def _lags(given: Given, rollouts: int, device: torch.device) -> Tensor:
    trainer = given.trainer_version
    if given.rollout_versions is None or trainer is None or trainer < 0:
        return torch.full((rollouts,), UNKNOWN_LAG, dtype=torch.int64, device=device)
    versions = _whole_numbers("rollout_versions", given.rollout_versions, device)
    return torch.where(versions < 0, UNKNOWN_LAG, int(trainer) - versions.clamp(max=LARGEST_VERSION))


def _whole_numbers(name: str, values: Numbers, device: torch.device) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach().to(torch.int64)
    return on_device([_version(name, value) for value in values], device)


def _version(name: str, value: object) -> int:
    if value is None:
        return UNKNOWN_VERSION
    if not isinstance(value, Integral) or int(value) > LARGEST_VERSION:
        raise UsageError(
            f"`{name}` holds what is no whole number of weights ({str(value)[:40]!r}); give the number of the weights."
        )
    return max(int(value), UNKNOWN_VERSION)


def _group_numbers(groups: Groups | None, rollouts: int, first: int, device: torch.device) -> Tensor:
    if groups is None:
        return first + torch.arange(rollouts, dtype=torch.int64, device=device)
    if isinstance(groups, Tensor):
        return groups.detach().to(torch.int64)
    return on_device([group_number(group) for group in groups], device)


def group_number(group: object) -> int:
    """The number itself, or the CRC-32 of the name. Raises: UsageError for what is neither."""
    if isinstance(group, str):  # a lone surrogate is none of UTF-8, and a name all the same
        return zlib.crc32(group.encode(errors="backslashreplace")) % CLUSTERS
    if isinstance(group, Integral):
        return int(group) % CLUSTERS
    raise UsageError(f"`groups` holds a {type(group).__name__}; give a whole number or a name for each prompt.")


def _advantages(advantages: Tensor | None, rollouts: int, device: torch.device) -> Tensor:
    if advantages is None:
        return torch.full((rollouts,), torch.nan, dtype=torch.float64, device=device)
    return advantages.detach().to(torch.float64)


def _shape(tensor: Tensor) -> list[int]:
    return list(tensor.shape)
