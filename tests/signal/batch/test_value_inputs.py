import numpy as np
import pytest

from onepolicy.records.verdict import Status

CHECK, BOS = "value_inputs", 1


def shifted(rows, by):
    return np.roll(rows, by, axis=1)


def test_a_bos_that_only_the_value_model_gets_fails(sound, verdict):
    batch = sound()
    ids = np.concatenate([np.full((16, 1), BOS), batch.token_ids], axis=1)
    mask = np.concatenate([np.ones((16, 1)), batch.attention_mask], axis=1)
    found = verdict(CHECK, batch, value_token_ids=ids, value_attention_mask=mask)
    assert (found.status, found.value) == (Status.FAIL, 16)
    assert "(BOS)" in found.message
    assert f"the value model has {BOS} in front" in found.message


def test_a_bos_that_the_value_model_lacks_fails(sound, verdict):
    batch = sound()
    found = verdict(
        CHECK, batch, value_token_ids=batch.token_ids[:, 1:], value_attention_mask=batch.attention_mask[:, 1:]
    )
    assert found.status is Status.FAIL
    assert "(BOS)" in found.message


def test_padding_on_the_other_side_fails(sound, verdict):
    batch = sound()
    ids, mask = batch.token_ids.copy(), batch.attention_mask.copy()
    for row, length in enumerate(batch.lengths):
        ids[row], mask[row] = np.roll(ids[row], 12 - length), np.roll(mask[row], 12 - length)
    found = verdict(CHECK, batch, value_token_ids=ids, value_attention_mask=mask)
    assert found.status is Status.FAIL
    assert "(padding)" in found.message
    assert found.value == (batch.lengths < 12).sum()


def test_another_id_fails_with_its_place(sound, verdict):
    batch = sound()
    ids = batch.token_ids.copy()
    ids[3, 1] += 1
    found = verdict(CHECK, batch, value_token_ids=ids)
    assert (found.status, found.value) == (Status.FAIL, 1)
    assert (found.evidence[0].rollout_id, found.evidence[0].position) == ("row 3", 1)
    assert f"token 1 is {ids[3, 1] - 1} for the policy and {ids[3, 1]} for the value model" in found.message


def test_an_end_that_one_mask_hides_fails(sound, verdict):
    batch = sound()
    mask = batch.attention_mask * (batch.token_ids != 2)
    found = verdict(CHECK, batch, value_attention_mask=mask)
    assert found.status is Status.FAIL
    assert "(length)" in found.message
    assert "the policy has 1 more" in found.message


def test_a_row_that_one_of_them_does_not_see_fails(sound, verdict):
    batch = sound()
    mask = batch.attention_mask.copy()
    mask[5] = 0
    assert verdict(CHECK, batch, value_attention_mask=mask).value == 1


def test_ids_under_padding_may_differ(sound, verdict):
    batch = sound()
    ids = np.where(batch.attention_mask == 1, batch.token_ids, 0)
    assert verdict(CHECK, batch, value_token_ids=ids).status is Status.PASS


@pytest.mark.parametrize("absent", ["attention_mask", "value_attention_mask"])
def test_one_mask_alone_cannot_be_compared(sound, verdict, absent):
    found = verdict(CHECK, sound(), **{absent: None})
    assert (found.status, found.required) == (Status.UNKNOWN, False)


def test_without_masks_all_ids_are_compared(sound, verdict):
    batch = sound(attention_mask=None, value_attention_mask=None)
    assert verdict(CHECK, batch).status is Status.PASS
    assert verdict(CHECK, batch, value_token_ids=shifted(batch.token_ids, 1)).status is Status.FAIL
