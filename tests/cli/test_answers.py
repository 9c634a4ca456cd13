"""What the commands answer: the exit status, the JSON, the budget, and no text where none is wanted."""

import json

import pyarrow.parquet as pq
import pytest

from onepolicy.records.run import Run
from onepolicy.records.verdict import Judgement

EXACT = ("--rollout", "fake:m", "--trainer", "fake:m")
SECRET = "the launch code is swordfish"
COMMANDS = ("", "init", "check", "record", "score", "judge", "report", "demo")


@pytest.mark.parametrize(
    ("trainer", "status", "word"),
    [("fake:m", 0, "Pass:"), ("fake:m?offset=-0.5", 1, "Fail:"), ("fake:m?max_length=200", 3, "Unknown:")],
)
def test_the_first_word_and_the_exit_status_say_the_same_in_check_judge_and_report(
    trainer, status, word, cli, tmp_path
):
    run = tmp_path / "run"
    for command in (
        ("check", "--rollout", "fake:m", "--trainer", trainer, "--run", run),
        ("judge", run),
        ("report", run),
    ):
        ended = cli(*command)
        assert (ended.status, ended.out.split()[0]) == (status, word)


def test_too_few_prompts_are_unknown_with_3(cli, tmp_path):
    suite = tmp_path / "suite.jsonl"
    suite.write_text(json.dumps({"id": "one", "messages": [{"role": "user", "content": "Hi"}]}))
    ended = cli("check", *EXACT, "--suite", suite, "--run", tmp_path / "run")
    assert ended.status == 3
    assert "12 are needed" in " ".join(ended.out.split())


@pytest.mark.parametrize("suite", ["quick", "fixed-quick"])
@pytest.mark.parametrize("trainer", ["fake:m", "fake:m?seed=3", "fake:m?offset=-900", "fake:m?max_length=60"])
def test_the_json_is_valid_and_comes_back_as_the_judgement(suite, trainer, cli, tmp_path):
    run = tmp_path / "run"
    options = ("--suite", suite, "--max-new-tokens", 12, "--json")
    ended = cli("check", "--rollout", "fake:m", "--trainer", trainer, "--run", run, *options)
    assert "NaN" not in ended.out
    content = json.loads(ended.out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    judgement = Judgement.model_validate_json(ended.out)
    assert json.loads(judgement.model_dump_json()) == content
    assert judgement == Run.open(run).judgement("default")
    assert judgement.exit_status == ended.status
    for again in (cli("judge", run, "--json"), cli("report", run, "--json")):
        assert (again.status, again.out) == (ended.status, ended.out)


@pytest.mark.parametrize(("suite", "budget"), [("quick", 40), ("quick", 777), ("standard", 777), ("fixed-quick", 1500)])
def test_a_budget_is_never_exceeded_and_is_used(suite, budget, cli, tmp_path):
    run = tmp_path / "run"
    options = ("--suite", suite, "--max-new-tokens", 16, "--samples-per-prompt", 2, "--budget", budget)
    assert cli("record", "--engine", "fake:m", "--run", run, *options).status == 0
    compared = sum(int(rollout.compared.sum()) for rollout in Run.open(run).rollouts())
    assert 0 < compared <= budget


@pytest.mark.parametrize("kind", ["fresh", "fixed"])
def test_without_text_no_text_is_kept_or_shown(kind, cli, tmp_path):
    suite = tmp_path / "suite.jsonl"
    fresh = [{"id": f"p{i}", "messages": [{"role": "user", "content": f"{SECRET} {i}"}]} for i in range(14)]
    fixed = [{"id": f"p{i}", "prompt": f"{SECRET} {i}", "completion": f"{SECRET} {i}"} for i in range(14)]
    suite.write_text("\n".join(json.dumps(line) for line in (fresh if kind == "fresh" else fixed)))
    run = tmp_path / "run"
    command = (
        "check",
        "--rollout",
        "fake:m",
        "--trainer",
        "fake:m?seed=5",
        "--suite",
        suite,
        "--run",
        run,
        "--no-text",
    )
    shown = [cli(*command), cli("judge", run), cli("report", run, "--json")]
    assert {ended.status for ended in shown} == {1}
    rollouts = list(Run.open(run).rollouts())
    assert {rollout.text for rollout in rollouts} == {None}
    sampled = [bytes(i for i in r.token_ids[r.compared] if i < 256).decode("utf-8", "replace") for r in rollouts]
    pieces = {SECRET, *(text[i : i + 8] for text in sampled for i in range(0, max(len(text) - 8, 0), 8))}
    told = [ended.out + ended.err for ended in shown]
    told += [path.read_text() for path in run.rglob("*.json") if path.parent.name != "tokenizers"]
    told += [str(texts_of(path)) for path in run.rglob("*.parquet")]
    assert not [piece for piece in pieces if any(piece in text for text in told)]


def texts_of(path):
    table = pq.read_table(path)
    return table.select([field.name for field in table.schema if field.type == "string"]).to_pylist()


def test_a_run_is_judged_where_the_engine_that_sampled_cannot_be_imported(cli, process, tmp_path):
    run = tmp_path / "run"
    assert cli("record", "--engine", "fake:m", "--run", run, "--max-new-tokens", 8).status == 0
    assert cli("score", run, "--engine", "fake:m").status == 0
    blocked = "import sys; sys.modules['onepolicy.integrations.fake.engine'] = None"
    ended = process("judge", run, code=blocked).end()
    assert (ended.status, ended.out.split()[0]) == (0, "Pass:")


def test_a_run_is_scored_by_a_second_engine_where_the_first_cannot_be_imported(cli, process, tmp_path):
    run = tmp_path / "run"
    (tmp_path / "scoring.py").write_text(SCORING)
    assert cli("record", "--engine", "fake:m", "--run", run, "--max-new-tokens", 8, "--no-text").status == 0
    blocked = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.modules['onepolicy.integrations.fake.engine'] = None"
    )
    ended = process("score", run, "--engine", "callable:scoring:score", code=blocked).end()
    assert (ended.status, ended.out) == (0, ""), ended.err
    ended = process("judge", run, code=blocked).end()
    assert ended.status == 1


SCORING = """
import numpy as np


def score(token_ids):
    return [np.full(len(ids), -1.5) for ids in token_ids]
"""


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_each_command_fits_80_columns_and_explains_every_option(command, cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    ended = cli(*filter(None, (command, "--help")))
    assert ended.status == 0
    assert max(map(len, ended.out.splitlines())) <= 80
    assert "Exit status: 0" in ended.out
    unexplained = [line for line in ended.out.splitlines() if line.startswith("  --") and len(line.split()) <= 2]
    assert [line for line in unexplained if len(line) < 33 and line.split()[0] not in ("--resume",)] == []
