"""K12: logprobs before and after top_k and top_p."""

import numpy as np
import pytest

import onepolicy
from onepolicy.records.join import TopJoin
from onepolicy.records.protocol import Meaning, SamplingProtocol
from onepolicy.records.run import Run
from onepolicy.records.verdict import Status
from onepolicy.sampling.diff import differences

MASS = 0.8
PLAIN = SamplingProtocol(max_new_tokens=48)


def test_b61_logprobs_of_the_kept_set_against_the_whole_softmax_fail_with_the_kept_mass_as_ratio(
    table, processes, verdict
):
    nucleus = processes["nucleus"](MASS)
    rollouts = table.draw(nucleus)
    kept, whole = table.logprobs(rollouts, nucleus), table.logprobs(rollouts, processes["plain"])
    judgement = onepolicy.compare(rollout=kept, trainer=whole)
    ratio = verdict(judgement, "mean_ratio")
    assert judgement.status is ratio.status is Status.FAIL
    assert "truncation on one side" in ratio.message
    d = np.concatenate(whole) - np.concatenate(kept)
    assert ratio.value == pytest.approx(np.exp(d).mean(), rel=1e-3)
    assert MASS < ratio.value < 1
    assert np.log(MASS) - 1e-9 < d.min() <= d.max() <= 1e-9
    same = onepolicy.compare(rollout=kept, trainer=table.logprobs(rollouts, nucleus))
    assert same.status is Status.PASS


def test_b61_it_is_unknown_where_the_readings_say_what_they_mean_and_equal_under_one_meaning(recorded, judged, verdict):
    path = recorded("processed", SamplingProtocol(max_new_tokens=32, top_p=MASS))
    judgement = judged(path)
    assert judgement.status is verdict(judgement, "kept_set").status is Status.PASS
    assert judgement.metrics["mean_abs_d"] == pytest.approx(0.0, abs=1e-7)


def test_b61_scored_over_the_whole_vocabulary_it_is_unknown_and_no_number(recorded, judged, verdict):
    judgement = judged(recorded("processed", SamplingProtocol(max_new_tokens=32, top_p=MASS)), Meaning())
    assert judgement.status is verdict(judgement, "meaning").status is Status.UNKNOWN
    assert verdict(judgement, "mean_kl").value is None


@pytest.mark.parametrize("changes", [{"top_k": 5}, {"top_p": MASS}, {"min_p": 0.1}])
def test_b62_a_truncation_that_both_sides_logprobs_leave_out_is_seen_in_the_samples(served, judged, verdict, changes):
    judgement = judged(served(**changes))
    assert judgement.metrics["mean_abs_d"] == 0.0, "the logprobs agree, which is the trouble"
    assert verdict(judgement, "mean_kl").status is Status.PASS
    said = verdict(judgement, "sampled_as_reported")
    assert judgement.status is said.status is Status.FAIL
    assert "more likely than their distributions say" in said.message


def test_b62_without_it_the_same_run_passes(served, judged):
    assert judged(served()).status is Status.PASS


def test_b62_the_ranks_of_the_samples_end_at_k(served):
    def ranks(path):
        run = Run.open(path)
        lists = TopJoin(run, "rollout")
        found = []
        for rollout in run.rollouts():
            top = lists.get(rollout.rollout_id)
            hits = top.ids == rollout.token_ids[top.positions][:, None]
            found += [int(row.argmax()) + 1 if row.any() else top.ids.shape[1] + 1 for row in hits]
        return np.array(found)

    assert ranks(served(top_k=5)).max() == 5


def test_b62_a_declared_truncation_is_no_statement_about_the_policy_and_the_protocols_differ(recorded, judged, verdict):
    truncated = SamplingProtocol(max_new_tokens=48, top_k=5)
    judgement = judged(recorded("raw", truncated))
    gate = verdict(judgement, "mean_kl")
    assert gate.kind == "on these tokens"
    assert "no sample of the policy" in gate.message
    (found,) = differences(truncated, PLAIN)
    assert (found.field, found.a, found.b, found.matters) == ("top_k", 5, 0, True)
