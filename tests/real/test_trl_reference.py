"""Real TRL trainings with a fault of the reference policy in each, and sound ones; all in one process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from onepolicy.monitor.reference.record import ReferenceRecord, read_reference

HERE = Path(__file__).parent
PEERS = HERE.parents[1] / ".peers"

pytestmark = pytest.mark.real


@dataclass(frozen=True)
class Trainings:
    """What the script left of all of them."""

    folder: Path

    def record(self, name: str) -> ReferenceRecord:
        found = read_reference(self.folder / name)
        assert found is not None, self.error(name)
        return found

    def error(self, name: str) -> str:
        return json.loads((self.folder / "ended.json").read_text())[name]["error"]

    def policy(self, name: str) -> str:
        return json.loads((self.folder / "ended.json").read_text())[name]["policy"]


@pytest.fixture(scope="module")
def trainings(tmp_path_factory) -> Trainings:
    assert (PEERS / "trl").is_dir(), "there is no TRL in .peers; build it with: make .peers/.ready"
    folder = tmp_path_factory.mktemp("trainings")
    environment = {**os.environ, "PYTHONPATH": str(PEERS), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-W", "ignore", str(HERE / "grpo_reference_job.py"), str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return Trainings(folder)


@pytest.mark.parametrize(
    ("name", "adapters"),
    [
        ("sound", None),
        ("sound_adapter", ()),
        ("sound_trained_adapter", ("ref",)),
        ("sound_bf16", ()),
        ("sound_rloo", None),
        ("sound_dpo", None),
    ],
)
def test_a_sound_training_is_quiet_and_passes(trainings, name, adapters):
    record = trainings.record(name)
    assert trainings.error(name) == ""
    assert (record.status, record.alarms, record.failures) == ("pass", (), {})
    assert record.adapters == adapters
    assert (record.checks, record.last_step) == (3, 3)
    assert (record.noise, record.start_gap) == (0.0, 0.0)


def test_a_guarded_training_ends_in_the_same_weights_as_one_without_a_guard(trainings):
    assert trainings.policy("sound") == trainings.policy("sound_without_a_guard")


@pytest.mark.parametrize(
    ("name", "kind", "step", "words"),
    [
        ("the_policy_itself", "trained", 0, "21 of the reference's 21 weights are trained"),
        ("in_the_optimizer", "trained", 0, "share memory with what the optimizer changes"),
        ("train_mode", "dropout", 0, "transformer.drop"),
        ("train_mode_of_the_base", "dropout", 1, "disable_dropout=True"),
        ("adapter_on", "pass", 2, "and are the policy's: its adapter was on"),
        ("base_of_a_trained_adapter", "version", 0, "adapters of its model: default; the reference is scored without"),
        ("another_checkpoint", "version", 0, "the reference is of another checkpoint"),
        ("another_folder", "version", 0, "16 of 21 tensors differ"),
    ],
)
def test_a_fault_is_caught_at_its_step_and_named(trainings, name, kind, step, words):
    record = trainings.record(name)
    assert trainings.error(name) == ""
    first = record.alarms[0]
    assert (record.status, first.kind, first.step) == ("fail", kind, step)
    assert words in first.message
    assert record.failures == {}


def test_one_that_is_trained_along_is_also_seen_to_move(trainings):
    assert [alarm.kind for alarm in trainings.record("the_policy_itself").alarms] == ["trained", "moved", "weights"]


def test_halt_ends_the_training_before_its_first_step(trainings):
    assert trainings.error("halted").startswith("TrainingHalted: onepolicy: training halted, the reference policy")
    record = trainings.record("halted")
    assert (record.status, record.checks) == ("fail", 0)


def test_a_training_without_a_frozen_reference_is_refused_and_says_so(trainings):
    assert "beta=0.0 uses no reference policy" in trainings.error("no_penalty")
    assert "sync_ref_model=True moves the reference" in trainings.error("synchronised")
