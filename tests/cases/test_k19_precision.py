"""K19: the dtype, the precision of the head, and the norm."""

import leg_faults
import pytest
import torch
from leg_models import climbed, one_thread, planted, rotary, rung  # noqa: F401

import onepolicy
from onepolicy.records.verdict import Status


@pytest.fixture(scope="module")
def rope(tmp_path_factory):
    return rotary(tmp_path_factory.mktemp("rope") / "model", hidden_size=64, initializer_range=0.15)


def test_b88_decode_differs_from_prefill_by_noise_that_float32_nearly_takes_away(tmp_path, rope):
    numbers = {}
    for dtype in ("float32", "bfloat16"):
        folder = tmp_path / dtype
        folder.mkdir()
        ladder = climbed(folder, f"transformers:{rope}?dtype={dtype}", only=("decode", "repeat"), limits="bf16")
        assert ladder.status.value == "pass", ladder.sentence
        assert rung(ladder, "repeat").bitwise_share == 1.0
        numbers[dtype] = rung(ladder, "decode")
    assert numbers["bfloat16"].mean_abs_d > 1_000 * numbers["float32"].mean_abs_d
    for found in numbers.values():
        (signed,) = [v for v in found.verdicts if v.check == "signed_mean"]
        assert signed.status.value == "pass", "noise has no direction"


def test_b89_the_precision_of_the_head_alone_makes_most_of_the_difference(tmp_path, rope):
    fault = planted(tmp_path, rope, "head_in_bfloat16")
    ladder = climbed(tmp_path, f"transformers:{rope}", only=("bf16-head", "bfloat16"), against={"bf16-head": fault})
    broken = rung(ladder, "bf16-head")
    assert broken.bitwise_share < 0.2
    assert broken.mean_abs_d > 1e-4
    folder = tmp_path / "half"
    folder.mkdir()
    half = climbed(folder, f"transformers:{rope}?dtype=bfloat16", only=("head",), limits="bf16")
    assert rung(half, "head").mean_abs_d > 1e-4


def test_b91_autocast_on_one_path_is_seen_by_a_tolerance_of_zero_alone(tmp_path, rope):
    fault = planted(tmp_path, rope, "under_autocast")
    against = {"autocast": fault}
    loose = climbed(tmp_path, f"transformers:{rope}", only=("autocast",), against=against, limits="bf16")
    assert loose.status.value == "pass"
    exact = climbed(tmp_path, f"transformers:{rope}", only=("autocast",), against=against, bitwise=("autocast",))
    assert (exact.status.value, exact.breaks) == ("fail", "autocast")
    assert rung(exact, "autocast").limits == "bitwise"


def test_b92_logprobs_above_zero_are_no_logprobs(rope):
    model = leg_faults.loaded(str(rope))
    model.lm_head.weight.data *= 32  # as sure of its tokens as a trained model
    starts = torch.arange(8, 24).reshape(16, 1)
    sure = model.generate(starts, max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0).tolist()
    rounded, exact = leg_faults.unfused_bfloat16(model, sure), leg_faults.right_way(model, sure)
    assert max(map(max, exact)) <= 0.0 < max(map(max, rounded))
    found = onepolicy.compare(rollout=rounded, trainer=exact, sampled=False, limits="quantised")
    assert found.status is Status.FAIL
    assert any(v.check == "valid_logprobs" and v.status is Status.FAIL for v in found.verdicts)


def test_b93_a_norm_that_is_left_out_breaks_everywhere(tmp_path, rope):
    fault = planted(tmp_path, rope, "without_final_norm")
    ladder = climbed(
        tmp_path, f"transformers:{rope}", only=("no-norm",), against={"no-norm": fault}, limits="quantised"
    )
    found = rung(ladder, "no-norm")
    assert (found.status.value, found.bitwise_share) == ("fail", 0.0)
    assert found.mean_abs_d > 0.1
