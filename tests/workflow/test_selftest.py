"""Faults that are planted in pairs of engines, and honest pairs."""

import tempfile

import numpy as np
import pytest
import torch

from onepolicy.diagnosis.causes import CAUSES
from onepolicy.engines.spec import parse_spec
from onepolicy.errors import UsageError
from onepolicy.records.finding import Outcome
from onepolicy.records.run import Run
from onepolicy.records.selftest import LEAST_CONTROLS, Control, Planted, SelfTest, Size, Way, wilson
from onepolicy.workflow.diagnose_tokens import tokens_of
from onepolicy.workflow.selftest import SelfTestRequest, selftest
from onepolicy.workflow.selftest_bench import Bench
from onepolicy.workflow.selftest_controls import controls
from onepolicy.workflow.selftest_faults import FAULTS


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Threads cost more than they give on models this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def row(**changes):
    values = {
        "fault": "stale weights",
        "size": Size.LARGE,
        "way": Way.ENGINE,
        "parameter": "",
        "multiple": 10.0,
        "right": ("stale weights",),
        "detected": True,
        "first": "stale weights",
        "outcome": Outcome.CAUSE,
        "among": (),
        "explained": 1.0,
        "said": "",
        "seconds": 1.0,
    }
    return Planted(**(values | changes))


def of(*planted, controls=()):
    return SelfTest(model="tiny", version="0", planted=planted, controls=controls, seconds=1.0)


def test_a_fault_is_found_at_three_sizes_and_silent_below_the_noise():
    found = selftest(SelfTestRequest(only=("second BOS",)))
    large, near, below = found.planted
    assert [one.size for one in found.planted] == list(Size)
    assert large.multiple > near.multiple > 1 > below.multiple
    assert near.multiple == pytest.approx(3.0, abs=1.0)
    assert (large.first, near.first, below.first) == ("special tokens", "special tokens", "")
    assert found.passed


def test_the_size_is_a_strength_that_the_row_shows():
    (large, near, _) = selftest(SelfTestRequest(only=("temperature, rollout side",))).planted
    assert large.parameter == "T = 0.7"
    assert 0.95 < float(near.parameter.removeprefix("T = ")) < 1.0


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    selftest(SelfTestRequest(only=("sentinels",)))
    assert list(tmp_path.iterdir()) == []


def test_a_planted_temperature_is_that_of_the_engine(tmp_path):
    """logp at T is logp / T less its normaliser: by the raw distribution that the trainer kept."""
    fault = FAULTS["temperature, rollout side"]
    path, _ = Bench(tmp_path).planted(fault, 0.5)
    assert Run.open(path).manifest.protocol.temperature == 0.5
    tokens = tokens_of(Run.open(path), "rollout", "trainer")
    # At T = 0.5 the normaliser is that of p squared, which lies below 0.
    assert np.mean(tokens.p - 2.0 * tokens.q) > 0.0
    assert np.all(tokens.p - 2.0 * tokens.q > -0.1)


def test_rows_that_are_paired_wrongly_are_so_in_the_columns(tmp_path):
    path, _ = Bench(tmp_path).planted(FAULTS["rows paired wrongly"], 1.0)
    tokens = tokens_of(Run.open(path), "rollout", "trainer")
    p, q = (values.reshape(16, -1) for values in (tokens.p, tokens.q))
    assert np.abs(p - np.roll(q, 1, axis=0)).max() < 1e-4
    assert np.abs(p - q).mean() > 0.1


def test_every_right_answer_is_a_cause_and_every_engine_cause_but_some_is_planted():
    named = {name for fault in FAULTS.values() for one in fault.right for name in one.split(" and ")}
    assert named <= set(CAUSES)
    assert set(CAUSES) - named == {"prefix cache", "precision", "quantised weights"}


def test_there_are_enough_controls_and_all_can_be_read_as_specs(tmp_path):
    pairs = list(controls(tiny=True))
    assert len({one.pair for one in pairs}) == len(pairs) >= LEAST_CONTROLS
    for one in pairs:
        assert parse_spec(one.rollout.replace("{", "").replace("}", "")).engine == "transformers"


def test_a_real_model_takes_the_faults_that_can_be_made_of_it(tmp_path):
    bench = Bench(tmp_path, "smollm2")
    can = {name for name, fault in FAULTS.items() if bench.can(fault)}
    assert {"temperature, rollout side", "stale weights", "adapter missing", "top-p renormalised"} <= can
    assert not {"rotary base", "second BOS", "no position ids", "LM head not synced"} & can


def test_a_fault_that_is_not_known_is_refused_with_those_that_are():
    with pytest.raises(UsageError, match=r"no fault 'pizza'.*stale weights"):
        selftest(SelfTestRequest(only=("pizza",)))


@pytest.mark.parametrize(
    ("changes", "is_right", "passes"),
    [
        ({}, True, True),
        ({"first": "temperature"}, False, True),
        ({"detected": False, "first": "", "outcome": None}, False, False),
        ({"first": "batch", "outcome": Outcome.ONE_OF, "among": ("batch", "stale weights")}, True, True),
        ({"right": ("a and b",), "first": "b and a"}, True, True),
        ({"right": (), "first": "", "outcome": None}, True, True),
        ({"right": ()}, False, True),
        ({"size": Size.BELOW, "detected": False, "first": "", "outcome": None}, True, True),
        ({"size": Size.BELOW, "first": "temperature"}, False, False),
    ],
)
def test_what_is_right(changes, is_right, passes):
    one = row(**changes)
    assert (one.is_right, one.passes) == (is_right, passes)


def test_a_miss_an_alarm_or_too_many_wrong_causes_fail():
    fine = [row() for _ in range(95)]
    wrong = [row(first="temperature") for _ in range(5)]
    assert of(*fine, *wrong).passed
    assert not of(*fine[1:], *wrong).passed
    assert not of(*fine, row(detected=False, first="", outcome=None)).passed
    alarm = Control(pair="a | a", multiple=1.0, first="", alarmed=True, said="", seconds=1.0)
    assert not of(*fine, controls=(alarm,)).passed


def test_the_interval_is_wilsons():
    """Values of the table in R: binom::binom.wilson(95, 100)."""
    assert wilson(95, 100) == pytest.approx((0.8882, 0.9785), abs=1e-3)
    assert wilson(0, 0) == (0.0, 1.0)


def test_a_self_test_that_would_plant_nothing_is_refused(monkeypatch):
    monkeypatch.setattr(Bench, "can", lambda bench, fault: False)
    with pytest.raises(UsageError, match="none of sentinels can be made of this model"):
        selftest(SelfTestRequest(only=("sentinels",)))
