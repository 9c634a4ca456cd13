"""`onepolicy watch`."""

import json
import signal
import time
from pathlib import Path

import pytest


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [{"id": f"s{i:02}", "prompt": f"{i} of many: ", "completion": f"the rain {i}"} for i in range(12)]
    Path("fixed.jsonl").write_text("\n".join(map(json.dumps, lines)))

    def write(trainer: str = "fake:m") -> str:
        asked = {"rollout": "fake:m", "trainer": trainer, "suite": "fixed.jsonl"}
        Path("onepolicy.yaml").write_text(json.dumps(asked))
        return "onepolicy.yaml"

    return write


def lines() -> list[dict]:
    return [json.loads(line) for line in Path("watch/watch.jsonl").read_text().splitlines()]


def test_it_ends_after_as_many_probes_as_asked(cli, config):
    ended = cli("watch", config(), "--every", "0.01s", "--probes", 3, "--prometheus", "x.prom")
    assert (ended.status, len(lines())) == (0, 3)
    assert ended.out.startswith("Pass: 3 probes in watch. The last: Pass: ")
    assert 'onepolicy_status{status="pass"} 1' in Path("x.prom").read_text()


def test_a_probe_that_fails_ends_it_with_1(cli, config):
    ended = cli("watch", config("fake:m?noise=0.5"), "--every", "0.01s", "--until", "fail")
    assert (ended.status, len(lines())) == (1, 1)


def test_a_pair_that_is_away_is_unknown(cli, config):
    away = "vllm:http://127.0.0.1:9?retries=0"
    ended = cli("watch", config(away), "--every", "0.01s", "--probes", 2, "--prometheus", "x.prom")
    assert (ended.status, len(lines())) == (3, 2)
    assert ended.err.count("came to no end") == 1
    text = Path("x.prom").read_text()
    assert 'onepolicy_status{status="unknown"} 1' in text
    assert "onepolicy_kl" not in text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_what_it_has(process, config, number):
    watching = process("watch", config(), "--every", "1h")
    deadline = time.monotonic() + 30
    while not Path("watch/watch.jsonl").exists() or not Path("watch/watch.jsonl").read_text().endswith("\n"):
        assert watching.popen.poll() is None, watching.popen.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    ended = watching.send(number)
    assert (ended.status, len(lines())) == (0, 1), ended
    assert ended.out.startswith("Pass: 1 probes")


def test_a_signal_before_the_first_probe_is_no_pass(process, config):
    watching = process("watch", config("fake:m?delay=30"), "--every", "1h")
    deadline = time.monotonic() + 30
    while not any(Path("watch").glob("*/manifest.json")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    ended = watching.send(signal.SIGTERM)
    assert ended.status == 3
    assert ended.out.startswith("Unknown: 0 probes")
    assert not any(path.is_dir() for path in Path("watch").iterdir()), "no half of a run is left"


def test_what_can_never_run_ends_with_2(cli, config):
    assert cli("watch", config("fake:m?nois=1"), "--probes", 1).status == 2
    assert cli("watch", "none.yaml").status == 2
    for every in ("often", "200000d"):
        assert cli("watch", config(), "--every", every).status == 2


def test_numbers_are_not_written_over_what_is_read(cli, config):
    before = Path(config()).read_text()
    for file in ("onepolicy.yaml", "./watch/watch.jsonl"):
        ended = cli("watch", "onepolicy.yaml", "--probes", 1, "--prometheus", file)
        assert (ended.status, Path("watch").exists()) == (2, False)
        assert "would be written over" in ended.err
    assert Path("onepolicy.yaml").read_text() == before
