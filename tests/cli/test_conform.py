"""`onepolicy conform`."""

import json
import sys
from pathlib import Path

import pytest
import torch

from onepolicy.cli.app import _resumes
from onepolicy.records.conform import Answer, Conformance
from onepolicy.signal.conformance.roles import ROLES

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


def test_what_is_written_past_python_does_not_enter_the_json(process, trainer):
    trainer.write_text(
        "import os, sys\nsys.__stdout__.write('held')\nos.write(1, b'raw')\nos.system('echo child')\n" + MODULE
    )
    ended = process("conform", trainer, "--json").end()
    assert ended.status == 1
    assert {one.role for one in Conformance.model_validate_json(ended.out).tried} == {"kl", "kl_loss", "masked_mean"}
    assert all(word in ended.err for word in ("held", "raw", "child", "imported", "called"))


def test_what_a_module_sets_in_torch_hides_nothing_and_does_not_stop_the_rest(cli, trainer, monkeypatch):
    trainer.write_text(
        "import torch\ntorch.set_grad_enabled(False)\n"
        + MODULE.replace("    d = ", "    logprobs = logprobs.detach()\n    d = ")
    )
    try:
        ended = cli("conform", trainer, "--json")
    finally:
        torch.set_grad_enabled(True)
    found = Conformance.model_validate_json(ended.out)
    assert {one.answer for one in found.tried if one.role == "kl_loss"} == {Answer.WRONG}


def test_one_function_is_tried_as_the_role_that_is_named(cli, trainer):
    ended = cli("conform", f"{trainer}:backwards", "--as", "kl", "--json")
    assert ended.status == 0
    assert [one["function"] for one in json.loads(ended.out)["tried"]] == ["backwards"] * 3
    assert cli("conform", f"{trainer}:masked_mean").status == 0
    assert cli("conform", "./trainer.py:masked_mean").status == 0


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
        (("no_such_module",), "there is no module no_such_module in "),
        (("no_such_module.kl",), "Check the name, or give a file: path/to/file.py."),
        (("trainer.kl",), "Did you mean trainer:kl?"),
        (("./trainer",), "'./trainer' names no module. Write my_pkg.scoring, or path/to/file.py."),
        (("folder/other",), "Did you mean folder/other.py?"),
        (("TRL",), "did you mean trl?"),
        (("",), "'' names no module"),
        ((":kl",), "':kl' names no module"),
        (("trainer.py:",), "names no function"),
        (("trainer.py:backwards", "--as", ""), "there is no role ''"),
        (("raises.py",), "importing raises.py failed:"),
        (("lazy.py",), "looking up token_logprobs failed:"),
        (("lazy.py:kl",), "RuntimeError: lazy kl"),
        (("trainer.py:absent", "--as", "kl"), "the module has no function 'absent'"),
        (("trainer.py:backwards",), "backwards is no role, so trainer.py:backwards needs --as ROLE"),
        (("trainer.py:backwards", "--as", "kll"), "there is no role 'kll'"),
        (("trainer.py:backwards", "--as", "gae"), "cannot be called with 5 arguments by position"),
        (("trainer.py", "--as", "kl"), "--as kl is for one function"),
        (("onepolicy", "--as", "kl"), "--as kl is for MODULE:FUNCTION"),
        (("trainer.py", "--explain", "nothing"), "Cases: NaN, inf and 1e4 under the mask; far reference; gradient; "),
        (("trainer.py", "--json", "--markdown"), "three forms of one result"),
    ],
)
def test_what_cannot_be_tried_ends_with_2(cli, trainer, arguments, message):
    Path("folder").mkdir()
    Path("folder/other.py").write_text("")
    Path("raises.py").write_text("class Odd(BaseException): ...\nraise Odd")
    Path("lazy.py").write_text("def __getattr__(name):\n    raise RuntimeError('lazy ' + name)")
    ended = cli("conform", *arguments)
    assert (ended.status, ended.out) == (2, "")
    assert message in ended.err


def test_a_function_whose_signature_is_no_signature_is_tried(cli, trainer):
    trainer.write_text("class K:\n    __signature__ = 5\n    def __call__(self, a, b): return a - b\nkl = K()\n")
    assert cli("conform", trainer).status == 0


def test_an_interruption_speaks_of_a_run_only_where_there_is_one(cli, trainer, monkeypatch):
    trainer.write_text("raise KeyboardInterrupt")
    ended = cli("conform", trainer)
    assert (ended.status, ended.err.strip()) == (130, "onepolicy: interrupted.")
    found = {
        words: _resumes(words.split()) for words in ("check", "snapshot take m", "weights digest m", "-x", "", "no")
    }
    assert [words for words, resumes in found.items() if resumes] == ["check", "snapshot take m"]


def test_the_help_names_every_role(cli):
    assert set(ROLES) <= set(cli("conform", "--help").out.replace(",", " ").replace(".", " ").split())


@pytest.mark.parametrize("framework", ["trl", "verl"])
def test_a_framework_that_is_not_installed_ends_with_2_and_how_to_install_it(cli, framework, monkeypatch):
    monkeypatch.setitem(sys.modules, framework, None)
    ended = cli("conform", framework)
    assert (ended.status, ended.out) == (2, "")
    assert f"Install it with: pip install {framework}==" in ended.err
