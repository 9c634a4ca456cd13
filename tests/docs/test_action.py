"""The GitHub Action and its example: keys as GitHub reads them, and commands that our own command line takes."""

import re
import shlex
from pathlib import Path

import click
import pytest
import yaml

from onepolicy.cli.app import app
from onepolicy.records.past import GateAnswer

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
WORKFLOW = yaml.safe_load((ROOT / "docs/examples/github-workflow.yml").read_text())
STEPS = ACTION["runs"]["steps"]
EXPRESSION = re.compile(r"\$\{\{.*?\}\}")


def commands(script: str) -> list[list[str]]:
    """The calls of onepolicy in a script of bash, variables as words."""
    words = re.sub(r'"\$\{options\[@\]\}"', "--runs r --verdict v --if-changed 7d", script)
    words = re.sub(r'"\$[A-Z_]+"', "x", words)
    calls = re.findall(r"^\s*onepolicy (.+?)(?: >>| \|\||$)", words, flags=re.MULTILINE)
    return [shlex.split(call) for call in calls]


def test_the_action_has_the_keys_that_github_wants_and_no_other():
    assert set(ACTION) == {"name", "description", "branding", "inputs", "outputs", "runs"}
    assert set(ACTION["runs"]) == {"using", "steps"}
    assert ACTION["runs"]["using"] == "composite"
    for step in STEPS:
        assert set(step) <= {"name", "id", "if", "shell", "env", "run"}
        assert step["shell"] == "bash", "a composite action names the shell of each step"
    for given in ACTION["inputs"].values():
        assert set(given) == {"description", "default"}
        assert isinstance(given["default"], str)


def test_no_input_becomes_part_of_a_script():
    for step in STEPS:
        assert not EXPRESSION.search(step["run"]), step["name"]


def test_every_input_is_used_and_every_one_that_is_used_is_there():
    used = set(re.findall(r"inputs\.([a-z-]+)", (ROOT / "action.yml").read_text()))
    assert used == set(ACTION["inputs"])


def test_every_variable_of_a_script_comes_from_its_step_or_from_github():
    for step in STEPS:
        variables = set(re.findall(r"\$([A-Z_]+)", step["run"]))
        assert variables <= set(step.get("env", {})) | {"GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY"}, step["name"]


def test_the_output_is_a_field_of_the_verdict_file():
    (value,) = (output["value"] for output in ACTION["outputs"].values())
    assert value == "${{ steps.answer.outputs.status }}"
    script = next(step["run"] for step in STEPS if step.get("id") == "answer")
    (field,) = re.findall(r'\["(\w+)"\]', script)
    assert field in GateAnswer.model_fields


@pytest.mark.parametrize("call", [call for step in STEPS for call in commands(step["run"])], ids=" ".join)
def test_our_command_line_takes_what_the_action_calls(call):
    context = click.Context(app, info_name="onepolicy", **app.context_settings)  # a command keeps the first help option
    command = app.get_command(context, call[0])
    assert command is not None
    command.make_context(call[0], call[1:], parent=context)


def test_the_commands_are_the_gate_with_and_without_a_command_and_the_history():
    found = [call for step in STEPS for call in commands(step["run"])]
    assert [call[0] for call in found] == ["gate", "gate", "history"]
    assert ["--" in call for call in found] == [False, True, False]


def test_the_example_uses_the_action_with_inputs_that_it_has():
    assert set(WORKFLOW) == {"name", True, "permissions", "jobs"}  # YAML 1.1 reads `on` as true
    (job,) = WORKFLOW["jobs"].values()
    assert set(job) == {"runs-on", "timeout-minutes", "steps"}
    for step in job["steps"]:
        assert set(step) <= {"name", "uses", "with", "if"}
        assert step["uses"].startswith("./") or re.fullmatch(r"actions/[a-z/-]+@v\d+", step["uses"])
    (ours,) = (step for step in job["steps"] if step["uses"].startswith("./"))
    assert set(ours["with"]) <= set(ACTION["inputs"])


def test_the_example_keeps_the_runs_of_a_job_that_failed_under_the_name_by_which_they_are_taken_up():
    """`actions/cache` saves only after a success, and the next job would pass over the run that failed."""
    steps = WORKFLOW["jobs"]["gate"]["steps"]
    used = [step["uses"].partition("@")[0] for step in steps]
    assert [name for name in used if "cache" in name] == ["actions/cache/restore", "actions/cache/save"]
    taken, kept = (steps[used.index(f"actions/cache/{name}")] for name in ("restore", "save"))
    gate = next(i for i, name in enumerate(used) if name.startswith("./"))
    assert used.index("actions/cache/restore") < gate < used.index("actions/cache/save")
    assert kept["if"] == "always()"
    assert {name: taken["with"][name] for name in ("path", "key")} == kept["with"]
