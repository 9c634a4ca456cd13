"""The noise floor of a real engine, and a judgement against multiples of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from onepolicy.records.floor import read_floor

pytestmark = pytest.mark.real

FLOAT32 = "transformers:smollm2?dtype=float32&batch_size=4"


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "onepolicy", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


def test_only_batches_and_padding_move_float32_and_a_limit_of_three_floors_holds(tmp_path: Path) -> None:
    texts = ("The rain in Spain stays mainly in the plain.", "def f(x):\n    return x + 1", "雨が降る。", "1, 2, 3, 4")
    lines = [{"id": f"s{i:02}", "prompt": texts[i % 4], "completion": texts[(i + i // 4) % 4] * 2} for i in range(16)]
    (tmp_path / "suite.jsonl").write_text("\n".join(map(json.dumps, lines)))
    calibrate = ("calibrate", "--engine", FLOAT32, "--suite", "suite.jsonl", "--run", "run", "--output", "floor.json")
    done = run(*calibrate, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    floor = read_floor(tmp_path / "floor.json")
    found = {variation.name: variation for variation in floor.variations}
    assert (list(found), floor.absent) == (["repeat", "order", "batch", "padding"], ())
    assert (found["repeat"].bitwise_share, found["repeat"].mean_k3) == (1.0, 0.0)
    for name in ("order", "batch", "padding"):
        assert 0 < found[name].bitwise_share < 1
        assert 0 < found[name].mean_k3 < 1e-9
    assert {"torch", "transformers"} <= floor.environment.keys()

    (tmp_path / "limits.yaml").write_text("floor: floor.json\nmean_kl: 3 x floor\n")
    other = f"{FLOAT32.replace('batch_size=4', 'batch_size=3')}&padding_side=left"
    assert run("score", "run", "--engine", other, cwd=tmp_path).returncode == 0
    judge = ("judge", "run", "--rollout", "floor-base", "--limits", "limits.yaml", "--json")
    done = run(*judge, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    mean_kl = next(v for v in json.loads(done.stdout)["verdicts"] if v["check"] == "mean_kl")
    assert 0 < mean_kl["value"] <= mean_kl["limit"] == 3 * floor.mean_kl.value

    content = json.loads((tmp_path / "floor.json").read_text())
    content["environment"]["torch"] = "2.0.0"
    (tmp_path / "floor.json").write_text(json.dumps(content))
    done = run(*judge, cwd=tmp_path)
    assert done.returncode == 2
    assert "torch 2.0.0 -> " in done.stderr
