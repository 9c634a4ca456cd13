from __future__ import annotations

import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    "name", ["metrics.md", "cli.md", "engines.md", "reconcile.md", "symptoms.md", "judgement.schema.json"]
)
def test_the_generated_pages_are_up_to_date(name: str) -> None:
    pages = runpy.run_path(str(DOCS / "generate.py"))["PAGES"]
    assert (DOCS / name).read_text(encoding="utf-8") == pages[name](), "run: make docs"
