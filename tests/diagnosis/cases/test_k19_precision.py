"""K19: the dtype, the head, autocast, an unfused logprob, the final norm (B88, B89, B91, B92, B93)."""

import shutil
from dataclasses import replace

import pytest
import torch
from cases.case_runs import columns, first, function, known, named, of_tokens, sampled, served, trained, why
from leg_faults import loaded, right_way, unfused_bfloat16


@pytest.fixture(scope="module")
def honest(rope, tmp_path_factory):
    return trained(sampled(tmp_path_factory.mktemp("honest") / "run", f"transformers:{rope}"), f"transformers:{rope}")


@pytest.fixture
def behind(honest, tmp_path, rope):
    """What is said of a function of `leg_faults` that reads the run."""

    def make(fault: str):
        path = shutil.copytree(honest, tmp_path / "run")
        return why(served(path, function(tmp_path, rope, f"return {fault}(MODEL, token_ids)")), of="served")

    return make


def test_b88_generation_in_bfloat16_is_precision_with_positive_evidence(tmp_path, rope):
    plain = f"transformers:{rope}"
    found = why(trained(sampled(tmp_path / "run", f"{plain}?dtype=bfloat16"), plain))
    assert named(found) == [("precision", "cause")]
    assert first(found).label == "precision: bfloat16 on the rollout side, float32 on the trainer"
    assert 0.5 < first(found).residual < 1.5
    assert not found.differs, "it is noise"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_b88_a_cache_beside_a_full_pass_of_the_same_precision_is_noise(tmp_path, rope, dtype):
    spec = f"transformers:{rope}?dtype={dtype}"
    path = trained(sampled(tmp_path / "run", spec), spec)
    found = why(served(path, f"{spec}&cache=steps"), of="served")
    assert not found.differs
    assert {cause for cause, _ in named(found)} <= {"precision"}


@pytest.mark.parametrize("how", ["function", "option"])
def test_b89_a_head_in_bfloat16_is_told_from_a_body_in_bfloat16(tmp_path, rope, honest, behind, how):
    if how == "function":
        found = behind("head_in_bfloat16")
    else:
        path = shutil.copytree(honest, tmp_path / "run")
        found = why(served(path, f"transformers:{rope}?head=bfloat16"), of="served")
    assert named(found) == [("LM head precision", "cause")], found.sentence
    assert "cast_lm_head_to_fp32" in first(found).remedy


def test_b91_autocast_that_nobody_declares_is_precision_by_a_reading_in_bfloat16(behind):
    found = behind("under_autocast")
    assert named(found) == [("precision", "cause")], found.sentence
    assert first(found).label.endswith("though nobody declares bfloat16")
    assert "the precision of the rollout side is not known" in found.notes[0]


@pytest.fixture(scope="module")
def sure(rope):
    """A model as sure of its tokens as a trained one, and what it generates: logprobs near 0."""
    model = loaded(str(rope))
    model.lm_head.weight.data *= 32
    starts = torch.arange(8, 24).reshape(16, 1)
    ids = model.generate(starts, max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0).tolist()
    p, q = ([row[1:] for row in read(model, ids)] for read in (unfused_bfloat16, right_way))
    return ids, p, q


def test_b92_logprobs_above_0_are_hard_evidence(sure):
    findings, sentence = of_tokens(columns(*sure), known())
    assert named(findings) == [("placeholders", "cause")], sentence
    assert first(findings).label == "values above 0, which no logprob has on the rollout side"
    assert max(map(max, sure[1])) > 0.0


def test_b92_the_remedy_is_a_subtraction_in_float32(sure):
    findings, _ = of_tokens(columns(*sure), known())
    assert "float32" in first(findings).remedy


def test_b93_a_final_norm_that_is_left_out_is_no_other_cause(behind):
    found = behind("without_final_norm")
    assert found.differs
    assert not named(found), found.sentence


def test_a_quiet_pair_of_float32_is_silent(sure):
    ids, _, q = sure
    findings, sentence = of_tokens(replace(columns(ids, q, q)), known())
    assert not named(findings), sentence
