"""`onepolicy selftest`."""

import json

import pytest
import torch
from click.testing import CliRunner

from onepolicy.cli.app import app
from onepolicy.records.selftest import SelfTest


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def ran(*arguments):
    return CliRunner().invoke(app, ["selftest", *arguments], standalone_mode=False, env={"COLUMNS": "160"})


def test_a_fault_is_shown_with_its_cause_and_ends_with_0():
    ended = ran("--only", "sentinels")
    assert ended.return_value == 0
    assert "placeholders" in ended.stdout
    assert "1 of 1 detected" in ended.stdout


def test_json_is_the_whole_result():
    ended = ran("--only", "sentinels", "--json")
    found = SelfTest.model_validate(json.loads(ended.stdout))
    assert [one.first for one in found.planted] == ["placeholders"]


def test_markdown_is_the_page_of_the_docs():
    ended = ran("--only", "sentinels", "--markdown")
    assert ended.stdout.startswith("# Self-test of the diagnosis\n")
    assert "| sentinels | large | one value of 2 | function |" in ended.stdout
    assert "presence and frequency penalties" in ended.stdout


def test_two_forms_at_once_and_unknown_faults_are_refused():
    assert "two forms of one result" in str(ran("--json", "--markdown").exception)
    assert "there is no fault 'pizza'" in str(ran("--only", "pizza").exception)
