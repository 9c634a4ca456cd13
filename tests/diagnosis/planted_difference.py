"""Tokens with planted differences, on a noise that is known."""

import numpy as np

from onepolicy.diagnosis.likelihood import Family
from onepolicy.diagnosis.noise import Noise
from onepolicy.diagnosis.tokens import Tokens

PROMPTS, LENGTH = 20, 60
SCALE = 0.01
NOISE = Noise(by_confidence=np.full(9, SCALE), source="a planted scale")


def tokens_of(d, p=None):
    """Tokens of `PROMPTS` prompts with one rollout each."""
    p = -np.random.default_rng(1).exponential(1.0, len(d)) if p is None else p
    rollout = np.repeat(np.arange(PROMPTS), LENGTH)
    return Tokens(
        rollout_ids=[f"r{i}" for i in range(PROMPTS)],
        prompt_ids=[f"p{i}" for i in range(PROMPTS)],
        sequences=[np.arange(LENGTH, dtype=np.int32)] * PROMPTS,
        rollout=rollout,
        position=np.tile(np.arange(LENGTH), PROMPTS),
        p=p,
        q=p + d,
    )


def noise(seed=0):
    return SCALE * np.random.default_rng(seed).standard_t(4, PROMPTS * LENGTH)


def offset(tokens, **changes):
    """d without an offset that one side adds to every token."""
    settings = {
        "cause": "offset",
        "values": (-0.2, -0.1, 0.0, 0.1, 0.2),
        "corrected": lambda value: tokens.d - value,
        "label": lambda value: f"offset {value:.3f}",
        "is_continuous": True,
    }
    return Family(**(settings | changes))
