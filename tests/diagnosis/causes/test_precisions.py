"""Precision has a size and no direction; other causes have a direction."""

from dataclasses import replace

import pytest
from planted_runs import names, perturbed, planted, sampled_by, served_by, why

from onepolicy.diagnosis.causes import precision
from onepolicy.diagnosis.likelihood import Trial
from onepolicy.diagnosis.noise import noise_of_dtypes
from onepolicy.diagnosis.precision import finding_of
from onepolicy.diagnosis.rereads import reread_of, rereads
from onepolicy.records.finding import Outcome
from onepolicy.records.protocol import Meaning
from onepolicy.records.run import Run
from onepolicy.workflow.diagnose import DiagnoseRequest, _situation
from onepolicy.workflow.diagnose_tokens import tokens_of
from onepolicy.workflow.experiments import Laboratory, few_prompts
from onepolicy.workflow.progress import Silent

pytestmark = pytest.mark.usefixtures("causes_of_engines")


def reread(path, *, served=False, **changes):
    """What the trainer's second reading says of this run, whatever engine the rollout side has."""
    request = DiagnoseRequest(rollout="served" if served else "rollout")
    run = Run.open(path)
    situation = _situation(run, request)
    tokens = few_prompts(tokens_of(run, request.rollout, "trainer"))
    if changes:
        other = situation.rollout.engine.model_copy(update=changes)
        situation = replace(situation, rollout=situation.rollout.model_copy(update={"engine": other}))
    (experiment,) = rereads(situation, is_apart=True)
    laboratory = Laboratory(tokens=tokens, meanings={"trainer": Meaning(), "rollout": Meaning()}, progress=Silent())
    column = laboratory.column(experiment)
    laboratory.close()
    assert column is not None, laboratory.failed
    again = reread_of(experiment, column, tokens, situation)
    return finding_of(Trial(tokens, noise_of_dtypes("float32")), again, is_sampled=situation.is_sampled)


def test_two_precisions_are_shown_by_how_far_the_trainer_itself_moves(tmp_path, rope):
    plain = f"transformers:{rope}"
    found = reread(sampled_by(tmp_path / "run", f"{plain}?dtype=bfloat16", plain))
    assert found.outcome is Outcome.CAUSE, found.seen
    assert 0.5 < found.residual < 1.5
    assert "the trainer read again in bfloat16 moves by" in found.seen
    assert found.label == "precision: bfloat16 on the rollout side, float32 on the trainer"


def test_one_precision_of_sixteen_bits_on_both_sides_is_held_against_float32(tmp_path, rope):
    spec = f"transformers:{rope}?dtype=bfloat16"
    found = reread(sampled_by(tmp_path / "run", spec, spec))
    assert found.outcome is Outcome.CAUSE, found.seen


def test_a_quantised_precision_is_read_in_sixteen_bits_and_scaled_as_it_was_measured(tmp_path, rope):
    plain = f"transformers:{rope}"
    path = sampled_by(tmp_path / "run", f"{plain}?dtype=bfloat16", plain)
    as_said, scaled = reread(path), reread(path, dtype="Q4_1")
    assert "read again in bfloat16, scaled to Q4_1 as a small model has it," in scaled.seen
    assert 0.4 * as_said.residual < scaled.residual < 0.8 * as_said.residual


def test_sides_must_be_as_far_apart_as_a_precision_that_nobody_declares(tmp_path, rope):
    plain = f"transformers:{rope}"
    autocast = sampled_by(tmp_path / "run", f"{plain}?dtype=bfloat16", plain)
    assert reread(autocast, dtype="unknown").outcome is Outcome.CAUSE
    nearer = sampled_by(tmp_path / "nearer", f"{plain}?dtype=float16", plain)
    assert reread(nearer, dtype="unknown").outcome is Outcome.RULED_OUT


def test_a_side_that_decoded_is_not_read_again_with_something_changed(tmp_path, rope):
    plain = f"transformers:{rope}"
    run = Run.open(sampled_by(tmp_path / "run", f"{plain}?dtype=bfloat16", plain))
    known = _situation(run, DiagnoseRequest())
    tokens = few_prompts(tokens_of(run, "rollout", "trainer"))
    for experiments in (precision.heads, precision.dtypes):
        assert {one.side for one in experiments(tokens, known)} == {"trainer"}


@pytest.mark.parametrize("size", [0.02, 0.1])
def test_stale_weights_are_no_precision_where_they_are_further_apart(tmp_path, rope, size):
    newer = perturbed(rope, tmp_path / "newer", size=size)
    path = sampled_by(tmp_path / "run", f"transformers:{rope}", f"transformers:{newer}")
    found = reread(path, dtype="bfloat16")
    assert found.outcome is not Outcome.CAUSE, found.seen


def test_precision_is_no_stale_weights(tmp_path, rope):
    older = perturbed(rope, tmp_path / "older")
    plain = f"transformers:{rope}"
    path = sampled_by(tmp_path / "run", f"{plain}?dtype=bfloat16", plain)
    found = why(path, weights={"step 0": f"transformers:{older}"})
    assert ("stale weights", "cause") not in names(found), found.sentence


def test_a_temperature_is_no_precision(tmp_path, rope):
    plain = f"transformers:{rope}"
    path = sampled_by(tmp_path / "run", f"{plain}?logprobs=processed", plain, meaning=Meaning(), temperature=0.8)
    assert reread(path, dtype="bfloat16").outcome is not Outcome.CAUSE


def test_a_function_in_train_mode_is_known_by_not_repeating_itself(tmp_path, gpt2):
    file = tmp_path / "trained.py"
    file.write_text(
        f"from leg_faults import loaded, right_way\n\nMODEL = loaded({str(gpt2)!r}).train()\n\n\n"
        "def score(token_ids):\n    return right_way(MODEL, token_ids)\n"
    )
    path = sampled_by(tmp_path / "run", f"transformers:{gpt2}", f"callable:{file}:score")
    found = reread(path)
    assert (found.cause, found.outcome) == ("train mode", Outcome.CAUSE), found.seen
    assert found.label == "the trainer does not repeat itself"


def test_a_head_in_bfloat16_is_found_behind_a_float32_body(tmp_path, rope):
    plain = f"transformers:{rope}"
    served = planted(tmp_path, rope, "head_in_bfloat16")
    found = why(served_by(tmp_path / "run", plain, served, plain), served=True)
    assert names(found)[0][0] == "LM head precision", found.sentence


def test_a_head_in_another_precision_is_dropped_where_a_spec_names_it(tmp_path, rope):
    plain = f"transformers:{rope}"
    found = why(served_by(tmp_path / "run", plain, f"{plain}?head=bfloat16", plain), served=True)
    assert names(found) == [("LM head precision", "cause")], found.sentence


def test_a_quantised_file_is_read_by_the_trainer(tmp_path, rope):
    plain = f"transformers:{rope}"
    path = sampled_by(tmp_path / "run", plain, f"{plain}?batch_size=4")
    situation = _situation(Run.open(path), DiagnoseRequest())
    request = situation.rollout.request.model_copy(update={"engine": "llamacpp:/models/policy-q4_1.gguf?n_ctx=512"})
    changed = replace(situation, rollout=situation.rollout.model_copy(update={"request": request}))
    (experiment,) = precision.files(few_prompts(tokens_of(Run.open(path), "rollout", "trainer")), changed)
    assert str(experiment.engine) == "transformers:/models/policy-q4_1.gguf?batch_size=4"
    assert not list(precision.files(few_prompts(tokens_of(Run.open(path), "rollout", "trainer")), situation))
