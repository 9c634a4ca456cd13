"""K22: prefix caches, chunked prefill and reuse of keys and values."""

import numpy as np
import pytest
from leg_faults import BLOCK, absent_boundary, loaded, logits_of_a_skipped_prefix, right_way, stale_boundary
from leg_models import climbed, one_thread, planted, rotary, rung  # noqa: F401

from onepolicy.engines.spec import parse_spec
from onepolicy.workflow.legs import LegsRequest, legs

LONG = [[11 + (7 * n + start) % 200 for n in range(64)] for start in range(3)]


@pytest.fixture(scope="module")
def rope(tmp_path_factory):
    return rotary(tmp_path_factory.mktemp("rope") / "model")


@pytest.fixture
def recorded(tmp_path, rope):
    """A run with the rollouts of the model, for functions, which cannot encode text."""
    climbed(tmp_path, f"transformers:{rope}", only=("repeat",))
    return tmp_path / "run"


def test_the_engines_own_cache_chunks_and_turns_hold_with_proof(tmp_path, rope):
    ladder = climbed(tmp_path, f"transformers:{rope}", only=("warm", "turns", "chunked", "speculative", "decode"))
    assert ladder.status.value == "pass", ladder.sentence
    assert rung(ladder, "warm").from_cache > 0.5
    assert rung(ladder, "turns").from_cache > 0.5


def test_b104_what_depends_on_the_order_of_requests_breaks_the_leg_of_the_order(recorded, rope):
    fault = planted(recorded.parent, rope, "cache_leaves_the_buffer")
    request = LegsRequest(engine=parse_spec(f"{fault}?batch_size=4"), name="stale", only=("repeat", "order"))
    ladder = legs(request, path=recorded)
    assert ladder.status.value == "fail"
    assert ladder.breaks in ("repeat", "order")


def test_b105_keys_of_older_weights_break_their_leg(tmp_path, rope):
    against = {
        "stale": planted(tmp_path, rope, "cache_of_older_weights"),
        "cleared": planted(tmp_path, rope, "cache_cleared"),
    }
    ladder = climbed(tmp_path, f"transformers:{rope}", only=tuple(against), against=against)
    assert rung(ladder, "cleared").status.value == "pass", "B106: the other order of calls is sound"
    assert rung(ladder, "stale").status.value == "fail"


def test_b107_logits_of_a_skipped_prefix_are_those_of_a_block_further_on(rope):
    model = loaded(str(rope))
    wrong, right = logits_of_a_skipped_prefix(model, LONG), right_way(model, LONG)
    assert max(abs(a - b) for a, b in zip(wrong[0][1:], right[0][1:], strict=True)) > 1.0
    # the distribution at i is that of i + a block: where a token repeats after a block, so does its logprob
    same = [at for at in range(1, 64 - BLOCK) if LONG[0][at] == LONG[0][at + BLOCK]]
    assert all(abs(wrong[0][at] - right[0][at + BLOCK]) < 1e-4 for at in same)


def test_b107_its_leg_breaks(tmp_path, rope):
    fault = planted(tmp_path, rope, "logits_of_a_skipped_prefix")
    ladder = climbed(tmp_path, f"transformers:{rope}", only=("skipped",), against={"skipped": fault})
    assert ladder.breaks == "skipped"


def test_b109_one_wrong_position_a_sequence_breaks_its_leg(tmp_path, rope):
    fault = planted(tmp_path, rope, "stale_boundary")
    ladder = climbed(
        tmp_path, f"transformers:{rope}", only=("boundary",), against={"boundary": fault}, limits="quantised"
    )
    assert ladder.breaks == "boundary"
    right, wrong = right_way(loaded(str(rope)), LONG), stale_boundary(loaded(str(rope)), LONG)
    off = [np.flatnonzero(np.abs(np.subtract(a, b)) > 1e-4).tolist() for a, b in zip(wrong, right, strict=True)]
    assert off == [[BLOCK]] * 3


def test_b109_a_boundary_without_a_logprob_is_not_filled(tmp_path, rope):
    assert np.isnan(absent_boundary(loaded(str(rope)), LONG)[0][BLOCK])
    fault = planted(tmp_path, rope, "absent_boundary")
    ladder = climbed(tmp_path, f"transformers:{rope}", only=("boundary",), against={"boundary": fault})
    assert ladder.status.value != "pass"
