"""`onepolicy parallel`: one model under several layouts -> how far its full logits move."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from onepolicy.engines.parallel import Layout
from onepolicy.engines.spec import EngineSpec
from onepolicy.errors import EngineError, UsageError
from onepolicy.integrations.callable.channel import Frame
from onepolicy.integrations.callable.group import RankGroup
from onepolicy.integrations.callable.process import RankStart
from onepolicy.judgement.decide import decide
from onepolicy.numerics.logits import LogitDifference, WorstLogit, farthest
from onepolicy.records.files import disk_errors
from onepolicy.records.parallel import LayoutResult, LogitPlace, ParallelResult
from onepolicy.records.tokens import IntArray
from onepolicy.workflow.parallel_sequences import Given, SequenceSource
from onepolicy.workflow.parallel_verdicts import Rule, sentence_of, verdicts_of
from onepolicy.workflow.progress import Progress, Silent

_WORKER = "onepolicy.workflow.parallel_worker"
REPEAT = "repeat"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelRequest:
    """Which model, on what, in which layouts."""

    spec: EngineSpec
    layouts: tuple[Layout, ...]
    source: SequenceSource = field(default_factory=SequenceSource)
    rule: Rule = field(default_factory=Rule)
    timeout: float = 600.0
    """seconds that the ranks may take to load, and for each sequence"""
    logits: Path | None = None
    """folder that keeps the base run's logits; a temporary one if None"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Base:
    """The run of one process that everything is compared with."""

    sequences: list[Given]
    kept: list[dict[str, Any]]
    """of each sequence: digest, shape and dtype of its logits, and the path of their bits"""
    repeats: bool
    environment: dict[str, str]
    threads: int


def parallel(request: ParallelRequest, *, progress: Progress | None = None) -> ParallelResult:
    """Run the model in one process, once more, and in each layout, and compare the full logits of the same sequences.

    Ranks are processes on this machine. The base run's logits are written to a file, which the ranks map into memory;
    only digests and sums are sent. Every rank has the same number of threads under every layout, as another number
    changes a sum's order by itself.

    Raises: UsageError; EngineError if a rank raises, dies or hangs, with what it printed.
    """
    shown = progress or Silent()
    if not request.layouts:
        raise UsageError("no layout was asked for. Give at least one, such as --degrees fsdp=2 --degrees tp=2.")
    threads = max(1, (os.cpu_count() or 1) // max(layout.degree for layout in request.layouts))
    with _folder(request.logits) as folder:
        base = _base(request, folder, threads, shown)
        found = [_layout_result(request, base, None, shown)]
        found += [_layout_result(request, base, layout, shown) for layout in request.layouts]
    return _result(request, base, found)


@contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    """Where the base run's logits lie; a temporary folder is gone afterwards."""
    if given is None:
        with tempfile.TemporaryDirectory(prefix="onepolicy-logits-") as temporary:
            yield Path(temporary)
        return
    with disk_errors(given):
        given.mkdir(parents=True, exist_ok=True)
    yield given


@contextmanager
def _ranks(request: ParallelRequest, layout: Layout | None, threads: int) -> Iterator[RankGroup]:
    """The started ranks, which are told to open the model; all of them are ended when the block is left."""
    start = RankStart(module=_WORKER, target=str(request.spec), threads=threads)
    name = f"{request.spec} ({layout or 'one process'})"
    count = 1 if layout is None else layout.degree
    group = RankGroup(start, count=count, timeout=request.timeout, name=name)
    try:
        yield group
        group.close()
    finally:
        group.end(grace=0.0)


def _opened(group: RankGroup, layout: Layout | None) -> Frame:
    """Rank 0's answer once the model is there on all ranks."""
    asked = {"kind": layout.kind, "degree": layout.degree} if layout else None
    return group.ask(Frame(header={"layout": asked}), "loading")[0]


def _base(request: ParallelRequest, folder: Path, threads: int, progress: Progress) -> _Base:
    with _ranks(request, None, threads) as group:
        ready = _opened(group, None)
        sequences = request.source.sequences(lambda sequence: _encode(group, sequence.prompt, sequence.completion))
        progress.start("one process", 2 * len(sequences), unit="sequences")
        kept = []
        for number, given in enumerate(sequences):
            path = folder / f"{number:04d}.bits"
            kept.append(_logits_of_base(group, given, path))
            progress.advance(1)
        again = _digests(group, sequences, progress)
    return _Base(
        sequences=sequences,
        kept=kept,
        repeats=again == [one["digest"] for one in kept],
        environment=ready.header["environment"],
        threads=threads,
    )


def _encode(group: RankGroup, prompt: str, completion: str) -> IntArray:
    answer = group.ask(Frame(header={"prompt": prompt, "completion": completion}), "encoding the suite")
    return np.asarray(answer[0].arrays[0], dtype=np.int32)


def _logits_of_base(group: RankGroup, given: Given, path: Path) -> dict[str, Any]:
    header = {"sequence": given.name, "write": str(path)}
    (answer,) = group.ask(Frame(header=header, arrays=[given.token_ids]), f"computing sequence {given.name}")
    if not answer.header["digest"]:
        raise EngineError(f"sequence {given.name}: one process alone gave no logits, so there is nothing to compare.")
    return {**{key: answer.header[key] for key in ("digest", "shape", "dtype")}, "path": str(path)}


def _digests(group: RankGroup, sequences: list[Given], progress: Progress) -> list[str]:
    """A second pass: all that each rank has to say is its digest; those of all ranks that have logits, joined."""
    found = []
    for given in sequences:
        frame = Frame(header={"sequence": given.name}, arrays=[given.token_ids])
        answers = group.ask(frame, f"computing sequence {given.name} again")
        found.append(_joined(answers))
        progress.advance(1)
    return found


def _joined(answers: list[Frame]) -> str:
    """One digest if all ranks that have logits agree, else all of them."""
    return " ".join(dict.fromkeys(answer.header["digest"] for answer in answers if answer.header["digest"]))


def _layout_result(request: ParallelRequest, base: _Base, layout: Layout | None, progress: Progress) -> LayoutResult:
    """None is the base run once more, in a new process."""
    name, ranks = (str(layout), layout.degree) if layout else (REPEAT, 1)
    with _ranks(request, layout, base.threads) as group:
        ready = _opened(group, layout)
        if "missing" in ready.header:
            return LayoutResult(layout=name, ranks=ranks, missing=ready.header["missing"])
        progress.start(name, 2 * len(base.sequences), unit="sequences")
        answers = []
        for given, kept in zip(base.sequences, base.kept, strict=True):
            frame = Frame(header={"sequence": given.name, "base": kept}, arrays=[given.token_ids])
            answers.append(group.ask(frame, f"computing sequence {given.name}"))
            progress.advance(1)
        again = _digests(group, base.sequences, progress)
    measured = _measured(base, answers, [_joined(one) for one in answers] == again)
    return LayoutResult(layout=name, ranks=ranks, notes=tuple(ready.header["notes"]), **measured)


def _measured(base: _Base, answers: list[list[Frame]], repeats: bool) -> dict[str, Any]:
    """The sums over sequences: each figure is of the rank that is farthest from the base run by it."""
    by_rank = [_sums([one[rank] for one in answers]) for rank in range(len(answers[0]))]
    present = [found for found in by_rank if found is not None]
    if not present:
        raise EngineError(
            "no rank of the layout gave logits, so nothing was compared. Return them on one rank at least."
        )
    widest = max(present, key=lambda one: one.max_ulp)
    digests = [_joined(one) for one in answers]
    return {
        "identical": sum(found == kept["digest"] for found, kept in zip(digests, base.kept, strict=True)),
        "repeats": repeats,
        "bitwise_share": min(one.equal / one.logits for one in present),
        "max_ulp": widest.max_ulp,
        "mean_abs_d": farthest(one.sum_abs_d / one.tokens for one in present),
        "max_abs_d": farthest(one.max_abs_d for one in present),
        "worst": _place(widest.worst),
        "digests": {given.name: digest for given, digest in zip(base.sequences, digests, strict=True)},
    }


def _sums(answers: list[Frame]) -> LogitDifference | None:
    """Of one rank over all sequences; None if it has no logits. Raises: EngineError if it has some of them."""
    given = [answer.header["difference"] for answer in answers if answer.header["digest"]]
    if not given:
        return None
    if len(given) < len(answers):
        raise EngineError(
            f"a rank gave logits for {len(given)} of {len(answers)} sequences. Give all or none on a rank."
        )
    total = LogitDifference()
    for one in given:
        worst = WorstLogit(**one["worst"]) if one["worst"] else None
        total = total.plus(LogitDifference(**{**one, "worst": worst}))
    return total


def _place(worst: WorstLogit | None) -> LogitPlace | None:
    if worst is None:
        return None
    return LogitPlace(
        sequence=worst.sequence,
        position=worst.position,
        token_id=worst.token_id,
        base=worst.base,
        value=worst.value,
    )


def _result(request: ParallelRequest, base: _Base, found: list[LayoutResult]) -> ParallelResult:
    verdicts = verdicts_of(found, request.rule, base_repeats=base.repeats)
    first = base.kept[0]
    return ParallelResult(
        spec=str(request.spec),
        status=decide(verdicts),
        sentence=sentence_of(verdicts, found),
        sequences=len(base.sequences),
        tokens=sum(len(given.token_ids) for given in base.sequences),
        vocabulary=first["shape"][1],
        dtype=first["dtype"],
        threads=base.threads,
        base_repeats=base.repeats,
        digests={given.name: kept["digest"] for given, kept in zip(base.sequences, base.kept, strict=True)},
        layouts=tuple(found),
        verdicts=verdicts,
        environment=base.environment,
    )
