"""Suite and sampler -> rollouts, spans and the rollout reading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from onepolicy.engines.contract import Completion, SampleInput, Sampler, Wanted
from onepolicy.engines.spec import EngineSpec
from onepolicy.errors import EngineError, RunError, UsageError
from onepolicy.integrations import open_sampler
from onepolicy.records.manifest import Manifest
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.reading import ReadingInfo, ReadingRequest
from onepolicy.records.rollout import Rollout
from onepolicy.records.run import Run
from onepolicy.suites import FixedSequence, Suite, load_suite
from onepolicy.version import VERSION
from onepolicy.workflow.answers import sampled
from onepolicy.workflow.completion_rows import check_answers, rollout_of, row_of, span_of
from onepolicy.workflow.environment import engine_info, environment
from onepolicy.workflow.obeyed import cut_prompt, refuse_unobeyed
from onepolicy.workflow.plan import PlannedRollout, Shard, batches, plan_samples, within_budget
from onepolicy.workflow.progress import Progress, Silent
from onepolicy.workflow.same_model import SameModel, canary_of

ROLLOUT = "rollout"
"""name of the rollout side's reading"""
_MOST_TOP_TOKENS = 200_000
"""top lists are kept for a share of prompts that comes to about this many tokens"""
_FIXED_PART = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRequest:
    """What to record."""

    engine: EngineSpec
    suite: str = "quick"
    protocol: SamplingProtocol = SamplingProtocol()
    budget: int | None = None
    """completion tokens at most"""
    top: int = 20
    """most likely tokens to keep at each position"""
    statistics: bool = False
    keep_text: bool = True
    shard: Shard = Shard()
    extend: bool = False
    """add to the complete run that is there what it lacks of this suite and budget"""


def record(path: Path, request: RecordRequest, *, resume: bool = False, progress: Progress | None = None) -> Run:
    """Sample a suite's prompts, or encode its fixed sequences, into a run directory.

    With `resume` or `request.extend`, what the run already has is left as it is, byte for byte.
    Raises: EngineError, RunError, UsageError.
    """
    suite = load_suite(request.suite)
    sampler = open_sampler(request.engine)
    try:
        return record_with(sampler, path, request, suite, resume=resume, progress=progress or Silent())
    finally:
        sampler.close()


def record_with(
    sampler: Sampler, path: Path, request: RecordRequest, suite: Suite, *, resume: bool, progress: Progress
) -> Run:
    """The same with a suite and a sampler that are at hand."""
    if suite.is_fixed:
        return _record_fixed(sampler, path, request, suite, resume=resume, progress=progress)
    refuse_unobeyed(sampler, request.engine, request.protocol)
    run, plan = _opened(path, request, suite, resume=resume)
    with run.writing("rollouts", shard=str(request.shard)):
        run.start_reading(_rollout_reading(run, sampler, request, plan))
        done = set(run.rollout_ids())
        mine = {p.rollout_id: p for batch in batches(plan, sampler.batch_size, request.shard) for p in batch}
        # what is done are whole batches, so the batches of what is left are those of an undisturbed run
        left = [planned for rollout_id, planned in mine.items() if rollout_id not in done]
        progress.start("sampling", len(mine))
        progress.advance(len(mine) - len(left))
        info = run.reading_info(ROLLOUT)
        reading, same = info.request, SameModel(sampler, info.canary, of_versions=True)
        wanted = Wanted(meaning=reading.meaning, statistics=request.statistics, top=request.top)
        inputs = (_input(sampler, planned, reading, request.protocol) for planned in left)
        for asked, completions in sampled(sampler, inputs, request.protocol, wanted, same):
            check_answers(request.engine, asked, completions)
            _write(run, [mine[item.rollout_id] for item in asked], asked, completions, request)
            progress.advance(len(asked))
    return _completed(run)


def _opened(path: Path, request: RecordRequest, suite: Suite, *, resume: bool) -> tuple[Run, Sequence[PlannedRollout]]:
    """The run, and what it is to get; an extension that was begun is gone on with by `extend` and by `resume` alike."""
    there = Run.open(path) if request.extend or (resume and (path / "manifest.json").exists()) else None
    if request.extend and there is not None and there.manifest.status == "complete":
        return _extended(there, request, suite)
    before = set(there.manifest.there_before) if there is not None else set()
    plan = plan_samples(suite, request.protocol, budget=request.budget, recorded=before)
    manifest = _manifest(request, suite, planned=len(before) + len(plan))
    return Run.create(path, manifest, resume=resume or request.extend), plan


def _extended(there: Run, request: RecordRequest, suite: Suite) -> tuple[Run, Sequence[PlannedRollout]]:
    with there.writing("extension"):
        before = there.rollout_ids()
        known = {there.manifest.suite_hash, *there.manifest.earlier_suites.values()}
        if suite.hash not in known:
            _refuse_known_ids(there, suite, before)
        plan = plan_samples(suite, request.protocol, budget=request.budget, recorded=set(before))
        manifest = _manifest(request, suite, planned=len(before) + len(plan))
        run = Run.extend(there.path, manifest.model_copy(update={"there_before": tuple(sorted(before))}))
    return run, plan


def _refuse_known_ids(there: Run, suite: Suite, before: Sequence[str]) -> None:
    """A prompt of another suite under an id that was used would pass for one that is there already."""
    used = {rollout_id.rpartition("/")[0] for rollout_id in before}
    twice = next((prompt.id for prompt in suite.prompts if prompt.id in used), None)
    if twice is not None:
        raise RunError(
            f"{there.path}: the run has a prompt {twice!r} of {there.manifest.suite}, and {suite.name} has another one "
            "under this id. Give the prompts ids of their own, or record another run."
        )


def _manifest(request: RecordRequest, suite: Suite, *, planned: int) -> Manifest:
    return Manifest(
        tool_version=VERSION,
        status="recording",
        kind="fixed" if suite.is_fixed else "fresh",
        suite=suite.name,
        suite_hash=suite.hash,
        protocol=request.protocol,
        rollout_engine=str(request.engine),
        planned_rollouts=planned,
        keeps_text=request.keep_text,
    )


def _rollout_reading(run: Run, sampler: Sampler, request: RecordRequest, plan: Sequence[PlannedRollout]) -> ReadingInfo:
    tokens = run.manifest.planned_rollouts * request.protocol.max_new_tokens
    meaning = sampler.sampled_meaning(request.protocol)
    return ReadingInfo(
        name=ROLLOUT,
        request=ReadingRequest(
            engine=str(request.engine),
            path="decode",
            meaning=meaning,
            statistics=request.statistics,
            top=request.top,
            top_share=_top_share(run, request, tokens),
        ),
        engine=engine_info(run, sampler),
        condition=sampler.condition(path="decode"),
        meaning=meaning,
        environment=environment(),
        canary=canary_of(sampler, sampler.encode_chat(plan[0].messages) if plan else None),
    )


def _top_share(run: Run, request: RecordRequest, tokens: int) -> float:
    """Of the run as it was planned at first: a prompt that belongs to the share stays in it."""
    if request.extend and ROLLOUT in run.reading_names():
        return run.reading_info(ROLLOUT).request.top_share
    return min(1.0, _MOST_TOP_TOKENS / max(tokens, 1))


def _completed(run: Run) -> Run:
    if len(run.rollout_ids()) == run.manifest.planned_rollouts:
        run.complete()
    return run


# -- fresh rollouts ---------------------------------------------------------------------------------------------


def _input(
    sampler: Sampler, planned: PlannedRollout, reading: ReadingRequest, protocol: SamplingProtocol
) -> SampleInput:
    whole = sampler.encode_chat(planned.messages)
    return SampleInput(
        rollout_id=planned.rollout_id,
        prompt_ids=cut_prompt(whole, protocol, rollout_id=planned.rollout_id),
        seed=planned.seed,
        keep_top=reading.keeps_top(planned.prompt_id),
    )


def _write(
    run: Run,
    planned: Sequence[PlannedRollout],
    asked: Sequence[SampleInput],
    completions: Sequence[Completion],
    request: RecordRequest,
) -> None:
    """The rollouts last: one that is there is whole."""
    rollouts = [rollout_of(*row, keep_text=request.keep_text) for row in zip(planned, asked, completions, strict=True)]
    rows = [row_of(*row) for row in zip(rollouts, asked, completions, strict=True)]
    run.write_reading(ROLLOUT, rows)
    run.write_rollouts(rollouts, [span_of(*row, request.protocol) for row in zip(asked, completions, strict=True)])


# -- fixed sequences --------------------------------------------------------------------------------------------


def _record_fixed(
    sampler: Sampler, path: Path, request: RecordRequest, suite: Suite, *, resume: bool, progress: Progress
) -> Run:
    if request.extend:
        raise UsageError("a suite of fixed sequences is no sample that could grow. Record it as another run.")
    rollouts = [_fixed_rollout(sampler, sequence, request) for sequence in suite.sequences]
    rollouts = rollouts[: within_budget([int(r.loss_mask.sum()) for r in rollouts], request.budget)]
    run = Run.create(path, _manifest(request, suite, planned=len(rollouts)), resume=resume)
    with run.writing("rollouts", shard=str(request.shard)):
        done = set(run.rollout_ids())
        progress.start("encoding", len(rollouts))
        for batch in batches(rollouts, _FIXED_PART, request.shard):
            if not all(rollout.rollout_id in done for rollout in batch):
                run.write_rollouts(batch, [])
            progress.advance(len(batch))
    return _completed(run)


def _fixed_rollout(sampler: Sampler, sequence: FixedSequence, request: RecordRequest) -> Rollout:
    prompt = sampler.encode(sequence.prompt, add_special_tokens=True)
    completion = sampler.encode(sequence.completion, add_special_tokens=False)
    ids = np.concatenate([prompt, completion]).astype(np.int32)
    if not len(completion) or not len(prompt):
        raise EngineError(f"fixed sequence {sequence.id}: the tokenizer makes no token of its prompt or completion.")
    return Rollout(
        rollout_id=sequence.id,
        prompt_id=sequence.id,
        trajectory_id=sequence.id,
        token_ids=ids,
        sampled=np.zeros(len(ids), dtype=np.bool_),
        loss_mask=np.arange(len(ids)) >= len(prompt),
        text=sampler.decode(completion) if request.keep_text else None,
        tags=dict(sequence.tags),
    )
