"""`onepolicy bisect` over a stand-in server in processes of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from onepolicy.cli import main

ENGINE = Path(__file__).with_name("bisect_engine.py")
SWITCHES = {
    "dtype": ("--dtype=float32", "--dtype=bfloat16"),
    "cache": ("--cache=auto", "--cache=fp8"),
    "block size": ("--block-size=32", "--block-size=16"),
    "seed": ("", "--seed=1"),
}


@pytest.fixture
def config(tmp_path, suite) -> Callable[..., Path]:
    """A file of two configurations of the stand-in."""

    def write(switches=None, **changes) -> Path:
        chosen = SWITCHES if switches is None else switches
        check = {"rollout": "vllm:http://127.0.0.1:{port}?retries=1", "trainer": "fake:m", "suite": str(suite)}
        content = {
            "command": [sys.executable, str(ENGINE), "--port={port}", "{switches}"],
            "good": {name: good for name, (good, _) in chosen.items() if good},
            "bad": {name: bad for name, (_, bad) in chosen.items()},
            "check": {**check, "sampling": {"max_new_tokens": 6}, "top": 3},
            "start_seconds": 30,
            **changes,
        }
        path = tmp_path / "bisect.yaml"
        path.write_text(yaml.safe_dump(content, sort_keys=False))
        return path

    return write


@pytest.fixture
def cli(capsys, monkeypatch) -> Callable[..., tuple[int, str, str]]:
    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["onepolicy", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capsys.readouterr()

    return run


def test_a_planted_pair_is_found_and_told(cli, config, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    status, out, err = cli("bisect", config(), "--run", tmp_path / "b")
    assert status == 0, err
    assert " ".join(out.split()).startswith("Found: dtype and cache, together, of 4 switches.")
    assert max(map(len, out.splitlines())) <= 80
    assert "--dtype=bfloat16" in out
    status, out, err = cli("bisect", config(), "--run", tmp_path / "b", "--resume", "--json")
    found = json.loads(out)
    assert [[one["name"] for one in cause["switches"]] for cause in found["causes"]] == [["dtype", "cache"]]
    assert "start with" not in err
    for test in found["tests"]:
        for attempt in test["attempts"]:
            assert (tmp_path / "b" / attempt["folder"] / "server.log").exists()
            assert not (tmp_path / "b" / attempt["folder"] / "server.json").exists()


def test_a_switch_without_which_the_engine_does_not_start_is_named(cli, config, tmp_path):
    needing = {**SWITCHES, "dtype": ("--dtype=float32", "--dtype=bfloat16 --needs-block")}
    status, out, err = cli("bisect", config(needing), "--run", tmp_path / "b", "--json")
    assert status == 0, err
    found = json.loads(out)
    (cause,) = found["causes"]
    assert [one["name"] for one in cause["switches"]] == ["dtype", "cache", "block size"]
    assert cause["unsure"] == ["block size"]
    unknown = [t for t in found["tests"] if t["attempts"][-1]["status"] == "unknown"]
    assert unknown
    assert all("this needs a block size of 16" in t["attempts"][-1]["sentence"] for t in unknown)


def test_an_engine_that_never_answers_is_unknown(cli, config, tmp_path):
    file = config({"silent": ("", "--silent")}, start_seconds=1.0, stop_seconds=5)
    status, out, _ = cli("bisect", file, "--run", tmp_path / "b", "--json")
    found = json.loads(out)
    assert status == 3
    assert "the bad configuration is not bad: unknown" in found["sentence"]
    assert "was not ready after 1 s" in found["sentence"]


SLOW = """
import time
def score(batch):
    time.sleep(2.5)
    return [[float("nan")] + [-1.0] * (len(ids) - 1) for ids in batch]
"""


def test_a_check_that_takes_too_long_is_unknown_also_where_it_needs_the_engine_no_more(cli, config, tmp_path, suite):
    (tmp_path / "slow.py").write_text(SLOW)
    check = {"rollout": "vllm:http://127.0.0.1:{port}?retries=1", "trainer": "callable:slow.py:score?batch_size=999"}
    check |= {"suite": str(suite), "sampling": {"max_new_tokens": 6}}
    status, out, _ = cli(
        "bisect", config({"seed": ("", "--seed=1")}, check=check, check_seconds=2), "--run", tmp_path / "b", "--json"
    )
    assert status == 3
    assert "the check took longer than 2 s (check_seconds)" in json.loads(out)["sentence"]
    assert any((tmp_path / "b").rglob("readings/rollout")), "the engine was asked in time"


def test_two_bad_configurations_are_no_bisection(cli, config, tmp_path):
    file = config({"cache": ("--cache=auto", "--cache=fp8")}, command=[
        sys.executable, str(ENGINE), "--port={port}", "--dtype=bfloat16", "{switches}",
    ])  # fmt: skip
    assert cli("bisect", file, "--run", tmp_path / "found")[0] == 0
    file = config({"seed": ("", "--seed=1")})
    status, out, _ = cli("bisect", file, "--run", tmp_path / "b")
    assert status == 3
    assert "the bad configuration is not bad: pass" in " ".join(out.split())


def test_fixed_ids_of_a_run_are_scored_in_a_copy(cli, config, tmp_path, suite):
    recorded = tmp_path / "recorded"
    assert cli("check", "--rollout", "fake:m", "--trainer", "fake:m", "--suite", suite, "--run", recorded)[0] == 0
    before = {path: path.read_bytes() for path in recorded.rglob("*") if path.is_file()}
    content = yaml.safe_load(config({name: SWITCHES[name] for name in ("dtype", "cache", "seed")}).read_text())
    del content["check"]
    content["judge"] = {"run": str(recorded), "engine": "vllm:http://127.0.0.1:{port}"}
    (tmp_path / "bisect.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    status, out, err = cli("bisect", tmp_path / "bisect.yaml", "--run", tmp_path / "b", "--json")
    assert status == 0, err
    (cause,) = json.loads(out)["causes"]
    assert [one["name"] for one in cause["switches"]] == ["dtype", "cache"]
    assert {path: path.read_bytes() for path in recorded.rglob("*") if path.is_file()} == before


def test_a_taken_port_ends_with_two_and_records_nothing(cli, config, tmp_path, serve):
    from standin import Vllm  # noqa: PLC0415

    taken = serve(Vllm())
    port = int(taken.url.rpartition(":")[2])
    status, _, err = cli("bisect", config(port=port), "--run", tmp_path / "b")
    assert status == 2
    assert f"port {port} is taken" in err
    assert not list((tmp_path / "b").rglob("outcome.json"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"check": {"rollout": "vllm:http://127.0.0.1:{port}"}}, "no trainer engine is given"),
        ({"check": {"rollout": "vlm:http://127.0.0.1:{port}", "trainer": "fake:m"}}, "there is no engine 'vlm'"),
        ({"check": {"rollout": "vllm:http://h:{port}", "trainer": "fake:m", "suite": "no.jsonl"}}, "no.jsonl"),
        ({"judge": {"run": "nowhere", "engine": "vllm:http://h:{port}"}, "check": None}, "nowhere"),
    ],
)
def test_what_could_not_be_checked_is_found_out_before_the_first_start(cli, config, tmp_path, changes, words):
    status, _, err = cli("bisect", config(**changes), "--run", tmp_path / "b")
    assert status == 2
    assert words in " ".join(err.split())
    assert not (tmp_path / "b" / "tests").exists()


def test_resume_needs_a_folder(cli, config):
    status, _, err = cli("bisect", config(), "--resume")
    assert status == 2
    assert "--resume needs --run DIR" in err


def test_a_killed_bisection_goes_on_and_ends_the_engine_that_it_left(config, tmp_path):
    command = [sys.executable, "-m", "onepolicy", "bisect", str(config()), "--run", str(tmp_path / "b")]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (marks := list((tmp_path / "b").rglob("server.json"))) or not outcomes(tmp_path):
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    pid = json.loads(marks[0].read_text())["pid"]
    os.kill(running.pid, signal.SIGKILL)
    running.communicate()
    before = outcomes(tmp_path)
    done = subprocess.run([*command, "--resume", "--json"], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    left = Path(f"/proc/{pid}/cmdline")
    assert not left.exists() or b"bisect_engine" not in left.read_bytes()
    after = outcomes(tmp_path)
    assert before.items() <= after.items()
    assert [one["name"] for one in json.loads(done.stdout)["causes"][0]["switches"]] == ["dtype", "cache"]


def outcomes(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in (folder / "b").rglob("outcome.json")}
