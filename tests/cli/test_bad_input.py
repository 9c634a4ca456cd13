"""Bad input gives one message that says what, where and what next; status 2, no traceback, and never a pass."""

import json

import pytest

from onepolicy.integrations.fake.engine import FakeEngine

PAIR = ("--rollout", "fake:m", "--trainer", "fake:m")
SHORT = ("--max-new-tokens", 8)

SPECS = {
    "fak:m": "there is no engine 'fak'. Known engines: ",
    "fake": "names no engine. Write engine:target",
    "": "names no engine",
    ":m": "names no engine",
    "fake:": "names no target after 'fake:'",
    "fake:?seed=1": "names no target",
    "fake:m?sed=1": "fake has no option 'sed'. It knows: seed",
    "fake:m?seed": "must read name=value&name=value",
    "fake:m?seed=1&seed=2": "gives the option 'seed' more than once",
    "fake:m?seed=one": "option seed='one': Input should be a valid integer",
    "fake:m?seed=": "option seed=''",
    "fake:m?noise=nan": "option noise='nan'",
    "fake:m?noise=-1": "greater than or equal to 0",
    "fake:m?batch_size=0": "greater than or equal to 1",
    "fake:m?seed=0?noise=1": "option seed='0?noise=1'",
}


def refused(ended, message: str) -> bool:
    assert ended.status == 2
    assert ended.out == ""
    assert "Traceback" not in ended.err
    return message in ended.err


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("side", ["--rollout", "--trainer"])
def test_a_bad_spec_is_refused_with_what_is_known(spec, side, cli, tmp_path):
    other = "--trainer" if side == "--rollout" else "--rollout"
    ended = cli("check", side, spec, other, "fake:m", "--run", tmp_path / "run", *SHORT)
    assert refused(ended, SPECS[spec])


OPTIONS = {
    ("--temperature", "-1"): "temperature = -1.0: Input should be greater than or equal to 0",
    ("--temperature", "nan"): "temperature = nan",
    ("--top-p", "0"): "top_p = 0.0",
    ("--max-new-tokens", "0"): "max_new_tokens = 0",
    ("--samples-per-prompt", "0"): "samples_per_prompt = 0",
    ("--top", "-1"): "-1 is not in the range x>=0",
    ("--budget", "0"): "0 is not in the range x>=1",
    ("--budget", "63"): "a budget of 63 tokens holds not even one prompt. Raise --budget, or lower --max-new-tokens",
    ("--mean-kl", "nan"): "mean_kl = nan",
    ("--mean-kl", "inf"): "mean_kl = inf",
    ("--max-abs-d", "inf"): "max_abs_d = inf",
    ("--worst-rollout-kl", "0"): "worst_rollout_kl = 0.0",
    ("--coverage", "1.5"): "coverage = 1.5",
    ("--coverage", "0"): "coverage = 0.0",
    ("--suite", "nope"): "there is no suite 'nope' and no such file. Shipped suites: quick",
    ("--suite", "fixed-quick", "--budget", "1"): "holds not even one",
    ("--nonsense", "1"): "No such option",
    ("--resume",): "--resume and --extend need --run DIR",
}


@pytest.mark.parametrize("options", OPTIONS)
def test_a_bad_option_is_refused_with_its_value(options, cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refused(cli("check", *PAIR, *options), OPTIONS[options])


@pytest.mark.parametrize("shard", ["0/2", "3/2", "2", "a/b", "²/2", "1/-2", "-1/2", ""])
def test_a_bad_shard_is_refused_with_an_example(shard, cli, tmp_path):
    ended = cli("record", "--engine", "fake:m", "--run", tmp_path / "run", "--shard", shard)
    assert refused(ended, "write it as 2/4 for the second of four")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("{", "line 1: is not JSON"),
        ("[]", "line 1: is no JSON object"),
        ('{"id": "a", "messages": []}', "line 1: messages"),
        ('{"id": "a", "prompt": "x", "completion": ""}', "line 1: completion"),
        ('{"id": "a", "prompt": "x", "completion": "y", "more": 1}', "line 1: more"),
    ],
)
def test_a_bad_suite_is_refused_with_the_line(lines, message, cli, tmp_path):
    suite = tmp_path / "suite.jsonl"
    suite.write_text(lines)
    assert refused(cli("check", *PAIR, "--suite", suite, "--run", tmp_path / "run"), message)


def test_a_run_over_a_file_or_a_foreign_folder_is_refused_and_nothing_is_touched(cli, tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    for where in (file, tmp_path):
        assert refused(cli("check", *PAIR, "--run", where), f"{where}: exists and is no run of onepolicy")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert file.read_text() == "mine"


@pytest.mark.parametrize("command", ["record", "judge"])
def test_a_name_too_long_for_the_file_system_is_refused(command, cli, tmp_path):
    where = tmp_path / ("x" * 300)
    arguments = ("--engine", "fake:m", "--run", where) if command == "record" else (where,)
    assert refused(cli(command, *arguments), "File name too long")


def test_a_run_that_is_there_is_only_gone_on_with_when_asked_and_with_the_same_request(cli, tmp_path):
    command = ("record", "--engine", "fake:m", "--run", tmp_path / "run", *SHORT)
    assert cli(*command).status == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.parquet")}
    assert refused(cli(*command), "a run is already there. Go on with it with --resume")
    for change, message in {
        ("--seed", "1"): "protocol.seed = 0, and now 1",
        ("--suite", "standard"): "this run was started with",
        ("--engine", "fake:m?seed=1"): "rollout_engine = 'fake:m', and now 'fake:m?seed=1' is asked for",
        ("--budget", "80"): "planned_rollouts = 32, and now 10 is asked for",
        ("--no-text",): "keeps_text = True, and now False is asked for",
        ("--top", "3"): "top = 20, and now 3 is asked for",
        ("--statistics",): "statistics = False, and now True is asked for",
    }.items():
        assert refused(cli(*command, "--resume", *change), message)
    assert cli(*command, "--resume").status == 0
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.parquet")} == before


def test_a_reading_is_not_overwritten_by_another_engine(cli, tmp_path):
    run = tmp_path / "run"
    assert cli("check", *PAIR, "--run", run, *SHORT).status == 0
    assert refused(cli("score", run, "--engine", "fake:m?seed=1"), "engine = 'fake:m', and now 'fake:m?seed=1'")
    assert refused(cli("score", run, "--engine", "fake:m", "--name", "rollout"), "path = 'decode', and now 'prefill'")
    assert refused(cli("score", run, "--engine", "fake:m", "--name", "../x"), "cannot be a name inside a run")
    assert cli("score", run, "--engine", "fake:m?seed=1", "--name", "other").status == 0
    assert cli("judge", run, "--trainer", "other").status == 1


def test_commands_on_a_run_that_lacks_something_say_what_and_what_next(cli, tmp_path):
    run = tmp_path / "run"
    assert refused(cli("judge", run), "no run here (manifest.json is absent). Record one with: onepolicy record")
    assert refused(cli("score", run, "--engine", "fake:m"), "no run here")
    assert cli("record", "--engine", "fake:m", "--run", run, *SHORT).status == 0
    assert refused(cli("judge", run), "there is no reading 'trainer'. The run has: rollout.")
    assert refused(cli("report", run), f"there is no judgement 'default'. Make one with: onepolicy judge {run}")
    assert refused(cli("judge", run, "--trainer", "rollout"), "compared with itself")
    assert refused(cli("judge", tmp_path / "run" / "manifest.json"), "is a file")


def test_a_command_that_does_not_exist_is_refused(cli):
    assert refused(cli("chekc"), "No such command 'chekc'")


@pytest.mark.parametrize(
    ("spec", "package"),
    [("transformers:smollm2", "transformers"), ("llamacpp:smollm2", "xllamacpp")],
)
def test_a_missing_extra_says_what_to_install(spec, package, process, tmp_path):
    code = f"import sys; sys.modules[{package!r}] = None"
    ended = process("record", "--engine", spec, "--run", tmp_path / "run", code=code).end()
    assert refused(ended, f"pip install 'onepolicy[{spec.partition(':')[0]}]'")
    assert not (tmp_path / "run").exists()


def test_a_bug_of_ours_is_no_failed_check(cli, tmp_path, monkeypatch):
    monkeypatch.setattr(FakeEngine, "sample", lambda *_: 1 / 0)
    ended = cli("check", *PAIR, "--run", tmp_path / "run")
    assert ended.status == 2
    assert "ZeroDivisionError" in ended.err
    assert ended.err.endswith("nothing was decided. Report the lines above.\n")


def test_the_readings_of_further_trainers_do_not_collide(cli, tmp_path):
    also = ("--also", "fake:a?seed=0", "--also", "fake:b?seed=0", "--also", "fake:b?seed=1")
    assert cli("check", *PAIR, *also, "--run", tmp_path / "run", *SHORT).status == 0
    names = sorted(path.name for path in (tmp_path / "run" / "readings").iterdir())
    engines = {
        json.loads((tmp_path / "run" / "readings" / n / "reading.json").read_text())["request"]["engine"] for n in names
    }
    assert len(names) == 5
    assert engines == {"fake:m", "fake:a?seed=0", "fake:b?seed=0", "fake:b?seed=1"}


@pytest.mark.parametrize("where", ["def score(token_ids):\n    sys.exit(0)", "sys.exit(0)"])
def test_a_function_or_module_that_ends_the_process_is_no_pass(cli, tmp_path, where):
    (tmp_path / "quit.py").write_text(f"import sys\n\n{where}\n")
    trainer = f"callable:{tmp_path / 'quit.py'}:score"
    ended = cli("check", "--rollout", "fake:m", "--trainer", trainer, "--run", tmp_path / "run")
    assert ended.status == 2
    assert "SystemExit" in ended.err


def test_scoring_again_needs_resume_and_says_so(cli, tmp_path):
    run = tmp_path / "run"
    assert cli("check", "--rollout", "fake:m", "--trainer", "fake:m", "--run", run).status == 0
    again = cli("score", run, "--engine", "fake:m")
    assert again.status == 2
    assert "the reading 'trainer' is there already" in again.err
    assert cli("score", run, "--engine", "fake:m", "--resume").status == 0


def test_a_judgement_whose_status_was_edited_is_refused(cli, tmp_path):
    run = tmp_path / "run"
    cli("check", "--rollout", "fake:m?noise=0.1", "--trainer", "fake:m", "--run", run)
    file = run / "judgements" / "default" / "verdicts.json"
    file.write_text(file.read_text().replace('"status": "fail",\n  "sentence"', '"status": "pass",\n  "sentence"'))
    ended = cli("report", run)
    assert ended.status == 2
    assert "does not follow from its verdicts" in ended.err


def test_a_reader_that_goes_away_is_no_end_that_somebody_asked_for(tmp_path, process):
    """`onepolicy ... | head`, where the reader is gone before the first line."""
    (tmp_path / "p.yaml").write_text("temperature: 0.5\n")
    started = process("protocol", "show", tmp_path / "p.yaml")
    started.popen.stdout.close()
    assert started.popen.wait(60) == 2
    error = started.popen.stderr.read()
    assert "the result could not be written (Broken pipe)" in error
    assert "Traceback" not in error


@pytest.mark.parametrize("how", [(), ("--json",)])
def test_text_that_stdout_cannot_hold_is_written_as_an_escape(tmp_path, process, monkeypatch, how):
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    (tmp_path / "p.yaml").write_text("stop: [月]\n", encoding="utf-8")
    ended = process("protocol", "show", tmp_path / "p.yaml", *how).end()
    assert (ended.status, "\\u6708" in ended.out) == (0, True), ended.err


@pytest.mark.parametrize(
    "command",
    [("conform", "ends.py"), ("check", "--rollout", "fake:m", "--trainer", "callable:ends.py:score", *SHORT)],
)
def test_code_that_ends_the_process_does_not_choose_the_status(command, process, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ends.py").write_text("import os\n\ndef score(ids):\n    os._exit(0)\n\nkl = score\nos._exit(0)\n")
    assert refused(process(*command).end(), "code that was called ended the process (0); nothing was decided.")
