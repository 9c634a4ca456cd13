"""Two configurations of a real vLLM, at 50 prompts x 4 samples, half of the prompts Chinese."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from onepolicy.records.run import Run

pytestmark = [pytest.mark.real, pytest.mark.full]

SUITE = Path(__file__).with_name("half_chinese.jsonl")
ONEPOLICY = [sys.executable, "-m", "onepolicy"]


class Ended(NamedTuple):
    status: int
    found: dict
    err: str


def behave(*arguments: object, cwd: Path) -> Ended:
    command = [*ONEPOLICY, "behave", *map(str, arguments), "--json"]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600, check=False)
    assert done.stdout.startswith("{"), done.stderr
    return Ended(done.returncode, json.loads(done.stdout), done.stderr)


@pytest.fixture(scope="module")
def folder(vllm_url, tmp_path_factory) -> tuple[Path, Ended, Ended]:
    """A at T = 1 twice, with one seed and another, and at T = 0.7: the first recording is shared."""
    folder = tmp_path_factory.mktemp("behave")
    asked = ("--engine-a", f"vllm:{vllm_url}", "--suite", SUITE)
    seeds = behave(*asked, "--run", "runs/seeds", cwd=folder)
    shutil.copytree(folder / "runs" / "seeds" / "a", folder / "runs" / "cold" / "a")
    cold = behave(*asked, "--b", "temperature=0.7", "--run", "runs/cold", "--resume", cwd=folder)
    return folder, seeds, cold


def metrics(ended: Ended) -> dict[str, dict]:
    return {row["name"]: row for row in ended.found["metrics"]}


def numbers(ended: Ended) -> list[str]:
    """What docs/behave.md quotes."""
    return [f"{name} {row['a']:.3g} -> {row['b']:.3g}, p {row['p']:.2g}" for name, row in metrics(ended).items()]


def statuses(ended: Ended) -> dict[str, str]:
    return {verdict["check"]: verdict["status"] for verdict in ended.found["verdicts"] if verdict["required"]}


def test_half_of_the_completions_answer_chinese_prompts_and_none_is_compared_without_text(folder):
    path, seeds, _ = folder
    languages = [rollout.tags["language"] for rollout in Run.open(path / "runs" / "seeds" / "a").rollouts()]
    assert (languages.count("zh"), languages.count("en")) == (100, 100)
    assert seeds.found["prompts"] == 50
    assert "blank" in metrics(seeds)


def test_two_seeds_of_one_configuration_do_not_alarm(folder):
    _, seeds, _ = folder
    print("two seeds:", seeds.found["status"], *numbers(seeds), sep="\n  ")  # noqa: T201 - quoted in docs/behave.md
    assert "fail" not in statuses(seeds).values()
    assert seeds.status in (0, 3)


def test_another_temperature_alarms(folder):
    _, _, cold = folder
    print("T = 0.7:", cold.found["status"], *numbers(cold), sep="\n  ")  # noqa: T201 - quoted in docs/behave.md
    assert (cold.status, cold.found["status"]) == (1, "fail")
    assert statuses(cold)["self_similarity"] == "fail"
    similarity = metrics(cold)["self_similarity"]
    assert similarity["b"] > similarity["a"]


def test_the_way_back_is_shown_if_the_two_seeds_passed(folder):
    _, seeds, cold = folder
    said = "To write it back: onepolicy protocol write yaml green:runs --output sampling_config.yaml"
    assert (said in cold.err) is (seeds.status == 0)
