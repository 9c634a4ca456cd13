"""A sound batch, whose padding has the id of the end."""

from dataclasses import replace

import numpy as np
import pytest

from onepolicy.signal.batch.batch import SignalBatch
from onepolicy.signal.batch.check import checked

END, WIDTH, PROMPTS, SAMPLES = 2, 12, 4, 4


def sound_batch(seed=0, **changes):
    """16 completions of 4 prompts in any order, all ending with the end token."""
    rng = np.random.default_rng(seed)
    rows = PROMPTS * SAMPLES
    lengths = rng.integers(2, WIDTH + 1, rows)
    ids = rng.integers(10, 99, (rows, WIDTH))
    places = np.arange(WIDTH)
    ids[places >= lengths[:, None] - 1] = END
    mask = places < lengths[:, None]
    prompts = rng.permutation(np.repeat(np.arange(PROMPTS), SAMPLES))
    rewards = rng.standard_normal(rows).astype(np.float32)
    advantages = np.array([r - rewards[prompts == p].mean() for r, p in zip(rewards, prompts, strict=True)])
    given = {
        "token_ids": ids,
        "attention_mask": mask.astype(np.int64),
        "loss_mask": mask.astype(np.int64),
        "lengths": lengths,
        "end_ids": (END,),
        "prompts": prompts,
        "rewards": rewards,
        "advantages": advantages.astype(np.float32)[:, None] * mask,
        "rollout_logprobs": np.log(rng.uniform(0.01, 0.9, (rows, WIDTH))).astype(np.float32),
        "value_token_ids": ids.copy(),
        "value_attention_mask": mask.copy(),
    }
    return SignalBatch(**(given | changes))


@pytest.fixture
def sound():
    return sound_batch


@pytest.fixture
def verdict():
    """The verdict of one check on a batch, with some fields changed."""

    def look(check, batch, **changes):
        found = {v.check: v for v in checked(replace(batch, **changes))}
        return found[check]

    return look
