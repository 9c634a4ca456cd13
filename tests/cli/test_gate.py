"""`onepolicy gate`: the command runs only on a pass, and then as if there were no gate."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

RED = {"trainer": "fake:m?noise=0.5"}


class Done(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    lines = [{"id": f"s{i:02}", "prompt": f"{i} of many: ", "completion": f"the rain in spain {i}"} for i in range(14)]
    Path("fixed.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return tmp_path


@pytest.fixture
def gate(here) -> Callable[..., Done]:
    """Run the gate with a Python program as the command, in processes of their own."""

    def run(code: str = "", *options: object, **config: object) -> Done:
        return ended(command(code, *options, **config))

    return run


def ended(arguments: list[str]) -> Done:
    done = subprocess.run(arguments, check=False, capture_output=True, text=True, timeout=60)
    return Done(done.returncode, done.stdout, done.stderr)


def command(code: str, *options: object, **config: object) -> list[str]:
    asked = {"rollout": "fake:m", "trainer": "fake:m?noise=0.003", "suite": "fixed.jsonl", **config}
    Path("onepolicy.yaml").write_text(json.dumps(asked))
    program = ["--", sys.executable, "-c", code] if code else []
    return [sys.executable, "-m", "onepolicy", "gate", *map(str, options), "onepolicy.yaml", *program]


def verdict() -> dict:
    return json.loads(Path("onepolicy-verdict.json").read_text())


def test_on_a_pass_the_command_runs_with_its_own_output_and_the_verdict_is_there_before(gate):
    done = gate("import json; print(json.load(open('onepolicy-verdict.json'))['allowed'])")
    assert (done.status, done.out) == (0, "True\n")
    assert "Pass: " in done.err, "the answer goes to stderr, as stdout is the command's"
    assert (verdict()["status"], verdict()["exit_status"]) == ("pass", 0)


@pytest.mark.parametrize("status", [1, 3, 7, 255])
def test_the_commands_exit_status_is_the_gates(gate, status):
    assert gate(f"raise SystemExit({status})", "--blocked-status", 99).status == status


def test_a_command_that_dies_of_a_signal_does_so_here(gate):
    assert gate("import os, signal; os.kill(os.getpid(), signal.SIGKILL)").status == -signal.SIGKILL


def test_the_command_takes_the_place_of_the_gate_and_finds_the_signals_as_usual(here):
    code = "import os, signal; print(os.getpid(), signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    started = subprocess.Popen(command(code), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, _ = started.communicate(timeout=60)
    assert out == f"{started.pid} True\n"


def test_arguments_of_the_command_that_look_like_options_are_its_own(gate, here):
    done = ended([*command("import sys; print(sys.argv[1:])"), "--runs", "x", "--", "y"])
    assert done.out == "['--runs', 'x', '--', 'y']\n"
    assert not Path("x").exists()


RAN = "open('ran', 'w')"


def test_on_a_fail_it_does_not_run(gate):
    done = gate(RAN, **RED)
    assert (done.status, done.out) == (1, "")
    assert "Fail: " in done.err
    assert not Path("ran").exists()
    assert (verdict()["allowed"], verdict()["status"]) == (False, "fail")


@pytest.mark.parametrize(
    ("config", "options", "status"),
    [
        (RED, ("--blocked-status", 75), 75),
        ({"trainer": "fake:m?nois=1"}, (), 2),
        ({"trainer": "fake:m?nois=1"}, ("--blocked-status", 75), 75),
        ({"suite": "none.jsonl"}, (), 2),
        ({"rollout": "vllm:http://127.0.0.1:9?retries=0"}, (), 2),
        ({"rollout": "vllm:http://127.0.0.1:9?retries=0"}, ("--if-changed", "7d"), 2),
        ({}, ("--verdict", "."), 2),
        ({}, ("--runs", "fixed.jsonl"), 2),
    ],
)
def test_whatever_goes_wrong_blocks(gate, config, options, status):
    done = gate(RAN, *options, **config)
    assert done.status == status, done
    assert not Path("ran").exists()


def test_a_verdict_that_cannot_be_written_blocks(gate, here):
    (here / "there").write_text("a file")
    done = gate(RAN, "--verdict", "there/verdict.json")
    assert (done.status, Path("ran").exists()) == (2, False)
    assert "there" in done.err


def test_a_program_that_is_not_there_is_said_before_anything_is_checked(here):
    done = ended([*command(""), "--", "no-such-program"])
    assert done.status == 2
    assert "no-such-program: there is no such program" in done.err
    assert not Path("runs").exists()
    assert verdict()["allowed"] is False, "and no answer of before is left"


def test_numbers_that_cannot_be_written_allow_nothing(gate):
    done = gate(RAN, "--prometheus", "fixed.jsonl/x.prom")
    assert (done.status, Path("ran").exists(), verdict()["allowed"]) == (2, False, False)


@pytest.mark.parametrize(
    "options",
    [("--verdict", "onepolicy.yaml"), ("--prometheus", "./onepolicy.yaml"), ("--verdict=x", "--prometheus=x")],
)
def test_the_configuration_is_not_written_over(gate, options):
    done = gate(RAN, *options)
    assert (done.status, Path("ran").exists()) == (2, False)
    assert "would be written over" in done.err
    assert json.loads(Path("onepolicy.yaml").read_text())["rollout"] == "fake:m"


@pytest.mark.parametrize("how", ["abort()", "_exit(0)", "_exit(1)", "_exit(3)", "_exit(120)", "_exit(143)"])
def test_a_check_that_crashes_blocks(gate, here, how):
    (here / "crash.py").write_text(f"import os\nos.{how}\n")
    options = () if how == "_exit(1)" else ("--blocked-status", 75)
    done = gate(RAN, *options, trainer="callable:crash.py:score")
    assert (done.status, Path("ran").exists()) == (75 if options else 2, False)
    assert (verdict()["allowed"], verdict()["exit_status"]) == (False, 2)
    assert verdict()["sentence"].startswith("Unknown: the check ")


@pytest.mark.parametrize("status", [1, 2, 120])
def test_a_crash_after_a_pass_was_written_takes_it_back(gate, here, status):
    """As of a library that ends the process once all is done."""
    gate()
    (here / "passed.json").write_text(Path("onepolicy-verdict.json").read_text())
    code = f"import os, shutil\nshutil.copy('passed.json', 'onepolicy-verdict.json')\nos._exit({status})\n"
    (here / "crash.py").write_text(code)
    done = gate(RAN, trainer="callable:crash.py:score")
    assert (done.status, Path("ran").exists(), verdict()["allowed"]) == (2, False, False)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_while_it_checks_ends_it_and_the_command_never_runs(here, number, status):
    slow = {"rollout": "fake:m?delay=0.3&batch_size=1"}
    started = subprocess.Popen(command(RAN, "--blocked-status", 75, **slow), stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while not any(Path("runs").glob("*/manifest.json")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(started.pid, number)
    _, err = started.communicate(timeout=30)
    assert (started.returncode, Path("ran").exists()) == (status, False), err
    assert verdict()["sentence"] == "Unknown: the check has not come to its end."


def test_a_module_in_the_working_directory_takes_no_place_of_ours(here):
    (here / "numpy.py").write_text("raise SystemExit('the wrong one')")
    arguments = command("print('trained')")
    arguments[1:3] = ["-P", "-m", "onepolicy"]
    done = ended(arguments)
    assert (done.status, done.out) == (0, "trained\n"), done.err


def test_without_a_command_the_answer_is_the_exit_status(gate):
    passed = gate()
    assert (passed.status, passed.out.startswith("Pass: ")) == (0, True)
    failed = gate(**RED)
    assert failed.status == 1
    assert "against the last green run" in failed.out
    assert "changed" not in failed.err
    assert max(map(len, failed.out.splitlines())) <= 80
    assert gate("", "--blocked-status", 9, **RED).status == 9


def test_nothing_changed_runs_the_command_without_a_check(gate):
    gate()
    done = gate("print('trained')", "--if-changed", "1h")
    assert (done.status, done.out) == (0, "trained\n")
    assert "Pass: nothing changed since runs/" in done.err
    assert len(list(Path("runs").iterdir())) == 1


def test_numbers_are_written_for_prometheus(gate):
    gate("", "--prometheus", "numbers.prom", **RED)
    text = Path("numbers.prom").read_text()
    assert 'onepolicy_status{status="fail"} 1' in text
    assert "\nonepolicy_kl " in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--blocked-status", "0"), "0"),
        (("--blocked-status", "256"), "256"),
        (("--if-changed", "soon"), "no length of time"),
        (("--if-changed", "0s"), "no length of time"),
        (("--if-changed", "1e9d"), "no length of time"),
        (("--if-changed", "999999d"), "longer than 36500 days"),
        (("--if-changed", "9" * 400 + "d"), "longer than 36500 days"),
    ],
)
def test_options_that_are_no_values_end_with_2(cli, here, options, words):
    command("")
    ended = cli("gate", *options, "onepolicy.yaml")
    assert ended.status == 2
    assert words in ended.err


@pytest.mark.parametrize("command_name", ["gate", "watch", "history"])
def test_the_help_fits_80_columns(cli, monkeypatch, command_name):
    monkeypatch.setenv("COLUMNS", "80")
    ended = cli(command_name, "--help")
    assert ended.status == 0
    assert max(map(len, ended.out.splitlines())) <= 80
