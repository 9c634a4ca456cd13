"""`onepolicy behave` as a person and a machine see it."""

import json
import signal
from pathlib import Path

import pytest

CHINESE = [
    "请介绍北京的秋天",
    "写一首关于月亮的诗",
    "三加五等于几？",
    "如何煮一碗面？",
    "解释什么是光合作用",
    "给朋友写一封信",
]
SHORT = ("--a", "max_new_tokens=24", "--b", "max_new_tokens=24")
ENGINE = ("--engine-a", "fake:m?batch_size=64")


@pytest.fixture(scope="module")
def suite(tmp_path_factory) -> Path:
    """48 prompts, half of them Chinese."""
    path = tmp_path_factory.mktemp("suite") / "mixed.jsonl"
    texts = [f"{text} ({i})" for i in range(4) for text in CHINESE] + [
        f"Tell me about the number {i}" for i in range(24)
    ]
    lines = [{"id": f"m-{i:02}", "messages": [{"role": "user", "content": text}]} for i, text in enumerate(texts)]
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def behave(cli, suite, tmp_path):
    def run(*arguments):
        return cli("behave", *ENGINE, "--suite", suite, "--run", tmp_path / "both", *SHORT, *arguments)

    return run


def test_two_seeds_of_one_configuration_end_with_0(behave):
    ended = behave()
    assert (ended.status, ended.out.split(":")[0]) == (0, "Pass")
    assert "sampling B into" in ended.err


def test_another_temperature_ends_with_1_and_shows_what_differs(behave, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    ended = behave("--b", "temperature=0.6", "--keyword", "月", "--parse", "[a-z]+")
    assert ended.status == 1
    assert ended.out.startswith("Fail: ")
    assert all(len(line) <= 80 for line in ended.out.splitlines())
    for shown in ("metric", "alarms above", "self_similarity", "keyword 月", "parses", "temperature 0.6"):
        assert shown in ended.out


def test_too_few_completions_end_with_3(behave):
    ended = behave("--prompts", 13, "--samples", 1, "--b", "seed=5")
    assert ended.status == 3
    assert ended.out.startswith("Unknown: ")


def test_recorded_runs_are_compared_without_an_engine(behave, cli, tmp_path):
    assert behave("--b", "temperature=0.6").status == 1
    ended = cli("behave", tmp_path / "both" / "a", tmp_path / "both" / "b", "--json")
    found = json.loads(ended.out)
    assert ended.status == 1
    assert found["status"] == "fail"
    assert found["prompts"] == 48
    assert found["b"]["protocol"]["temperature"] == "0.6"
    assert [row["name"] for row in found["metrics"]][:3] == ["length", "repetition", "blank"]


def test_both_rounds_with_a_reward_are_shown(behave, tmp_path):
    (tmp_path / "rewards.py").write_text("def many(prompt, completion):\n    return len(set(completion)) > 12\n")
    ended = behave("--reward", f"{tmp_path}/rewards.py:many", "--parse-with", f"{tmp_path}/rewards.py:many2")
    assert ended.status == 2
    assert "--parse-with" in ended.err
    ended = behave("--reward", f"{tmp_path}/rewards.py:many")
    for shown in ("mean reward", "reward of 0.5 or more", "same outcome of a prompt"):
        assert shown in ended.out


def test_a_killed_recording_goes_on_with_resume(process, cli, suite, tmp_path):
    slow = (
        "behave",
        "--engine-a",
        "fake:m?batch_size=8&delay=0.05",
        "--suite",
        suite,
        "--run",
        tmp_path / "both",
        *SHORT,
    )
    victim = process(*slow)
    victim.wait_for(tmp_path / "both" / "b" / "rollouts", 3)
    victim.send(signal.SIGKILL)
    before = {path: path.read_bytes() for path in (tmp_path / "both").rglob("part-*.parquet")}
    ended = cli(*slow, "--resume", "--json")
    assert {path: path.read_bytes() for path in before} == before
    undisturbed = cli("behave", *ENGINE, "--suite", suite, "--run", tmp_path / "whole", *SHORT, "--json")
    assert ended.status == undisturbed.status == 0
    assert json.loads(ended.out)["metrics"] == json.loads(undisturbed.out)["metrics"]


def test_a_failure_shows_how_to_go_back_and_that_command_does(behave, cli, suite, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hot = ("--suite", suite, *SHORT, "--b", "temperature=0.6")
    ended = cli("behave", *ENGINE, "--run", "runs/before", *hot)
    assert (ended.status, "green" in ended.err) == (1, False)
    assert cli("behave", *ENGINE, "--run", "runs/good", "--suite", suite, *SHORT).status == 0
    ended = cli("behave", *ENGINE, "--run", "runs/after", *hot)
    last = ended.err.splitlines()[-1]
    assert last.startswith("The last green protocol is that of runs/good/b. To write it back: onepolicy ")
    assert cli(*last.partition("onepolicy ")[2].split()).status == 0
    assert cli("protocol", "diff", "sampling_config.yaml", "green:runs").status == 0
    written = (tmp_path / "sampling_config.yaml").read_text()
    assert ("samples_per_prompt: 1" in written, "seed: 0" in written) == (True, True), "no choice of the comparison's"
    assert cli("behave", "runs/after/a", "runs/after/b").err.splitlines()[-1] == last


def test_a_failing_check_shows_it_too(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    engines = ("--rollout", "fake:m", "--max-new-tokens", 16)
    assert cli("check", *engines, "--trainer", "fake:m", "--run", "runs/good", "--top-k", 50).status == 0
    ended = cli("check", *engines, "--trainer", "fake:m?noise=0.5", "--run", "runs/bad", "--json")
    assert ended.status == 1
    assert "protocol write yaml green:runs" in ended.err.splitlines()[-1]
    assert json.loads(ended.out)["status"] == "fail"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name two runs, or an engine to sample with: --engine-a SPEC"),
        (("only",), "1 runs are named. Name two, or none and --engine-a"),
        (("x", "y", "--engine-a", "fake:m"), "--engine-a is about recording, and x and y are recorded"),
        (("x", "y", "--run", "z"), "--run is about recording"),
        (("x", "y", "--a", "top_k=3"), "--a is about recording"),
        (("x", "y"), "x: no run here"),
        (("--engine-a", "fake:m", "--resume"), "--resume needs --run DIR"),
        (("--engine-a", "fake:m", "--a", "top_p=0"), "--a: top_p = 0"),
        (("--engine-a", "fake:m", "--a", "samples_per_prompt=3"), "give --samples 3, which is for both"),
        (("--engine-a", "nothing:m"), "nothing"),
        (("--engine-a", "fake:m", "--suite", "fixed-quick", "--run", "r"), "is of fixed sequences"),
        (
            ("--engine-a", "fake:m", "--prompts", "33", "--run", "r"),
            "33 prompts are asked for, and the suite 'quick' has 32",
        ),
        (("--engine-a", "fake:m", "--parse", "[", "--run", "r"), "--parse '[' is no regular expression"),
        (("x", "y", "--parse", "a", "--parse-with", "m:f"), "--parse and --parse-with are two answers"),
        (("x", "y", "--rate-change", "1.5"), "--rate-change 1.5: "),
        (("x", "y", "--reward", "no_such_module_here:f"), "no_such_module_here"),
    ],
)
def test_what_cannot_be_run_ends_with_2_and_says_why(arguments, message, cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ended = cli("behave", *arguments)
    assert ended.status == 2
    assert message in ended.err
    assert "Traceback (most recent call last):\n  File" not in ended.err.split("\n", 1)[0]


def test_one_seed_for_both_is_no_pass(behave):
    ended = behave("--a", "seed=3", "--b", "seed=3")
    assert ended.status == 3
    assert "192 of 192 completions of B are those of A" in " ".join(ended.out.split())


def test_a_value_that_goes_too_deep_is_refused(behave):
    ended = behave("--a", "stop=" + "[" * 10**5)
    assert ended.status == 2
    assert "Traceback" not in ended.err
