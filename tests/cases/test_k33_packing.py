"""K33: packed samples attend to each other."""

import numpy as np
import pytest
from leg_faults import loaded, packed_without_a_wall, right_way
from leg_models import absolute, climbed, one_thread, planted, rotary, rung  # noqa: F401

A, B, C = ([11 + (step * n) % 200 for n in range(20)] for step in (3, 5, 7))


@pytest.fixture(scope="module", params=[rotary, absolute], ids=["rotary", "absolute"])
def model(request, tmp_path_factory):
    return request.param(tmp_path_factory.mktemp("model") / "model")


def test_b150_sequences_that_are_kept_apart_hold(tmp_path, model):
    ladder = climbed(tmp_path, f"transformers:{model}", only=("packed",))
    assert ladder.status.value == "pass", ladder.sentence
    assert rung(ladder, "packed").max_abs_d < 1e-3


def test_b150_without_a_wall_the_leg_breaks(tmp_path, model):
    fault = planted(tmp_path, model, "packed_without_a_wall")
    ladder = climbed(tmp_path, f"transformers:{model}", only=("leak",), against={"leak": fault})
    assert ladder.breaks == "leak"


def test_b150_the_first_sample_is_exact_and_the_second_depends_on_it(model):
    net = loaded(str(model))
    (first, after_a), (_, after_c) = packed_without_a_wall(net, [A, B]), packed_without_a_wall(net, [C, B])
    alone_a, alone_b = right_way(net, [A])[0], right_way(net, [B])[0]
    assert np.abs(np.subtract(first, alone_a)[1:]).max() < 1e-4
    assert np.abs(np.subtract(after_a, alone_b)[1:]).max() > 0.05
    assert np.abs(np.subtract(after_a, after_c)[1:]).max() > 0.05
