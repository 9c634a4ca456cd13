"""What a file of two configurations means, and what is refused."""

from pathlib import Path

import pytest
import yaml

from onepolicy.errors import UsageError
from onepolicy.workflow.bisect_config import load_bisect_config

USUAL = {
    "command": "{python} -m server --port {port} --tag=v-{tag} {switches}",
    "good": {"python": "/a/python", "tag": "1", "dtype": "--dtype=float32", "same": "--same", "cache": "--no-cache"},
    "bad": {"python": "/b/python", "tag": "1", "dtype": "--dtype bfloat16", "same": "--same", "seed": "--seed=1"},
    "check": {"rollout": "vllm:http://127.0.0.1:{port}", "trainer": "fake:m"},
}


@pytest.fixture
def loaded(tmp_path):
    def load(**changes):
        content = {name: value for name, value in {**USUAL, **changes}.items() if value != "absent"}
        (tmp_path / "bisect.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
        return load_bisect_config(tmp_path / "bisect.yaml")

    return load


def test_only_what_differs_is_a_switch(loaded):
    config = loaded()
    assert config.names == ("python", "dtype", "cache", "seed")
    assert [(one.name, one.good, one.bad) for one in config.switches][2:] == [
        ("cache", "--no-cache", "(nothing)"),
        ("seed", "(nothing)", "--seed=1"),
    ]


def test_the_command_has_the_chosen_switches_from_bad_and_all_others_from_good(loaded):
    config = loaded()
    start = ["-m", "server", "--port", "81", "--tag=v-1"]
    assert config.command_of((), port=81) == ["/a/python", *start, "--dtype=float32", "--same", "--no-cache"]
    chosen = config.command_of(("python", "dtype", "cache"), port=81)
    assert chosen == ["/b/python", *start, "--dtype", "bfloat16", "--same"]


def test_json_in_a_list_keeps_its_braces_and_quotes(loaded):
    config = loaded(
        command=["server", "--config={}", '{"a": 1}', "--port={port}", "{switches}"],
        good={},
        bad={"override": ["--override-generation-config", '{"top_k": 5}']},
    )
    assert config.command_of(("override",), port=1) == [
        "server", "--config={}", '{"a": 1}', "--port=1", "--override-generation-config", '{"top_k": 5}',
    ]  # fmt: skip


def test_variables_are_switches_too(loaded):
    config = loaded(
        command="server {port}",
        environment={"BOTH": "1", "OVER": "x"},
        good={"kernel": {"env": {"OVER": "a"}}},
        bad={"kernel": {"env": {"OVER": "b"}, "args": []}},
    )
    assert config.environment_of(()) == {"BOTH": "1", "OVER": "a"}
    assert config.environment_of(("kernel",)) == {"BOTH": "1", "OVER": "b"}
    assert config.switches[0].bad == "OVER=b"


def test_a_whole_number_is_an_argument(loaded):
    config = loaded(command="server {port} --seed {seed}", good={"seed": 0}, bad={"seed": 7})
    assert config.command_of(("seed",), port=5) == ["server", "5", "--seed", "7"]


def test_the_check_asks_the_started_engine(loaded):
    config = loaded().check_config(port=4711, folder=Path())
    assert config.rollout.target == "http://127.0.0.1:4711"


def test_a_check_may_be_a_file_and_its_paths_start_there(loaded, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "suite.jsonl").write_text("")
    (tmp_path / "sub" / "onepolicy.yaml").write_text(
        "rollout: 'vllm:http://127.0.0.1:{port}'\ntrainer: fake:m\nsuite: suite.jsonl\n"
    )
    config = loaded(check="sub/onepolicy.yaml").check_config(port=4711, folder=tmp_path)
    assert config.rollout.target == "http://127.0.0.1:4711"
    assert Path(config.suite).resolve() == tmp_path / "sub" / "suite.jsonl"


MANY = {f"s{i}": f"--s{i}" for i in range(65)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bad": USUAL["good"]}, "good and bad are the same: there is nothing to bisect"),
        ({"good": {}, "bad": MANY, "command": "s {port} {switches}"}, "65 switches differ; at most 64"),
        ({"commands": "x"}, "there is no key 'commands'. Known: command, good, bad"),
        ({"good": {"a": {"arguments": "x"}}}, "there is no key 'good.a.arguments'. Known: args, env"),
        ({"command": "absent"}, "the key 'command' is absent"),
        ({"bad": "absent"}, "the key 'bad' is absent"),
        ({"command": []}, "command: "),
        ({"command": "server {switches} {python}{tag}"}, "command: does not hold {port}"),
        ({"command": "server {port} {switchs} {switches}"}, "{switchs} is no switch. Known: port, switches, python"),
        ({"command": "server {port}"}, "has no place for 'cache'"),
        ({"command": "server {port} --x={dtype} {switches}"}, "which is 2 arguments and not one"),
        ({"good": {"port": "1"}, "command": "s {port} {switches}"}, "a switch cannot be called 'port'"),
        ({"good": {"a": 1.5}}, "good.a.args: 1.5 is neither text, a whole number nor a list"),
        ({"good": {"a": True}}, "True is neither text"),
        ({"good": {"a": "--x 'y"}}, "is no list of arguments (No closing quotation)"),
        ({"check": "absent"}, "with either the key check or the key judge"),
        ({"check": {**USUAL["check"], "rollout": "fake:m"}}, "neither rollout nor trainer holds {port}"),
        ({"check": {**USUAL["check"], "suit": "x"}}, "there is no key 'suit'"),
        ({"check": "nowhere.yaml"}, "there is no such file"),
        ({"judge": {"run": "r", "engine": "fake:m"}, "check": "absent"}, "does not hold {port}"),
        ({"judge": {"run": "r", "engines": "fake:m"}, "check": "absent"}, "judge"),
        ({"port": 70000}, "port: "),
        ({"start_seconds": 0}, "start_seconds: "),
        ({"start_seconds": True}, "start_seconds: "),
    ],
)
def test_what_cannot_be_run_is_refused_with_what_is_wrong(loaded, changes, words):
    with pytest.raises(UsageError) as error:
        loaded(**changes)
    assert words in str(error.value)
    assert "bisect.yaml: " in str(error.value)


def test_code_of_a_model_is_not_run_because_a_file_says_so(loaded):
    check = {"rollout": "vllm:http://127.0.0.1:{port}", "trainer": "transformers:m?trust_remote_code=true"}
    with pytest.raises(UsageError, match="trust_remote_code runs Python code"):
        loaded(check=check)


@pytest.mark.parametrize("text", ["- a\n", "command: [", "a: 1\na: 2\n"])
def test_no_mapping_is_refused(tmp_path, text):
    (tmp_path / "b.yaml").write_text(text)
    with pytest.raises(UsageError, match=r"b\.yaml"):
        load_bisect_config(tmp_path / "b.yaml")
