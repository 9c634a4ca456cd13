"""A watch on a fake pair and on a stand-in server, with a clock of the test."""

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from standin import TinyModel, Vllm, standing_in

from onepolicy.engines.spec import parse_spec
from onepolicy.errors import RunError, UsageError
from onepolicy.judgement.limits import Limits, Waiver
from onepolicy.records.past import PastRun
from onepolicy.records.verdict import Status
from onepolicy.workflow.check import CheckRequest
from onepolicy.workflow.history import history
from onepolicy.workflow.history_lines import LINES, read_lines
from onepolicy.workflow.watch import FIXED, Clock, Watched, WatchRequest, fixed, watch

START = datetime(2026, 5, 1, tzinfo=UTC)
TEN = timedelta(minutes=10)


class Time:
    """A clock that a test moves; `plan` is what happens while the watch sleeps."""

    def __init__(self, *plan) -> None:
        self.now, self.slept, self.plan = START, [], list(plan)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += timedelta(seconds=seconds)
        if self.plan:
            self.plan.pop(0)()

    @property
    def clock(self) -> Clock:
        return Clock(now=lambda: self.now, sleep=self.sleep)


class Notes:
    def __init__(self) -> None:
        self.notes: list[str] = []

    def start(self, title: str, total: int, unit: str = "rollouts") -> None: ...

    def advance(self, count: int) -> None: ...

    def note(self, message: str) -> None:
        self.notes.append(message)


@pytest.fixture
def suite(tmp_path) -> str:
    lines = [{"id": f"s{i:02}", "prompt": f"{i} of many: ", "completion": f"the rain {i}"} for i in range(12)]
    path = tmp_path / "fixed.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return str(path)


@pytest.fixture
def watched(tmp_path, suite):
    """Watch a pair, and give what was seen, the lines of the folder, and what was said."""

    def run(rollout="fake:m", *, time: Time, probes: int | None = None, limits: Limits = Limits(), **fields):
        check = CheckRequest(rollout=parse_spec(rollout), trainer=parse_spec("fake:m"), suite=suite, limits=limits)
        seen, notes = Watched(), Notes()
        request = WatchRequest(
            check=check, folder=tmp_path / "watch", every=TEN, probes=probes, clock=time.clock, **fields
        )
        watch(request, seen, progress=notes)
        return seen, list(read_lines(tmp_path / "watch" / LINES)), notes.notes

    return run


def kept_runs(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def test_passes_are_lines_with_numbers_and_only_the_first_keeps_its_run(watched, tmp_path):
    seen, lines, notes = watched(time=Time(), probes=3)
    assert (seen.rows, seen.status) == (3, Status.PASS)
    assert [line.time for line in lines] == [START, START + TEN, START + 2 * TEN]
    assert all(line.numbers["onepolicy/k3"] == 0.0 for line in lines)
    assert [bool(line.run) for line in lines] == [True, False, False]
    assert kept_runs(tmp_path / "watch") == ["20260501-000000-probe"]
    assert len([note for note in notes if "Pass" in note]) == 1


def test_all_runs_are_kept_where_that_is_asked(watched, tmp_path):
    watched(time=Time(), probes=2, keep_all=True)
    assert len(kept_runs(tmp_path / "watch")) == 2


def test_a_probe_that_fails_is_said_and_its_run_is_kept(watched, tmp_path):
    with standing_in(Vllm()) as server:
        time = Time(lambda: setattr(server.dialect, "tiny", TinyModel(seed=1)))
        seen, lines, notes = watched(f"vllm:{server.url}?retries=0", time=time, until=Status.FAIL)
    assert (seen.status, [line.status for line in lines]) == (Status.FAIL, [Status.PASS, Status.FAIL])
    assert len(kept_runs(tmp_path / "watch")) == 2
    assert any("Fail: " in note for note in notes)


def test_a_server_that_is_away_is_unknown_said_once_and_asked_again(watched, tmp_path):
    with standing_in(Vllm()) as server:
        time = Time(server.die, lambda: None, server.revive)
        seen, lines, notes = watched(f"vllm:{server.url}?retries=0", time=time, probes=4)
    assert [line.status.value for line in lines] == ["pass", "unknown", "unknown", "pass"]
    assert seen.status is Status.UNKNOWN, "a probe without an answer is no pass"
    assert len([note for note in notes if "came to no end" in note]) == 1
    assert len([note for note in notes if "Pass" in note]) == 2
    assert kept_runs(tmp_path / "watch") == ["20260501-000000-probe", "20260501-003000-probe"]


def test_until_unknown_ends_at_the_first_that_is_no_pass(watched):
    with standing_in(Vllm()) as server:
        _, lines, _ = watched(f"vllm:{server.url}?retries=0", time=Time(server.die), until=Status.UNKNOWN)
    assert [line.status.value for line in lines] == ["pass", "unknown"]


class NewVllm(Vllm):
    def other(self, method, path, body):
        return (200, {"version": "0.33.0"}) if path == "/version" else super().other(method, path, body)


def test_another_version_behind_the_same_url_is_said_and_its_run_is_kept(watched, tmp_path):
    with standing_in(Vllm()) as server:
        time = Time(lambda: setattr(server, "dialect", NewVllm()))
        _, lines, notes = watched(f"vllm:{server.url}?retries=0", time=time, probes=2)
    assert lines[1].changed == ("versions: rollout engine version 0.32.0 -> 0.33.0",)
    assert any("changed: versions: rollout engine version" in note for note in notes)
    assert len(kept_runs(tmp_path / "watch")) == 2


def test_another_version_after_a_restart_is_said(watched):
    def restarted() -> None:
        server.revive()
        server.dialect = NewVllm()

    with standing_in(Vllm()) as server:
        _, lines, notes = watched(f"vllm:{server.url}?retries=0", time=Time(server.die, restarted), probes=3)
    assert [len(line.changed) for line in lines] == [0, 0, 1]
    assert any("changed: versions: rollout engine version 0.32.0 -> 0.33.0" in note for note in notes)


def test_a_probe_without_an_answer_says_of_which_pair_it_is(watched):
    with standing_in(Vllm()) as server:
        server.die()
        _, lines, _ = watched(f"vllm:{server.url}?retries=0", time=Time(server.revive), probes=2)
    assert [(line.status, line.is_readable) for line in lines] == [(Status.UNKNOWN, False), (Status.PASS, True)]
    assert lines[0].pair == lines[1].pair == f"fixed, fixed, vllm:{server.url}, fake:m"


def test_a_probe_that_ends_in_an_error_leaves_no_half_of_a_run(watched, tmp_path):
    waivers = [Waiver(check="mean_abs_d", reason="no such check", until="2999-01-01")]
    with pytest.raises(UsageError, match="which there is not"):
        watched(time=Time(), limits=Limits(waivers=waivers))
    assert kept_runs(tmp_path / "watch") == []


def test_a_probe_that_takes_long_leaves_out_the_ones_it_ran_over(watched):
    time = Time()

    def seen(row: PastRun) -> None:
        if row.time == START:
            time.now += timedelta(minutes=25)

    _, lines, _ = watched(time=time, probes=2, seen=seen)
    assert lines[1].time == START + timedelta(minutes=30)


def test_an_interrupted_watch_keeps_what_it_has(watched, tmp_path):
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watched(time=Time(lambda: None, stop))
    assert len(list(read_lines(tmp_path / "watch" / LINES))) == 2


def test_a_watch_goes_on_with_the_folder_of_one_before(watched, tmp_path):
    watched(time=Time(), probes=1)
    later = Time()
    later.now += timedelta(days=1)
    watched(time=later, probes=1)
    found = history(str(tmp_path / "watch"))
    assert [row.status for row in found.rows] == [Status.PASS, Status.PASS]


def test_two_watches_do_not_share_a_folder(watched):
    def another() -> None:
        with pytest.raises(RunError, match="another process is writing"):
            watched(time=Time(), probes=1)

    watched(time=Time(another), probes=2)


def test_the_history_of_a_watch_has_every_probe(watched, tmp_path):
    with standing_in(Vllm()) as server:
        watched(f"vllm:{server.url}?retries=0", time=Time(lambda: None, server.die), probes=3)
    found = history(str(tmp_path / "watch"))
    assert [row.status.value for row in found.rows] == ["pass", "pass", "unknown"]
    assert found.exit_status == 3


def test_what_can_never_run_is_an_error_and_no_unknown_for_ever(watched, suite):
    shutil.copy(suite, suite + ".bak")
    with pytest.raises(UsageError):
        watched("fake:m?nois=1", time=Time(), probes=1)


def test_a_suite_of_prompts_becomes_one_of_fixed_ids():
    request = CheckRequest(rollout=parse_spec("fake:m"), trainer=parse_spec("fake:m"), limits=Limits())
    assert (request.suite, fixed(request).suite) == ("quick", FIXED)
