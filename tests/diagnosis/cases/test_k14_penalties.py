"""K14: a repetition penalty on one side, or in one backend (B69, B70)."""

import json

import pytest
from cases.case_runs import first, named, sampled, trained, why

from onepolicy.diagnosis.causes.penalty import is_seen
from onepolicy.engines.spec import parse_spec
from onepolicy.records.finding import Outcome
from onepolicy.records.protocol import Meaning
from onepolicy.records.run import Run
from onepolicy.workflow.calibrate import CalibrateRequest, calibrate
from onepolicy.workflow.diagnose_tokens import tokens_of


def penalised(path, rope, penalty, dtype, *, statistics=True):
    spec = f"transformers:{rope}?dtype={dtype}"
    sampled(path, f"{spec}&logprobs=processed", repetition_penalty=penalty)
    return trained(path, spec, meaning=Meaning(), statistics=statistics)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("penalty", [1.05, 1.2])
def test_b69_a_penalty_that_leaks_into_rollouts_is_found_with_its_value(tmp_path, rope, penalty, dtype):
    path = penalised(tmp_path / "run", rope, penalty, dtype)
    tokens = tokens_of(Run.open(path), "rollout", "trainer")
    seen = is_seen(tokens)
    assert tokens.d[seen].mean() > 0 > tokens.d[~seen].mean()
    finding = first(why(path))
    assert (finding.cause, finding.outcome) == ("penalty", Outcome.CAUSE), finding.label
    assert finding.value == pytest.approx(penalty, abs=0.02)
    assert "on the rollout side" in finding.label


def test_b69_without_statistics_the_engine_is_asked_for_them(tmp_path, rope):
    finding = first(why(penalised(tmp_path / "run", rope, 1.2, "float16", statistics=False)))
    assert finding.cause == "penalty"


def test_b69_a_penalty_that_neither_side_reports_is_seen_in_the_samples(tmp_path, rope):
    changes = {"repetition_penalty": 1.2}
    path = sampled(tmp_path / "run", f"transformers:{rope}", changes=changes, samples_per_prompt=3, statistics=True)
    found = why(trained(path, f"transformers:{rope}"))
    assert named(found) == [("sampled otherwise than reported", "cause")]
    assert "under a penalty on tokens that were there before" in first(found).label


@pytest.mark.parametrize("penalty", [1.0, 1.1])
def test_b70_the_backend_that_takes_the_checkpoints_value_is_told_from_the_one_that_does_not(tmp_path, rope, penalty):
    found = why(penalised(tmp_path / "run", rope, penalty, "float16"))
    if penalty == 1.0:
        assert [cause for cause, _ in named(found) if cause != "precision"] == []
        return
    assert (first(found).cause, first(found).outcome) == ("penalty", Outcome.CAUSE)
    assert first(found).value == pytest.approx(penalty, abs=0.01)


def fixed(file):
    """Texts that nobody sampled, one a prompt and one what follows."""
    words = "the cat sat on the mat and saw a bird fly over it to a tree far away where it slept".split()  # noqa: SIM905
    rows = [(" ".join(words[n % 9 :: 2]), " ".join(words[n % 7 :])[: 30 + 4 * n]) for n in range(12)]
    lines = [json.dumps({"id": f"f{n}", "prompt": a, "completion": b, "tags": {}}) for n, (a, b) in enumerate(rows)]
    file.write_text("\n".join(lines))
    return file


@pytest.mark.parametrize("is_measured", [True, False])
def test_b70_in_bfloat16_a_penalty_is_named_before_precision(tmp_path, rope, is_measured):
    path = penalised(tmp_path / "run", rope, 1.1, "bfloat16")
    request = CalibrateRequest(
        engine=parse_spec(f"transformers:{rope}?dtype=bfloat16"),
        output=tmp_path / "floor.json",
        suite=str(fixed(tmp_path / "fixed.jsonl")),
    )
    found = why(path, floor=calibrate(request, path=tmp_path / "floor") if is_measured else None)
    assert first(found).cause == "penalty", found.sentence
    assert first(found).value == pytest.approx(1.1, abs=0.01)
    assert not is_measured or first(found).outcome is Outcome.CAUSE
