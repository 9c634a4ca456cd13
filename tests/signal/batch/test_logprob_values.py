import numpy as np
import pytest

from onepolicy.records.verdict import Status
from onepolicy.signal.batch.batch import SignalBatch

CHECK = "logprob_values"


@pytest.mark.parametrize("name", ["rollout_logprobs", "reference_logprobs"])
def test_a_logprob_above_0_fails_with_its_place(sound, verdict, name):
    batch = sound()
    logprobs = batch.rollout_logprobs.copy()
    logprobs[3, 1] = 0.5
    found = verdict(CHECK, batch, **{name: logprobs})
    assert (found.status, found.value) == (Status.FAIL, 1)
    assert (found.evidence[0].rollout_id, found.evidence[0].position) == ("row 3", 1)
    assert f"{name.split('_')[0]} logprob 0.5" in found.message


@pytest.mark.parametrize("as_given", [np.negative, np.exp], ids=["negatives", "probabilities"])
def test_negatives_and_probabilities_in_place_of_logprobs_fail(sound, verdict, as_given):
    batch = sound()
    assert verdict(CHECK, batch, rollout_logprobs=as_given(batch.rollout_logprobs)).status is Status.FAIL


def test_certain_tokens_and_their_rounding_pass(sound, verdict):
    assert verdict(CHECK, sound(rollout_logprobs=np.full((16, 12), 1e-7))).status is Status.PASS
    assert verdict(CHECK, sound(rollout_logprobs=np.full((16, 12), 2e-6))).status is Status.FAIL


def test_what_padding_holds_does_not_count(sound, verdict):
    batch = sound()
    planted = np.where(batch.loss_mask == 1, batch.rollout_logprobs, 1.0)
    assert verdict(CHECK, batch, rollout_logprobs=planted).status is Status.PASS


@pytest.mark.parametrize("fill", [7.0, np.nan])
def test_what_a_tools_answer_holds_does_not_count(sound, verdict, fill):
    batch = sound(lengths=np.full(16, 12), attention_mask=None)
    mask = np.ones((16, 12), dtype=int)
    mask[:, 4:6] = 0
    planted = np.where(mask == 1, batch.rollout_logprobs, fill)
    for check in (CHECK, "kl_sign"):
        found = verdict(check, batch, loss_mask=mask, rollout_logprobs=planted, reference_logprobs=planted)
        assert found.status is Status.PASS


def test_lengths_alone_say_which_tokens_are_sampled(verdict):
    batch = SignalBatch(lengths=[2, 3], rollout_logprobs=[[-1.0, -1, 9], [-1, -1, -1]])
    assert verdict(CHECK, batch).status is Status.PASS
    assert verdict(CHECK, batch, lengths=[3, 3]).status is Status.FAIL


def test_a_sampled_token_without_a_logprob_is_unknown(sound, verdict):
    logprobs = sound().rollout_logprobs.copy()
    logprobs[0, 0] = np.nan
    found = verdict(CHECK, sound(), rollout_logprobs=logprobs)
    assert (found.status, found.required) == (Status.UNKNOWN, True)
