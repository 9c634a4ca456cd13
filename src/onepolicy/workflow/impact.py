"""A run -> what the mismatch of its two readings does to training on it. Reads the run and nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from onepolicy.errors import UsageError
from onepolicy.numerics.impact.advantages import Advantages, group_advantages
from onepolicy.numerics.impact.clip import ClipRange, clipping_of, updated_of
from onepolicy.numerics.impact.kish import LogWeights
from onepolicy.numerics.impact.sequences import sequences_of
from onepolicy.numerics.impact.sums import ImpactSums
from onepolicy.numerics.pair import Pair, effective_states, pair_up
from onepolicy.records.impact import Impact, Weights
from onepolicy.records.join import ReadingJoin, digests_of
from onepolicy.records.parquet import ROLLOUT_SCHEMA
from onepolicy.records.run import Run
from onepolicy.records.stored import open_parquet, read_row_group
from onepolicy.records.tokens import BoolArray, Float32, TokenState
from onepolicy.workflow.progress import Progress, Silent
from onepolicy.workflow.record import ROLLOUT
from onepolicy.workflow.score import TRAINER


@dataclass(frozen=True, slots=True, kw_only=True)
class ImpactRequest:
    """Which readings, and the clip range of the loss."""

    epsilon: float = 0.2
    epsilon_high: float | None = None
    """above 1; None: as below"""
    rollout: str = ROLLOUT
    trainer: str = TRAINER
    updated: str | None = None
    """a reading of the trainer after an update; without it, how many tokens are let through wrongly is not known"""


def impact(path: Path, request: ImpactRequest | None = None, *, progress: Progress | None = None) -> Impact:
    """Clipping, weights, KL term and replayed corrections of two readings of a run. Nothing is written.

    Raises: RunError if a reading is absent or damaged; ForeignReadingError if one scored other ids than the run's;
    UsageError for a clip range that is none, and if nothing can be compared.
    """
    request = request or ImpactRequest()
    clip = _clip_range(request)
    run = Run.open(path)
    sums = ImpactSums(advantages=_advantages(run), clip=clip)
    _add_up(run, request, sums, progress or Silent())
    return _concluded(run, request, sums)


def _clip_range(request: ImpactRequest) -> ClipRange:
    low, high = request.epsilon, request.epsilon if request.epsilon_high is None else request.epsilon_high
    if not (0 < low < 1 and 0 < high < math.inf):
        raise UsageError(f"--epsilon {low:g}, --epsilon-high {high:g}: below 1 it lies between 0 and 1, above from 0.")
    if len({request.rollout, request.trainer, request.updated}) < 3:
        raise UsageError("a reading would be compared with itself. Name different ones.")
    return ClipRange(low=low, high=high)


def _advantages(run: Run) -> Advantages:
    """Of GRPO's groups: the recorded group of a rollout, else the samples of its prompt."""
    rewards: list[float] = []
    groups: list[str] = []
    for path in sorted((run.path / "rollouts").glob("part-*.parquet")):
        with open_parquet(path, ROLLOUT_SCHEMA) as file:
            for i in range(file.num_row_groups):
                table = read_row_group(path, file, i, ["prompt_id", "group", "reward"])
                named = zip(table["group"].to_pylist(), table["prompt_id"].to_pylist(), strict=True)
                groups += [f"prompt {prompt}" if group is None else f"group {group}" for group, prompt in named]
                rewards += [math.nan if reward is None else reward for reward in table["reward"].to_pylist()]
    return group_advantages(np.array(rewards, dtype=np.float64), groups)


def _add_up(run: Run, request: ImpactRequest, sums: ImpactSums, progress: Progress) -> None:
    rollout, trainer = ReadingJoin(run, request.rollout), ReadingJoin(run, request.trainer)
    updated = None if request.updated is None else ReadingJoin(run, request.updated)
    progress.start("adding up", run.manifest.planned_rollouts)
    for pair, current in _pairs(run, rollout, trainer, updated):
        sums.add(pair, current)
        progress.advance(len(pair.digests))
    for join in (rollout, trainer, updated):
        if join is not None:
            join.finish()


def _pairs(
    run: Run, rollout: ReadingJoin, trainer: ReadingJoin, updated: ReadingJoin | None
) -> Iterator[tuple[Pair, tuple[Float32, BoolArray] | None]]:
    for block in run.rollout_blocks():
        digests = digests_of(block)
        pair = pair_up(block, digests, rollout.take(block, digests), trainer.take(block, digests))
        if updated is None:
            yield pair, None
            continue
        current = updated.take(block, digests)
        yield pair, (current.logprobs[pair.both], (effective_states(current) == TokenState.VALUE)[pair.both])


def _concluded(run: Run, request: ImpactRequest, sums: ImpactSums) -> Impact:
    groups, rewarded = sums.groups, sums.advantages.rewarded
    by_advantage = sums.tokens_by_advantage if rewarded else {}
    clipping = clipping_of(groups, sums.clip, rewarded=rewarded, tokens_by_advantage=by_advantage)
    sequences = sequences_of(groups, *sums.sequence_logs())
    if clipping is None or sequences is None:
        raise UsageError(f"{run.path}: no token has a logprob on both sides, so there is nothing to train on.")
    means = {name: groups.mean(column, per="tokens") for name, column in _MEANS.items()}
    return Impact(
        run=str(run.path),
        rollout_reading=request.rollout,
        trainer_reading=request.trainer,
        tokens=int(groups.total("tokens")),
        tokens_missing=sums.missing,
        rollouts=int(groups.total("rollouts")),
        prompts=len(groups),
        is_sampled=_is_sampled(run, request),
        correct=sums.replays[0].correct if rewarded else None,
        **{name: mean for name, mean in means.items() if mean is not None},
        token_weights=_weights(sums.token_weights),
        sequence_weights=_weights(sums.sequence_weights),
        clipping=clipping,
        updated=None if request.updated is None else updated_of(groups, request.updated, sums.updated_tokens),
        sequences=sequences,
        corrections=tuple(one for replay in sums.replays if (one := replay.result(groups, rewarded=rewarded))),
        notes=tuple(_notes(run, request, sums)),
    )


_MEANS = {"mean_ratio": "ratio", "kl_k1": "k1", "kl_k2": "k2", "kl_k3": "k3"}


def _weights(found: LogWeights) -> Weights:
    return Weights(count=found.count, effective_share=found.effective_share(), largest_share=found.largest_share())


def _is_sampled(run: Run, request: ImpactRequest) -> bool:
    meaning = run.reading_info(request.rollout).meaning
    return (
        run.manifest.kind == "fresh" and request.rollout == ROLLOUT and meaning.is_sampled_from(run.manifest.protocol)
    )


def _notes(run: Run, request: ImpactRequest, sums: ImpactSums) -> Iterator[str]:
    rollout, trainer = (run.reading_info(name).meaning for name in (request.rollout, request.trainer))
    if rollout != trainer:
        yield f"the rollout logprobs mean {rollout}, the trainer's {trainer}: their ratio holds that difference too"
    if not _is_sampled(run, request):
        yield "the tokens were not sampled from what the rollout logprobs are of: means are of these tokens alone"
    if sums.missing:
        yield f"{sums.missing:,} tokens lack a logprob on one side and are in no number here"
    if request.updated is None:
        yield "how many tokens an update's clip lets through wrongly is not known without --updated READING"
    if not sums.advantages.rewarded:
        yield "there are no rewards: both sides of the clip are of all tokens, and no correct rollout is counted"
    elif not sums.advantages.complete:
        yield "some groups lack a reward: they are on neither side of the clip"
