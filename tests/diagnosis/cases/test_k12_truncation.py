"""K12: logprobs over the kept tokens against logprobs over all; and sampling that neither side reports (B61, B62)."""

import numpy as np
import pytest
from cases.case_runs import first, named, of, sampled, trained, why

from onepolicy.records.finding import Outcome
from onepolicy.records.protocol import Meaning
from onepolicy.records.run import Run
from onepolicy.workflow.diagnose_tokens import tokens_of

OTHERWISE = "sampled otherwise than reported"


@pytest.mark.parametrize("statistics", [False, True])
@pytest.mark.parametrize(
    ("protocol", "said"),
    [({"top_p": 0.8}, "top-p 0.8 "), ({"top_k": 20}, "top-k 20 "), ({"min_p": 0.1}, "min-p 0.1 ")],
    ids=["top-p", "top-k", "min-p"],
)
def test_b61_an_engine_that_normalises_over_what_it_keeps(tmp_path, rope, protocol, said, statistics):
    path = sampled(tmp_path / "run", f"transformers:{rope}?logprobs=processed", **protocol)
    trained(path, f"transformers:{rope}", meaning=Meaning(), statistics=statistics)
    finding = first(why(path))
    assert (finding.cause, finding.outcome) == ("truncation", Outcome.CAUSE), finding.label
    assert finding.label.startswith(f"{said}on the rollout side")
    d = tokens_of(Run.open(path), "rollout", "trainer").d
    assert d.max() < 1e-4, "the kept tokens are all likelier: d is -log of 1 over the kept mass, never above 0"
    assert "top_p 1" in finding.remedy


def truncated(path, rope, **statistics):
    sampled(path, f"transformers:{rope}", changes={"top_k": 5}, samples_per_prompt=3, **statistics)
    return path


def test_b62_a_truncation_that_neither_side_reports_is_seen_in_the_ranks(tmp_path, rope):
    path = truncated(tmp_path / "run", rope, statistics=True)
    trained(path, f"transformers:{rope}")
    found = why(path)
    assert named(found) == [(OTHERWISE, "cause")]
    assert "with top-k 5 or so" in first(found).label
    assert not found.differs
    assert np.abs(tokens_of(Run.open(path), "rollout", "trainer").d).max() < 1e-4


def test_b62_is_seen_by_the_trainers_statistics_alone(tmp_path, rope):
    path = truncated(tmp_path / "run", rope)
    trained(path, f"transformers:{rope}", statistics=True)
    assert named(why(path)) == [(OTHERWISE, "cause")]


def test_b62_without_statistics_it_is_not_ruled_out(tmp_path, rope):
    path = truncated(tmp_path / "run", rope)
    trained(path, f"transformers:{rope}")
    assert of(why(path), OTHERWISE).outcome is Outcome.UNTESTED


def test_b62_without_statistics_it_is_said_what_it_takes(tmp_path, rope):
    path = truncated(tmp_path / "run", rope)
    trained(path, f"transformers:{rope}")
    assert "--statistics" in of(why(path), OTHERWISE).seen


def test_b62_a_server_that_samples_as_asked_is_silent(tmp_path, rope):
    path = sampled(tmp_path / "run", f"transformers:{rope}", samples_per_prompt=3, statistics=True)
    trained(path, f"transformers:{rope}", statistics=True)
    assert not named(why(path))
