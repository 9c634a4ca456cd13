"""A run -> what its mismatch adds up to over a long rollout. Reads the run and nothing else: no torch, no network."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from onepolicy.errors import UsageError
from onepolicy.judgement.decide import decide, sentence
from onepolicy.judgement.limits import Limits
from onepolicy.numerics.checks.coverage import coverage
from onepolicy.numerics.checks.kept_set import kept_set
from onepolicy.numerics.checks.meaning import meaning
from onepolicy.numerics.checks.one_weight_version import one_weight_version
from onepolicy.numerics.checks.placeholder_zeros import placeholder_zeros
from onepolicy.numerics.checks.valid_logprobs import valid_logprobs
from onepolicy.numerics.horizon.measured import Measured, measured_horizon
from onepolicy.numerics.horizon.result import Horizon
from onepolicy.numerics.horizon.sums import Cohort, HorizonSums, measured_length
from onepolicy.numerics.horizon.verdicts import horizon_verdicts
from onepolicy.numerics.measurement import Measurement
from onepolicy.numerics.pair import Pair, compared_tokens, pair_up, per_rollout
from onepolicy.records.join import ReadingJoin, digests_of
from onepolicy.records.run import Run
from onepolicy.records.verdict import Status, Verdict
from onepolicy.sampling.checks.one_protocol import several_protocols
from onepolicy.tokens.checks import CHECKS as TOKEN_CHECKS
from onepolicy.tokens.checks.history import history
from onepolicy.workflow.judge import recorded_verdicts
from onepolicy.workflow.measure import measure, measure_tokens
from onepolicy.workflow.progress import Progress, Silent
from onepolicy.workflow.record import ROLLOUT
from onepolicy.workflow.score import TRAINER
from onepolicy.workflow.whole import recording_verdicts, scoring_verdicts, stale_verdicts

_NUMERIC = (meaning, valid_logprobs, placeholder_zeros, coverage)
"""what must hold before d is a difference of logprobs of the same thing"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HorizonRequest:
    """Which readings, and how far to look."""

    tokens: int | None = None
    """the horizon; None: the measured length, so that nothing is extrapolated"""
    band: tuple[float, float] = (0.5, 2.0)
    """of the sequence ratio"""
    most_outside: float | None = None
    """limit of the share of sequence ratios outside the band; None: the share is shown and decides nothing"""
    rollout: str = ROLLOUT
    trainer: str = TRAINER


def horizon(path: Path, request: HorizonRequest | None = None, *, progress: Progress | None = None) -> Horizon:
    """Drift, persistent bias, error by position and the sequence ratio at a horizon, of two readings of a run.

    Nothing is written. Raises: RunError if a reading is absent or damaged; ForeignReadingError if one scored other ids
    than the run's; UsageError for a horizon, a band or a limit that is none.
    """
    request = request or HorizonRequest()
    refuse_odd(request)
    run, shown = Run.open(path), progress or Silent()
    measured = measure(run, run, request.rollout, request.trainer, progress=shown)
    before = [v for v in _before(run, request, measured) if v.required and v.status is not Status.PASS]
    found = measured_horizon(
        _sums(run, request, shown),
        tokens=request.tokens,
        band=request.band,
        is_kl=measured.is_kl and measured.same_meaning,
    )
    verdicts = horizon_verdicts(found, most_outside=request.most_outside)
    if before:
        verdicts = [_without_meaning(verdict, before[0]) for verdict in verdicts]
    return _concluded(run, request, found, [*before, *verdicts])


def refuse_odd(request: HorizonRequest) -> None:
    """Raises: UsageError."""
    low, high = request.band
    if request.tokens is not None and request.tokens < 1:
        raise UsageError(f"--tokens {request.tokens}: a horizon has at least one token.")
    if not (0 < low < 1 < high and math.isfinite(high)):
        raise UsageError(f"--band {low:g} {high:g}: a band of ratios goes from below 1 (above 0) to above 1.")
    if request.most_outside is not None and not 0 <= request.most_outside <= 1:
        raise UsageError(f"--most-outside {request.most_outside:g}: a share lies between 0 and 1.")
    if request.rollout == request.trainer:
        raise UsageError(f"the reading {request.rollout!r} would be compared with itself. Name two readings.")


def _before(run: Run, request: HorizonRequest, measured: Measurement) -> list[Verdict]:
    """Whether the run is whole, and of one policy and of the same tokens on both sides."""
    tokens = measure_tokens(run, run, request.trainer, rollouts=measured.rollouts)
    recorded = recorded_verdicts(measured, Limits()) if run.manifest.imported is not None else []
    return [
        *recording_verdicts(run, measured),
        *scoring_verdicts(run, request.rollout),
        *scoring_verdicts(run, request.trainer),
        *recorded,
        *(check(tokens) for check in TOKEN_CHECKS),
        *history(tokens),
        *stale_verdicts(run),
        *several_protocols(run.spans(), of_run=run.manifest.protocol.hash),
        *one_weight_version(measured),
        *(check(measured, Limits()) for check in _NUMERIC),
        *kept_set(measured, Limits()),
    ]


def _sums(run: Run, request: HorizonRequest, progress: Progress) -> HorizonSums:
    """Two passes: the lengths say who is in the cohort."""
    sums = HorizonSums(cohort=Cohort(length=measured_length(_lengths(run)), band=request.band))
    progress.start("adding up", run.manifest.planned_rollouts)
    for pair in _pairs(run, request):
        sums.add(pair)
        progress.advance(len(pair.digests))
    return sums


def _lengths(run: Run) -> Iterator[tuple[str, int]]:
    for block in run.rollout_blocks():
        yield from zip(block.prompt_ids, per_rollout(compared_tokens(block), block.offsets).tolist(), strict=True)


def _pairs(run: Run, request: HorizonRequest) -> Iterator[Pair]:
    rollout, trainer = ReadingJoin(run, request.rollout), ReadingJoin(run, request.trainer)
    for block in run.rollout_blocks():
        digests = digests_of(block)
        yield pair_up(block, digests, rollout.take(block, digests), trainer.take(block, digests))


def _without_meaning(verdict: Verdict, first: Verdict) -> Verdict:
    nothing = {"status": Status.UNKNOWN, "value": None, "low": None, "high": None}
    return verdict.model_copy(update={**nothing, "message": f"not decided: {first.check} is {first.status.value}."})


def _concluded(run: Run, request: HorizonRequest, found: Measured, verdicts: list[Verdict]) -> Horizon:
    said = {name: value for name, value in asdict(found).items() if name not in ("groups", "length", "counts")}
    return Horizon.model_validate(
        {
            **said,
            "run": str(run.path),
            "rollout_reading": request.rollout,
            "trainer_reading": request.trainer,
            "status": decide(verdicts),
            "sentence": _sentence(verdicts),
            "verdicts": tuple(verdicts),
            "counts": found.counts,
            "measured_tokens": found.length,
        }
    )


def _sentence(verdicts: list[Verdict]) -> str:
    if decide(verdicts) is not Status.PASS:
        return sentence(verdicts)
    ratio = next(v.message for v in verdicts if v.check == "sequence_ratio")
    return f"Pass: nothing adds up beyond the KL; {ratio}"
