"""Recorded files -> a run, with what is odd about them."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np

from onepolicy.dumps.block import NO_ID, NO_STEP, RecordedBlock, block_digests
from onepolicy.errors import DumpError
from onepolicy.judgement.limits import Limits
from onepolicy.numerics.checks.alignment import alignment
from onepolicy.numerics.checks.mask_ends import CERTAIN_END, mask_ends
from onepolicy.numerics.measurement import Measurement
from onepolicy.numerics.pair import pair_up
from onepolicy.records.block_tables import reading_block_table, rollout_block_table
from onepolicy.records.manifest import Imported, Manifest
from onepolicy.records.parquet import RolloutBlock, span_table
from onepolicy.records.protocol import Meaning, SamplingProtocol
from onepolicy.records.reading import Condition, EngineInfo, ReadingInfo, ReadingRequest
from onepolicy.records.rollout import Span
from onepolicy.records.run import Run
from onepolicy.records.verdict import Judgement, Status
from onepolicy.tokens.open import open_tokenizer
from onepolicy.tokens.spell import Speller
from onepolicy.version import VERSION
from onepolicy.workflow.compare_recorded import compare_recorded, meanings, nothing_used
from onepolicy.workflow.judge import JudgeRequest, judge_readings
from onepolicy.workflow.progress import Progress, Silent
from onepolicy.workflow.record import ROLLOUT
from onepolicy.workflow.recorded import Recording, Tally, blocks_of, refuse_other_sampling, sides_of
from onepolicy.workflow.score import TRAINER
from onepolicy.workflow.second_files import Waiting, rows_of, said_of, scored_by, the_side
from onepolicy.workflow.versions import STEP, Versions


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRequest:
    """What to read, and what is true of it that no file says."""

    recording: Recording
    other: Recording | None = None
    """files with the other side of the same rollouts, which are known again by their ids"""
    protocol: SamplingProtocol = SamplingProtocol()
    """how the rollouts were sampled"""
    tokenizer: str | None = None
    """of the model: a folder or file; the run keeps it, and then shows text"""


def import_recorded(path: Path, request: ImportRequest, *, progress: Progress | None = None) -> Run:
    """Read files into a new run. Its manifest says how many rows were read, used and refused, and what is odd.

    Raises: DumpError if a file is damaged or nothing can be used; RunError if there is a run at `path` already.
    """
    request = _with_the_sampling_side_first(request)
    _remove_half_an_import(path)
    was_there = path.exists()
    run = Run.create(path, _manifest(request))
    try:
        _import(run, request, progress or Silent())
    except BaseException:
        _empty(path, keep=was_there)
        raise
    return run


def _with_the_sampling_side_first(request: ImportRequest) -> ImportRequest:
    """A run begins with what was sampled: two files are swapped if only the second holds that side."""
    if request.other is None:
        return request
    first, second = (sides_of(recording) for recording in (request.recording, request.other))
    swapped = ROLLOUT not in first and ROLLOUT in second
    return replace(request, recording=request.other, other=request.recording) if swapped else request


def _remove_half_an_import(path: Path) -> None:
    """An import that was killed is of no use, and is made anew. Raises: RunError if it is still at work."""
    if not (path / "manifest.json").is_file():
        return
    run = Run.open(path)
    if run.manifest.imported is not None and run.manifest.status == "recording":
        with run.writing("rollouts"):
            _empty(path, keep=True)


def _empty(path: Path, *, keep: bool) -> None:
    """Remove what an import has written; keep: the folder itself, which was there before."""
    for file in path.iterdir():
        shutil.rmtree(file) if file.is_dir() and not file.is_symlink() else file.unlink()
    if not keep:
        path.rmdir()


def _import(run: Run, request: ImportRequest, progress: Progress) -> None:
    tokenizer = "" if request.tokenizer is None else _kept_tokenizer(run, request.tokenizer)
    tally, audit = Tally(), Measurement()
    versions = Versions(current=request.recording.format.trainer == "current")
    sides: set[str] = set()
    with run.writing("rollouts"):
        for block in blocks_of(request.recording, tally, progress):
            _refuse_without_ids(request, request.recording, block)
            refuse_other_sampling(request.recording, block, request.protocol)
            sides |= _write(run, request, block, tokenizer)
            versions.add(block)
            if block.rollout is not None and block.trainer is not None:
                audit.add(pair_up(block.rollouts, block_digests(block), block.rollout, block.trainer))
        if not tally.used:
            raise DumpError(nothing_used(request.recording, tally))
        notes = _findings(audit)
        if request.other is not None:
            notes += _add_other(run, request, sides, versions, tokenizer, progress)
        run.imported(tally.imported(request.recording, notes).model_copy(update={"stale": versions.stale}))


def compare_request(
    request: ImportRequest, *, limits: Limits, native: bool = True, progress: Progress | None = None
) -> tuple[Judgement, Imported]:
    """Judge recorded files without leaving a run; says also what was read. Raises: DumpError.

    native: also compute what the dashboards of frameworks show, which no verdict needs.
    """
    if request.other is None:
        return compare_recorded(
            request.recording,
            limits=limits,
            protocol=request.protocol,
            speller=speller_of(request.tokenizer),
            native=native,
            progress=progress,
        )
    with tempfile.TemporaryDirectory(prefix="onepolicy-") as folder:
        run = import_recorded(Path(folder) / "run", request, progress=progress)
        judgement = judge_readings(run, JudgeRequest(limits=limits), progress=progress or Silent())
    assert run.manifest.imported is not None, "it was just written"
    return judgement.model_copy(update={"run": ""}), run.manifest.imported


def _manifest(request: ImportRequest) -> Manifest:
    recording = request.recording
    names = [(file.name, file.size) for file in recording.files]
    return Manifest(
        tool_version=VERSION,
        status="recording",
        kind="fresh",
        suite=recording.format.name,
        suite_hash=hashlib.sha256(json.dumps(names).encode()).hexdigest()[:16],
        protocol=request.protocol,
        rollout_engine=f"recorded:{recording.format.name}",
        planned_rollouts=0,
        keeps_text=True,
        imported=Imported(format=recording.format.name, files=(), file_count=0, read=0, used=0, refused=0),
    )


def _write(run: Run, request: ImportRequest, block: RecordedBlock, tokenizer: str) -> set[str]:
    """Add a block to the run; returns the readings that it has."""
    digests = block_digests(block)
    readings = {}
    for name, side, meaning in zip(
        (ROLLOUT, TRAINER), (block.rollout, block.trainer), meanings(request.recording, request.protocol), strict=True
    ):
        if side is not None:
            run.start_reading(_reading_info(name, request.recording, meaning, tokenizer))
            readings[name] = reading_block_table(side, digests)
    rollouts = rollout_block_table(with_steps(block), block.rewards)
    run.write_tables(rollouts, span_table(list(_spans(block, request.protocol))), readings)
    return set(readings)


def _reading_info(name: str, recording: Recording, meaning: Meaning, tokenizer: str) -> ReadingInfo:
    known = recording.format
    path: Literal["decode", "prefill"] = "decode" if name == ROLLOUT else "prefill"
    return ReadingInfo(
        name=name,
        request=ReadingRequest(engine=f"recorded:{known.name}", path=path, meaning=meaning),
        engine=EngineInfo(
            name=known.name, version="", model="", dtype=known.dtype or "float32", tokenizer_hash=tokenizer
        ),
        condition=Condition(path=path),
        meaning=meaning,
        environment={},
    )


def with_steps(block: RecordedBlock) -> RolloutBlock:
    """The rollouts with the training step as a tag, where the file says it."""
    rollouts = block.rollouts
    if (block.steps == NO_STEP).all():
        return rollouts
    tags = [
        text if step == NO_STEP else json.dumps({**json.loads(text), STEP: str(step)}, ensure_ascii=False)
        for text, step in zip(rollouts.tags, block.steps.tolist(), strict=True)
    ]
    return RolloutBlock(
        rollout_ids=rollouts.rollout_ids,
        prompt_ids=rollouts.prompt_ids,
        tags=tags,
        offsets=rollouts.offsets,
        token_ids=rollouts.token_ids,
        sampled=rollouts.sampled,
        loss_mask=rollouts.loss_mask,
    )


def _spans(block: RecordedBlock, protocol: SamplingProtocol) -> Iterator[Span]:
    """One for each rollout with a sampled token, from the first of them to the last."""
    rows = zip(
        block.rollouts.rollout_ids, pairwise(block.rollouts.offsets.tolist()), block.weight_versions, strict=True
    )
    for rollout_id, (start, end), version in rows:
        sampled = np.flatnonzero(block.rollouts.sampled[start:end])
        if len(sampled):
            first, last = int(sampled[0]), int(sampled[-1]) + 1
            yield Span(
                rollout_id=rollout_id, start=first, end=last, weight_version=version, protocol_hash=protocol.hash
            )


def _refuse_without_ids(request: ImportRequest, recording: Recording, block: RecordedBlock) -> None:
    if (block.rollouts.token_ids == NO_ID).any():
        instead = (
            "Judge the files as they are: onepolicy compare"
            if request.other is None
            else "Two files are put together by their token ids: record these, or write both columns into one file."
        )
        raise DumpError(
            f"{recording.name}: holds logprobs without token ids, and a run is made of token ids. {instead}"
        )


def _findings(audit: Measurement) -> list[str]:
    """What the alignment audit found: a shift of positions, a mask that slipped."""
    found = [check(audit, Limits()) for check in (alignment, mask_ends)] if audit.rollouts else []
    odd = [verdict for verdict in found if verdict.status is Status.FAIL or verdict.quantity == CERTAIN_END]
    return [f"{verdict.check}: {verdict.message}" for verdict in odd]


def speller_of(target: str | None) -> Speller:
    """Spells ids with a tokenizer, or by number if there is none. Raises: TokenizerError."""
    if target is None:
        return Speller(None)
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        file.write(_pipeline(target))
        file.flush()
        return Speller(Path(file.name))


def _kept_tokenizer(run: Run, target: str) -> str:
    return run.add_tokenizer(_pipeline(target))


def _pipeline(target: str) -> bytes:
    return json.dumps(open_tokenizer(target).pipeline, ensure_ascii=False).encode()


def _add_other(
    run: Run, request: ImportRequest, sides: set[str], found: Versions, tokenizer: str, progress: Progress
) -> list[str]:
    """Add the second files' logprobs as the trainer's side. Raises: DumpError if that is there already."""
    assert request.other is not None, "called for two recordings"
    other, missing = request.other, _missing_side(request, sides)
    waiting, tally, started = Waiting.of(run), Tally(), False
    for block in blocks_of(other, tally, progress):
        _refuse_without_ids(request, other, block)
        refuse_other_sampling(other, block, request.protocol)
        side = the_side(other, block, missing)
        if not started:
            run.start_reading(_reading_info(missing, other, meanings(other, request.protocol)[0], tokenizer))
            started = True
        kept, names = waiting.taken(block)
        found.add_scored(names, [scored_by(block, row) for row in kept])
        if kept:
            run.write_reading_table(missing, rows_of(side, block, kept, names))
    if tally.refused:
        raise DumpError(f"{other.name}: {tally.refused} of {tally.read} rows were refused: {tally.refusals[0]}")
    if waiting.unmatched == tally.used:
        raise DumpError(
            f"{other.name}: none of its {tally.used} rollouts has the token ids (and step) of one in "
            f"{request.recording.name}. Both must record the same rollouts, prompt and completion."
        )
    return [*other.format.notes, *said_of(other, request.recording, tally, waiting)]


def _missing_side(request: ImportRequest, sides: set[str]) -> str:
    if sides == {ROLLOUT, TRAINER}:
        raise DumpError(f"{request.recording.name}: holds both sides already; a second file has nothing to add.")
    return TRAINER if ROLLOUT in sides else ROLLOUT
