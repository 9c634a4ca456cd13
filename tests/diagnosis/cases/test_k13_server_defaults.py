"""K13: a server fills in what the request leaves out, and reports raw logprobs (B65, B66, B68)."""

import pytest
from cases.case_runs import first, named, sampled, trained, why

from onepolicy.records.finding import Outcome
from onepolicy.records.protocol import Meaning

OTHERWISE = "sampled otherwise than reported"
FOLDER = {"temperature": 0.7, "top_k": 20, "repetition_penalty": 1.05}


def found_of(path, rope, changes, **protocol):
    sampled(path, f"transformers:{rope}", changes=changes, samples_per_prompt=3, statistics=True, **protocol)
    trained(path, f"transformers:{rope}")
    return why(path)


def test_b65_the_folders_values_are_seen_in_the_samples(tmp_path, rope):
    found = found_of(tmp_path / "run", rope, FOLDER)
    assert named(found) == [(OTHERWISE, "cause")]
    assert "top-k 2" in first(found).label, "20 and a few: a penalty moves ranks"
    assert "explicitly" in first(found).remedy


def test_b65_the_folders_temperature_is_named_beside_its_cut_without_an_error_that_it_does_not_have(tmp_path, rope):
    label = first(found_of(tmp_path / "run", rope, FOLDER)).label
    assert float(label.split("temperature ")[1].split(" or so, or ")[0]) == pytest.approx(0.7, abs=0.1)


def test_b65_processed_logprobs_of_three_changes_at_once_are_partly_explained_by_two(tmp_path, rope):
    path = sampled(tmp_path / "run", f"transformers:{rope}?logprobs=processed", **FOLDER)
    trained(path, f"transformers:{rope}", meaning=Meaning(), statistics=True)
    finding = first(why(path))
    assert finding.outcome is Outcome.PARTLY
    assert "truncation" in finding.cause
    assert "top-k" in finding.label
    assert "temperature 0.7" in finding.label


@pytest.mark.parametrize(
    ("changes", "protocol"), [({"top_k": 1}, {"temperature": 1.5}), ({"temperature": 0.0}, {})], ids=["b66", "b68"]
)
def test_a_server_that_is_greedy_is_named_by_its_rank(tmp_path, rope, changes, protocol):
    found = found_of(tmp_path / "run", rope, changes, **protocol)
    assert named(found) == [(OTHERWISE, "cause")]
    assert "with top-k 1 or so" in first(found).label
    assert first(found).outcome is Outcome.CAUSE
