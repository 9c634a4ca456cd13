"""What the caller gets wrong is an error at the first call, and later a failure that training survives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from scripted_watch import Make, Scripted, lines_of, watched

from onepolicy.errors import AlignmentError, UsageError
from onepolicy.monitor.halted import TrainingHalted
from onepolicy.monitor.monitor import Monitor
from onepolicy.monitor.state import read_state
from onepolicy.records.step import Alarm, StepRecord
from onepolicy.records.verdict import Status


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"rollout_logprobs": torch.zeros(8, 15)}, AlignmentError, r"\[8, 15\]"),
        ({"rollout_logprobs": torch.zeros(8, 16, dtype=torch.int64)}, UsageError, "floating"),
        ({"trainer_logprobs": torch.zeros(8)}, UsageError, r"\[B, T\]"),
        ({"sampled": torch.zeros(16, 8)}, AlignmentError, "sampled"),
        ({"sampled": [[1] * 16] * 8}, UsageError, "list"),
        ({"loss_mask": torch.zeros(8, 17)}, AlignmentError, "loss_mask"),
        ({"token_ids": torch.zeros(8, 16)}, UsageError, "whole numbers"),
        ({"token_ids": torch.zeros(8, 17, dtype=torch.int64)}, AlignmentError, "token_ids"),
        ({"prompt_ids": torch.zeros(7, 4, dtype=torch.int64)}, AlignmentError, "prompt_ids"),
        ({"prompt_ids": torch.zeros(8, dtype=torch.int64)}, AlignmentError, "prompt_ids"),
        ({"prompt_mask": torch.zeros(8, 5)}, AlignmentError, "prompt_mask"),
        ({"rollout_versions": [1] * 7}, AlignmentError, "rollout_versions"),
        ({"rollout_versions": ["a"] * 8}, UsageError, "rollout_versions"),
        ({"rollout_versions": torch.zeros(8)}, UsageError, "whole"),
        ({"trainer_version": torch.tensor(3)}, UsageError, "trainer_version"),
        ({"advantages": torch.zeros(8, 16)}, AlignmentError, "advantages"),
        ({"groups": "prompts!"}, AlignmentError, "groups"),
        ({"groups": [1.5] * 8}, UsageError, "groups"),
        ({"groups": torch.zeros(8)}, UsageError, "groups"),
        ({"groups": 7}, UsageError, "cannot be read"),
        ({"tags": 7}, UsageError, "cannot be read"),
        ({"rollout_versions": [1.5] * 8}, UsageError, "rollout_versions"),
        ({"rollout_versions": [2**70] * 8}, UsageError, "rollout_versions"),
        ({"rollout_versions": [[1]] * 8}, UsageError, "rollout_versions"),
        ({"trainer_version": "step-3"}, UsageError, "trainer_version"),
        ({"trainer_version": 2**70}, UsageError, "trainer_version"),
        ({"sampled": torch.nested.nested_tensor([torch.ones(16)] * 8, layout=torch.jagged)}, UsageError, "nested"),
        ({"advantages": torch.zeros(8).to_sparse()}, UsageError, "sparse"),
        ({"tags": ["a"] * 9}, AlignmentError, "tags"),
        ({"sampled": torch.zeros(8, 16, device="meta")}, UsageError, "meta"),
    ],
)
def test_what_does_not_fit_is_an_error_at_the_first_call(
    tmp_path: Path, batch_of: Make, changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    monitor = Monitor(tmp_path / "run")
    with pytest.raises(error, match=words):
        monitor.update(**{**batch_of(0), **changes})


def test_what_does_not_fit_later_is_a_failure_that_training_survives(
    tmp_path: Path, batch_of: Make, caplog: pytest.LogCaptureFixture
) -> None:
    monitor = Monitor(tmp_path / "run", policy="mask")
    monitor.update(**batch_of(0))
    for _ in range(3):
        keep = monitor.update(**{**batch_of(0, off=9.0, rows=8), "sampled": torch.zeros(8, 15)})
        assert keep.tolist() == [[1.0]] * 8
        monitor.step()
    monitor.close()
    assert len(caplog.records) == 1
    assert monitor.status is Status.UNKNOWN
    assert "could not read a micro-batch" in monitor.why
    assert [alarm["kind"] for line in lines_of(tmp_path / "run") for alarm in line["alarms"]].count("monitor") == 1


def test_what_is_no_tensor_at_all_is_survived_later(tmp_path: Path, batch_of: Make) -> None:
    monitor = Monitor(tmp_path / "run")
    monitor.update(**batch_of(0))
    assert monitor.update(**batch_of(0) | {"trainer_logprobs": None}).tolist() == [[1.0]]
    monitor.close()
    assert monitor.status is Status.UNKNOWN


ODD = [
    {"trainer_version": "a"},
    {"rollout_versions": [object()] * 8},
    {"rollout_versions": iter([1] * 8)},
    {"groups": [[1]] * 8},
    {"groups": torch.zeros(8, 2)},
    {"tags": torch.ones(8)},
    {"tags": ["\ud800"] * 8},
    {"rollout_logprobs": torch.nested.nested_tensor([torch.zeros(16)] * 8, layout=torch.jagged)},
    {"trainer_logprobs": torch.nested.nested_tensor([torch.zeros(16)] * 8, layout=torch.jagged)},
    {"trainer_logprobs": torch.zeros(8, 16).to_sparse()},
    {"token_ids": [[1] * 16] * 8},
    {"prompt_mask": torch.ones(8, 4).to_sparse()},
]


@pytest.mark.parametrize("changes", ODD, ids=range(len(ODD)))
def test_what_is_odd_later_never_ends_the_training_and_never_passes(
    tmp_path: Path, batch_of: Make, changes: dict[str, Any]
) -> None:
    with Monitor(tmp_path / "run", limits="bf16") as monitor:
        for step in range(12):
            keep = monitor.update(**batch_of(step) | (changes if step == 3 else {}))
            assert keep.shape[1] == 1
            monitor.step()
    assert monitor.status is Status.UNKNOWN or changes.get("tags") == ["\ud800"] * 8
    assert len(lines_of(tmp_path / "run")) == 12


def test_names_of_prompts_may_be_any_text(tmp_path: Path, batch_of: Make) -> None:
    monitor = Monitor(tmp_path / "run")
    monitor.update(**batch_of(0) | {"groups": ["\ud800"] * 8})
    monitor.close()
    assert not monitor._recorder.standing.failures or "keep rollouts" in monitor._recorder.standing.failures


NUMBERS = ["5", 2.5, [1], float("nan"), True, 2**70, torch.tensor(7)]


@pytest.mark.parametrize("number", NUMBERS, ids=range(len(NUMBERS)))
def test_a_number_that_is_none_is_a_failure_and_the_step_is_counted(
    tmp_path: Path, batch_of: Make, number: Any
) -> None:
    with Monitor(tmp_path / "run") as monitor:
        for given in (None, number, None):
            monitor.update(**batch_of(0))
            monitor.step(given)
    assert monitor.status is Status.UNKNOWN
    assert "take the number of a step" in monitor.why
    assert [line["step"] for line in lines_of(tmp_path / "run")] == [1, 2, 3]


@pytest.mark.parametrize("about", [[1], "x", {"x": "\ud800"}, 7])
def test_what_is_said_of_a_step_and_is_no_text_is_a_failure(tmp_path: Path, batch_of: Make, about: Any) -> None:
    with Monitor(tmp_path / "run") as monitor:
        for said in ({"lr": 1}, about, None):
            monitor.update(**batch_of(0))
            monitor.step(about=said)
    assert "take what is said of a step" in monitor.why
    assert [line["about"] for line in lines_of(tmp_path / "run")] == [{"lr": "1"}, {}, {}]
    with pytest.raises(UsageError, match="about"):
        Monitor(tmp_path / "other", about=about)


@pytest.mark.parametrize("path", [7, None, "", "a\0b", "\ud800"])
def test_what_is_no_path_is_an_error(path: Any) -> None:
    with pytest.raises(UsageError, match="no path"):
        Monitor(path)


def test_an_unknown_policy_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="warn, mask, halt"):
        Monitor(tmp_path / "run", policy="stop")  # type: ignore[arg-type]


def test_what_was_handed_over_before_close_is_a_step(tmp_path: Path, batch_of: Make) -> None:
    monitor = Monitor(tmp_path / "run", policy="halt", limits="bf16", watch=Scripted({11: "limit"}))
    for step in range(10):
        monitor.update(**batch_of(step))
        monitor.step()
    monitor.update(**batch_of(10))
    with pytest.raises(TrainingHalted, match="step 11: planted"):
        monitor.close()
    assert [line["step"] for line in lines_of(tmp_path / "run")] == list(range(1, 12))
    assert read_state(tmp_path / "run").status == "fail"


def test_close_after_step_adds_no_step(tmp_path: Path, batch_of: Make) -> None:
    assert watched(tmp_path / "run", batch_of, 10, limits="bf16").status is Status.PASS
    assert len(lines_of(tmp_path / "run")) == 10


EVIL = "\x1b[2J\u202e\r"


def test_what_a_trainer_says_cannot_move_a_terminals_cursor(
    tmp_path: Path, batch_of: Make, caplog: pytest.LogCaptureFixture
) -> None:
    class Loud(Scripted):
        def add(self, record: StepRecord) -> tuple[Alarm, ...]:
            alarms = super().add(record)
            return tuple(a.model_copy(update={"message": a.message + record.about["lr"]}) for a in alarms)

    monitor = Monitor(tmp_path / f"run{EVIL}", policy="halt", watch=Loud({2: "jump"}))
    monitor._recorder.failed("do a thing", EVIL)
    with pytest.raises(TrainingHalted) as halted:  # noqa: PT012 - one step late
        for step in range(3):
            monitor.update(**batch_of(step))
            monitor.step(about={"lr": EVIL})
    said = [str(halted.value), *(record.getMessage() for record in caplog.records)]
    assert len(said) == 3
    for text in said:
        assert "\\x1b[2J" in text
        assert not set(EVIL) - set("[2J") & set(text)


def test_a_closed_monitor_takes_nothing(tmp_path: Path, batch_of: Make) -> None:
    monitor = Monitor(tmp_path / "run")
    monitor.close()
    with pytest.raises(UsageError, match="closed"):
        monitor.update(**batch_of(0))
