"""Small recordings in plain JSONL, as tests of the workflow want them."""

import json
from pathlib import Path

import numpy as np


def planted(count=24, *, length=12, prompt=4, spread=0.005, seed=0, samples=2):
    """Rows of a recording whose two sides differ by noise; two samples of each prompt."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        group = np.random.default_rng([seed, number // samples])
        ids = [*group.integers(0, 1000, prompt).tolist(), *rng.integers(0, 1000, length - prompt).tolist()]
        p = -0.1 - rng.exponential(1.0, length - prompt)
        q = p + spread * rng.standard_normal(length - prompt) - spread**2 / 2
        nothing = [0.0] * prompt
        yield {
            "prompt_ids": ids[:prompt],
            "completion_ids": ids[prompt:],
            "rollout_logprobs": [*nothing, *np.round(p, 5).tolist()],
            "trainer_logprobs": [*nothing, *np.round(q, 5).tolist()],
            "reward": float(number % 3),
        }


def write(path: Path, rows, **extra) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({**row, **extra}) + "\n" for row in rows))
    return path


def without(rows, *names):
    return [{key: value for key, value in row.items() if key not in names} for row in rows]
