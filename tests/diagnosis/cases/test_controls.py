"""Controls: what people report as a fault and is none (B152, B155, B156, B157). B153 stands with the weights of K17."""

from dataclasses import replace

import numpy as np
import pytest
from cases.case_runs import columns, known, named, of_tokens, sampled, served, trained, why
from tiny_transformer import Tiny, sequences

IDS = sequences(length=48)


def test_b152_each_token_is_conditioned_on_those_before_it_and_nothing_is_reported(tmp_path, rope):
    model, other = Tiny(), list(IDS[0])
    other[24] = (other[24] + 1) % 96
    moved = np.abs(model.logprobs(IDS[0]) - model.logprobs(other)) > 1e-9
    assert not moved[:23].any()
    assert moved[23:].all()
    found = why(trained(sampled(tmp_path / "run", f"transformers:{rope}"), f"transformers:{rope}"))
    assert not found.causes
    assert found.sentence.startswith("Nothing to explain")


def test_b155_b156_a_ratio_of_exactly_one_is_what_one_step_on_policy_gives():
    """No KL is computed where beta is 0; the two readings are then one and the same."""
    model = Tiny()
    exact = [model.logprobs(ids) for ids in IDS]
    tokens = columns(IDS, exact, exact)
    findings, sentence = of_tokens(replace(tokens), known())
    assert not tokens.d.any()
    assert not named(findings)
    assert sentence.startswith("Nothing to explain")


@pytest.mark.parametrize("how", ["cache=steps", "batch_size=8&padding_side=left"], ids=["cache", "padding"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_b157_a_cache_and_padding_move_logits_by_rounding_alone(tmp_path, rope, dtype, how):
    spec = f"transformers:{rope}?dtype={dtype}"
    path = trained(sampled(tmp_path / "run", spec), f"{spec}&batch_size=1")
    found = why(served(path, f"{spec}&{how}"), of="served")
    assert not found.differs
    assert {cause for cause, _ in named(found)} <= {"precision"}
    assert found.mean_abs_d < (1e-5 if dtype == "float32" else 0.05)
