import hashlib

import numpy as np
import pytest

from onepolicy.errors import EngineError
from onepolicy.numerics import logits as module
from onepolicy.numerics.logits import LogitDifference, Logits, logit_difference

IDS = np.array([3, 1, 4, 1, 5], dtype=np.int32)


def random_logits(seed=0, shape=(5, 11)) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def held(values: np.ndarray) -> Logits:
    return Logits(bits=values.view(np.uint32), dtype="float32")


def log_softmax(values: np.ndarray) -> np.ndarray:
    exact = np.exp(values.astype(np.longdouble))
    return np.log(exact / exact.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("entries", [1 << 22, 25, 1])
def test_the_sums_are_those_of_the_whole_whatever_the_blocks(entries, monkeypatch):
    monkeypatch.setattr(module, "_ENTRIES", entries)
    p = random_logits()
    q = p.copy()
    q[2, 4] = np.nextafter(q[2, 4], np.float32(9))
    q[3, 5] += 0.25
    found = logit_difference(held(p), held(q), IDS, sequence="s")
    d = np.abs(log_softmax(q) - log_softmax(p))[np.arange(4), IDS[1:]]
    assert (found.logits, found.equal, found.tokens) == (55, 53, 4)
    assert found.sum_abs_d == pytest.approx(float(d.sum()), rel=1e-9)
    assert found.max_abs_d == pytest.approx(float(d.max()), rel=1e-9)
    assert (found.worst.position, found.worst.token_id, found.worst.sequence) == (3, 5, "s")
    assert found.worst.value == np.float32(q[3, 5])


def test_equal_logits_are_equal_and_have_no_worst_place():
    found = logit_difference(held(random_logits()), held(random_logits()), IDS, sequence="s")
    assert found == LogitDifference(logits=55, equal=55, tokens=4)


def test_the_sign_of_zero_is_another_bit_and_no_distance():
    p, q = np.zeros((5, 11), np.float32), np.zeros((5, 11), np.float32)
    q[0, 0] = -0.0
    found = logit_difference(held(p), held(q), IDS, sequence="s")
    assert (found.logits - found.equal, found.max_ulp, found.max_abs_d) == (1, 0, 0.0)


def test_a_token_that_is_impossible_in_both_does_not_differ():
    p = random_logits()
    p[0, 1] = -np.inf
    q = p.copy()
    q[0, 2] += 1
    found = logit_difference(held(p), held(q), IDS, sequence="s")
    assert found.max_abs_d == 0.0
    q[0, 1] = 0.0
    assert logit_difference(held(p), held(q), IDS, sequence="s").max_abs_d == np.inf


def test_sums_of_sequences_add_up():
    p, q = random_logits(), random_logits(1)
    one = logit_difference(held(p), held(q), IDS, sequence="a")
    both = one.plus(logit_difference(held(p), held(p), IDS, sequence="b"))
    assert (both.logits, both.tokens, both.worst.sequence) == (110, 8, "a")
    assert both.sum_abs_d == one.sum_abs_d


def test_the_digest_is_of_dtype_shape_and_values():
    values = random_logits()
    by_hand = hashlib.sha256(b"float32[5,11]\n" + values.tobytes()).hexdigest()
    assert held(values).digest() == by_hand
    assert held(values.reshape(11, 5)).digest() != by_hand


def test_a_nan_is_refused_with_its_place():
    values = random_logits()
    values[3, 2] = np.nan
    with pytest.raises(EngineError, match="here: the logit of token 2 at position 3 is NaN"):
        held(values).refuse_nan("here")
    held(random_logits()).refuse_nan("here")


def test_another_shape_or_dtype_is_refused():
    half = Logits(bits=random_logits().astype(np.float16).view(np.uint16), dtype="float16")
    with pytest.raises(EngineError, match=r"float16 \[5, 11\], and the base run has float32"):
        logit_difference(held(random_logits()), half, IDS, sequence="s")
