"""docs/conform.md: the parts that need no framework; tests/real checks those of verl and TRL."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def writer():
    spec = spec_from_file_location("docs_conform", DOCS / "conform.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_lists_every_role_and_every_case(writer):
    page = (DOCS / "conform.md").read_text(encoding="utf-8")
    assert writer.between(page, "roles") == writer.roles_table()
    assert writer.between(page, "cases") == writer.cases_table()


def test_what_is_put_after_a_mark_is_found_there(writer):
    page = writer.put("a\n<!-- x -->\nold\n<!-- end -->\nb\n<!-- y -->\n<!-- end -->\n", "x", "new")
    assert (writer.between(page, "x"), writer.between(page, "y")) == ("new", "")
    assert page.startswith("a\n<!-- x -->")
    assert "old" not in page
