"""What a closed monitor says of a training, and that a timeline of its run says the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onepolicy.judgement.limits import Limits
from onepolicy.monitor.monitor import Monitor
from onepolicy.records.verdict import Status
from onepolicy.workflow.timeline import timeline

Make = Callable[..., dict[str, Any]]
Change = Callable[[dict[str, Any]], dict[str, Any]]


def _closed(path: Path, batches: list[dict[str, Any]], **options: Any) -> Monitor:
    with Monitor(path, **{"limits": "bf16", **options}) as monitor:
        for batch in batches:
            monitor.update(**batch)
            monitor.step()
    return monitor


def _zeros(rows: int) -> Change:
    def change(batch: dict[str, Any]) -> dict[str, Any]:
        p, q = batch["rollout_logprobs"].clone(), batch["trainer_logprobs"].clone()
        p[:rows], q[:rows] = 0.0, -0.0
        return batch | {"rollout_logprobs": p, "trainer_logprobs": q}

    return change


def _zeros_in_all(places: int) -> Change:
    def change(batch: dict[str, Any]) -> dict[str, Any]:
        p, q = batch["rollout_logprobs"].clone(), batch["trainer_logprobs"].clone()
        p[:, :places], q[:, :places] = 0.0, 0.0
        return batch | {"rollout_logprobs": p, "trainer_logprobs": q}

    return change


def _copied(rows: int) -> Change:
    def change(batch: dict[str, Any]) -> dict[str, Any]:
        q = batch["trainer_logprobs"].clone()
        q[:rows] = batch["rollout_logprobs"][:rows]
        return batch | {"trainer_logprobs": q}

    return change


def _certain(batch: dict[str, Any]) -> dict[str, Any]:
    p = batch["rollout_logprobs"] * 1e-5
    return batch | {"rollout_logprobs": p, "trainer_logprobs": p * 1.1}


def _masked_away(batch: dict[str, Any]) -> dict[str, Any]:
    sampled = batch["sampled"].clone()
    sampled[1:] = False
    return batch | {"sampled": sampled}


def _versions(rollout: list[int], trainer: int) -> Change:
    return lambda batch: batch | {"rollout_versions": rollout, "trainer_version": trainer}


PLANTED: dict[str, tuple[Change, str]] = {
    "zeros everywhere": (_zeros(8), "nothing but 0.0"),
    "one rollout of zeros": (_zeros(1), "nothing but 0.0"),
    "most tokens are zeros": (_zeros_in_all(9), "exactly 0.0"),
    "a copy": (_copied(8), "may be a copy"),
    "two rollouts copied": (_copied(2), "may be a copy"),
    "all certain": (_certain, "not certain"),
    "masked away": (_masked_away, "no token to compare"),
    "all stale": (_versions([3] * 8, 4), "by other weights"),
    "most stale": (_versions([3] * 7 + [4], 4), "by other weights"),
    "ahead": (_versions([9] * 8, 4), "by other weights"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_says_nothing_of_the_two_engines_is_no_pass(tmp_path: Path, batch_of: Make, name: str) -> None:
    change, words = PLANTED[name]
    monitor = _closed(tmp_path / "run", [change(batch_of(step)) for step in range(12)])
    assert (monitor.status, words in monitor.why) == (Status.UNKNOWN, True), monitor.why
    assert timeline(tmp_path / "run").status is Status.UNKNOWN


ABSENT: dict[str, Change] = {
    "as it is": lambda batch: batch,
    "a third is zeros": _zeros_in_all(5),
    "three of eight are stale": _versions([3] * 3 + [4] * 5, 4),
    "no version is known": lambda batch: batch | {"rollout_versions": [-1] * 8},
    "the trainer's is not known": lambda batch: batch | {"trainer_version": None},
}


@pytest.mark.parametrize("name", ABSENT)
def test_what_says_enough_passes(tmp_path: Path, batch_of: Make, name: str) -> None:
    monitor = _closed(tmp_path / "run", [ABSENT[name](batch_of(step)) for step in range(12)])
    assert monitor.status is Status.PASS, monitor.why
    assert timeline(tmp_path / "run").status is Status.PASS


def test_bit_for_bit_passes_where_it_is_expected(tmp_path: Path, batch_of: Make) -> None:
    batches = [_copied(8)(batch_of(step)) for step in range(12)]
    assert _closed(tmp_path / "run", batches, limits="bitwise").status is Status.PASS


def test_a_few_prompts_far_off_are_no_pass_although_no_alarm_is_sure(tmp_path: Path, batch_of: Make) -> None:
    monitor = _closed(tmp_path / "run", [batch_of(0, off=1.0, rows=8) | {"groups": ["a"] * 8}])
    assert monitor.status is Status.UNKNOWN


SOME: tuple[Change, ...] = (
    *(change for change, _ in PLANTED.values()),
    *ABSENT.values(),
    lambda batch: batch | {"sampled": torch.zeros(8, 16)},
    lambda batch: batch | {"trainer_logprobs": batch["trainer_logprobs"] - 1},
    lambda batch: batch | {"trainer_logprobs": batch["trainer_logprobs"] * 1.05},
    lambda batch: batch | {"trainer_logprobs": batch["trainer_logprobs"] * torch.nan},
    lambda batch: batch | {"groups": ["a"] * 8},
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_closed_monitor_and_the_timeline_of_its_run_never_differ(
    tmp_path_factory: pytest.TempPathFactory, batch_of: Make, data: st.DataObject
) -> None:
    kinds = data.draw(st.lists(st.sampled_from(range(len(SOME))), max_size=2), label="kinds") or [10]
    chosen = data.draw(st.lists(st.sampled_from([10, *kinds]), max_size=12), label="steps")
    noise = data.draw(st.sampled_from((0.01, 0.05, 0.3)), label="noise")
    limits = data.draw(st.sampled_from(("bf16", "strict")), label="limits")
    path = tmp_path_factory.mktemp("drawn") / "run"
    numbers = data.draw(st.sampled_from((range(1, 20), (1, 2, 3, 2, 3, 4, 5, 6, 7, 8, 9, 10))), label="numbers")
    with Monitor(path, limits=limits) as monitor:
        for number, kind in zip(numbers, chosen, strict=False):
            monitor.update(**SOME[kind](batch_of(number, noise=noise, ids=False)))
            monitor.step(number)
    assert timeline(path).status is monitor.status, monitor.why
    wide = timeline(path, limits=Limits(mean_kl=50.0)).status
    assert wide.exit_status == monitor.status.exit_status or wide is Status.FAIL or monitor.status is Status.PASS
