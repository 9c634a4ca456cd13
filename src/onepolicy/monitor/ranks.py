"""The ranks of a training: one collective for each step, and one more when rollouts are kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from onepolicy.errors import UsageError
from onepolicy.records.tokens import Float64


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A step's vectors on their way to the host."""

    vectors: Callable[[], Float64]
    """[R, LENGTH] in the order of ranks; waits for them"""


class Ranks:
    """This process among those that train together; a process group of one where nothing is distributed.

    Every rank gets the vectors of all, in one order, and so comes to the same answer. A rank that has died is an error
    of torch, which nothing here catches.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._distributed = dist.is_available() and dist.is_initialized()
        self._group = group
        self.rank = dist.get_rank(group) if self._distributed else 0
        self.size = dist.get_world_size(group) if self._distributed else 1
        if self.rank < 0:
            raise UsageError("this process is not in the `group` that the monitor was given; make none here.")

    @property
    def is_first(self) -> bool:
        """Whether this rank writes the files."""
        return self.rank == 0

    def start(self, vector: Tensor) -> Pending:
        """Send a step's vector to all ranks and to the host, without waiting for either. Shape: [LENGTH]."""
        if self.size == 1:
            return Pending(vectors=_to_host(vector[None]))
        device = self._device(vector)
        if device.type == "cpu" and vector.device.type != "cpu":
            host = _to_host(vector)
            return Pending(vectors=lambda: self._gathered(torch.from_numpy(host())).numpy())
        gathered = [torch.empty_like(vector, device=device) for _ in range(self.size)]
        work = dist.all_gather(gathered, vector.to(device), group=self._group, async_op=True)
        assert work is not None
        if device.type == "cpu":
            return Pending(vectors=lambda: _waited(work, gathered))
        work.wait()  # the stream waits for it, not the host
        return Pending(vectors=_to_host(torch.stack(gathered)))

    def told_by_first(self, value: Any) -> Any:
        """What the first rank says; the others' values are not looked at."""
        if self.size == 1:
            return value
        said = [value if self.is_first else None]
        dist.broadcast_object_list(said, src=self._first(), group=self._group)
        return said[0]

    def gathered_by_first(self, value: Any) -> list[Any]:
        """What all ranks have, in their order, for the first one; empty for the others."""
        if self.size == 1:
            return [value]
        found: list[Any] | None = [None] * self.size if self.is_first else None
        dist.gather_object(value, found, dst=self._first(), group=self._group)
        return found or []

    def _first(self) -> int:
        """Its number among all processes."""
        return 0 if self._group is None else dist.get_global_rank(self._group, 0)

    def _gathered(self, vector: Tensor) -> Tensor:
        gathered = [torch.empty_like(vector) for _ in range(self.size)]
        dist.all_gather(gathered, vector, group=self._group)
        return torch.stack(gathered)

    def _device(self, vector: Tensor) -> torch.device:
        """Where the group's backend takes the vector."""
        backend = str(dist.get_backend(self._group))
        if backend == "nccl":
            return vector.device if vector.device.type == "cuda" else torch.device("cuda", torch.cuda.current_device())
        return torch.device("cpu") if backend in ("gloo", "mpi") else vector.device


def _waited(work: dist.Work, gathered: list[Tensor]) -> Float64:
    work.wait()
    vectors: Float64 = torch.stack(gathered).numpy()
    return vectors


def _to_host(tensor: Tensor) -> Callable[[], Float64]:
    """Begin the copy; what comes back waits for it and no longer."""
    if tensor.device.type != "cuda":
        host = tensor.to("cpu")
        return lambda: np.asarray(host.numpy())
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
    pinned.copy_(tensor, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record()

    def wait() -> Float64:
        copied.synchronize()
        return np.asarray(pinned.numpy())

    return wait
