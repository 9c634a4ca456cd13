from __future__ import annotations

import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onepolicy.errors import MissingExtraError, UsageError
from onepolicy.monitor.monitor import Monitor
from onepolicy.monitor.prometheus import exporter


def test_without_the_package_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with Monitor(tmp_path / "run") as monitor, pytest.raises(MissingExtraError, match="onepolicy\\[prometheus\\]"):
        exporter(monitor, 0)


def test_the_numbers_of_the_last_step_are_served_on_this_machine_alone(
    tmp_path: Path, batch_of: Callable[..., dict[str, Any]]
) -> None:
    pytest.importorskip("prometheus_client")
    with Monitor(tmp_path / "run") as monitor:
        for step in range(2):
            monitor.update(**batch_of(step))
            monitor.step()
        served = exporter(monitor, 0)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{served.port}/metrics", timeout=10) as answer:
                text = answer.read().decode()
            with pytest.raises(UsageError, match="another port"):
                exporter(monitor, served.port)
        finally:
            served.close()
    numbers = [line for line in text.splitlines() if line.startswith("onepolicy_step ")]
    assert numbers == ["onepolicy_step 1.0"]
    assert 'onepolicy_status{status="unknown"} 1.0' in text
