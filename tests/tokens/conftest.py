"""A byte-level BPE tokenizer with two merges, and the same without them."""

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from onepolicy.records.rollout import Rollout

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_level(merges, letters=LETTERS):
    pieces = [*letters, *("".join(merge) for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer


@pytest.fixture
def tokenizer():
    return byte_level([("t", "h"), ("th", "e")])


@pytest.fixture
def other_tokenizer():
    """The same ids mean other bytes."""
    return byte_level([("t", "h"), ("th", "e")], LETTERS[1:] + LETTERS[:1])


@pytest.fixture
def completed(tokenizer):
    """A rollout whose completion is these pieces of the vocabulary, after a prompt of three tokens."""

    def build(*pieces, text=None, name="r-1", prompt=3):
        ids = [tokenizer.token_to_id(piece) for piece in pieces]
        decoded = tokenizer.decode(ids, skip_special_tokens=False) if text is None else text
        sampled = np.arange(prompt + len(ids)) >= prompt
        return Rollout(
            rollout_id=name,
            prompt_id=f"of {name}",
            trajectory_id=name,
            token_ids=np.array([0] * prompt + ids, dtype=np.int32),
            sampled=sampled,
            loss_mask=sampled,
            text=decoded,
        )

    return build
