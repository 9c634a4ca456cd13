"""A bisection over outcomes that are made up: no engine is started."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from onepolicy.errors import RunError
from onepolicy.records.bisection import Attempt, Bisection, Switch
from onepolicy.records.verdict import Status
from onepolicy.workflow.bisect import ANSWER, OUTCOME, bisect_with
from onepolicy.workflow.progress import Silent

NAMES = tuple("abcdefgh")
SWITCHES = [Switch(name=name, good=f"--no-{name}", bad=f"--{name}") for name in NAMES]
FAIL, PASS, UNKNOWN = Status.FAIL, Status.PASS, Status.UNKNOWN


class Starts:
    """A trial that answers from a function, and counts."""

    def __init__(self, outcome: Callable[[frozenset[str]], Status], *, killed_at: int | None = None) -> None:
        self.outcome = outcome
        self.killed_at = killed_at
        self.done: list[frozenset[str]] = []
        self.folders: list[Path] = []

    def __call__(self, switches: tuple[str, ...], folder: Path) -> Attempt:
        assert not folder.exists()
        folder.mkdir(parents=True)
        (folder / "server.log").write_text("started")
        self.folders.append(folder)
        if self.killed_at == len(self.folders):
            raise KeyboardInterrupt
        self.done.append(frozenset(switches))
        return Attempt(status=self.outcome(frozenset(switches)), sentence="because", seconds=1.0)


def bisected(starts: Starts, folder: Path, *, resume: bool = False, asked: str = "this") -> Bisection:
    return bisect_with(starts, SWITCHES, folder, asked={"command": asked}, resume=resume, progress=Silent())


def failing(*sets: str) -> Callable[[frozenset[str]], Status]:
    return lambda some: FAIL if any(set(one) <= some for one in sets) else PASS


def causes(found: Bisection) -> list[str]:
    return ["".join(switch.name for switch in cause.switches) for cause in found.causes]


def test_a_pair_that_only_together_fails_is_found_and_confirmed(tmp_path):
    starts = Starts(failing("cf"))
    found = bisected(starts, tmp_path / "b")
    assert causes(found) == ["cf"]
    assert (found.status, found.exit_status) == (PASS, 0)
    assert found.causes[0].switches[0] == SWITCHES[2]
    assert starts.done[0] == frozenset()
    assert starts.done[1] == frozenset(NAMES)
    assert starts.done.count(frozenset("cf")) == 2
    assert frozenset("abdegh") in starts.done
    assert found.sentence.startswith("Found: c and f, together, of 8 switches.")
    assert json.loads((tmp_path / "b" / ANSWER).read_text())["sentence"] == found.sentence


def test_two_causes_that_fail_each_by_itself_are_both_found(tmp_path):
    found = bisected(Starts(failing("b", "eg")), tmp_path / "b")
    assert sorted(causes(found)) == ["b", "eg"]
    assert found.status is PASS


def test_when_everything_together_is_needed_there_is_no_complement(tmp_path):
    found = bisected(Starts(failing("abcdefgh")), tmp_path / "b")
    assert causes(found) == ["abcdefgh"]
    assert found.status is PASS


def test_a_good_configuration_that_fails_is_said_and_nothing_else_is_started(tmp_path):
    starts = Starts(lambda _: FAIL)
    found = bisected(starts, tmp_path / "b")
    assert (found.status, found.exit_status) == (UNKNOWN, 3)
    assert "the good configuration is not good: fail, because" in found.sentence
    assert len(starts.done) == 1


def test_a_bad_configuration_that_passes_is_said(tmp_path):
    found = bisected(Starts(lambda _: PASS), tmp_path / "b")
    assert found.exit_status == 3
    assert "the bad configuration is not bad: pass" in found.sentence
    assert not found.causes


def test_a_bad_configuration_that_does_not_start_is_unknown_after_two_tries(tmp_path):
    starts = Starts(lambda some: UNKNOWN if some else PASS)
    found = bisected(starts, tmp_path / "b")
    assert found.exit_status == 3
    assert starts.done == [frozenset(), frozenset(NAMES), frozenset(NAMES)]


def test_a_start_without_an_outcome_is_tried_again(tmp_path):
    once = iter([UNKNOWN])
    starts = Starts(lambda some: next(once, PASS) if not some else failing("a")(some))
    found = bisected(starts, tmp_path / "b")
    assert causes(found) == ["a"]
    assert found.status is PASS


def test_subsets_that_do_not_start_keep_what_they_need_and_name_it(tmp_path):
    """`f` fails; without `b` the engine does not start with it."""

    def outcome(some):
        return UNKNOWN if "f" in some and "b" not in some else failing("f")(some)

    found = bisected(Starts(outcome), tmp_path / "b")
    assert causes(found) == ["bf"]
    assert found.causes[0].unsure == ("b",)
    assert found.unknown


def test_a_complement_without_an_outcome_leaves_the_answer_unknown(tmp_path):
    found = bisected(Starts(lambda some: UNKNOWN if some == set("abcdefg") else failing("h")(some)), tmp_path / "b")
    assert causes(found) == ["h"]
    assert found.exit_status == 3
    assert "whether the others pass without it is not known" in found.sentence


def test_an_outcome_that_changes_is_flaky_and_no_answer(tmp_path):
    said: dict[frozenset[str], int] = {}

    def outcome(some):
        said[some] = said.get(some, 0) + 1
        return PASS if some == {"d"} and said[some] == 2 else failing("d")(some)

    found = bisected(Starts(outcome), tmp_path / "b")
    assert found.exit_status == 3
    assert [test.switches for test in found.flaky] == [("d",)]
    assert "d failed once and not again: one start passed and another failed" in found.sentence


@pytest.mark.parametrize("killed_at", range(1, 21, 3))
def test_a_kill_loses_the_start_that_it_hit_and_no_other(tmp_path, killed_at):
    whole = Starts(failing("cf"))
    expected = bisected(whole, tmp_path / "whole")
    killed = Starts(failing("cf"), killed_at=killed_at)
    with pytest.raises(KeyboardInterrupt):
        bisected(killed, tmp_path / "b")
    rest = Starts(failing("cf"))
    found = bisected(rest, tmp_path / "b", resume=True)
    assert causes(found) == causes(expected)
    assert killed.done + rest.done == whole.done
    assert found.tests == expected.tests


def test_a_finished_bisection_is_told_again_without_a_start(tmp_path):
    once = iter([UNKNOWN])
    first = bisected(Starts(lambda some: next(once, FAIL) if some == {"a"} else failing("a")(some)), tmp_path / "b")
    again = Starts(failing("a"))
    assert bisected(again, tmp_path / "b", resume=True) == first
    assert not again.done


def test_another_configuration_and_a_folder_in_use_are_refused(tmp_path):
    bisected(Starts(failing("a")), tmp_path / "b")
    with pytest.raises(RunError, match="a bisection is already there"):
        bisected(Starts(failing("a")), tmp_path / "b")
    with pytest.raises(RunError, match="of another configuration"):
        bisected(Starts(failing("a")), tmp_path / "b", resume=True, asked="that")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("")
    with pytest.raises(RunError, match="is no bisection"):
        bisected(Starts(failing("a")), tmp_path / "other")


def test_an_outcome_that_was_damaged_or_copied_is_refused(tmp_path):
    bisected(Starts(failing("a")), tmp_path / "b")
    outcomes = sorted((tmp_path / "b" / "tests").rglob(OUTCOME))
    kept = outcomes[0].read_text()
    outcomes[0].write_text("{")
    with pytest.raises(RunError, match="is damaged"):
        bisected(Starts(failing("a")), tmp_path / "b", resume=True)
    other = next(file for file in outcomes if file.parent.parent != outcomes[0].parent.parent)
    outcomes[0].write_text(other.read_text())
    with pytest.raises(RunError, match="of other switches"):
        bisected(Starts(failing("a")), tmp_path / "b", resume=True)
    outcomes[0].write_text(kept)
    assert causes(bisected(Starts(failing("a")), tmp_path / "b", resume=True)) == ["a"]
