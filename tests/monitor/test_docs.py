from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from onepolicy.monitor.monitor import Monitor
from onepolicy.monitor.state import read_state
from onepolicy.records.run import Run

PAGE = Path(__file__).parents[2] / "docs" / "monitor.md"


def test_the_five_lines_of_the_guide_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    assert [int(number) for number in re.findall(r"# (\d)$", code, re.MULTILINE)] == [1, 2, 3, 4, 5]
    monkeypatch.chdir(tmp_path)
    logged: list[dict[str, float]] = []
    exec(compile(code, str(PAGE), "exec"), _training(logged))
    assert len(logged) == 10
    assert logged[0] == {}
    assert [numbers["onepolicy/step"] for numbers in logged[1:]] == list(range(1, 10))
    assert read_state(tmp_path / "runs" / "monitor").status == "pass"
    assert len(list(Run.open(tmp_path / "runs" / "monitor").rollouts())) == 4


def _training(logged: list[dict[str, float]]) -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 50)
    inputs = torch.randn(4, 6, 8)

    def score(model: torch.nn.Module, batch: dict[str, Any]) -> torch.Tensor:
        return model(inputs).log_softmax(-1).gather(-1, batch["token_ids"][..., None])[..., 0]

    def batches() -> Any:
        for _ in range(10):
            batch = {
                "token_ids": torch.randint(0, 50, (4, 6)),
                "mask": torch.ones(4, 6),
                "advantages": torch.randn(4),
                "prompt": ["a", "a", "b", "b"],
            }
            exact = score(model, batch).detach()
            batch["logprobs"] = exact + 1e-3 * torch.randn(4, 6)  # of another engine
            yield batch

    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return {"model": model, "score": score, "batches": batches(), "optimizer": optimizer, "log": logged.append}


def test_the_guide_names_every_argument_and_number() -> None:
    text = PAGE.read_text()
    for name in [*inspect.signature(Monitor.update).parameters][1:]:
        assert f"`{name}`" in text, name
    for name in ("k3", "kl_high", "same_version_k3", "stale_k3", "coverage", "invalid_tokens", "outlier_rollouts"):
        assert name in text
