"""`onepolicy conform`."""

import json
import sys

import pytest

from onepolicy.records.conform import Answer, Conformance

MODULE = """
import torch
print("imported")

def kl(logprobs, reference_logprobs):
    print("called")
    return reference_logprobs - logprobs

def kl_loss(logprobs, reference_logprobs):
    d = reference_logprobs - logprobs
    return torch.exp(d) - d - 1

def masked_mean(values, loss_mask):
    return torch.where(loss_mask.bool(), values, 0.0).sum() / loss_mask.sum()

def backwards(logprobs, reference_logprobs):
    return logprobs - reference_logprobs

def nothing(lengths, limit, buffer):
    raise NotImplementedError("we have no limit")
"""


@pytest.fixture
def trainer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "trainer.py"
    path.write_text(MODULE)
    return path


def test_a_module_is_read_by_the_names_of_the_roles_and_a_wrong_function_ends_with_1(cli, trainer, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    ended = cli("conform", trainer)
    assert ended.status == 1
    headline = " ".join(ended.out.partition("\n\n")[0].split())
    assert headline.endswith("9 cases of 3 functions: 5 agree, 2 differ by design, 2 are wrong, 0 not tried.")
    assert "mean -0.0183, should be 0.0183" in " ".join(ended.out.split())
    assert "k3 as a loss pulls in the other direction" in " ".join(ended.out.split())
    assert max(map(len, ended.out.splitlines())) <= 100


def test_what_a_module_prints_does_not_enter_the_json(cli, trainer):
    ended = cli("conform", trainer, "--json")
    assert ended.status == 1
    found = Conformance.model_validate_json(ended.out)
    assert {one.role for one in found.tried} == {"kl", "kl_loss", "masked_mean"}
    assert {one.case for one in found.of(Answer.WRONG)} == {"mean", "far reference"}
    assert [one.name for one in found.explanations] == ["k3 as a loss pulls in the other direction"]
    assert ended.err.startswith("imported\ncalled\n")


def test_one_function_is_tried_as_the_role_that_is_named(cli, trainer):
    ended = cli("conform", f"{trainer}:backwards", "--as", "kl", "--json")
    assert ended.status == 0
    assert [one["function"] for one in json.loads(ended.out)["tried"]] == ["backwards"] * 3
    assert cli("conform", f"{trainer}:masked_mean").status == 0


def test_a_module_in_the_working_directory_is_named_without_its_path(cli, trainer):
    assert cli("conform", "trainer:masked_mean").status == 0


def test_a_function_that_declines_everything_ends_with_3(cli, trainer):
    ended = cli("conform", f"{trainer}:nothing", "--as", "overlong")
    assert ended.status == 3
    assert ended.out.startswith("Nothing was tried: ")
    assert "we have no limit" in " ".join(ended.out.split())


def test_our_own_references_agree(cli):
    ended = cli("conform", "onepolicy")
    assert ended.status == 0
    assert ended.out.startswith("Nothing wrong: onepolicy")


def test_a_case_is_explained_with_an_example_that_can_be_copied(cli, trainer, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    ended = cli("conform", trainer, "--explain", "kl_loss/gradient")
    assert ended.status == 1
    assert "Planted: a reference near the policy" in ended.out
    code = ended.out.partition("import torch\n")[2].partition("\nprints:")[0]
    exec("import torch\n" + code, {})
    assert "kl/mean" not in ended.out


def test_the_markdown_is_a_table_and_the_explanations(cli, trainer):
    ended = cli("conform", trainer, "--markdown")
    lines = ended.out.splitlines()
    assert lines[2:4] == ["| role | function | case | answer | found |", "|---|---|---|---|---|"]
    assert any(line.startswith("| kl | kl | mean | wrong |") for line in lines)
    assert "```python" in lines


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("json",), "has no function that is named as a role. Roles"),
        (("nowhere.py",), "there is no file nowhere.py"),
        (("no_such_module",), "importing no_such_module failed"),
        (("trainer.py:absent", "--as", "kl"), "the module has no function 'absent'"),
        (("trainer.py:backwards",), "backwards is no role, so trainer.py:backwards needs --as ROLE"),
        (("trainer.py:backwards", "--as", "kll"), "there is no role 'kll'"),
        (("trainer.py:backwards", "--as", "gae"), "cannot be called with 5 arguments by position"),
        (("trainer.py", "--as", "kl"), "--as kl is for one function"),
        (("onepolicy", "--as", "kl"), "--as kl is for MODULE:FUNCTION"),
        (("trainer.py", "--explain", "nothing"), "no case 'nothing' was tried with trainer.py. Cases: "),
        (("trainer.py", "--json", "--markdown"), "three forms of one result"),
    ],
)
def test_what_cannot_be_tried_ends_with_2(cli, trainer, arguments, message):
    ended = cli("conform", *arguments)
    assert (ended.status, ended.out) == (2, "")
    assert message in ended.err


@pytest.mark.parametrize("framework", ["trl", "verl"])
def test_a_framework_that_is_not_installed_ends_with_2_and_how_to_install_it(cli, framework, monkeypatch):
    monkeypatch.setitem(sys.modules, framework, None)
    ended = cli("conform", framework)
    assert (ended.status, ended.out) == (2, "")
    assert f"Install it with: pip install {framework}==" in ended.err
