"""Weights of another step, in part of another step, and adapters."""

import warnings

import peft
import pytest
import torch
import transformers
from planted_runs import names, outcome_of, perturbed, sampled_by, why

from onepolicy.records.finding import Outcome
from onepolicy.records.protocol import Meaning

pytestmark = pytest.mark.usefixtures("causes_of_engines")


@pytest.fixture(scope="module")
def steps(rope, tmp_path_factory):
    folder = tmp_path_factory.mktemp("steps")
    middle = perturbed(rope, folder / "step-10")
    return {"step 0": rope, "step 10": middle, "step 20": perturbed(middle, folder / "step-20", seed=2)}


def older(steps):
    return {name: f"transformers:{folder}" for name, folder in steps.items() if name != "step 20"}


@pytest.mark.parametrize("served", ["step 0", "step 10"])
def test_the_step_that_the_rollout_side_still_serves_is_named(tmp_path, steps, served):
    path = sampled_by(tmp_path / "run", f"transformers:{steps[served]}", f"transformers:{steps['step 20']}")
    found = why(path, weights=older(steps))
    assert names(found) == [("stale weights", "cause")], found.sentence
    assert served in found.sentence
    assert f"still serves {served}" in found.findings[0].remedy


def test_a_rollout_side_at_another_temperature_has_no_stale_weights(tmp_path, steps):
    """A stale step looks like a temperature near 1, and the other way round."""
    newest = steps["step 20"]
    path = sampled_by(
        tmp_path / "run",
        f"transformers:{newest}?logprobs=processed",
        f"transformers:{newest}",
        meaning=Meaning(),
        temperature=0.98,
    )
    found = why(path, weights=older(steps))
    assert names(found)[0] == ("temperature", "cause"), found.sentence


def test_stale_weights_that_nobody_named_are_no_temperature(tmp_path, steps):
    path = sampled_by(tmp_path / "run", f"transformers:{steps['step 0']}", f"transformers:{steps['step 20']}")
    found = why(path)
    assert "temperature" not in [cause for cause, outcome in names(found) if outcome == "cause"], found.sentence
    assert outcome_of(found, "stale weights") is Outcome.UNTESTED


def test_a_head_that_was_not_updated_is_told_from_a_whole_stale_model(tmp_path, steps):
    newest, mixed = steps["step 20"], tmp_path / "mixed"
    model = transformers.AutoModelForCausalLM.from_pretrained(newest, dtype=torch.float32)
    old = transformers.AutoModelForCausalLM.from_pretrained(steps["step 0"], dtype=torch.float32)
    model.lm_head.weight.data.copy_(old.lm_head.weight.data)
    mixed.mkdir()
    for file in newest.iterdir():
        (mixed / file.name).write_bytes(file.read_bytes())
    model.save_pretrained(mixed)
    path = sampled_by(tmp_path / "run", f"transformers:{mixed}", f"transformers:{newest}")
    found = why(path, weights=older(steps))
    assert names(found)[0] == ("partly synced weights", "cause"), found.sentence
    assert "LM head" in found.sentence


@pytest.fixture(scope="module")
def lora(rope, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lora") / "adapter"
    model = transformers.AutoModelForCausalLM.from_pretrained(rope, dtype=torch.float32)
    with torch.random.fork_rng(), warnings.catch_warnings(action="ignore"):  # PEFT asks Transformers for an old name
        torch.manual_seed(0)
        config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        wrapped = peft.get_peft_model(model, config)
        wrapped.save_pretrained(folder)
    return folder


def test_an_adapter_that_the_rollout_side_lacks_is_named(tmp_path, rope, lora):
    path = sampled_by(tmp_path / "run", f"transformers:{rope}", f"transformers:{rope}?adapter={lora}")
    found = why(path)
    assert names(found) == [("adapter", "cause")], found.sentence
    assert "the trainer without its adapter" in found.sentence


def test_an_adapter_that_only_the_rollout_side_has_is_named(tmp_path, rope, lora):
    path = sampled_by(tmp_path / "run", f"transformers:{rope}?adapter={lora}", f"transformers:{rope}")
    assert names(why(path)) == [("adapter", "cause")]


def test_an_adapter_merged_in_bfloat16_is_told_from_one_that_is_missing(tmp_path, rope, lora):
    """The server loads a folder in which base and adapter are one, the sums rounded to bfloat16."""
    exported = tmp_path / "exported"
    exported.mkdir()
    for file in rope.iterdir():
        (exported / file.name).write_bytes(file.read_bytes())
    model = transformers.AutoModelForCausalLM.from_pretrained(rope, dtype=torch.float32)
    with warnings.catch_warnings(action="ignore"):
        merged = peft.PeftModel.from_pretrained(model, lora).merge_and_unload()
    for layer in merged.model.layers:
        for projection in (layer.self_attn.q_proj, layer.self_attn.v_proj):
            projection.weight.data = projection.weight.data.bfloat16().float()
    merged.save_pretrained(exported)
    path = sampled_by(tmp_path / "run", f"transformers:{exported}", f"transformers:{rope}?adapter={lora}")
    found = why(path)
    assert names(found) == [("adapter merged in low precision", "cause")], found.sentence
    assert "bfloat16" in found.sentence
