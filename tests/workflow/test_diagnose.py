"""A run whose two sides differ -> the cause, from data and from experiments that the workflow executes."""

import pytest

from onepolicy.engines.spec import parse_spec
from onepolicy.errors import UsageError
from onepolicy.records.finding import Outcome
from onepolicy.records.protocol import Meaning, SamplingProtocol
from onepolicy.workflow.diagnose import DiagnoseRequest, diagnose
from onepolicy.workflow.record import RecordRequest, record
from onepolicy.workflow.score import ScoreRequest, score

COLD = SamplingProtocol(max_new_tokens=48, temperature=0.7)


@pytest.fixture
def processed(tmp_path):
    """A rollout side that says logprobs at its own temperature, and a trainer that scores raw ones."""
    path = tmp_path / "run"
    record(path, RecordRequest(engine=parse_spec("fake:m?logprobs=processed"), protocol=COLD))
    score(path, ScoreRequest(engine=parse_spec("fake:m"), meaning=Meaning()))
    return path


def test_a_temperature_that_one_side_applies_is_found_by_reading_some_rollouts_again(processed):
    found = diagnose(processed)
    first = found.causes[0]
    assert (first.cause, first.outcome) == ("temperature", Outcome.CAUSE)
    assert first.value == pytest.approx(0.7, abs=0.02)
    assert first.explained == pytest.approx(1.0, abs=0.02)
    assert found.sentence.startswith(
        "Cause: temperature 0.70 on the rollout side alone, the sampling temperature; corrected"
    )


def test_without_experiments_and_statistics_it_is_not_tested_and_says_what_to_run(processed):
    found = diagnose(processed, DiagnoseRequest(experiments=False))
    assert found.causes == ()
    assert "No cause found" in found.sentence
    assert next(one for one in found.findings if one.cause == "temperature").outcome is Outcome.UNTESTED


def test_two_sides_that_agree_have_nothing_to_explain(tmp_path):
    record(tmp_path / "run", RecordRequest(engine=parse_spec("fake:m")))
    score(tmp_path / "run", ScoreRequest(engine=parse_spec("fake:m")))
    found = diagnose(tmp_path / "run")
    assert found.causes == ()
    assert found.sentence.startswith("Nothing to explain")


def test_a_run_without_a_token_on_both_sides_is_refused(tmp_path):
    record(tmp_path / "run", RecordRequest(engine=parse_spec("fake:m")))
    score(tmp_path / "run", ScoreRequest(engine=parse_spec("fake:m?offset=1000")))
    with pytest.raises(UsageError, match="no token has a logprob on both sides"):
        diagnose(tmp_path / "run")
