from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from tiny_reference import frozen, llama, one_thread, stepped  # noqa: F401

from onepolicy.monitor.reference.guard import DIGEST_EVERY, EVERY, ReferenceGuard
from onepolicy.monitor.reference.passes import LENGTH
from onepolicy.monitor.reference.record import Kind, read_reference

PAGE = Path(__file__).parents[2] / "docs" / "reference.md"


def test_the_four_lines_of_the_guide_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    assert [int(number) for number in re.findall(r"# (\d)$", code, re.MULTILINE)] == [1, 2, 3, 4]
    monkeypatch.chdir(tmp_path)
    model = llama()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    names: dict[str, Any] = {
        "model": model,
        "reference": frozen(model),
        "optimizer": optimizer,
        "batches": range(3),
        "train_on": lambda batch: stepped(model, optimizer, seed=batch),
    }
    exec(compile(code, str(PAGE), "exec"), names)
    record = read_reference(tmp_path / "runs" / "reference")
    assert record is not None
    assert (record.status, record.last_step) == ("pass", 3)


def test_the_guide_names_every_argument_kind_and_interval() -> None:
    text = PAGE.read_text()
    for name in [*inspect.signature(ReferenceGuard).parameters, *get_args(Kind)]:
        assert f"| `{name}` |" in text, name
    assert (EVERY, DIGEST_EVERY, LENGTH) == (50, 10, 32)
    assert "every 50 steps" in text
    assert "are 32, spread" in text
