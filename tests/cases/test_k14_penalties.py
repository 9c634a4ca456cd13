"""K14: a repetition penalty that the trainer does not know, or that one of two backends ignores."""

from __future__ import annotations

import numpy as np
import pytest

import onepolicy
from onepolicy.integrations.fake.engine import FakeEngine
from onepolicy.integrations.transformers.protocol import effective as of_transformers
from onepolicy.integrations.verl.protocol import effective as of_verl
from onepolicy.integrations.vllm.protocol import effective as of_vllm
from onepolicy.records.protocol import Meaning, SamplingProtocol
from onepolicy.records.verdict import Status
from onepolicy.sampling.diff import differences

CHECKPOINT = {"repetition_penalty": 1.1}


@pytest.mark.parametrize("penalty", [1.05, 1.2])
def test_b69_logprobs_after_a_penalty_against_a_trainer_without_one_fail(table, processes, verdict, penalty):
    penalised = processes["penalty"](penalty)
    rollouts = table.draw(penalised)
    processed, raw = table.logprobs(rollouts, penalised), table.logprobs(rollouts, processes["plain"])
    judgement = onepolicy.compare(rollout=processed, trainer=raw)
    assert judgement.status is verdict(judgement, "mean_kl").status is Status.FAIL
    same = onepolicy.compare(rollout=processed, trainer=table.logprobs(rollouts, penalised))
    assert same.status is Status.PASS


def test_b69_the_planted_columns_differ_as_the_case_says(table, processes):
    """Tokens that were there before are likelier for the trainer, new ones less likely."""
    penalised = processes["penalty"](1.2)
    rollouts = table.draw(penalised)
    pairs = zip(table.logprobs(rollouts, penalised), table.logprobs(rollouts, processes["plain"]), strict=True)
    d = np.concatenate([raw - processed for processed, raw in pairs])
    seen = np.array([ids[at] in ids[:at] for ids in rollouts for at in range(1, len(ids))])
    assert d[seen].mean() > 0 > d[~seen].mean()


class Penalising(FakeEngine):
    """Draws after a penalty over prompt and completion, and says raw logprobs, as vLLM does under a model's 1.05."""

    def __init__(self, penalty: float) -> None:
        super().__init__()
        self._penalty = penalty

    def _draw(self, one, protocol):
        generator, ids = np.random.default_rng(one.seed), one.prompt_ids.tolist()
        drawn: list[int] = []
        while len(drawn) < protocol.max_new_tokens and (not drawn or drawn[-1] != 258):
            logits = self._weights.logits[self._weights.row_after(*ids[-3:])].copy()
            seen = np.unique(ids)
            logits[seen] = np.where(logits[seen] > 0, logits[seen] / self._penalty, logits[seen] * self._penalty)
            chances = np.exp(logits - logits.max())
            drawn.append(int(generator.choice(len(chances), p=chances / chances.sum())))
            ids.append(drawn[-1])
        return np.array(drawn, dtype=np.int32), "<|im_end|>" if drawn[-1] == 258 else ""


@pytest.mark.parametrize(("penalty", "status"), [(1.0, Status.PASS), (1.3, Status.FAIL)])
def test_b69_a_penalty_that_raw_logprobs_leave_out_is_seen_in_the_samples(
    tmp_path, sampled_by, judged, verdict, penalty, status
):
    path = sampled_by(Penalising(penalty), tmp_path / "run", SamplingProtocol(max_new_tokens=64, samples_per_prompt=4))
    judgement = judged(path)
    assert judgement.metrics["mean_abs_d"] == 0.0
    assert judgement.status is verdict(judgement, "sampled_as_reported").status is status


def test_b69_a_declared_penalty_is_a_meaning_of_its_own_that_nothing_is_equal_to():
    protocol = SamplingProtocol(repetition_penalty=1.05)
    meaning = Meaning.processed_by(protocol)
    assert str(meaning) == "processed (temperature 1, repetition_penalty 1.05)"
    assert meaning != Meaning()
    assert not Meaning().is_sampled_from(protocol)


def test_b70_the_backend_that_takes_the_checkpoints_penalty_is_told_from_the_one_that_is_sent_a_value():
    sent = of_vllm(request={"prompt": "x", "max_tokens": 64, "repetition_penalty": 1.0}, generation_config=CHECKPOINT)
    asked = {"do_sample": True, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_new_tokens": 64}
    forgotten = of_transformers(generation_config=asked, model_generation_config=CHECKPOINT)
    assert [one.field for one in differences(sent.protocol, forgotten.protocol) if one.matters] == [
        "repetition_penalty"
    ]
    assert (sent.sources["repetition_penalty"], sent.protocol.repetition_penalty) == ("the request", 1.0)
    assert forgotten.protocol.repetition_penalty == 1.1
    assert "model" in forgotten.sources["repetition_penalty"]
    copied = of_transformers(generation_config=asked | {"repetition_penalty": 1.0}, model_generation_config=CHECKPOINT)
    assert not [one for one in differences(sent.protocol, copied.protocol) if one.matters]


def test_b70_a_penalty_that_a_framework_has_a_key_for_and_does_not_send_is_a_note_that_matters():
    read = of_verl(config={"actor_rollout_ref": {"rollout": {"name": "vllm", "repetition_penalty": 1.05}}})
    assert read.protocol.repetition_penalty == 1.0
    assert [note.value for note in read.ignored if note.field == "repetition_penalty" and note.matters] == ["1.05"]
