"""K20: soft cap, window, rotary base and scaling that one side reads differently (B95, B96, B98, B100)."""

from dataclasses import replace

import numpy as np
import pytest
from tiny_transformer import Shape, Tiny, sequences

import onepolicy
from onepolicy.records.verdict import Status
from onepolicy.weights import digest_of

IDS = sequences()
SHAPE = Shape(theta=1e6, window=8, cap=5.0)


@pytest.fixture(scope="module")
def model() -> Tiny:
    return Tiny(SHAPE)


def both(rollout: Tiny, trainer: Tiny):
    """The product's judgement of the same ids, and d [R, T - 1] of these."""
    p, q = ([model.logprobs(ids) for ids in IDS] for model in (rollout, trainer))
    return onepolicy.compare(rollout=p, trainer=q, sampled=False), np.array(q) - np.array(p)


@pytest.mark.parametrize(
    "constant", [{"cap": None}, {"window": 9}, {"theta": 1e4}, {"scaling": 4.0}], ids=["B95", "B96", "B98", "B100"]
)
def test_a_constant_that_one_side_reads_differently_fails_and_the_same_one_passes(model, constant):
    engine = model.changed(**constant)
    assert both(engine, model)[0].status is Status.FAIL
    assert both(engine, model.changed(**constant))[0].status is Status.PASS


def test_b95_the_sweep_over_the_cap_finds_the_engine_without_it(model):
    engine = model.changed(cap=None)
    found = {cap: both(engine, model.changed(cap=cap))[0].status for cap in (5.0, 10.0, None)}
    assert found == {5.0: Status.FAIL, 10.0: Status.FAIL, None: Status.PASS}


def test_b96_a_window_of_one_key_more_differs_first_where_it_is_full(model):
    """Row 8 is the first to see a ninth key, and it predicts token 9, whose logprob is entry 8."""
    judged, d = both(model.changed(window=9), model)
    assert judged.status is Status.FAIL
    assert not d[:, :8].any()
    assert d[:, 8].all()
    assert all(worst.worst.position >= 8 for worst in judged.worst_rollouts)


def test_b98_another_rotary_base_moves_the_tables_and_not_the_weights(model):
    engine = model.changed(theta=1e4)
    judged, d = both(engine, model)
    assert judged.status is Status.FAIL
    assert np.abs(d[:, 24:]).mean() > 2 * np.abs(d[:, 1:4]).mean()
    ours, theirs = digest_of(model), digest_of(engine)
    assert ours.whole == theirs.whole
    assert ours.tables != theirs.tables
    assert ours.tables == digest_of(model.changed(theta=1e6)).tables


def test_b100_an_option_that_is_set_after_construction_changes_no_table(model):
    late = Tiny(replace(SHAPE))
    before = digest_of(late).tables
    object.__setattr__(late.shape, "scaling", 4.0)
    assert digest_of(late).tables == before
    assert both(model, late)[0].status is Status.PASS
    saved_and_loaded = late.changed()
    assert digest_of(saved_and_loaded).tables != before
    assert both(saved_and_loaded, late)[0].status is Status.FAIL
    assert both(saved_and_loaded, model.changed(scaling=4.0))[0].status is Status.PASS
