"""Throughput of the summary of two float32 columns, against verl on the same arrays and cores.

    make bench          (installs the peers into .peers and runs every benchmark)

Must hold: at least 2 times the throughput of verl's `compute_rollout_corr_metrics_from_logprobs`. Also shown: the
ratio to reading the two columns from memory. Runs are interleaved; the figure is the median. Exit status 1 if it does
not hold.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_corr_metrics_from_logprobs

from onepolicy.numerics.summary import ROLLOUT_SUMS, summarise

ROWS, LENGTH, REPEATS = 8192, 2048, 7
NEEDED = 2.0


def main() -> int:
    rng = np.random.default_rng(0)
    rollout = -rng.exponential(1.0, (ROWS, LENGTH)).astype(np.float32)
    trainer = np.minimum(rollout + 0.03 * rng.standard_normal((ROWS, LENGTH), dtype=np.float32), 0)
    p, q, mask = torch.from_numpy(rollout), torch.from_numpy(trainer), torch.ones(ROWS, LENGTH)
    offsets = np.arange(0, ROWS * LENGTH + 1, LENGTH)
    flat = rollout.ravel(), trainer.ravel()
    runs: dict[str, Callable[[], object]] = {
        "onepolicy summarise": lambda: summarise(trainer_logprobs=flat[1], rollout_logprobs=flat[0], offsets=offsets),
        "verl rollout_corr metrics": lambda: compute_rollout_corr_metrics_from_logprobs(q, p, mask),
        "reading both columns": lambda: (p.sum(), q.sum()),
    }
    _same_answer(flat, offsets, q, p, mask)
    seconds = _interleaved(runs)
    speeds = {name: ROWS * LENGTH / value / 1e6 for name, value in seconds.items()}
    for name, speed in speeds.items():
        print(f"{name:28s} {speed:8.0f} Mtokens/s")
    ratio = speeds["onepolicy summarise"] / speeds["verl rollout_corr metrics"]
    reading = speeds["onepolicy summarise"] / speeds["reading both columns"]
    print(f"{ratio:.2f} times verl (at least {NEEDED} needed), {reading:.2f} times plain reading")
    return 0 if ratio >= NEEDED else 1


def _same_answer(
    flat: tuple[np.ndarray, np.ndarray], offsets: np.ndarray, q: torch.Tensor, p: torch.Tensor, mask: torch.Tensor
) -> None:
    """A race between different answers would mean nothing."""
    sums, _ = summarise(trainer_logprobs=flat[1], rollout_logprobs=flat[0], offsets=offsets)
    k3 = sums.sums[:, ROLLOUT_SUMS.index("k3")].sum() / len(flat[0])
    theirs = compute_rollout_corr_metrics_from_logprobs(q, p, mask)["rollout_corr/k3_kl"]
    assert abs(k3 / theirs - 1) < 1e-3, (k3, theirs)


def _interleaved(runs: dict[str, Callable[[], object]]) -> dict[str, float]:
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(REPEATS):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return {name: median(values) for name, values in seconds.items()}


if __name__ == "__main__":
    sys.exit(main())
