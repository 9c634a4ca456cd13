"""How many of the tokens could be compared at all."""

from __future__ import annotations

from onepolicy.judgement.limits import Limits
from onepolicy.numerics.measurement import Measurement
from onepolicy.records.verdict import Evidence, Status, Verdict


def coverage(measured: Measurement, limits: Limits) -> Verdict:
    """Unknown if nothing was compared, or too few of all tokens, or of one rollout's, have a logprob on both sides.

    A token that truncation excludes has one, minus infinity; `kept_set` counts these.
    """
    if not measured.compared:
        return Verdict(
            check="coverage",
            status=Status.UNKNOWN,
            message=f"{measured.rollouts} rollouts hold no token to compare. Record rollouts with completions.",
        )
    share = (measured.valid + measured.excluded) / measured.compared
    enough = share >= limits.coverage and _worst_share(measured) >= limits.rollout_coverage
    return Verdict(
        check="coverage",
        status=Status.PASS if enough else Status.UNKNOWN,
        quantity="coverage",
        value=share,
        limit=limits.coverage,
        unit="share of tokens",
        message=_message(measured, share, limits),
        evidence=tuple(
            Evidence(
                rollout_id=gap.rollout_id,
                note=f"{gap.without} of {gap.compared} tokens without a value ({gap.side})",
            )
            for gap in measured.gaps
        ),
    )


def _worst_share(measured: Measurement) -> float:
    """The smallest share of a rollout's compared tokens that have a logprob on both sides."""
    return 1 - measured.gaps[0].without / measured.gaps[0].compared if measured.gaps else 1.0


def _message(measured: Measurement, share: float, limits: Limits) -> str:
    have = f"{measured.valid} of {measured.compared} tokens ({share:.1%}) have a logprob on both sides"
    if measured.excluded:
        have = f"{have}; {measured.excluded} more have none as truncation excludes them"
    if measured.empty_rollouts:
        have += f"; {measured.empty_rollouts} of {measured.rollouts} rollouts have no completion"
    if not measured.gaps:
        return f"{have}."
    worst = measured.gaps[0]
    named = f"rollout {worst.rollout_id} misses most ({worst.without} of {worst.compared}, {worst.side})"
    if share < limits.coverage:
        return (
            f"{have}, {limits.coverage:.0%} are needed; {named}. What is missing may differ from what is "
            "there; if the engine cannot give more, allow it with --coverage and --rollout-coverage."
        )
    if _worst_share(measured) < limits.rollout_coverage:
        return (
            f"{have}, but {named}; each rollout needs {limits.rollout_coverage:.0%}. Allow "
            "fewer with --rollout-coverage."
        )
    return f"{have}; {named}."
