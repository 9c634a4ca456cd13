"""Blocks of flat arrays -> the tables that a run keeps, without a Python object for each token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from onepolicy.records.parquet import READING_SCHEMA, ROLLOUT_SCHEMA, ReadingBlock, RolloutBlock
from onepolicy.records.tokens import Float64


def rollout_block_table(block: RolloutBlock, rewards: Float64) -> pa.Table:
    """[R] rollouts without text as a table of `ROLLOUT_SCHEMA`; each is a trajectory of its own. NaN is no reward."""
    nothing = [None] * len(block.rollout_ids)
    columns = {
        "rollout_id": block.rollout_ids,
        "prompt_id": block.prompt_ids,
        "trajectory_id": block.rollout_ids,
        "token_ids": _lists(block.offsets, block.token_ids),
        "sampled": _lists(block.offsets, block.sampled),
        "loss_mask": _lists(block.offsets, block.loss_mask),
        "text": nothing,
        "reward": pa.array(rewards, mask=np.isnan(rewards)),
        "group": nothing,
        "tags": block.tags,
    }
    return pa.table(columns, schema=ROLLOUT_SCHEMA)


def reading_block_table(block: ReadingBlock, digests: Sequence[str]) -> pa.Table:
    """[R] rows as a table of `READING_SCHEMA`; digests: of the ids that they scored."""
    columns = {
        "rollout_id": block.rollout_ids,
        "digest": digests,
        "logprobs": _lists(block.offsets, block.logprobs),
        "states": _lists(block.offsets, block.states),
        "top1": [None] * len(block.rollout_ids),
    }
    return pa.table(columns, schema=READING_SCHEMA)


def _lists(offsets: npt.NDArray[np.int64], values: npt.NDArray[np.generic]) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(values))
