"""K08: position ids are missing where the padding is on the left. Measured, not assumed."""

import numpy as np
import pytest
from leg_faults import PROMPT, loaded, right_way, width_positions_in_decode
from leg_models import absolute, climbed, one_thread, planted, rotary, rung  # noqa: F401

from onepolicy.records.run import Run

SEQUENCES = [[11 + n % 200 for n in range(start, start + length)] for start, length in ((0, 40), (50, 21), (90, 29))]


@pytest.fixture(scope="module")
def rope(tmp_path_factory):
    return rotary(tmp_path_factory.mktemp("rope") / "model")


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    return absolute(tmp_path_factory.mktemp("learned") / "model")


def rows_of(run, name):
    """Rollout id -> the logprobs that are there."""
    from onepolicy.records.join import ReadingJoin, digests_of  # noqa: PLC0415

    found = {}
    for block in run.rollout_blocks():
        read = ReadingJoin(run, name).take(block, digests_of(block))
        for row, rollout_id in enumerate(block.rollout_ids):
            values = read.logprobs[block.offsets[row] : block.offsets[row + 1]]
            found[rollout_id] = values[~np.isnan(values)]
    return found


def test_b44_b47_no_positions_break_a_model_with_learned_ones_and_leave_a_rotary_one(tmp_path, learned, rope):
    for model, expected, limit in ((learned, "fail", None), (rope, "pass", 1e-4)):
        folder = tmp_path / expected
        folder.mkdir()
        ladder = climbed(folder, f"transformers:{model}", only=("no-positions", "padding"))
        assert rung(ladder, "padding").status.value == "pass", "with positions the side does not matter"
        found = rung(ladder, "no-positions")
        assert found.status.value == expected
        assert found.max_abs_d > 0.5 if limit is None else found.max_abs_d < limit


def test_b44_only_rows_with_padding_differ(tmp_path, learned):
    climbed(tmp_path, f"transformers:{learned}?batch_size=16", only=("no-positions",))
    run = Run.open(tmp_path / "run")
    plain, without = rows_of(run, "legs-plain"), rows_of(run, "legs-no-positions")
    lengths = {rollout.rollout_id: len(rollout.token_ids) for rollout in run.rollouts()}
    longest = max(lengths.values())
    padding = {name: longest - length for name, length in lengths.items()}
    d = {name: float(np.abs(plain[name] - without[name]).mean()) for name in plain}
    assert all(d[name] < 1e-5 for name in d if padding[name] == 0)
    assert all(d[name] > 1e-2 for name in d if padding[name] > 0)


def test_b45_positions_by_width_in_decode_are_right_at_the_first_token_and_wrong_from_the_second(rope):
    model = loaded(str(rope))
    wrong, right = width_positions_in_decode(model, SEQUENCES), right_way(model, SEQUENCES)
    d = [np.abs(np.subtract(a, b)) for a, b in zip(wrong, right, strict=True)]
    assert d[0].max() < 1e-4, "the longest row has no padding"
    shortest = d[1]
    assert shortest[: PROMPT + 1].max() < 1e-4
    assert shortest[PROMPT + 1 :].max() > 0.05


def test_b45_its_leg_breaks_and_the_engines_own_decode_holds(tmp_path, rope):
    ladder = climbed(
        tmp_path,
        f"transformers:{rope}",
        only=("decode", "by-width"),
        against={"by-width": planted(tmp_path, rope, "width_positions_in_decode")},
    )
    assert rung(ladder, "decode").status.value == "pass"
    assert rung(ladder, "by-width").status.value == "fail"


def test_what_a_mistake_does_decides_nothing_until_it_is_asked_for_by_name(tmp_path, learned):
    ladder = climbed(tmp_path, f"transformers:{learned}", without=("bfloat16", "float16"))
    assert ladder.status.value == "pass"
    assert rung(ladder, "no-positions").status.value == "fail"
    assert rung(ladder, "no-positions").kind == "what if"
    asked = climbed(tmp_path, f"transformers:{learned}", only=("no-positions",))
    assert (asked.status.value, asked.breaks) == ("fail", "no-positions")
