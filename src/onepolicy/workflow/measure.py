"""Two readings of a run -> what the checks need to know, streamed in flat memory."""

from __future__ import annotations

import sys
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import closing

import numpy as np

from onepolicy.dumps.ahead import ahead
from onepolicy.errors import RunError
from onepolicy.numerics.buckets import Buckets, TokenClasses
from onepolicy.numerics.hybrid import PairedTop, pair_top
from onepolicy.numerics.measurement import Measurement
from onepolicy.numerics.pair import pair_up
from onepolicy.records.join import ReadingJoin, TopJoin, digests_of
from onepolicy.records.parquet import ReadingBlock, RolloutBlock
from onepolicy.records.rollout import Rollout
from onepolicy.records.run import Run
from onepolicy.tokens.classes import CLASSES, classes_in
from onepolicy.tokens.round_trip import RoundTrip, TokenMeasurement, measure_round_trip
from onepolicy.tokens.sides import Reader
from onepolicy.tokens.special_tokens import SpecialTokens
from onepolicy.tokens.trajectory import History
from onepolicy.workflow.progress import Progress
from onepolicy.workflow.record import ROLLOUT
from onepolicy.workflow.trajectories import trajectories_of
from onepolicy.workflow.versions import VersionsByStep

MONITOR = "monitor"
"""the suite that a monitor's run names"""
MOST_ROUND_TRIP_TOKENS = 1_000_000
"""in a larger run the token checks look at a fixed random share of rollouts of about this many tokens"""


def measure(
    rollout_run: Run,
    trainer_run: Run,
    rollout: str,
    trainer: str,
    *,
    progress: Progress,
    title: str = "comparing",
) -> Measurement:
    """Stream two readings over the rollouts of the first run. Raises: RunError, ForeignReadingError."""
    p_join, q_join = ReadingJoin(rollout_run, rollout), ReadingJoin(trainer_run, trainer)
    p_top, q_top = TopJoin(rollout_run, rollout), TopJoin(trainer_run, trainer)
    p_meaning, own_lists = p_join.info.meaning, q_join.info.request.report_ids_of is None
    measured = Measurement(
        rollout_meaning=p_meaning,
        trainer_meaning=q_join.info.meaning,
        is_kl=_is_kl(rollout_run, rollout, p_join),
        buckets=Buckets(
            classes=_token_classes((rollout_run, p_join), (trainer_run, q_join)),
            version_of=_weight_versions(rollout_run),
        ),
    )
    seen: set[str] = set()
    by_step = VersionsByStep()
    progress.start(title, rollout_run.manifest.planned_rollouts)

    def sides() -> Iterator[tuple[RolloutBlock, list[str], ReadingBlock, ReadingBlock, dict[str, PairedTop]]]:
        for block in rollout_run.rollout_blocks():
            _check_new(rollout_run, block, seen)
            digests = digests_of(block)
            p, q = p_join.take(block, digests), q_join.take(block, digests)
            yield block, digests, p, q, _paired(block, p_top, q_top, own=own_lists)

    with closing(ahead(sides())) as blocks:
        for block, digests, p, q, top in blocks:
            measured.add(pair_up(block, digests, p, q), top)
            by_step.add(block, measured.buckets.version_of)
            progress.advance(len(block.rollout_ids))
    p_join.finish()
    q_join.finish()
    if by_step.one_each and _is_of_a_training(rollout_run):
        measured.buckets.versions.clear()
    return measured


def _is_of_a_training(run: Run) -> bool:
    """Whether the tag `step` of its rollouts is a training's, and no word of a suite's author."""
    return run.manifest.imported is not None or run.manifest.suite == MONITOR


def _token_classes(*sides: tuple[Run, ReadingJoin]) -> TokenClasses:
    """From the tokenizer of the first side that has one."""
    for run, join in sides:
        name = join.info.engine.tokenizer_hash
        if name:
            return TokenClasses(names=CLASSES, of_id=classes_in(run.tokenizer_file(name)))
    return TokenClasses()


def _weight_versions(run: Run) -> dict[str, str]:
    """Rollout id -> the weight version that sampled it, or the several in turn; empty if the engine names none."""
    found: dict[str, str] = {}
    for span in run.spans():
        if span.weight_version:
            before = found.get(span.rollout_id, span.weight_version)
            changed = before.rpartition(" to ")[2] != span.weight_version
            found[span.rollout_id] = f"{before} to {span.weight_version}" if changed else sys.intern(before)
    return found


def _is_kl(run: Run, name: str, join: ReadingJoin) -> bool:
    """Only the reading of the engine that sampled the tokens, under their own meaning, makes k3 a KL."""
    return run.manifest.kind == "fresh" and name == ROLLOUT and join.info.meaning.is_sampled_from(run.manifest.protocol)


def _check_new(run: Run, block: RolloutBlock, seen: set[str]) -> None:
    for rollout_id in block.rollout_ids:
        if rollout_id in seen:
            raise RunError(f"{run.path}: the rollout {rollout_id} stands twice in rollouts/. Remove one of the parts.")
        seen.add(rollout_id)


def _paired(block: RolloutBlock, rollout: TopJoin, trainer: TopJoin, *, own: bool) -> dict[str, PairedTop]:
    if not len(rollout) or not len(trainer):
        return {}
    pairs: dict[str, PairedTop] = {}
    for rollout_id, length in zip(block.rollout_ids, np.diff(block.offsets).tolist(), strict=True):
        p, q = rollout.get(rollout_id), trainer.get(rollout_id)
        if p is None or q is None:
            continue
        paired = pair_top(rollout_id, p, q, length=length, own=own)
        if paired is not None:
            pairs[rollout_id] = paired
    return pairs


def measure_tokens(run: Run, trainer_run: Run, trainer_reading: str, *, rollouts: int) -> TokenMeasurement:
    """Where sequences begin and end, and what becomes of the completions' text in the trainer side's tokenizer."""
    measured = TokenMeasurement(rollouts=rollouts)
    trainer = trainer_run.reading_info(trainer_reading).engine
    sampling, scoring = readers(run, (trainer_run, trainer.tokenizer_hash))
    known = scoring or sampling
    if known is not None:
        measured.special = SpecialTokens.of(known, raw_text=run.manifest.kind == "fixed")
    measured.history = _history(run, known)
    looked_at = (measured.special.seen(rollout) for rollout in _sampled_share(run)) if known else iter(())
    if run.manifest.keeps_text and scoring is not None:
        cap = run.manifest.protocol.max_new_tokens if run.manifest.kind == "fresh" else None
        measure_round_trip(looked_at, RoundTrip(sampling=sampling, scoring=scoring), measured, cap=cap)
        return measured
    deque(looked_at, maxlen=0)
    measured.why_unchecked = (
        f"the trainer side ({trainer.name}) has no tokenizer of its own"
        if run.manifest.keeps_text
        else "the run keeps no text (--no-text)"
    )
    return measured


def _history(run: Run, reader: Reader | None) -> History | None:
    """Of a fixed random share of the trajectories of a large run; None if none has several calls."""
    found = History()
    share = MOST_ROUND_TRIP_TOKENS / max(run.token_count(), 1)
    for trajectory in trajectories_of(run, lambda name: share >= 1 or _falls_in(name, share)):
        found.add(trajectory, reader, with_text=run.manifest.keeps_text)
    return found if found.trajectories or found.unchecked else None


def readers(run: Run, scoring: tuple[Run, str]) -> tuple[Reader | None, Reader | None]:
    """The tokenizers that a run keeps of the engine that sampled it, and of another reading by its hash.

    None where there is none; one and the same if both sides have the same.
    """
    other_run, other = scoring
    own = run.reading_info(ROLLOUT).engine.tokenizer_hash if ROLLOUT in run.reading_names() else ""
    sampling = _reader(run, own) if own else None
    if sampling is not None and other == own:
        return sampling, sampling
    return sampling, _reader(other_run, other) if other else None


def _reader(run: Run, name: str) -> Reader:
    from tokenizers import Tokenizer  # noqa: PLC0415 - only a run with a tokenizer needs it

    path = run.tokenizer_file(name)
    try:
        return Reader(Tokenizer.from_file(str(path)))
    except Exception as error:  # what the library raises for a file that it cannot read
        raise RunError(f"{path}: cannot be read as a tokenizer ({str(error)[:200]}). Score the run again.") from error


def _sampled_share(run: Run) -> Iterator[Rollout]:
    share = MOST_ROUND_TRIP_TOKENS / max(run.token_count(), 1)
    for rollout in run.rollouts():
        if share >= 1 or _falls_in(rollout.rollout_id, share):
            yield rollout


def _falls_in(name: str, share: float) -> bool:
    return zlib.crc32(name.encode()) < share * 2.0**32
