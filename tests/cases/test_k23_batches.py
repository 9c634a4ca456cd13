"""K23: the size of a batch, and the shape of the last one."""

import numpy as np
import pytest
from leg_models import VOCABULARY, climbed, one_thread, rotary, rung  # noqa: F401

from onepolicy.engines.contract import ScoreInput, Wanted
from onepolicy.engines.spec import parse_spec
from onepolicy.integrations import open_engine


@pytest.fixture(scope="module")
def rope(tmp_path_factory):
    return rotary(tmp_path_factory.mktemp("rope") / "model", hidden_size=64, initializer_range=0.15)


def test_b110_equal_batches_are_bit_for_bit_equal_and_unequal_ones_are_noise(tmp_path, rope):
    ladder = climbed(tmp_path, f"transformers:{rope}?dtype=bfloat16", only=("repeat", "batch"), limits="bf16")
    assert rung(ladder, "repeat").bitwise_share == 1.0
    batch = rung(ladder, "batch")
    assert batch.status.value == "pass"
    assert batch.bitwise_share < 1.0
    assert 0 < batch.mean_abs_d < 0.1


def test_b110_a_bitwise_limit_names_the_batch_size(tmp_path, rope):
    spec = f"transformers:{rope}?dtype=bfloat16"
    ladder = climbed(tmp_path, spec, only=("repeat", "batch"), limits="bitwise")
    assert (ladder.status.value, ladder.breaks) == ("fail", "batch")


def test_b112_only_rows_of_the_batch_with_another_shape_differ(rope):
    generator = np.random.default_rng(0)
    lengths = [24] * 8 + [5] + [40] * 7
    items = []
    for at, length in enumerate(lengths):
        ids = generator.integers(8, VOCABULARY, size=length).astype(np.int32)
        items.append(ScoreInput(rollout_id=f"r{at}", token_ids=ids, wanted=np.arange(length) > 1))
    engine = open_engine(parse_spec(f"transformers:{rope}?dtype=bfloat16&batch_size=8"))
    try:
        few, many = engine.score(items[:9], Wanted()), engine.score(items, Wanted())
    finally:
        engine.close()
    d = [float(np.nanmax(np.abs(a.logprobs - b.logprobs))) for a, b in zip(few, many[:9], strict=True)]
    assert d[:8] == [0.0] * 8
    assert d[8] > 0
