"""Both sides of a comparison, leg by leg."""

import pytest

import onepolicy
from onepolicy.engines.spec import parse_spec
from onepolicy.integrations.fake.engine import FakeEngine
from onepolicy.judgement.load import load_limits
from onepolicy.workflow.calibrate import CalibrateRequest, calibrate
from onepolicy.workflow.legs_pair import PairRequest, legs_of_pair

ROLLOUT, TRAINER = "fake:m?batch_size=4", "fake:m?batch_size=4&temperature=1.2"


@pytest.fixture
def run(tmp_path):
    onepolicy.check(rollout=ROLLOUT, trainer=TRAINER, run=tmp_path / "run", budget=1600)
    return tmp_path / "run"


def test_a_pair_that_differs_breaks_on_the_step_between_the_sides_and_on_no_leg_of_either(run):
    rollout, trainer = legs_of_pair(PairRequest(rollout=parse_spec(ROLLOUT), trainer=parse_spec(TRAINER)), path=run)
    assert [rung.name for rung in rollout.rungs] == ["repeat", "order", "batch", "sampled", "trainer"]
    assert rollout.breaks == "trainer"
    assert [rung.name for rung in trainer.rungs] == ["repeat", "order", "batch"]
    assert trainer.status is onepolicy.Status.PASS


def test_a_side_that_is_not_itself_breaks_on_its_own_leg_first(run):
    noisy = parse_spec("fake:m?batch_size=4&batch_noise=0.05")
    rollout, _ = legs_of_pair(PairRequest(rollout=noisy, trainer=parse_spec(TRAINER)), path=run)
    assert rollout.breaks == "order"


def test_a_rollout_side_that_cannot_score_has_no_ladder(run, monkeypatch):
    made = FakeEngine.open.__func__

    def opened(cls, spec):
        engine = made(cls, spec)
        engine.scores = "temperature" in spec.options
        return engine

    monkeypatch.setattr(FakeEngine, "open", classmethod(opened))
    (only,) = legs_of_pair(PairRequest(rollout=parse_spec(ROLLOUT), trainer=parse_spec(TRAINER)), path=run)
    assert only.plain == "legs-trainer-plain"


def test_a_floor_of_the_trainer_holds_for_the_ladders_of_both_sides(tmp_path):
    noisy = f"{ROLLOUT}&batch_noise=1e-4"
    calibrate(CalibrateRequest(engine=parse_spec(noisy), output=tmp_path / "floor.json"), path=tmp_path / "floor")
    file = tmp_path / "limits.yaml"
    file.write_text("preset: strict\nmax_abs_d: 3 x floor\nfloor: floor.json\n")
    onepolicy.check(rollout=ROLLOUT, trainer=noisy, run=tmp_path / "run", budget=1600, limits=load_limits(str(file)))
    request = PairRequest(rollout=parse_spec(ROLLOUT), trainer=parse_spec(noisy), limits=load_limits(str(file)))
    rollout, trainer = legs_of_pair(request, path=tmp_path / "run")
    assert rollout.status is trainer.status is onepolicy.Status.PASS
