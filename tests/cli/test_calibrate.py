"""`onepolicy calibrate`, and limits that are a multiple of what it wrote."""

import json
import shlex
import signal
from pathlib import Path

import pytest

from onepolicy.judgement.load import load_limits
from onepolicy.records.floor import Floor, read_floor

NOISY = "fake:m?batch_noise=1e-4&batch_size=4"
SMALL = ("--budget", 2000)
PAIR = ("--rollout", "fake:m", "--trainer", NOISY, "--max-new-tokens", 8)


def one_line(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture
def floor_file(cli, tmp_path) -> Path:
    path = tmp_path / "trainer.floor.json"
    assert cli("calibrate", "--engine", NOISY, *SMALL, "--run", tmp_path / "run", "--output", path).status == 0
    return path


def limits_file(folder: Path, text: str = "mean_kl: 3 x floor\n") -> Path:
    path = folder / "limits.yaml"
    path.write_text(f"floor: trainer.floor.json\n{text}")
    return path


def edited(path: Path, edit) -> None:
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def test_the_table_fits_80_columns_and_says_what_the_floor_is(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    ended = cli("calibrate", "--engine", NOISY, *SMALL, "--run", tmp_path / "run", "--output", tmp_path / "f.json")
    floor = read_floor(tmp_path / "f.json")
    assert ended.status == 0
    assert max(map(len, ended.out.splitlines()[:-1])) <= 80, "but for the path of the file"
    rows = {line.split()[0]: line.split() for line in ended.out.splitlines() if line}
    for variation in floor.variations:
        assert rows[variation.name][1:] == [
            f"{variation.mean_k3:.3g}",
            f"{variation.worst_rollout_k3:.3g}",
            f"{variation.mean_abs_d:.3g}",
            f"{variation.max_abs_d:.3g}",
            f"{variation.bitwise_share:.1%}",
        ]
    assert f"mean_kl floor {floor.mean_kl.value:.3g} ({floor.mean_kl.variation})" in ended.out
    assert "this engine has no padding" in ended.out
    assert ended.out.endswith(f"written to {tmp_path / 'f.json'}\n")


def test_the_json_is_what_was_written(cli, tmp_path):
    path = tmp_path / "new" / "f.json"
    ended = cli("calibrate", "--engine", NOISY, *SMALL, "--run", tmp_path / "run", "--output", path, "--json")
    assert Floor.model_validate_json(ended.out) == read_floor(path)
    assert "scoring (floor-order)" in ended.err


def test_without_a_run_a_new_one_is_made_and_named(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ended = cli("calibrate", "--engine", NOISY, *SMALL, "--output", "f.json")
    (run,) = (tmp_path / "runs").iterdir()
    assert ended.err.startswith(f"run runs/{run.name}\n")
    assert run.name.endswith("-fixed-quick")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--engine", "fak:m"), "there is no engine 'fak'"),
        (("--engine", NOISY, "--resume"), "--resume needs --run DIR"),
        (("--engine", NOISY, "--suite", "quick", "--run", "run"), "is of prompts, and calibrate samples nothing"),
        (("--engine", NOISY, "--suite", "nope", "--run", "run"), "there is no suite 'nope'"),
        (("--engine", NOISY, "--budget", 0), "not in the range"),
        (("--engine", NOISY, "--name", "a/b", *SMALL, "--run", "run"), "cannot be a name inside a run"),
        ((), "Missing option '--engine'"),
    ],
)
def test_what_cannot_be_calibrated_ends_with_2_and_writes_no_floor(cli, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    ended = cli("calibrate", *options, "--output", "floor.json")
    assert (ended.status, ended.out) == (2, "")
    assert "Traceback" not in ended.err
    assert message in ended.err
    assert not (tmp_path / "floor.json").exists()


def test_a_calibration_that_was_killed_goes_on_to_the_same_floor(cli, process, tmp_path):
    def command(name: str) -> tuple:
        slow = f"{NOISY}&delay=0.1"
        run, output = tmp_path / name, tmp_path / f"{name}.json"
        return ("calibrate", "--engine", slow, "--suite", suite, "--run", run, "--output", output)

    suite = tmp_path / "suite.jsonl"
    lines = [{"id": f"s{i:02}", "prompt": f"{i}: ", "completion": "the rain " * (1 + i % 3)} for i in range(16)]
    suite.write_text("\n".join(map(json.dumps, lines)))
    assert cli(*command("whole")).status == 0
    victim = process(*command("broken"))
    victim.wait_for(tmp_path / "broken" / "readings" / "floor-order", 2)
    assert victim.send(signal.SIGKILL).status == -signal.SIGKILL
    assert not (tmp_path / "broken.json").exists()
    before = {path: path.read_bytes() for path in (tmp_path / "broken").rglob("*.parquet")}
    assert cli(*command("broken")).status == 2
    assert cli(*command("broken"), "--resume").status == 0
    assert {path: path.read_bytes() for path in before} == before
    whole, broken = (read_floor(tmp_path / f"{name}.json") for name in ("whole", "broken"))
    assert broken.variations == whole.variations


# -- limits -----------------------------------------------------------------------------------------------------


def test_check_and_judge_hold_a_run_against_multiples_of_the_floor(cli, tmp_path, floor_file):
    limits = limits_file(tmp_path, "mean_kl: 3 x floor\nmax_abs_d: 2 x floor\n")
    checked = cli("check", *PAIR, "--limits", limits, "--run", tmp_path / "checked", "--json")
    assert checked.status == 0
    verdicts = {v["check"]: v for v in json.loads(checked.out)["verdicts"]}
    floor = read_floor(floor_file)
    assert verdicts["mean_kl"]["limit"] == 3 * floor.mean_kl.value
    assert verdicts["max_abs_d"]["limit"] == 2 * floor.max_abs_d.value
    limits_file(tmp_path, "mean_kl: 1e-9 x floor\n")
    assert cli("judge", tmp_path / "checked", "--limits", limits).status == 1
    assert cli("judge", tmp_path / "checked", "--limits", limits, "--mean-kl", 1e-3).status == 0


def test_the_limits_beside_a_judgement_load_again_with_the_floor(cli, tmp_path, floor_file):
    limits, run = limits_file(tmp_path), tmp_path / "checked"
    assert cli("check", *PAIR, "--limits", limits, "--run", run).status == 0
    expected = load_limits(str(limits))
    floor_file.unlink()
    stored = run / "judgements" / "default" / "limits.json"
    assert load_limits(str(stored)) == expected
    assert cli("judge", run, "--limits", stored, "--name", "again").status == 0
    assert load_limits(str(run / "judgements" / "again" / "limits.json")) == expected


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda floor: floor["environment"].update(numpy="1.26.0"), "numpy 1.26.0 -> "),
        (lambda floor: floor["environment"].update(vllm="0.9"), "vllm 0.9 -> absent"),
        (lambda floor: floor["environment"].update(cpus="1024"), "cpus 1024 -> "),
        (lambda floor: floor["engine"].update(dtype="float32"), "dtype float32 -> float64"),
        (lambda floor: floor["engine"].update(weights_hash="0"), "weights hash 0 -> "),
    ],
)
def test_a_floor_that_no_longer_holds_is_no_judgement(cli, tmp_path, floor_file, edit, message):
    limits, run = limits_file(tmp_path), tmp_path / "checked"
    assert cli("check", *PAIR, "--run", run).status == 0
    judged = sorted((run / "judgements").rglob("*"))
    edited(floor_file, edit)
    for command in (("judge", run), ("check", *PAIR, "--run", run, "--resume")):
        ended = cli(*command, "--limits", limits)
        assert (ended.status, ended.out) == (2, "")
        assert message in ended.err
        assert f"Measure it again with: onepolicy calibrate --engine '{NOISY}' --budget 2000 --output" in ended.err
    assert sorted((run / "judgements").rglob("*")) == judged


def test_the_command_that_a_refusal_names_measures_a_floor_that_holds(cli, tmp_path, floor_file, monkeypatch):
    monkeypatch.chdir(tmp_path)
    limits, run = limits_file(tmp_path), tmp_path / "checked"
    assert cli("check", *PAIR, "--run", run).status == 0
    edited(floor_file, lambda floor: floor["environment"].update(numpy="1.26.0"))
    refused = cli("judge", run, "--limits", limits).err
    command = shlex.split(refused.partition("again with: onepolicy ")[2])
    assert cli(*command).status == 0
    assert cli("judge", run, "--limits", limits).status == 0


def test_a_floor_of_another_engine_is_no_judgement_and_a_varied_option_is_none(cli, tmp_path, floor_file):
    limits = limits_file(tmp_path)
    other = ("--rollout", "fake:m", "--trainer", "fake:m?batch_noise=1e-5", "--max-new-tokens", 8)
    ended = cli("check", *other, "--limits", limits, "--run", tmp_path / "other")
    assert ended.status == 2
    assert "option batch noise 0.0001 -> " in ended.err
    same = ("--rollout", "fake:m", "--trainer", "fake:m?batch_noise=1e-4&batch_size=7", "--max-new-tokens", 8)
    assert cli("check", *same, "--limits", limits, "--run", tmp_path / "same").status == 0


def test_a_floor_of_zero_ends_with_2_and_names_the_preset(cli, tmp_path):
    output = tmp_path / "trainer.floor.json"
    assert cli("calibrate", "--engine", "fake:m", *SMALL, "--run", tmp_path / "run", "--output", output).status == 0
    ended = cli("check", "--rollout", "fake:m", "--trainer", "fake:m", "--limits", limits_file(tmp_path))
    assert ended.status == 2
    assert "is exactly 0" in ended.err
    assert "`preset: bitwise`" in ended.err


def test_a_floor_that_is_not_there_ends_with_2_before_anything_runs(cli, tmp_path):
    ended = cli("check", *PAIR, "--limits", limits_file(tmp_path), "--run", tmp_path / "run")
    assert ended.status == 2
    assert "Make it with: onepolicy calibrate --engine SPEC --output" in ended.err
    assert not (tmp_path / "run").exists()


def test_the_help_fits_80_columns_and_explains_every_option(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    ended = cli("calibrate", "--help")
    assert ended.status == 0
    assert max(map(len, ended.out.splitlines())) <= 80
    assert "Exit status: 0 done, 2 could not run" in one_line(ended.out)
