"""A good and a bad configuration of one engine -> the switches that make the check fail, over real starts.

Each start's outcome is a file that is written at its end, so a bisection that is killed goes on with what it has and
repeats at most the one start that it was at.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from onepolicy.errors import RunError
from onepolicy.records.bisection import Attempt, Bisection, Cause, Switch, Tested, named
from onepolicy.records.files import disk_errors, one_writer, write_text_atomically
from onepolicy.records.verdict import Status
from onepolicy.workflow.bisect_config import load_bisect_config
from onepolicy.workflow.bisect_minimise import Names, minimise, unsure, without
from onepolicy.workflow.bisect_server import end_left_over
from onepolicy.workflow.bisect_trial import EngineTrial
from onepolicy.workflow.progress import Progress, Silent

ASKED, ANSWER, OUTCOME = "asked.json", "bisection.json", "outcome.json"
Trial = Callable[[Names, Path], Attempt]
"""(switches that are bad, an empty folder of its own) -> the outcome of one start"""
_TRIES = 2
"""to get a second outcome"""


def bisect(path: Path, folder: Path, *, resume: bool = False, progress: Progress | None = None) -> Bisection:
    """The switches of a configuration file that make its check fail. Everything is kept in `folder`.

    Raises: UsageError if the file cannot be run; RunError if the folder holds something else, or another bisection;
    EngineError if the port is taken. What was finished before stays, and `resume` goes on from there.
    """
    shown = progress or Silent()
    config = load_bisect_config(path)
    trial = EngineTrial(config=config, home=path.parent.absolute(), progress=shown)
    trial.refuse_odd()
    asked = {"home": str(path.parent.resolve()), "checks": trial.checks(), **config.model_dump(mode="json")}
    return bisect_with(trial, config.switches, folder, asked=asked, resume=resume, progress=shown)


def bisect_with(
    trial: Trial,
    switches: Sequence[Switch],
    folder: Path,
    *,
    asked: dict[str, object],
    resume: bool = False,
    progress: Progress,
) -> Bisection:
    """The same over any trial. asked: what makes two bisections the same; only then one goes on with the other's."""
    _begin(folder, json.dumps(asked, sort_keys=True), resume=resume)
    with one_writer(folder / "lock"):
        tests = Tests(folder=folder, trial=trial, progress=progress)
        found = _found(tests, tuple(switch.name for switch in switches))
        answer = Bisection(
            folder=str(folder),
            status=Status.UNKNOWN if found.doubt else Status.PASS,
            sentence=_sentence(found, len(switches)),
            switches=tuple(switches),
            causes=tuple(_cause(names, tests, switches) for names in found.causes),
            tests=tuple(tests.known.values()),
        )
        write_text_atomically(folder / ANSWER, answer.model_dump_json(indent=2) + "\n")
    return answer


@dataclass(slots=True, kw_only=True, eq=False)
class Tests:
    """Outcomes that are known, and the starts that make more."""

    folder: Path
    trial: Trial
    progress: Progress
    known: dict[Names, Tested] = field(default_factory=dict)
    """in the order in which they were asked for"""

    def ask(self, switches: Names) -> Status:
        """The outcome with these switches bad. One that is unknown is tried once more."""
        if switches not in self.known:
            self.known[switches] = Tested(switches=switches, attempts=(self._attempt(switches, 1),))
            if self.known[switches].status is Status.UNKNOWN:
                self._again(switches)
        return self.known[switches].status

    def confirm(self, switches: Names) -> Status:
        """The outcome of two starts; unknown if they differ, or only one has an outcome."""
        self.ask(switches)
        for _ in range(_TRIES):
            if len(self.known[switches].decided) < 2:
                self._again(switches)
        test = self.known[switches]
        return test.status if len(test.decided) > 1 else Status.UNKNOWN

    def _again(self, switches: Names) -> None:
        before = self.known[switches]
        attempts = (*before.attempts, self._attempt(switches, len(before.attempts) + 1))
        self.known[switches] = before.model_copy(update={"attempts": attempts})

    def _attempt(self, switches: Names, number: int) -> Attempt:
        place = Path("tests") / _key(switches) / str(number)
        stored = _stored(self.folder / place / OUTCOME, switches)
        if stored is not None:
            return stored
        _clear(self.folder / place, self.progress)
        self.progress.note(f"start with {named(switches)} as in bad")
        made = self.trial(switches, self.folder / place).model_copy(update={"folder": str(place)})
        content = Tested(switches=switches, attempts=(made,)).model_dump_json(indent=2)
        write_text_atomically(self.folder / place / OUTCOME, content + "\n")
        self.progress.note(f"{made.status.value} after {made.seconds:g} s")
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    causes: tuple[Names, ...] = ()
    doubt: str = ""
    """why this is not the whole answer; empty if it is"""


def _found(tests: Tests, names: Names) -> _Found:
    if tests.ask(()) is not Status.PASS:
        return _Found(doubt=f"the good configuration is not good: {_said(tests, ())}")
    if tests.ask(names) is not Status.FAIL:
        return _Found(doubt=f"the bad configuration is not bad: {_said(tests, names)}")
    causes: list[Names] = []
    left = names
    while True:
        cause = minimise(left, tests.ask)
        if tests.confirm(cause) is not Status.FAIL:
            doubt = f"{named(cause)} failed once and not again: {_said(tests, cause)}"
            return _Found(causes=tuple(causes), doubt=doubt)
        causes.append(cause)
        left = without(left, cause)
        rest = tests.ask(left) if left else Status.PASS
        if rest is Status.PASS:
            return _Found(causes=tuple(causes))
        if rest is Status.UNKNOWN:
            doubt = f"whether the others pass without it is not known: {_said(tests, left)}"
            return _Found(causes=tuple(causes), doubt=doubt)


def _said(tests: Tests, switches: Names) -> str:
    test = tests.known[switches]
    if test.is_flaky:
        return f"one start passed and another failed, with {named(switches)} as in bad"
    last = test.attempts[-1]
    return f"{last.status.value}, {last.sentence}"


def _sentence(found: _Found, count: int) -> str:
    causes = "; by itself, ".join(named(names) + (", together" if len(names) > 1 else "") for names in found.causes)
    if found.doubt:
        return f"Unknown: {causes + ' (the check fails with it alone); but ' if causes else ''}{found.doubt}"
    rest = count - sum(map(len, found.causes))
    others = f"; with the other {rest} alone it passes" if rest else ""
    return f"Found: {causes}, of {count} switches. With this alone the check fails, in two starts{others}."


def _cause(names: Names, tests: Tests, switches: Sequence[Switch]) -> Cause:
    return Cause(switches=tuple(one for one in switches if one.name in names), unsure=unsure(names, tests.ask))


# -- the folder -------------------------------------------------------------------------------------------------


def _begin(folder: Path, asked: str, *, resume: bool) -> None:
    file = folder / ASKED
    with disk_errors(folder):
        if not file.exists():
            if folder.exists() and any(folder.iterdir()):
                raise RunError(f"{folder}: exists and is no bisection. Give another folder with --run.")
            write_text_atomically(file, asked + "\n")
            return
        if not resume:
            raise RunError(
                f"{folder}: a bisection is already there. Go on with it with --resume, or give another --run."
            )
        if file.read_text(encoding="utf-8").strip() != asked:
            raise RunError(
                f"{folder}: is a bisection of another configuration ({file}). Resume with the same file, or give "
                "another --run."
            )


def _key(switches: Names) -> str:
    """A name of a folder: the outcome depends on the set alone."""
    return hashlib.sha256(json.dumps(sorted(switches)).encode()).hexdigest()[:16] if switches else "good"


def _stored(file: Path, switches: Names) -> Attempt | None:
    if not file.exists():
        return None
    try:
        said = Tested.model_validate_json(file.read_bytes())
    except ValidationError as error:
        raise RunError(
            f"{file}: is damaged ({error.errors()[0]['msg']}). Remove it to start this one again."
        ) from error
    if set(said.switches) != set(switches) or len(said.attempts) != 1:
        raise RunError(f"{file}: is the outcome of other switches. Remove it to start this one again.")
    return said.attempts[0]


def _clear(place: Path, progress: Progress) -> None:
    """Remove what a start left that was cut off, and end its engine if that still runs."""
    if not place.exists():
        return
    if end_left_over(place):
        progress.note(f"ended the engine that a killed bisection left running ({place})")
    shutil.rmtree(place)
