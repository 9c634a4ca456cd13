"""A small training whose two policies are as far apart as a test wants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

Batch = dict[str, Any]


@pytest.fixture
def batch_of() -> Callable[..., Batch]:
    """[8, 16] rollouts of four prompts; their logprobs differ by normal noise, the first rows by `off` nats."""

    def make(step: int = 0, *, noise: float = 0.01, off: float = 0.0, rows: int = 0, ids: bool = True) -> Batch:
        generator = torch.Generator().manual_seed(step)
        p = -torch.rand(8, 16, generator=generator) - 3
        q = p + noise * torch.randn(8, 16, generator=generator)
        q[:rows] -= off
        batch: Batch = {
            "rollout_logprobs": p,
            "trainer_logprobs": q,
            "sampled": torch.ones(8, 16, dtype=torch.bool),
            "rollout_versions": [step] * 8,
            "trainer_version": step,
            "advantages": torch.randn(8, generator=generator),
            "groups": [f"prompt {row // 2}" for row in range(8)],
        }
        if ids:
            batch["token_ids"] = torch.randint(0, 1000, (8, 16), generator=generator)
            batch["prompt_ids"] = torch.randint(0, 1000, (8, 4), generator=generator)
        return batch

    return make
