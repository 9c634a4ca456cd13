"""K11: one side's logprobs are of another temperature, or were divided by it (B56, B57, B59)."""

import pytest
from cases.case_runs import first, function, named, sampled, served, trained, why

from onepolicy.records.finding import Outcome
from onepolicy.records.protocol import Meaning

COLD = 0.6
DIVIDED = f"return [[value / {COLD} for value in row] for row in right_way(MODEL, token_ids)]"
TEMPERATURES = [(0.6, "float32"), (1.4, "float32"), (0.6, "bfloat16"), (1.4, "bfloat16")]


def assert_named(finding, temperature, *, of, lacking):
    """Either way of saying it: one side has it alone, or the other one lacks it."""
    assert finding.label in (
        f"temperature {temperature:.2f} on the {of} side alone, the sampling temperature",
        f"temperature 1.00 on the {lacking} side: {temperature:g} not applied",
    )
    assert finding.value == pytest.approx(temperature if "alone" in finding.label else 1.0, abs=0.005)


@pytest.mark.parametrize("statistics", [False, True])
def test_b56_logprobs_that_were_divided_by_the_temperature_are_told_by_one_factor(tmp_path, rope, statistics):
    path = sampled(tmp_path / "run", f"transformers:{rope}", temperature=COLD)
    trained(path, f"transformers:{rope}", meaning=Meaning(), statistics=statistics)
    served(path, function(tmp_path, rope, DIVIDED), meaning=Meaning())
    finding = first(why(path, of="served"))
    assert (finding.cause, finding.outcome, finding.value) == ("temperature", Outcome.CAUSE, COLD)
    assert finding.label.startswith("rollout logprobs divided by 0.60 after the softmax")


def test_b56_a_trainer_that_scales_its_logits_does_not_hide_the_division(tmp_path, rope):
    path = sampled(tmp_path / "run", f"transformers:{rope}", temperature=COLD)
    trained(path, f"transformers:{rope}", meaning=Meaning(temperature=COLD), statistics=True)
    served(path, function(tmp_path, rope, DIVIDED), meaning=Meaning())
    finding = first(why(path, of="served"))
    assert (finding.cause, finding.outcome, finding.value) == ("temperature", Outcome.CAUSE, COLD)


def test_b56_at_temperature_one_there_is_nothing_to_see(tmp_path, rope):
    path = sampled(tmp_path / "run", f"transformers:{rope}")
    trained(path, f"transformers:{rope}", statistics=True)
    served(path, function(tmp_path, rope, DIVIDED.replace(str(COLD), "1.0")))
    assert not named(why(path, of="served"))


@pytest.mark.parametrize(("temperature", "dtype"), TEMPERATURES)
def test_b57_raw_logprobs_of_the_engine_against_a_trainer_that_scales(tmp_path, rope, temperature, dtype):
    spec = f"transformers:{rope}?dtype={dtype}"
    path = sampled(tmp_path / "run", spec, temperature=temperature)
    trained(path, spec, meaning=Meaning(temperature=temperature), statistics=True)
    finding = first(why(path))
    assert (finding.cause, finding.outcome) == ("temperature", Outcome.CAUSE), finding.label
    assert_named(finding, temperature, of="trainer", lacking="rollout")


def test_b57_without_statistics_the_engine_is_asked_for_them(tmp_path, rope):
    path = sampled(tmp_path / "run", f"transformers:{rope}", temperature=COLD)
    trained(path, f"transformers:{rope}", meaning=Meaning(temperature=COLD))
    finding = first(why(path))
    assert (finding.cause, finding.outcome) == ("temperature", Outcome.CAUSE)
    assert_named(finding, COLD, of="trainer", lacking="rollout")


@pytest.mark.parametrize(("temperature", "dtype"), TEMPERATURES)
def test_b59_a_trainer_that_forgets_the_temperature(tmp_path, rope, temperature, dtype):
    spec = f"transformers:{rope}?dtype={dtype}"
    path = sampled(tmp_path / "run", f"{spec}&logprobs=processed", temperature=temperature)
    trained(path, spec, meaning=Meaning(), statistics=True)
    finding = first(why(path))
    assert (finding.cause, finding.outcome) == ("temperature", Outcome.CAUSE), finding.label
    assert_named(finding, temperature, of="rollout", lacking="trainer")


@pytest.mark.parametrize("logprobs", ["raw", "processed"])
def test_b57_b59_at_temperature_one_there_is_nothing_to_see(tmp_path, rope, logprobs):
    path = sampled(tmp_path / "run", f"transformers:{rope}?logprobs={logprobs}")
    trained(path, f"transformers:{rope}", meaning=Meaning(), statistics=True)
    assert not named(why(path))
