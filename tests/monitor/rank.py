"""One rank of a training, for the tests: rank.py FOLDER RANK SIZE MODE."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from onepolicy.monitor.monitor import Monitor
from onepolicy.records.step import Alarm, StepRecord

STEPS, ROWS, TOKENS = 4, 6, 12


class AtStep3:
    def add(self, record: StepRecord) -> tuple[Alarm, ...]:
        there = record.step == 3
        return (Alarm(step=3, kind="limit", message="step 3: planted"),) if there else ()


def rows_of(step: int) -> dict[str, Any]:
    """What all ranks have together; the worst rollout is the last."""
    generator = torch.Generator().manual_seed(step)
    p = -3 - torch.rand(ROWS, TOKENS, generator=generator)
    q = p + 0.05 * torch.randn(ROWS, TOKENS, generator=generator)
    q[-1] -= 0.5
    p[1, 2] = torch.nan
    return {
        "rollout_logprobs": p,
        "trainer_logprobs": q,
        "sampled": torch.rand(ROWS, TOKENS, generator=generator) < 0.8,
        "token_ids": torch.arange(ROWS)[:, None].repeat(1, TOKENS),
        "groups": [f"prompt {row % 3}" for row in range(ROWS)],
        "advantages": torch.randn(ROWS, generator=generator),
        "rollout_versions": [step, step, step, step - 1, step - 2, -1],
        "trainer_version": step,
    }


def share_of(rows: dict[str, Any], rank: int, size: int) -> dict[str, Any]:
    return {name: value if name == "trainer_version" else value[rank::size] for name, value in rows.items()}


def train(path: Path, rank: int, size: int, mode: str) -> None:
    policy: Any = "halt" if mode == "halt" else "mask"
    monitor = Monitor(path, policy=policy, limits="bf16", watch=AtStep3())
    for step in range(STEPS):
        share = share_of(rows_of(step), rank, size)
        if mode == "fail" and rank == 1 and step == 1:
            share["sampled"] = share["sampled"][:, 1:]
        if mode == "fail" and rank == 1 and step == STEPS - 1:
            os._exit(0)  # dies without a word
        if mode == "left" and step == STEPS - 1 and rank == 1:
            continue
        monitor.update(**share)
        if mode == "left" and step == STEPS - 1:
            continue
        monitor.step()
        sys.stdout.write(f"rank {rank} step {step}: {monitor.status.value}\n")
    monitor.close()
    sys.stdout.write(f"rank {rank}: {monitor.status.value}, {monitor.why}\n")


if __name__ == "__main__":
    folder, rank_, size_, mode_ = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank_, world_size=size_)
    try:
        train(folder / "run", rank_, size_, mode_)
    finally:
        if mode_ != "fail":  # there the other rank is dead; else gloo's threads would abort the interpreter as it ends
            dist.destroy_process_group()
