"""Tiny models with rotary and with absolute positions."""

from __future__ import annotations

from pathlib import Path

import pytest
from leg_models import absolute, one_thread, rotary  # noqa: F401


@pytest.fixture(scope="session")
def rope(tmp_path_factory) -> Path:
    return rotary(tmp_path_factory.mktemp("rope") / "model")


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory) -> Path:
    return absolute(tmp_path_factory.mktemp("gpt2") / "model", dropout=0.1)
