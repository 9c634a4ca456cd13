"""A run -> verdicts. Reads the run and nothing else: no torch, no network."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from onepolicy.errors import RunError, UsageError
from onepolicy.judgement.decide import decide, sentence
from onepolicy.judgement.limits import Limits
from onepolicy.numerics.checks import CHECKS as NUMERIC_CHECKS
from onepolicy.numerics.evidence import KEPT, RolloutDetail
from onepolicy.numerics.hybrid import PairedTop, pair_top
from onepolicy.numerics.measurement import Measurement
from onepolicy.numerics.pair import pair_up
from onepolicy.numerics.precision import precision_alone
from onepolicy.numerics.table import reductions
from onepolicy.records.join import ReadingJoin, TopJoin, digests_of
from onepolicy.records.parquet import RolloutBlock
from onepolicy.records.reading import EngineInfo
from onepolicy.records.rollout import Rollout
from onepolicy.records.run import Run
from onepolicy.records.tokens import TokenState
from onepolicy.records.verdict import Evidence, Judgement, Status, Verdict, WorstRollout, WorstToken
from onepolicy.tokens.checks import CHECKS as TOKEN_CHECKS
from onepolicy.tokens.round_trip import TokenMeasurement, measure_round_trip
from onepolicy.tokens.spell import Speller
from onepolicy.workflow.progress import Progress, Silent
from onepolicy.workflow.record import ROLLOUT
from onepolicy.workflow.score import TRAINER

MOST_ROUND_TRIP_TOKENS = 1_000_000
"""in a larger run the token checks look at a fixed random share of rollouts of about this many tokens"""
_CONTEXT_BEFORE, _CONTEXT_AFTER = 16, 6


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRequest:
    """Which readings to compare, and against what."""

    rollout: str = ROLLOUT
    trainer: str = TRAINER
    limits: Limits = Limits()
    name: str = "default"
    """of the judgement inside the run"""


def judge(path: Path, request: JudgeRequest | None = None, *, progress: Progress | None = None) -> Judgement:
    """Compare two readings of a run, keep the judgement in the run, and return it.

    Raises: RunError if a reading is absent or damaged; ForeignReadingError if one scored other ids than the run's.
    """
    request = request or JudgeRequest()
    run = Run.open(path)
    judgement = judge_readings(run, request, progress=progress or Silent())
    run.write_judgement(request.name, judgement)
    return judgement


def judge_readings(run: Run, request: JudgeRequest, *, progress: Progress) -> Judgement:
    """The judgement, without keeping it. Raises: UsageError if a reading is to be compared with itself."""
    if request.rollout == request.trainer:
        raise UsageError(
            f"{run.path}: the reading {request.rollout!r} would be compared with itself, which always passes. Name two "
            f"of: {', '.join(run.reading_names())}."
        )
    measured = measure(run, run, request.rollout, request.trainer, progress=progress)
    tokens = _measure_tokens(run, request, measured.rollouts)
    token_verdicts = [check(tokens) for check in TOKEN_CHECKS]
    numeric = [check(measured, request.limits) for check in NUMERIC_CHECKS]
    whole = recording_verdicts(run, measured)
    whole += scoring_verdicts(run, request.rollout) + scoring_verdicts(run, request.trainer)
    if any(v.required and v.status is Status.FAIL for v in token_verdicts):
        numeric = [_without_meaning(verdict) for verdict in numeric]
    elif any(v.check == "mean_kl" and v.status is Status.FAIL for v in numeric):
        numeric = _explained(run, request, measured, numeric)
    return conclude(
        [*whole, *token_verdicts, *numeric],
        measured,
        run=str(run.path),
        readings=(request.rollout, request.trainer),
        worst=_worst_rollouts(run, request, measured),
    )


def conclude(
    verdicts: list[Verdict],
    measured: Measurement,
    *,
    run: str,
    readings: tuple[str, str],
    worst: tuple[WorstRollout, ...] = (),
) -> Judgement:
    """Verdicts and what was measured, as the one value that reports and exit status come from."""
    return Judgement(
        run=run,
        rollout_reading=readings[0],
        trainer_reading=readings[1],
        status=decide(verdicts),
        sentence=sentence(verdicts),
        verdicts=tuple(verdicts),
        metrics=reductions(measured),
        counts=_counts(measured),
        coverage_by_language={
            language: {"compared": compared, "absent": absent}
            for language, (compared, absent) in sorted(measured.languages.items())
        },
        worst_rollouts=worst,
    )


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
    for rollout_id in block.rollout_ids:
        p, q = rollout.get(rollout_id), trainer.get(rollout_id)
        paired = pair_top(rollout_id, p, q) if p is not None and q is not None else None
        if paired is not None:
            pairs[rollout_id] = paired
    return pairs


def recording_verdicts(run: Run, measured: Measurement) -> list[Verdict]:
    """Unknown if the run is not recorded to its end; nothing otherwise."""
    planned = run.manifest.planned_rollouts
    if run.manifest.status == "complete" and measured.rollouts == planned:
        return []
    return [
        Verdict(
            check="recording",
            status=Status.UNKNOWN,
            quantity="rollouts",
            value=measured.rollouts,
            limit=planned,
            unit="rollouts",
            message=(
                f"{measured.rollouts} of {planned} rollouts are recorded: what is missing may differ from what is "
                f"there. Go on with: onepolicy record ... --run {run.path} --resume"
            ),
        )
    ]


def scoring_verdicts(run: Run, name: str) -> list[Verdict]:
    """Unknown if a reading has no row for some rollout, whatever share of the tokens that is; nothing otherwise."""
    scored, recorded = run.reading_rollout_ids(name), run.rollout_ids()
    without = [rollout_id for rollout_id in recorded if rollout_id not in scored]
    if not without:
        return []
    return [
        Verdict(
            check="scoring",
            status=Status.UNKNOWN,
            quantity="rollouts",
            value=len(recorded) - len(without),
            limit=len(recorded),
            unit="rollouts",
            message=(
                f"reading {name!r} has {len(recorded) - len(without)} of {len(recorded)} rollouts; {without[0]} is the "
                "first that it lacks. Run the command that made the reading again with --resume."
            ),
            evidence=tuple(Evidence(rollout_id=i, note=f"no row in {name!r}") for i in without[:KEPT]),
        )
    ]


def _without_meaning(verdict: Verdict) -> Verdict:
    """A numeric verdict on ids that mean two things is unknown, not a number."""
    message = "the two sides do not read the same text from these ids, so their numbers say nothing about the policy."
    nothing = {
        "status": Status.UNKNOWN,
        "value": None,
        "low": None,
        "high": None,
        "evidence": (),
        "message": message,
    }
    return verdict.model_copy(update=nothing) if verdict.required else verdict


# -- precision --------------------------------------------------------------------------------------------------


def _explained(run: Run, request: JudgeRequest, measured: Measurement, verdicts: list[Verdict]) -> list[Verdict]:
    """Add whether precision alone accounts for the failure, if the trainer was also read in the rollout's precision."""
    other = _same_weights_in_rollout_precision(run, request)
    if other is None:
        return verdicts
    alone = measure(run, run, other, request.trainer, progress=Silent())
    precision = precision_alone(
        measured,
        alone,
        dtype=run.reading_info(request.trainer).engine.dtype,
        other_dtype=run.reading_info(other).engine.dtype,
    )
    explained = [
        v.model_copy(update={"message": f"{v.message} {precision.message.capitalize()}"}) if v.check == "mean_kl" else v
        for v in verdicts
    ]
    return [*explained, precision]


def _same_weights_in_rollout_precision(run: Run, request: JudgeRequest) -> str | None:
    rollout, trainer = (run.reading_info(name).engine for name in (request.rollout, request.trainer))
    if rollout.dtype == trainer.dtype:
        return None
    for name in run.reading_names():
        engine = run.reading_info(name).engine
        if name not in (request.rollout, request.trainer) and _is_trainer_in(engine, trainer, rollout.dtype):
            return name
    return None


def _is_trainer_in(engine: EngineInfo, trainer: EngineInfo, dtype: str) -> bool:
    same = (engine.name, engine.model, engine.weights_hash) == (
        trainer.name,
        trainer.model,
        trainer.weights_hash,
    )
    return same and engine.dtype == dtype


# -- tokens -----------------------------------------------------------------------------------------------------


def _measure_tokens(run: Run, request: JudgeRequest, rollouts: int) -> TokenMeasurement:
    measured = TokenMeasurement(rollouts=rollouts)
    trainer = run.reading_info(request.trainer).engine
    if not run.manifest.keeps_text:
        measured.why_unchecked = "the run keeps no text (--no-text)"
    elif not trainer.tokenizer_hash:
        measured.why_unchecked = f"the trainer side ({trainer.name}) has no tokenizer of its own"
    else:
        from tokenizers import Tokenizer  # noqa: PLC0415 - only a run with a tokenizer needs it

        path = run.tokenizer_file(trainer.tokenizer_hash)
        measure_round_trip(_sampled_share(run), Tokenizer.from_file(str(path)), measured)
    return measured


def _sampled_share(run: Run) -> Iterator[Rollout]:
    share = MOST_ROUND_TRIP_TOKENS / max(run.token_count(), 1)
    for rollout in run.rollouts():
        if share >= 1 or zlib.crc32(rollout.rollout_id.encode()) < share * 2.0**32:
            yield rollout


# -- what a person looks at ---------------------------------------------------------------------------------------


def _counts(measured: Measurement) -> dict[str, int]:
    counts = {
        "rollouts": measured.rollouts,
        "prompts": len(measured.clusters),
        "duplicates": measured.clusters.duplicates,
        "tokens_to_compare": measured.compared,
        "tokens_compared": measured.valid,
        "hybrid_tokens": measured.hybrid_tokens,
    }
    for side, states in (("rollout", measured.rollout_states), ("trainer", measured.trainer_states)):
        for state in TokenState:
            if state is not TokenState.VALUE and states[state]:
                counts[f"{side}_{state.name.lower()}"] = int(states[state])
    return counts


def _worst_rollouts(run: Run, request: JudgeRequest, measured: Measurement) -> tuple[WorstRollout, ...]:
    speller = Speller(_tokenizer_file(run, request) if run.manifest.keeps_text else None)
    return tuple(worst_rollout_text(detail, speller) for detail in measured.worst_by_token)


def worst_rollout_text(detail: RolloutDetail, speller: Speller) -> WorstRollout:
    """A bad rollout with its worst token in its text."""
    position = int(detail.positions[detail.worst])
    ids = detail.token_ids
    return WorstRollout(
        rollout_id=detail.rollout_id,
        prompt_id=detail.prompt_id,
        tokens=len(detail.positions),
        mean_abs_d=detail.mean_abs_d,
        sum_d=detail.sum_d,
        max_abs_d=detail.max_abs_d,
        before=speller.spell(ids[max(position - _CONTEXT_BEFORE, 0) : position]),
        worst=WorstToken(
            position=position,
            token_id=int(ids[position]),
            text=speller.spell(ids[position : position + 1]),
            rollout_logprob=float(detail.rollout_logprobs[detail.worst]),
            trainer_logprob=float(detail.trainer_logprobs[detail.worst]),
        ),
        after=speller.spell(ids[position + 1 : position + 1 + _CONTEXT_AFTER]),
    )


def _tokenizer_file(run: Run, request: JudgeRequest) -> Path | None:
    for name in (request.rollout, request.trainer):
        tokenizer = run.reading_info(name).engine.tokenizer_hash
        if tokenizer:
            return run.tokenizer_file(tokenizer)
    return None
