"""TRL's and verl's own functions: what `onepolicy conform` says of the versions that its explanations speak of."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from onepolicy.records.conform import Answer, Conformance

ROOT = Path(__file__).parents[2]
PEERS = ROOT / ".peers"

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not PEERS.exists(), reason="verl and TRL are not in .peers: run make .peers/.ready"),
]

SCRIPT = """
import contextlib, io, json, socket, sys, time
started = time.perf_counter()
sys.path.insert(0, sys.argv[1])

def refuse(*_):
    raise AssertionError("conform needs no network")

socket.socket.connect = refuse
from onepolicy.report.conform import conformance_markdown
from onepolicy.workflow.conform import conform
from onepolicy.integrations import conforming_subject

found = conform(sys.argv[2])
seconds = time.perf_counter() - started
examples = []
for one in conforming_subject(sys.argv[2]).differences:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(one.example, {})
    examples.append((one.role, one.name, list(one.labels), one.prints, printed.getvalue().strip()))
said = {"found": found.model_dump_json(), "page": conformance_markdown(found), "examples": examples, "seconds": seconds}
json.dump(said, sys.stdout)
"""
WRONG = {
    "verl": {("grpo_advantages", "constant rewards")},
    "trl": {
        ("model_logprobs", "absolute positions, padded left"),
        ("model_logprobs", "absolute positions, prompt left"),
    },
}


@pytest.fixture(scope="module", params=["verl", "trl"])
def said(request):
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(PEERS), request.param]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout) | {"name": request.param}


@pytest.fixture
def found(said):
    return Conformance.model_validate_json(said["found"])


def test_what_is_wrong_is_known_and_explained(said, found):
    assert found.version == found.explained
    assert {(one.role, one.case) for one in found.of(Answer.WRONG)} == WRONG[said["name"]]
    assert all(one.explanation for one in found.of(Answer.WRONG))
    assert all(one.explanation for one in found.of(Answer.DIFFERS))
    assert found.exit_status == 1


def test_most_of_it_agrees_and_what_was_not_tried_says_why(found):
    assert len(found.of(Answer.AGREES)) > 2 * len(found.of(Answer.DIFFERS)) > 0
    assert all(one.found for one in found.of(Answer.NOT_TRIED))
    assert len({one.role for one in found.tried}) >= 14


def test_every_example_prints_what_it_says_and_every_difference_is_met(said, found):
    met = {(one.role, one.explanation, one.function) for one in found.tried}
    for role, name, labels, promised, printed in said["examples"]:
        assert printed == promised, (role, name)
        assert {(role, name, label) for label in labels} <= met, (role, name)


def test_a_run_is_short(said):
    assert said["seconds"] < 60


def test_the_docs_show_this_run(said):
    page = (ROOT / "docs" / "conform.md").read_text()
    mark = re.escape(f"<!-- onepolicy conform {said['name']} --markdown -->")
    shown = re.search(rf"{mark}\n(.*?)<!-- end -->", page, re.DOTALL)
    assert shown is not None
    assert shown[1].strip() == said["page"].strip(), "run docs/conform.py"
