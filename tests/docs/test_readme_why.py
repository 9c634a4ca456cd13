"""The section "Why" of the README: its commands run, and print what it shows."""

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from onepolicy.cli import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SECTION = README.partition("\n## Why\n")[2].partition("\n## ")[0]
STATUSES = {"check": 1, "report": 1, "diagnose": 0, "impact": 0, "symptoms": 0}
"""with which each of its commands ends"""


def block(language: str) -> list[str]:
    return SECTION.partition(f"```{language}\n")[2].partition("\n```")[0].splitlines()


def commands() -> list[list[str]]:
    return [shlex.split(line.removeprefix("$ onepolicy "), comments=True) for line in block("console")]


@pytest.fixture
def run(capsys, monkeypatch, tmp_path) -> Callable[[list[str]], tuple[int, str]]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def called(arguments: list[str]) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["onepolicy", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, capsys.readouterr().out

    return called


def test_its_commands_run_and_the_first_prints_what_it_shows(run):
    ended = {command[0]: run(command) for command in commands()}
    assert {name: status for name, (status, _) in ended.items()} == STATUSES
    *shown, more = block("text")
    assert more == "..."
    printed = [line.rstrip() for line in ended["check"][1].splitlines()]
    assert printed[: len(shown)] == shown
    assert printed[len(shown)] == ""
    assert ended["report"][1] == ended["check"][1]
    assert all(said.strip() for _, said in ended.values())


def test_its_links_lead_to_pages():
    links = re.findall(r"\]\((docs/[a-z0-9-]+\.md)\)", SECTION)
    assert {"docs/diagnose.md", "docs/selftest.md", "docs/impact.md", "docs/symptoms.md"} <= set(links)
    assert [link for link in links if not (ROOT / link).exists()] == []
