"""K11: the temperature in logprobs, as columns that nobody declared, and as readings that say what they are."""

import numpy as np
import pytest

import onepolicy
from onepolicy.records.protocol import Meaning, SamplingProtocol
from onepolicy.records.verdict import Status

COLD = 0.6
PROTOCOL = SamplingProtocol(max_new_tokens=32, temperature=COLD)


def test_b56_a_chosen_logprob_that_was_divided_by_the_temperature_fails(table, processes, verdict):
    cold = processes["temperature"](COLD)
    rollouts = table.draw(cold)
    divided = [one / COLD for one in table.logprobs(rollouts, processes["plain"])]
    trainer = table.logprobs(rollouts, cold)
    judgement = onepolicy.compare(rollout=divided, trainer=trainer)
    assert judgement.status is Status.FAIL
    assert verdict(judgement, "mean_kl").status is verdict(judgement, "mean_ratio").status is Status.FAIL
    assert onepolicy.compare(rollout=table.logprobs(rollouts, cold), trainer=trainer).status is Status.PASS


def test_b56_at_temperature_one_the_same_code_is_right(table, processes):
    rollouts = table.draw(processes["plain"])
    raw = table.logprobs(rollouts, processes["plain"])
    trainer = table.logprobs(rollouts, processes["temperature"](1.0))
    assert onepolicy.compare(rollout=[one / 1.0 for one in raw], trainer=trainer).status is Status.PASS


@pytest.mark.parametrize("temperature", [0.6, 1.4])
def test_b57_raw_logprobs_of_the_engine_against_a_trainer_that_scales_fail(table, processes, verdict, temperature):
    scaled = processes["temperature"](temperature)
    rollouts = table.draw(scaled)
    raw, trainer = table.logprobs(rollouts, processes["plain"]), table.logprobs(rollouts, scaled)
    judgement = onepolicy.compare(rollout=raw, trainer=trainer)
    assert judgement.status is Status.FAIL
    assert verdict(judgement, "mean_ratio").status is Status.FAIL


def test_b57_it_is_unknown_and_no_number_where_the_readings_say_what_they_mean(recorded, judged, verdict):
    judgement = judged(recorded("raw", PROTOCOL), Meaning(temperature=COLD))
    assert judgement.status is Status.UNKNOWN
    said = verdict(judgement, "meaning")
    assert said.status is Status.UNKNOWN
    assert "the rollout logprobs are raw, the trainer logprobs processed (temperature 0.6)" in said.message
    assert verdict(judgement, "mean_kl").value is None


def test_b59_a_trainer_that_forgets_the_temperature_fails(table, processes, verdict):
    cold = processes["temperature"](COLD)
    rollouts = table.draw(cold)
    processed, raw = table.logprobs(rollouts, cold), table.logprobs(rollouts, processes["plain"])
    judgement = onepolicy.compare(rollout=processed, trainer=raw)
    assert judgement.status is Status.FAIL
    assert verdict(judgement, "mean_kl").status is Status.FAIL


def test_b59_it_is_unknown_and_no_number_where_the_readings_say_what_they_mean(recorded, judged, verdict):
    path = recorded("processed", PROTOCOL)
    judgement = judged(path, Meaning())
    assert judgement.status is verdict(judgement, "meaning").status is Status.UNKNOWN
    assert "processed (temperature 0.6), the trainer logprobs raw" in verdict(judgement, "meaning").message
    assert verdict(judgement, "mean_kl").value is None


def test_b59_under_one_temperature_both_sides_are_the_same_policy(recorded, judged, verdict):
    judgement = judged(recorded("processed", PROTOCOL))
    assert judgement.status is Status.PASS
    assert verdict(judgement, "mean_kl").kind == "about the policy"
    assert judgement.metrics["mean_abs_d"] == pytest.approx(0.0, abs=1e-7)


def test_the_signatures_of_the_cases_are_those_that_are_written_down(table, processes):
    """What the planted columns look like: a ratio that is the same number for every token, or a shift that is not."""
    cold = processes["temperature"](COLD)
    rollouts = table.draw(cold)
    raw = np.concatenate(table.logprobs(rollouts, processes["plain"]))
    scaled = np.concatenate(table.logprobs(rollouts, cold))
    assert np.ptp(raw / COLD / raw) < 1e-12
    assert np.ptp(scaled / raw) > 0.5
