"""Pairs of readings from a few plain lists, one call for each rollout."""

import json

import numpy as np
import pytest

from onepolicy.numerics.measurement import Measurement
from onepolicy.numerics.pair import pair_up
from onepolicy.records.parquet import ReadingBlock, RolloutBlock
from onepolicy.records.tokens import TokenState


def one_rollout(p, q, *, name="r", prompt=None, digest=None, **columns):
    """A rollout whose tokens are all sampled and have values on both sides, but for what `columns` says."""
    n = len(p)
    everywhere = {
        "ids": list(range(n)),
        "sampled": [True] * n,
        "loss_mask": [True] * n,
        "p_states": [TokenState.VALUE] * n,
        "q_states": [TokenState.VALUE] * n,
        "p_top1": [-1] * n,
        "q_top1": [-1] * n,
        "language": "en",
    }
    named = {"p": p, "q": q, "name": name, "prompt": prompt or f"of {name}", "digest": digest or f"digest of {name}"}
    return {**everywhere, **named, **columns}


def one_pair(rows):
    """The rollouts of one block."""

    def flat(key, dtype):
        return np.array([x for row in rows for x in row[key]], dtype=dtype)

    offsets = np.array([0, *np.cumsum([len(row["p"]) for row in rows])], dtype=np.int64)
    names, digests = [row["name"] for row in rows], [row["digest"] for row in rows]
    rollouts = RolloutBlock(
        rollout_ids=names,
        prompt_ids=[row["prompt"] for row in rows],
        tags=[json.dumps({"language": row["language"]} if row["language"] else {}) for row in rows],
        offsets=offsets,
        token_ids=flat("ids", np.int32),
        sampled=flat("sampled", bool),
        loss_mask=flat("loss_mask", bool),
    )
    readings = [
        ReadingBlock(
            rollout_ids=names,
            digests=digests,
            offsets=offsets,
            logprobs=flat(side, np.float32),
            states=flat(f"{side}_states", np.uint8),
            top1=flat(f"{side}_top1", np.int32),
        )
        for side in ("p", "q")
    ]
    return pair_up(rollouts, digests, *readings)


def one_measurement(rows, *, blocks=1, top=None, **fields):
    """What is known after the rollouts came in so many blocks."""
    result = Measurement(**fields)
    for part in np.array_split(np.arange(len(rows)), blocks):
        if len(part):
            result.add(one_pair([rows[i] for i in part]), top)
    return result


@pytest.fixture(scope="session")
def rollout():
    return one_rollout


@pytest.fixture(scope="session")
def pair():
    return one_pair


@pytest.fixture(scope="session")
def measured():
    return one_measurement


@pytest.fixture(scope="session")
def many():
    """Rollouts of m prompts with noise of the given scale on the trainer side: mean k3 is about scale squared / 2."""

    def build(m, *, scale, length=40, seed=0):
        rng = np.random.default_rng(seed)
        rows = []
        for i in range(m):
            p = -rng.exponential(1.0, length) - 0.5
            rows.append(one_rollout(p, np.minimum(p + scale * rng.standard_normal(length), 0), name=f"r-{i:03}"))
        return rows

    return build
