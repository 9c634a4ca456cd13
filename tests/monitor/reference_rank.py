"""One rank of a training with a guarded reference, for the tests: reference_rank.py FOLDER RANK."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from onepolicy.monitor.reference.guard import ReferenceGuard
from onepolicy.monitor.reference.model import Reference


def score(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """The logits of a token follow from the one before."""
    return model(ids[:, :-1]).log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]


def table() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Embedding(16, 16)


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    model, ids = table(), torch.arange(12).view(2, 6)
    try:
        reference = Reference(model=model, score=score, canary=ids)
        guard = ReferenceGuard(folder / "guard", reference, trained=table(), policy="halt", every=2)
        for number in range(1, 6):
            if (number, rank) == (2, 1):
                with torch.no_grad():
                    model.weight.add_(torch.eye(16))
            guard.step(number)
        guard.close()
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
