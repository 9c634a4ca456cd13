import numpy as np
import pytest

from onepolicy.errors import AlignmentError
from onepolicy.records.rollout import Rollout
from onepolicy.records.tokens import digest_of_ids


def rollout(sampled, loss_mask, ids=(5, 6, 7)):
    return Rollout(
        rollout_id="r-1",
        prompt_id="p",
        trajectory_id="r-1",
        token_ids=np.array(ids, dtype=np.int32),
        sampled=np.array(sampled, dtype=bool),
        loss_mask=np.array(loss_mask, dtype=bool),
    )


def test_sampled_tokens_are_compared_and_the_loss_mask_of_a_rollout_without_any():
    assert rollout([0, 1, 0], [0, 1, 1]).compared.tolist() == [False, True, False]
    assert rollout([0, 0, 0], [0, 1, 1]).compared.tolist() == [False, True, True]
    assert rollout([], [], ids=()).compared.tolist() == []


def test_the_digest_is_that_of_all_ids():
    assert rollout([0, 1, 0], [0, 1, 1]).digest == digest_of_ids(np.array([5, 6, 7]))


@pytest.mark.parametrize(("sampled", "loss_mask"), [([1], [1, 1, 1]), ([1, 1, 1], [1, 1])])
def test_columns_of_other_lengths_are_refused_with_the_rollout_and_the_numbers(sampled, loss_mask):
    with pytest.raises(AlignmentError, match=f"rollout r-1: 3 token ids, {len(sampled)} .* and {len(loss_mask)} in"):
        rollout(sampled, loss_mask)
