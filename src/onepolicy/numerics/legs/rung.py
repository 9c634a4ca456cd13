"""Two readings of the same tokens -> a rung."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onepolicy.judgement.decide import decide
from onepolicy.judgement.limits import Limits
from onepolicy.judgement.waive import ALWAYS_REQUIRED
from onepolicy.numerics.checks import CHECKS
from onepolicy.numerics.checks.kept_set import kept_set
from onepolicy.numerics.checks.metric_limits import metric_limits
from onepolicy.numerics.legs.ladder import Kind, Rung
from onepolicy.numerics.legs.signed_mean import signed_mean
from onepolicy.numerics.measurement import Measurement
from onepolicy.records.verdict import Status, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a rung is of, and what it is held against."""

    name: str
    what: str
    kind: Kind
    base: str
    reading: str
    limits: Limits
    limits_name: str = ""
    """of a preset that is not the ladder's"""
    one_noise: bool = True
    """whether both readings are of one engine in one precision, so that what differs is rounding"""
    proof: Verdict | None = None
    """of a leg about a cache: whether the one reading took from it and the other did not"""
    from_cache: float | None = None


def rung_of(measured: Measurement, held: Held) -> Rung:
    """The numbers of two readings of one engine, and the verdict under the limits.

    It is exact: about these tokens, with no interval. Without proof that a cache was used it is unknown.
    """
    measured.is_kl = False  # nobody sampled from either reading as it is held against the other
    verdicts = _verdicts(measured, held)
    status = decide(verdicts)
    known = bool(measured.valid)
    return Rung(
        name=held.name,
        what=held.what,
        kind=held.kind,
        base=held.base,
        reading=held.reading,
        prompts=len(measured.clusters),
        tokens=measured.valid,
        tokens_without=measured.compared - measured.valid,
        mean_d=measured.mean("d") if known else None,
        mean_abs_d=measured.mean("abs_d") if known else None,
        max_abs_d=measured.max_abs_d if known else None,
        mean_k3=measured.mean("k3") if known else None,
        bitwise_share=measured.totals.bitwise_equal / measured.valid if known else None,
        from_cache=held.from_cache,
        limits=held.limits_name,
        status=status,
        message=_message(verdicts, status, measured),
        verdicts=tuple(verdicts),
    )


def without_numbers(held: Held, why: str) -> Rung:
    """A leg whose reading could not be computed: unknown, and it says why."""
    return Rung(
        name=held.name,
        what=held.what,
        kind=held.kind,
        base=held.base,
        status=Status.UNKNOWN,
        message=f"it could not be read: {why}",
    )


def _verdicts(measured: Measurement, held: Held) -> list[Verdict]:
    found = [*(check(measured, held.limits) for check in CHECKS), *metric_limits(measured, held.limits)]
    found += kept_set(measured, held.limits)
    found.append(signed_mean(measured, held.limits, required=held.one_noise))
    informs = set(held.limits.informative) - set(ALWAYS_REQUIRED)
    found = [v.model_copy(update={"required": False}) if v.check in informs else v for v in found]
    return found if held.proof is None else [held.proof, *found]


def _message(verdicts: Sequence[Verdict], status: Status, measured: Measurement) -> str:
    """Of the first check that decided it; of a pass, the numbers."""
    if status is Status.PASS:
        return f"mean |d| {measured.mean('abs_d'):.2g}, largest {measured.max_abs_d:.2g} nats."
    named = [v for v in verdicts if v.required and v.status is status]
    return named[0].message if named else "nothing was compared."
