"""The report as a run keeps it and as the command writes it."""

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest

import onepolicy
from onepolicy.cli import main
from onepolicy.judgement.limits import Limits, MetricLimit
from onepolicy.records.run import Run
from onepolicy.workflow.judge import JudgeRequest, judge

SECRET = "the launch code is swordfish"
FILES = {"verdicts.json", "tables.json", "limits.json", "report.html", "junit.xml", "findings.json"}


@pytest.fixture
def cli(capsys, monkeypatch) -> Callable[..., tuple[int, str]]:
    def run(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["onepolicy", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return ended.value.code, captured.out + captured.err

    return run


@pytest.fixture
def run(tmp_path) -> Path:
    path = tmp_path / "run"
    protocol = onepolicy.SamplingProtocol(max_new_tokens=12)
    onepolicy.check(rollout="fake:m", trainer="fake:m?noise=0.3", run=path, protocol=protocol)
    return path


def test_judging_leaves_a_report_in_the_run(run):
    folder = run / "judgements" / "default"
    assert {path.name for path in folder.iterdir()} == FILES
    page = (folder / "report.html").read_text()
    for axis in ("position", "confidence", "token class", "language (tag of the prompt)"):
        assert f"by {axis}" in page
    Xml.parse(folder / "junit.xml")


def test_report_writes_the_same_files_elsewhere_without_the_readings(run, cli, tmp_path):
    folder = run / "judgements" / "default"
    for part in run.glob("readings/*/*.parquet"):
        part.unlink()
    status, _ = cli("report", run, "--html", tmp_path / "out.html", "--junit", tmp_path / "out.xml")
    assert status == Run.open(run).judgement("default").exit_status
    assert (tmp_path / "out.html").read_text() == (folder / "report.html").read_text()
    assert (tmp_path / "out.xml").read_text() == (folder / "junit.xml").read_text()


def test_an_earlier_judgement_without_tables_says_what_to_do(run, cli, tmp_path):
    (run / "judgements" / "default" / "tables.json").unlink()
    status, said = cli("report", run, "--html", tmp_path / "out.html")
    assert status == 2
    assert f"onepolicy judge {run}" in said
    assert not (tmp_path / "out.html").exists()


def test_the_schema_describes_the_json(run, cli):
    schema = json.loads((Path(__file__).parents[2] / "docs" / "judgement.schema.json").read_text())
    _, answer = cli("report", run, "--json")
    assert set(schema["required"]) <= set(json.loads(answer)) <= set(schema["properties"])


def test_the_commands_of_a_report_make_the_same_run_and_judgement(run, cli, tmp_path):
    again, judged = (shlex.split(c)[1:] for c in Run.open(run).report_data("default").commands)
    cli(*again, "--run", tmp_path / "again")
    cli(*judged)
    first, second = (Run.open(path) for path in (run, tmp_path / "again"))
    assert {r.digest for r in first.rollouts()} == {r.digest for r in second.rollouts()}
    assert first.judgement("default").verdicts == second.judgement("default").verdicts


def test_limits_that_no_option_can_say_are_kept_in_a_file(run, cli):
    limits = Limits(mean_kl=0.2, metrics={"max_abs_d": MetricLimit(at_most=3.0)})
    before = judge(run, JudgeRequest(limits=limits))
    command = shlex.split(Run.open(run).report_data("default").commands[-1])[1:]
    cli(*command)
    assert Run.open(run).judgement("default") == before


def test_no_text_reaches_the_report_of_a_run_without_text(cli, tmp_path):
    suite, run = tmp_path / "suite.jsonl", tmp_path / "run"
    prompts = [{"id": f"p{i}", "messages": [{"role": "user", "content": f"{SECRET} {i}"}]} for i in range(14)]
    suite.write_text("\n".join(json.dumps(line) for line in prompts))
    cli("check", "--rollout", "fake:m", "--trainer", "fake:m?seed=5", "--suite", suite, "--run", run, "--no-text")
    for file in (run / "judgements" / "default").iterdir():
        assert "swordfish" not in file.read_text()
    data = Run.open(run).report_data("default")
    assert all(not rollout.pieces and not rollout.before for rollout in data.worst)
    assert "tokens are shown as ids" in (run / "judgements" / "default" / "report.html").read_text()


def test_a_report_never_leaves_the_run_through_a_link(run, tmp_path, cli):
    outside = tmp_path / "outside"
    outside.mkdir()
    (run / "judgements" / "other").symlink_to(outside)
    status, said = cli("judge", run, "--name", "other")
    assert (status, list(outside.iterdir())) == (2, [])
    assert "leads out of the run" in said
