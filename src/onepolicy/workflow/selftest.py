"""A diagnosis put to the test: known faults planted in a pair of engines at three sizes, and honest pairs."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from onepolicy.engines.spec import parse_spec
from onepolicy.errors import UsageError
from onepolicy.records.finding import Diagnosis, Outcome
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.selftest import Control, Planted, SelfTest, Size
from onepolicy.version import VERSION
from onepolicy.workflow.diagnose import DiagnoseRequest, diagnose
from onepolicy.workflow.progress import Progress, Silent
from onepolicy.workflow.record import ROLLOUT
from onepolicy.workflow.score import ScoreRequest, score
from onepolicy.workflow.selftest_bench import TINY, Bench, refuse_unknown
from onepolicy.workflow.selftest_controls import Honest, controls
from onepolicy.workflow.selftest_fault import Fault
from onepolicy.workflow.selftest_faults import FAULTS

AIMS = {Size.NEAR: 3.0, Size.BELOW: 0.5}
"""times the noise that the mean |d| is to be"""
BETWEEN = {Size.NEAR: (2.5, 4.0), Size.BELOW: (0.0, 1.0)}
"""what comes near enough to it"""
MOST_TRIES = 8
NAMED = (Outcome.CAUSE, Outcome.ONE_OF)
HARMLESS = "precision"
"""what may be said of an honest pair: by how much its two precisions move it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTestRequest:
    """What to plant."""

    model: str = TINY
    """`tiny`, or a model as the engine `transformers` names it, such as smollm2"""
    only: tuple[str, ...] = ()
    """names of faults, or `controls`; all if empty"""


CONTROLS = "controls"


def selftest(request: SelfTestRequest | None = None, *, progress: Progress | None = None) -> SelfTest:
    """Plant, diagnose, and say what was found. Raises: UsageError for a fault that is not known; EngineError."""
    request, shown = request or SelfTestRequest(), progress or Silent()
    chosen = tuple(name for name in request.only if name != CONTROLS)
    refuse_unknown(chosen, FAULTS)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="onepolicy-selftest-") as folder:
        bench = Bench(Path(folder), request.model)
        faults = [fault for name, fault in FAULTS.items() if (not request.only or name in chosen) and bench.can(fault)]
        if not faults and CONTROLS not in (request.only or (CONTROLS,)):
            named = ", ".join(chosen)
            raise UsageError(f"{request.model}: none of {named} can be made of this model; use --model tiny.")
        planted = tuple(_all_planted(bench, faults, shown))
        honest = list(controls(tiny=request.model == TINY)) if not request.only or CONTROLS in request.only else []
        shown.start("controls", len(honest), "pairs")
        held = tuple(_held(bench, one, shown) for one in honest)
    seconds = time.monotonic() - begin
    return SelfTest(model=request.model, version=VERSION, planted=planted, controls=held, seconds=seconds)


def _all_planted(bench: Bench, faults: Sequence[Fault], progress: Progress) -> Iterator[Planted]:
    progress.start("planted faults", len(faults), "faults")
    for fault in faults:
        yield from _sizes_of(bench, fault)
        progress.advance(1)


def _sizes_of(bench: Bench, fault: Fault) -> Iterator[Planted]:
    """A fault at each of its sizes, the large one first, from which the others are found."""
    strength, found = fault.large, None
    for size in fault.sizes:
        begin = time.monotonic()
        trial = _Trial(bench, fault, strength) if found is None else _sized(bench, fault, found, size)
        found = found or trial
        yield _row(fault, size, trial, diagnose(trial.path, trial.request), time.monotonic() - begin)


class _Trial:
    """A fault planted with a strength, and how far it moves its pair."""

    def __init__(self, bench: Bench, fault: Fault, strength: float) -> None:
        _tidy(bench)  # a real model's weights of every strength tried would fill a disk
        self.strength, self.value = strength, fault.value(strength)
        self.path, self.request = bench.planted(fault, self.value)
        data = diagnose(self.path, replace(self.request, experiments=False))
        self.multiple = data.mean_abs_d / data.noise


def _sized(bench: Bench, fault: Fault, large: _Trial, size: Size) -> _Trial:
    """The fault so strong that its pair is about as far apart as the size says.

    Bisection of the logarithm of the strength, the first steps by proportion: |d| is linear in it near 0, cut at 1
    nat further up, and lies on the pair's own noise further down.
    """
    low, high = 0.0, large.strength
    strength, trial = large.strength * AIMS[size] / large.multiple, large
    for _ in range(MOST_TRIES):
        trial = _Trial(bench, fault, strength)
        least, most = BETWEEN[size]
        if least <= trial.multiple <= most:
            break
        low, high = (strength, high) if trial.multiple < least else (low, strength)
        proportional = strength * AIMS[size] / trial.multiple
        strength = proportional if low < proportional < high else (low * high) ** 0.5 if low else high / 3.0
    return trial


def _row(fault: Fault, size: Size, trial: _Trial, found: Diagnosis, seconds: float) -> Planted:
    causes = [one for one in found.causes if size is not Size.BELOW or one.cause != HARMLESS]
    first = causes[0] if causes else None
    return Planted(
        fault=fault.name,
        size=size,
        way=fault.way,
        parameter=fault.says.format(value=trial.value),
        multiple=found.mean_abs_d / found.noise,
        right=fault.right,
        detected=found.differs or bool(causes),
        first=first.cause if first else "",
        outcome=first.outcome if first else None,
        among=tuple(one.cause for one in causes if first and one.outcome is first.outcome is Outcome.ONE_OF),
        explained=first.explained if first else None,
        said=found.sentence,
        seconds=seconds,
    )


def _held(bench: Bench, honest: Honest, progress: Progress) -> Control:
    """An honest pair, and whether anything is said of it."""
    begin = time.monotonic()
    path = bench.folder / "control"
    protocol = SamplingProtocol.model_validate({"max_new_tokens": bench.scale.new_tokens, **honest.protocol})
    bench.sample(path, bench.spec(honest.rollout, honest.value), protocol, first=honest.first)
    trainer = parse_spec(bench.spec(honest.trainer, honest.value))
    ids = ROLLOUT if honest.keeps_more else None
    score(path, ScoreRequest(engine=trainer, statistics=honest.keeps_more, report_ids_of=ids))
    found = diagnose(path, DiagnoseRequest())
    shutil.rmtree(path)
    progress.advance(1)
    return Control(
        pair=honest.pair,
        multiple=found.mean_abs_d / found.noise,
        first=found.causes[0].cause if found.causes else "",
        alarmed=_alarms(found, honest),
        said=found.sentence,
        seconds=time.monotonic() - begin,
    )


def _alarms(found: Diagnosis, honest: Honest) -> bool:
    """Whether a fault is named, or a difference that two precisions do not explain."""
    named = {one.cause for one in found.causes}
    may_differ = honest.has_two_dtypes and named == {HARMLESS}
    return bool(named - {HARMLESS}) or (found.differs and not may_differ)


def _tidy(bench: Bench) -> None:
    """Remove the runs and models of the strength before; the base stays."""
    for path in bench.folder.iterdir():
        if path.name == "llama":
            continue
        shutil.rmtree(path) if path.is_dir() else path.unlink()
