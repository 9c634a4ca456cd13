"""K09: the attention mask is missing, or cut."""

import numpy as np
import pytest
from leg_faults import PROMPT, loaded, mask_of_one_column_in_decode, right_way
from leg_models import absolute, climbed, one_thread, planted, rotary, rung  # noqa: F401

SEQUENCES = [[11 + n % 200 for n in range(start, start + length)] for start, length in ((0, 40), (50, 21), (90, 29))]


@pytest.fixture(scope="module", params=[rotary, absolute], ids=["rotary", "absolute"])
def model(request, tmp_path_factory):
    return request.param(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture(scope="module")
def rope(tmp_path_factory):
    return rotary(tmp_path_factory.mktemp("rope") / "model")


def test_b48_without_a_mask_both_kinds_of_model_break(tmp_path, model):
    ladder = climbed(tmp_path, f"transformers:{model}", only=("no-mask",))
    assert (ladder.status.value, ladder.breaks) == ("fail", "no-mask")
    assert rung(ladder, "no-mask").max_abs_d > 0.5


def test_b48_one_sequence_at_a_time_has_no_padding_to_see(tmp_path, model):
    ladder = climbed(tmp_path, f"transformers:{model}", only=("batch",))
    assert rung(ladder, "batch").status.value == "pass"


def test_b50_a_cut_mask_is_right_at_the_first_token_and_wrong_later_in_padded_rows_only(rope):
    model = loaded(str(rope))
    wrong, right = mask_of_one_column_in_decode(model, SEQUENCES), right_way(model, SEQUENCES)
    d = [np.abs(np.subtract(a, b)) for a, b in zip(wrong, right, strict=True)]
    assert d[0].max() < 1e-4
    assert d[1][: PROMPT + 1].max() < 1e-4
    assert d[1][PROMPT + 1 :].max() > 0.05


def test_b50_its_leg_breaks(tmp_path, rope):
    fault = planted(tmp_path, rope, "mask_of_one_column_in_decode")
    ladder = climbed(tmp_path, f"transformers:{rope}", only=("decode", "cut"), against={"cut": fault})
    assert rung(ladder, "decode").status.value == "pass"
    assert ladder.breaks == "cut"
