"""Writes what stands between the marks in docs/conform.md: `PYTHONPATH=.peers .venv/bin/python docs/conform.py`.

verl and TRL are asked where they are installed; tests check that the page is up to date.
"""

from __future__ import annotations

import re
from pathlib import Path

from onepolicy.report.conform import conformance_markdown
from onepolicy.signal.conformance.cases import CASES
from onepolicy.signal.conformance.roles import ROLES
from onepolicy.workflow.conform import conform

PAGE = Path(__file__).with_name("conform.md")
FRAMEWORKS = ("verl", "trl")


def roles_table() -> str:
    """How each role is called."""
    rows = (f"| `{role.signature}` | {_cell(role.gives)} |" for role in ROLES.values())
    return "\n".join(["| called with | gives |", "|---|---|", *rows])


def cases_table() -> str:
    """Every case, with what goes wrong otherwise."""
    rows = (f"| {case.role} | {case.name} | {_cell(case.planted)} | {_cell(case.otherwise)} |" for case in CASES)
    return "\n".join(["| role | case | planted | otherwise |", "|---|---|---|---|", *rows])


def between(page: str, mark: str) -> str:
    """What stands after a mark."""
    found = re.search(rf"<!-- {re.escape(mark)} -->\n(.*?)<!-- end -->", page, re.DOTALL)
    assert found is not None, mark
    return found[1].strip()


def put(page: str, mark: str, text: str) -> str:
    """The page with this text after a mark."""
    opening = f"<!-- {mark} -->\n"
    before, _, after = page.partition(opening)
    return f"{before}{opening}\n{text.strip()}\n\n<!-- end -->{after.partition('<!-- end -->')[2]}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    """Write the page."""
    page = put(put(PAGE.read_text(encoding="utf-8"), "roles", roles_table()), "cases", cases_table())
    for name in FRAMEWORKS:
        page = put(page, f"onepolicy conform {name} --markdown", conformance_markdown(conform(name)))
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
