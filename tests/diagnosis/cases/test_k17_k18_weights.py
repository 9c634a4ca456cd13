"""K17, K18: weights of another step, in part or whole, and adapters (B81, B82, B85, B86; control B153)."""

import warnings

import peft
import pytest
import torch
import transformers
from cases.case_runs import first, named, of, sampled, trained, why
from planted_runs import perturbed

from onepolicy.records.finding import Outcome


@pytest.fixture(scope="module")
def steps(rope, tmp_path_factory):
    """M0 to M5, each an update of the one before."""
    folder, found = tmp_path_factory.mktemp("steps"), [rope]
    for number in range(1, 6):
        found.append(perturbed(found[-1], folder / f"m{number}", size=0.03, seed=number))
    return [f"transformers:{one}" for one in found]


@pytest.fixture(scope="module")
def older(steps):
    return {f"step {number}": spec for number, spec in enumerate(steps[:5])}


@pytest.fixture(scope="module")
def lora(rope, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lora") / "adapter"
    model = transformers.AutoModelForCausalLM.from_pretrained(rope, dtype=torch.float32)
    with torch.random.fork_rng(), warnings.catch_warnings(action="ignore"):  # PEFT asks Transformers for an old name
        torch.manual_seed(0)
        config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        peft.get_peft_model(model, config).save_pretrained(folder)
    return folder


def test_b81_of_six_versions_the_one_that_was_reloaded_from_disk_is_named(tmp_path, steps, older):
    path = trained(sampled(tmp_path / "run", steps[0]), steps[5])
    found = why(path, weights=older)
    assert named(found) == [("stale weights", "cause")]
    assert first(found).value == 1.0
    assert first(found).label == "the rollout side has the weights of step 0"


def test_b81_without_the_older_weights_no_other_cause_is_named_and_what_it_takes_is_said(tmp_path, steps):
    found = why(trained(sampled(tmp_path / "run", steps[0]), steps[5]))
    assert not named(found), found.sentence
    assert of(found, "stale weights").outcome is Outcome.UNTESTED
    assert "--weights" in of(found, "stale weights").seen


def test_b81_the_sentence_counts_what_could_not_be_tested(tmp_path, steps):
    found = why(trained(sampled(tmp_path / "run", steps[0]), steps[5]))
    untested = [one for one in found.findings if one.outcome is Outcome.UNTESTED]
    assert f"{len(untested)} could not be tested" in found.sentence


@pytest.mark.parametrize("named_weights", [False, True])
def test_b82_an_adapter_that_never_reached_the_engine_is_no_staleness(tmp_path, rope, steps, lora, named_weights):
    plain = f"transformers:{rope}"
    path = trained(sampled(tmp_path / "run", plain), f"{plain}?adapter={lora}")
    weights = {"step 1": f"{steps[1]}?adapter={lora}"} if named_weights else {}
    found = why(path, weights=weights)
    assert named(found) == [("adapter", "cause")], found.sentence
    assert first(found).label == "the trainer without its adapter"


def test_b85_a_cached_head_of_step_0_is_told_from_a_whole_stale_model(tmp_path, rope, steps, older):
    newest = steps[5].removeprefix("transformers:")
    path = sampled(tmp_path / "run", f"{steps[5]}?replaced=lm_head={rope}")
    found = why(trained(path, f"transformers:{newest}"), weights=older)
    assert named(found) == [("partly synced weights", "cause")], found.sentence
    assert first(found).label.startswith("the LM head of the rollout side is that of step 0")


def test_b86_a_merge_in_bfloat16_is_named_and_one_in_float32_is_nothing(tmp_path, rope, lora):
    spec = f"transformers:{rope}?adapter={lora}"
    found = why(trained(sampled(tmp_path / "half", f"{spec}&merged=bfloat16"), spec))
    assert named(found) == [("adapter merged in low precision", "cause")], found.sentence
    assert "merged in bfloat16" in first(found).label
    assert not named(why(trained(sampled(tmp_path / "whole", f"{spec}&merged=float32"), spec)))


def test_b86_where_all_is_bfloat16_the_merge_is_within_what_precision_does(tmp_path, rope, lora):
    spec = f"transformers:{rope}?dtype=bfloat16&adapter={lora}"
    found = why(trained(sampled(tmp_path / "run", f"{spec}&merged=bfloat16"), spec))
    assert {cause for cause, _ in named(found)} <= {"precision", "adapter merged in low precision"}


def test_b153_weights_that_were_overwritten_in_place_are_current_whatever_they_are_called(tmp_path, rope, steps, older):
    """The rollout side says that it serves the folder of step 0, which holds step 5."""
    launched = tmp_path / "M0"
    launched.mkdir()
    for file in type(rope)(steps[5].removeprefix("transformers:")).iterdir():
        (launched / file.name).write_bytes(file.read_bytes())
    found = why(trained(sampled(tmp_path / "run", f"transformers:{launched}"), steps[5]), weights=older)
    assert not found.causes
    assert found.sentence.startswith("Nothing to explain")
