import numpy as np

from onepolicy.records.verdict import Status

CHECK = "loss_mask"


def test_padding_in_the_loss_fails_with_its_place(sound, verdict):
    batch = sound()
    row = int(np.flatnonzero(batch.lengths < 12)[0])
    mask = batch.loss_mask.copy()
    mask[row, -1] = 1
    found = verdict(CHECK, batch, loss_mask=mask)
    assert found.status is Status.FAIL
    assert found.value == 1
    assert f"column 11 of row {row}" in found.message
    assert (found.evidence[0].rollout_id, found.evidence[0].position) == (f"row {row}", 11)


def test_a_mask_of_everything_fails(sound, verdict):
    assert verdict(CHECK, sound(), loss_mask=np.ones((16, 12))).status is Status.FAIL


def test_a_sampled_token_outside_the_loss_fails(sound, verdict):
    batch = sound()
    mask = batch.loss_mask.copy()
    mask[5, 0] = 0
    found = verdict(CHECK, batch, loss_mask=mask)
    assert found.status is Status.FAIL
    assert "1 of 16 completions have 1 sampled tokens that the loss leaves out; the first is column 0 of row 5" in (
        found.message
    )


def test_a_mask_that_is_moved_by_one_column_is_called_that(sound, verdict):
    lengths = np.full(16, 6)
    mask = np.zeros((16, 12), dtype=int)
    mask[:, 1:7] = 1
    found = verdict(CHECK, sound(lengths=lengths), loss_mask=mask)
    assert found.status is Status.FAIL
    assert "moved by one column to the right" in found.message


def test_a_completion_that_is_left_out_whole_was_left_out_on_purpose(sound, verdict):
    batch = sound()
    mask = batch.loss_mask.copy()
    mask[[2, 7]] = 0
    found = verdict(CHECK, batch, loss_mask=mask)
    assert found.status is Status.PASS
    assert "2 completions are left out whole" in found.message


def test_gaps_are_unknown_until_it_is_said_what_was_sampled(sound, verdict):
    batch = sound(lengths=np.full(16, 10), attention_mask=None)
    mask = np.zeros((16, 12), dtype=int)
    mask[:, :10] = 1
    mask[:, 4:6] = 0
    found = verdict(CHECK, batch, loss_mask=mask)
    assert (found.status, found.required) == (Status.UNKNOWN, True)
    assert verdict(CHECK, batch, loss_mask=mask, sampled=mask).status is Status.PASS
    sampled = mask.copy()
    sampled[:, 4] = 1
    assert verdict(CHECK, batch, loss_mask=mask, sampled=sampled).status is Status.FAIL


def test_without_lengths_the_attention_mask_says_what_is_padding(sound, verdict):
    batch = sound(lengths=None)
    assert verdict(CHECK, batch).status is Status.PASS
    assert verdict(CHECK, batch, loss_mask=np.ones((16, 12))).status is Status.FAIL


def test_a_prompt_in_the_loss_fails_where_it_is_said_where_completions_start(sound, verdict):
    batch = sound(starts=np.full(16, 3), lengths=np.full(16, 5), attention_mask=None)
    mask = np.zeros((16, 12), dtype=int)
    mask[:, 3:8] = 1
    assert verdict(CHECK, batch, loss_mask=mask).status is Status.PASS
    mask[:, 2] = 1
    assert "column 2 of row 0" in verdict(CHECK, batch, loss_mask=mask).message
