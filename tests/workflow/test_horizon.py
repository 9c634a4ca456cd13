"""A recorded run's horizon: what is judged before it, what is refused, and what the command shows."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from rich.console import Console

import onepolicy
from onepolicy.cli import main
from onepolicy.errors import ForeignReadingError, RunError, UsageError
from onepolicy.records.run import Run
from onepolicy.records.verdict import Status
from onepolicy.report.horizon import horizon_section, show_horizon
from onepolicy.workflow.horizon import HorizonRequest, horizon


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    """Completions of the fake engine, as long as they come, scored by one whose weights are a little off."""
    path = tmp_path_factory.mktemp("horizon") / "run"
    protocol = onepolicy.SamplingProtocol(max_new_tokens=256, samples_per_prompt=8)
    onepolicy.check(rollout="fake:m", trainer="fake:m?noise=0.03", run=path, protocol=protocol, suite="quick")
    return path


@pytest.fixture
def copy(recorded, tmp_path) -> Path:
    return shutil.copytree(recorded, tmp_path / "run")


@pytest.fixture
def cli(capsys, monkeypatch) -> Callable[..., tuple[int, str, str]]:
    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["onepolicy", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capsys.readouterr()

    return run


def test_a_mismatch_of_weights_has_no_drift_and_no_bias(recorded):
    found = horizon(recorded)
    assert {v.check for v in found.verdicts} == {"drift", "persistent_bias", "by_position", "sequence_ratio"}
    assert found.measured_tokens == found.tokens >= 64
    assert found.status is not Status.FAIL
    assert 0.3 * found.counts["tokens_compared"] < found.counts["tokens_in_blocks"] < found.counts["tokens_compared"]
    assert found.extrapolation == found.at_measured


def test_the_numbers_are_those_of_the_run(recorded):
    """By hand from the readings, a rollout at a time."""
    found = horizon(recorded)
    p, q = (logprobs_of(recorded / "readings" / name) for name in ("rollout", "trainer"))
    ds = [(q[r.rollout_id] - p[r.rollout_id])[r.sampled] for r in Run.open(recorded).rollouts()]
    every = np.concatenate(ds)
    assert found.drift.beyond == pytest.approx(np.expm1(every).mean(), rel=1e-6, abs=1e-12)
    assert found.drift.expected == pytest.approx(-(np.expm1(every) - every).mean(), rel=1e-6)
    cohort = [d[: found.measured_tokens] for d in ds if len(d) >= found.measured_tokens]
    assert found.counts["cohort_rollouts"] == len(cohort)
    first = np.concatenate([d[: found.positions[0].end] for d in cohort])
    assert found.positions[0].mean_abs_d == pytest.approx(np.abs(first).mean(), rel=1e-6)
    outside = np.mean([abs(d.sum()) > np.log(1.2) for d in cohort])
    assert horizon(recorded, HorizonRequest(band=(1 / 1.2, 1.2))).observed_outside == pytest.approx(outside)
    assert 0 < outside < 1


def logprobs_of(folder: Path) -> dict[str, np.ndarray]:
    rows = (row for part in folder.glob("part-*.parquet") for row in pq.read_table(part).to_pylist())
    return {row["rollout_id"]: np.array(row["logprobs"], dtype=np.float64) for row in rows}


def test_an_offset_in_the_trainers_logprobs_fails(copy, rewrite):
    rewrite(copy / "readings" / "trainer", shifted(lambda: -0.02))
    found = horizon(copy)
    assert found.status is Status.FAIL
    assert found.exit_status == 1
    assert next(v for v in found.verdicts if v.check == "drift").status is Status.FAIL


def test_an_offset_of_each_rollout_is_a_persistent_bias(copy, rewrite):
    rng = np.random.default_rng(0)
    rewrite(copy / "readings" / "trainer", shifted(lambda: -abs(rng.normal(0, 0.05))))
    found = horizon(copy)
    assert next(v for v in found.verdicts if v.check == "persistent_bias").status is Status.FAIL


def shifted(offset: Callable[[], float]) -> Callable[[dict[str, dict]], None]:
    """Adds a number, drawn for each rollout, to every logprob of a reading."""

    def edit(rows: dict[str, dict]) -> None:
        for row in rows.values():
            by = offset()
            row["logprobs"] = [x if np.isnan(x) else min(x + by, 0.0) for x in row["logprobs"]]

    return edit


def test_a_horizon_far_beyond_the_measured_length_is_refused_and_no_pass(recorded):
    most = 8 * horizon(recorded).measured_tokens
    found = horizon(recorded, HorizonRequest(tokens=most + 1))
    assert found.extrapolation is None
    assert "more than 8 times the measured length" in found.refused
    assert found.status is Status.UNKNOWN
    assert horizon(recorded, HorizonRequest(tokens=most)).extrapolation is not None


def test_a_run_with_a_missing_part_is_unknown_and_has_no_number(copy):
    next((copy / "readings" / "trainer").glob("part-*.parquet")).unlink()
    found = horizon(copy)
    assert found.exit_status == 3
    assert found.verdicts[0].check == "scoring"
    for verdict in found.verdicts:
        if verdict.check in ("drift", "persistent_bias", "sequence_ratio"):
            assert verdict.value is None
            assert "scoring is unknown" in verdict.message


def test_fixed_sequences_have_positions_and_no_answer(tmp_path):
    path = tmp_path / "run"
    onepolicy.check(rollout="fake:m", trainer="fake:m?noise=0.03", run=path, suite="fixed-quick")
    found = horizon(path)
    assert found.exit_status == 3
    assert found.extrapolation is None
    assert "no sample of the distribution" in found.refused


def test_nothing_is_known_where_the_trainers_truncation_excludes_what_was_sampled(tmp_path):
    protocol = onepolicy.SamplingProtocol(max_new_tokens=128, samples_per_prompt=4, top_k=20)
    sides = {"rollout": "fake:m?logprobs=processed", "trainer": "fake:m?noise=0.03"}
    onepolicy.check(**sides, run=tmp_path / "run", protocol=protocol, suite="quick")
    found = horizon(tmp_path / "run")
    assert found.verdicts[0].check == "kept_set"
    assert found.exit_status == 3
    assert {v.status for v in found.verdicts[1:] if v.required} == {Status.UNKNOWN}


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (HorizonRequest(tokens=0), "at least one token"),
        (HorizonRequest(band=(2.0, 0.5)), "a band of ratios"),
        (HorizonRequest(band=(0.0, 2.0)), "a band of ratios"),
        (HorizonRequest(band=(0.5, float("inf"))), "a band of ratios"),
        (HorizonRequest(most_outside=1.5), "between 0 and 1"),
        (HorizonRequest(most_outside=float("nan")), "between 0 and 1"),
        (HorizonRequest(trainer="rollout"), "compared with itself"),
    ],
)
def test_what_is_no_request_is_refused(recorded, request_, words):
    with pytest.raises(UsageError, match=words):
        horizon(recorded, request_)


def test_a_reading_that_is_not_there_or_of_another_run_is_refused(copy, tmp_path):
    with pytest.raises(RunError, match="nowhere"):
        horizon(copy, HorizonRequest(trainer="nowhere"))
    protocol = onepolicy.SamplingProtocol(max_new_tokens=8, samples_per_prompt=2, seed=3)
    onepolicy.check(rollout="fake:m", trainer="fake:m", run=tmp_path / "other", protocol=protocol)
    shutil.rmtree(copy / "readings" / "trainer")
    shutil.copytree(tmp_path / "other" / "readings" / "trainer", copy / "readings" / "trainer")
    with pytest.raises(ForeignReadingError):
        horizon(copy)


def test_the_command_shows_it_in_80_columns_and_changes_nothing(cli, copy, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    status, out, err = cli("horizon", copy, "--tokens", 256, "--band", 0.8, 1.25)
    assert max(map(len, out.splitlines())) <= 80
    assert "256 tokens" in out
    assert "1 to 32" in out
    assert "Traceback" not in err
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before
    again, out, _ = cli("horizon", copy, "--tokens", 256, "--band", 0.8, 1.25, "--json")
    found = json.loads(out)
    assert again == status == {"pass": 0, "fail": 1, "unknown": 3}[found["status"]]
    assert found["band"] == [0.8, 1.25]
    assert found["extrapolation"]["tokens"] == 256


@pytest.mark.parametrize("options", [("--tokens", 0), ("--band", 2, 3), ("--most-outside", 2), ("--band", 0.5)])
def test_bad_options_end_with_two(cli, recorded, options):
    status, out, err = cli("horizon", recorded, *options)
    assert status == 2
    assert not out
    assert "Traceback" not in err


def test_the_section_of_a_page_escapes_and_holds_both_tables(recorded):
    found = horizon(recorded).model_copy(update={"sentence": "Pass: <b>x</b>"})
    section = horizon_section(found)
    assert "&lt;b&gt;x" in section
    assert section.count("<table>") == 2
    console = Console(width=80, record=True, file=None)
    with console.capture() as shown:
        show_horizon(found, console)
    assert "1 to 32" in shown.get()
