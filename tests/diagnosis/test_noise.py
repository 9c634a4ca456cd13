"""The scale on which causes are judged."""

import numpy as np
import pytest

from onepolicy.diagnosis.noise import LEAST, TYPICAL, noise_of_dtypes, noise_of_readings
from onepolicy.numerics.buckets import CONFIDENCE_EDGES


def test_each_token_has_the_noise_of_its_confidence():
    noise = noise_of_dtypes("bfloat16", "float32")
    p = np.log([0.005, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95, 0.995, 0.9995])
    assert noise.scale(p).tolist() == pytest.approx(TYPICAL["bfloat16"])
    assert noise.scale(np.array([0.0, 1e-7, -50.0])).tolist() == [
        TYPICAL["bfloat16"][-1],
        TYPICAL["bfloat16"][-1],
        TYPICAL["bfloat16"][0],
    ]


@pytest.mark.parametrize(
    ("dtypes", "coarsest"),
    [
        (("float32", "float32"), "float32"),
        (("float32", "bfloat16"), "bfloat16"),
        (("float16", "float32"), "float16"),
        (("Q4_1", "bfloat16"), "Q4_1"),
        (("Q4_K_M", "float32"), "Q4_1"),
        (("BF16", "F32"), "bfloat16"),
    ],
)
def test_the_coarser_precision_decides(dtypes, coarsest):
    assert noise_of_dtypes(*dtypes).by_confidence.tolist() == pytest.approx(TYPICAL[coarsest])


def test_a_precision_that_is_not_known_leaves_it_to_the_other_and_the_nearest_is_said():
    assert noise_of_dtypes("unknown", "float32").source == "what float32 does to a small model"
    assert noise_of_dtypes("unknown").source == "what bfloat16 does to a small model"
    assert "the nearest to Q8_0 that was measured" in noise_of_dtypes("Q8_0", "float32").source


def test_the_noise_of_two_readings_is_their_mean_difference_in_each_bucket():
    rng = np.random.default_rng(0)
    p = np.log(rng.uniform(0.001, 1, 5000))
    d = rng.normal(0, 0.1, 5000)
    found = noise_of_readings(p, d, source="test").by_confidence
    for low, high, value in zip(CONFIDENCE_EDGES[:-1], CONFIDENCE_EDGES[1:], found, strict=True):
        inside = (np.exp(p) >= low) & (np.exp(p) < high)
        assert value == pytest.approx(np.abs(d[inside]).mean())


def test_an_empty_bucket_makes_no_cause_look_certain():
    found = noise_of_readings(np.log([0.3, 0.3]), np.array([0.1, 0.3]), source="test").by_confidence
    assert found.tolist() == pytest.approx([0.2] * 9)


def test_equal_readings_have_the_least_noise_that_float32_has():
    assert noise_of_readings(np.log([0.3]), np.zeros(1), source="test").by_confidence.tolist() == [LEAST] * 9
