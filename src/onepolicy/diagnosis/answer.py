"""A diagnosis in one or two sentences."""

from __future__ import annotations

from collections.abc import Sequence

from onepolicy.diagnosis.cause import Situation
from onepolicy.diagnosis.decide import Excess
from onepolicy.records.finding import Finding, Outcome


def answer(findings: Sequence[Finding], excess: Excess, situation: Situation) -> str:
    """What is wrong and what to do, or what is known instead."""
    named = [one for one in findings if one.outcome in (Outcome.CAUSE, Outcome.ONE_OF, Outcome.PARTLY)]
    if not named:
        return _nothing(findings, excess, situation)
    first = named[0]
    if first.outcome is Outcome.CAUSE:
        return f"Cause: {first.label}{_numbers(first)}. Fix: {first.remedy}."
    if first.outcome is Outcome.ONE_OF:
        several = [one for one in named if one.outcome is Outcome.ONE_OF]
        labels = " or ".join(one.label for one in several)
        run = next((one.command for one in several if one.command), "")
        return f"{labels}: these cannot be told apart here.{f' Run: {run}' if run else ''}"
    return (
        f"Partly explained by {first.label}{_numbers(first)}; {first.residual or 0:.1f} times the noise is left. "
        f"Fix: {first.remedy}."
    )


def _nothing(findings: Sequence[Finding], excess: Excess, situation: Situation) -> str:
    if not excess.is_there:
        return (
            f"Nothing to explain: mean |d| {excess.mean:.2g} nats is {situation.noise.source} "
            f"({excess.noise:.2g} expected)."
        )
    ruled_out = sum(one.outcome is Outcome.RULED_OUT for one in findings)
    untested = [one for one in findings if one.outcome is Outcome.UNTESTED]
    run = next((one.command for one in untested if one.command), "")
    return (
        f"No cause found: mean |d| exceeds the noise by {excess.mean - excess.noise:.2g} +- {excess.error:.1g} nats; "
        f"{ruled_out} causes were ruled out and {len(untested)} could not be tested.{f' Next: {run}' if run else ''}"
    )


def _numbers(finding: Finding) -> str:
    if finding.explained is None or finding.mean_abs_d is None:
        return f" ({finding.seen})" if finding.seen else ""
    return (
        f"; corrected, mean |d| is {finding.mean_abs_d:.2g} nats ({finding.explained:.1%} explained on prompts "
        "not used for fitting)"
    )
