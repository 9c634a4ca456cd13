import hashlib
import math

import numpy as np
import pytest
from pydantic import ValidationError

from onepolicy.errors import AlignmentError
from onepolicy.records.reading import ReadingRequest, ReadingRow
from onepolicy.records.tokens import TokenState


def row(logprobs, states, **fields):
    return ReadingRow(
        rollout_id="r-1",
        digest="",
        logprobs=np.array(logprobs, dtype=np.float32),
        states=np.array(states, dtype=np.uint8),
        **fields,
    )


def test_nan_is_refused_where_the_state_says_value_and_allowed_elsewhere():
    with pytest.raises(AlignmentError, match="rollout r-1: a position has the state VALUE and no number"):
        row([-1.0, math.nan], [TokenState.VALUE, TokenState.VALUE])
    assert len(row([-1.0, math.nan], [TokenState.VALUE, TokenState.ABSENT]).states) == 2


def test_columns_of_other_lengths_are_refused_with_the_rollout_and_the_numbers():
    with pytest.raises(AlignmentError, match="rollout r-1: 2 logprobs and 1 states"):
        row([-1.0, -1.0], [TokenState.VALUE])
    with pytest.raises(AlignmentError, match="rollout r-1: 2 logprobs and 3 entries in `top1`"):
        row([-1.0, -1.0], [TokenState.VALUE] * 2, top1=np.zeros(3, dtype=np.int32))


def test_the_share_of_prompts_with_top_tokens_is_chosen_by_the_hash_of_the_id():
    names = [f"prompt {i}" for i in range(2_000)]
    request = ReadingRequest(engine="fake:tiny", top_share=0.25)
    kept = [name for name in names if request.keeps_top(name)]
    by_hand = [name for name in names if int(hashlib.sha256(name.encode()).hexdigest()[:16], 16) < 0.25 * 2**64]
    assert kept == by_hand
    assert len(kept) == pytest.approx(500, abs=60)


@pytest.mark.parametrize(("share", "all_or_none"), [(1.0, True), (0.0, False)])
def test_the_whole_share_is_all_prompts_and_no_share_is_none(share, all_or_none):
    request = ReadingRequest(engine="fake:tiny", top_share=share)
    assert {request.keeps_top(str(i)) for i in range(50)} == {all_or_none}


def test_an_unknown_key_is_refused():
    with pytest.raises(ValidationError, match="topk"):
        ReadingRequest(engine="fake:tiny", topk=5)
