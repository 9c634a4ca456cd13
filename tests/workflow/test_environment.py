"""What is kept of the machine: enough to expire a noise floor, and nothing that identifies it."""

import platform
import sys
from types import SimpleNamespace

from onepolicy.workflow.environment import environment


def torch_with(gpus: list[str], *, started: bool) -> SimpleNamespace:
    cuda = SimpleNamespace(
        is_initialized=lambda: started, device_count=lambda: len(gpus), get_device_name=lambda i: gpus[i]
    )
    return SimpleNamespace(__version__="2.9", cuda=cuda)


def test_accelerators_are_named_once_torch_was_started_on_them(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", torch_with(["H200", "H200", "A10"], started=True))
    assert environment()["gpu"] == "1 x A10, 2 x H200"
    monkeypatch.setitem(sys.modules, "torch", torch_with(["H200"], started=False))
    assert "gpu" not in environment()
    assert environment()["torch"] == "2.9"


def test_neither_the_host_nor_the_time_is_kept():
    first, second = environment(), environment()
    assert first == second
    assert all(first.values())
    assert platform.node() not in first.values()
