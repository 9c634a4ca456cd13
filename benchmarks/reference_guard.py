"""What guarding the reference policy costs in a TRL GRPO step.

    PYTHONPATH=.peers python -W ignore benchmarks/reference_guard.py            # a few minutes

A real GRPOTrainer with a KL penalty trains the packaged model on two cores, as in monitor_overhead.py: rollouts are
made up, so that the step is about the shortest there is. The guard looks at every step here, and its parts are timed;
at its default interval they come once in `EVERY` steps, and the digest of all weights once in `EVERY` times
`DIGEST_EVERY`. Must hold: at most 1 % of the median step. Exit status 1 if it does not.
"""

from __future__ import annotations

import functools
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1", TOKENIZERS_PARALLELISM="false")

import torch

from monitor_overhead import CORES, GENERATIONS, LENGTH, PROMPTS, now, trainer_of
from onepolicy.engines.models import packaged_gguf
from onepolicy.integrations.transformers.convert import converted
from onepolicy.integrations.trl.reference import guard_reference
from onepolicy.monitor.reference.guard import DIGEST_EVERY, EVERY, ReferenceGuard
from onepolicy.monitor.reference.model import Reference

STEPS, WARMUP, BETA = 6, 2, 0.04
LIMIT = 0.01
LOOK, PASS, DIGEST = "look at the reference", "hold TRL's own pass against it", "digest of all weights"
TIMED: dict[str, tuple[type, str]] = {
    LOOK: (ReferenceGuard, "step"),
    PASS: (ReferenceGuard, "used"),
    DIGEST: (Reference, "digest"),
}
COMES: dict[str, int] = {LOOK: EVERY, PASS: EVERY, DIGEST: EVERY * DIGEST_EVERY}
"""steps from one to the next"""


def main() -> int:
    torch.set_num_threads(CORES)
    model = Path(converted(packaged_gguf("smollm2"), name="smollm2", dtype=torch.bfloat16))
    with tempfile.TemporaryDirectory() as folder:
        step, parts = measured(model, Path(folder))
    share = sum(parts[name] / COMES[name] for name in parts) / step
    print(f"step: {step:.2f} s; {PROMPTS * GENERATIONS} rollouts of {LENGTH} tokens")
    for name, seconds in parts.items():
        print(f"{name}: {seconds:.2f} s, once in {COMES[name]} steps: {seconds / COMES[name] / step:.2%} of a step")
    print(f"together: {share:.2%} of a step; limit: {LIMIT:.0%}")
    return 0 if share <= LIMIT else 1


def measured(model: Path, folder: Path) -> tuple[float, dict[str, float]]:
    """Median seconds of a step without the guard, and of each of its parts."""
    spent: dict[str, list[float]] = {name: [] for name in TIMED}
    ends: list[tuple[float, float]] = []
    kept = {name: getattr(kind, method) for name, (kind, method) in TIMED.items()}
    try:
        for name, (kind, method) in TIMED.items():
            setattr(kind, method, timed(kept[name], spent[name]))
        trainer = trainer_of(model, folder, steps=STEPS, beta=BETA)
        guard_reference(trainer, folder / "guard", every=1, policy="halt")
        trainer.log = noting_ends(trainer.log, ends, spent)
        trainer.train()
    finally:
        for name, (kind, method) in TIMED.items():
            setattr(kind, method, kept[name])
    steps = [(later[0] - earlier[0]) - (later[1] - earlier[1]) for earlier, later in pairwise(ends[WARMUP - 1 : STEPS])]
    return statistics.median(steps), {name: statistics.median(times) for name, times in spent.items()}


def timed(method: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        began = now()
        try:
            return method(*args, **kwargs)
        finally:
            spent.append(now() - began)

    return call


def noting_ends(
    log: Callable[..., None], ends: list[tuple[float, float]], spent: dict[str, list[float]]
) -> Callable[..., None]:
    """The trainer's `log`, which it calls at the end of each step."""

    def logged(*args: Any, **kwargs: Any) -> None:
        log(*args, **kwargs)
        ends.append((now(), sum(spent[LOOK]) + sum(spent[PASS])))

    return logged


if __name__ == "__main__":
    sys.exit(main())
