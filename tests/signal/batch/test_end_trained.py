import numpy as np
import pytest

from onepolicy.records.verdict import Status

CHECK, END = "end_trained", 2


def test_an_end_that_is_masked_as_padding_fails(sound, verdict):
    batch = sound()
    found = verdict(CHECK, batch, loss_mask=batch.token_ids != END)
    assert found.status is Status.FAIL
    assert found.value == 16
    assert found.evidence[0].position == batch.lengths[0] - 1
    assert "build it from lengths" in found.message


def test_one_lost_end_fails(sound, verdict):
    batch = sound()
    mask = batch.loss_mask.copy()
    mask[4, batch.lengths[4] - 1] = 0
    found = verdict(CHECK, batch, loss_mask=mask)
    assert (found.status, found.value, found.evidence[0].rollout_id) == (Status.FAIL, 1, "row 4")


def test_completions_that_were_cut_have_no_end_to_train(sound, verdict):
    batch = sound()
    ids = np.where(batch.token_ids == END, END + 1, batch.token_ids)
    ids[np.arange(12) >= batch.lengths[:, None]] = END
    found = verdict(CHECK, batch, token_ids=ids)
    assert (found.status, found.required) == (Status.UNKNOWN, False)


@pytest.mark.parametrize("attention", [True, False])
def test_without_lengths_a_lost_end_and_padding_cannot_be_told_apart(sound, verdict, attention):
    batch = sound()
    mask = batch.token_ids != END
    found = verdict(CHECK, batch, lengths=None, attention_mask=mask if attention else None, loss_mask=mask)
    assert (found.status, found.required) == (Status.UNKNOWN, True)
    assert "Give `lengths`" in found.message


def test_without_lengths_ends_in_the_loss_pass(sound, verdict):
    assert verdict(CHECK, sound(lengths=None, attention_mask=None)).status is Status.PASS


def test_the_end_of_a_tools_answer_is_not_the_policys(sound, verdict):
    batch = sound(lengths=np.full(16, 8), attention_mask=None)
    ids = np.full((16, 12), 50)
    ids[:, 7] = END
    mask = np.zeros((16, 12), dtype=int)
    mask[:, :4] = 1
    assert verdict(CHECK, batch, token_ids=ids, loss_mask=mask).status is Status.UNKNOWN


def test_ends_of_completions_that_are_left_out_whole_do_not_count(sound, verdict):
    batch = sound()
    mask = batch.loss_mask.copy()
    mask[:15] = 0
    found = verdict(CHECK, batch, loss_mask=mask)
    assert (found.status, found.message) == (Status.PASS, "1 completions end in the loss.")


def test_no_end_ids_are_not_checked(sound, verdict):
    found = verdict(CHECK, sound(end_ids=()))
    assert (found.status, found.required) == (Status.UNKNOWN, False)
