"""Two readings of a run -> what the checks need to know, streamed in flat memory."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np

from onepolicy.errors import RunError
from onepolicy.numerics.buckets import Buckets, TokenClasses
from onepolicy.numerics.hybrid import PairedTop, pair_top
from onepolicy.numerics.measurement import Measurement
from onepolicy.numerics.pair import pair_up
from onepolicy.records.join import ReadingJoin, TopJoin, digests_of
from onepolicy.records.parquet import RolloutBlock
from onepolicy.records.rollout import Rollout
from onepolicy.records.run import Run
from onepolicy.tokens.classes import CLASSES, classes_in
from onepolicy.tokens.round_trip import TokenMeasurement, measure_round_trip
from onepolicy.workflow.progress import Progress
from onepolicy.workflow.record import ROLLOUT

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
    p_meaning = p_join.info.meaning
    measured = Measurement(
        rollout_meaning=p_meaning,
        trainer_meaning=q_join.info.meaning,
        is_kl=_is_kl(rollout_run, rollout, p_join),
        buckets=Buckets(classes=_token_classes((rollout_run, p_join), (trainer_run, q_join))),
    )
    seen: set[str] = set()
    progress.start(title, rollout_run.manifest.planned_rollouts)
    for block in rollout_run.rollout_blocks():
        _check_new(rollout_run, block, seen)
        digests = digests_of(block)
        p, q = p_join.take(block, digests), q_join.take(block, digests)
        measured.add(pair_up(block, digests, p, q), _paired(block, p_top, q_top))
        progress.advance(len(block.rollout_ids))
    p_join.finish()
    q_join.finish()
    return measured


def _token_classes(*sides: tuple[Run, ReadingJoin]) -> TokenClasses:
    """From the tokenizer of the first side that has one."""
    for run, join in sides:
        name = join.info.engine.tokenizer_hash
        if name:
            return TokenClasses(names=CLASSES, of_id=classes_in(run.tokenizer_file(name)))
    return TokenClasses()


def _is_kl(run: Run, name: str, join: ReadingJoin) -> bool:
    """Only the reading of the engine that sampled the tokens, under their own meaning, makes k3 a KL."""
    return run.manifest.kind == "fresh" and name == ROLLOUT and join.info.meaning.is_sampled_from(run.manifest.protocol)


def _check_new(run: Run, block: RolloutBlock, seen: set[str]) -> None:
    for rollout_id in block.rollout_ids:
        if rollout_id in seen:
            raise RunError(f"{run.path}: the rollout {rollout_id} stands twice in rollouts/. Remove one of the parts.")
        seen.add(rollout_id)


def _paired(block: RolloutBlock, rollout: TopJoin, trainer: TopJoin) -> dict[str, PairedTop]:
    if not len(rollout) or not len(trainer):
        return {}
    pairs: dict[str, PairedTop] = {}
    for rollout_id, length in zip(block.rollout_ids, np.diff(block.offsets).tolist(), strict=True):
        p, q = rollout.get(rollout_id), trainer.get(rollout_id)
        paired = pair_top(rollout_id, p, q, length=length) if p is not None and q is not None else None
        if paired is not None:
            pairs[rollout_id] = paired
    return pairs


def measure_tokens(run: Run, trainer_run: Run, trainer_reading: str, *, rollouts: int) -> TokenMeasurement:
    """Send the completions' text through the trainer side's tokenizer, where there are both."""
    measured = TokenMeasurement(rollouts=rollouts)
    trainer = trainer_run.reading_info(trainer_reading).engine
    if not run.manifest.keeps_text:
        measured.why_unchecked = "the run keeps no text (--no-text)"
    elif not trainer.tokenizer_hash:
        measured.why_unchecked = f"the trainer side ({trainer.name}) has no tokenizer of its own"
    else:
        from tokenizers import Tokenizer  # noqa: PLC0415 - only a run with a tokenizer needs it

        path = trainer_run.tokenizer_file(trainer.tokenizer_hash)
        measure_round_trip(_sampled_share(run), Tokenizer.from_file(str(path)), measured)
    return measured


def _sampled_share(run: Run) -> Iterator[Rollout]:
    share = MOST_ROUND_TRIP_TOKENS / max(run.token_count(), 1)
    for rollout in run.rollouts():
        if share >= 1 or zlib.crc32(rollout.rollout_id.encode()) < share * 2.0**32:
            yield rollout
