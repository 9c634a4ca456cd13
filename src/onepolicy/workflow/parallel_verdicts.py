"""Layouts against the base run -> verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onepolicy.judgement.decide import decide
from onepolicy.records.parallel import LayoutResult
from onepolicy.records.verdict import Evidence, Status, Verdict

BITWISE = frozenset({"repeat", "fsdp"})
"""FSDP gathers each weight before it is used, so every sum is in the order of one process"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What is required of a layout."""

    bitwise: frozenset[str] = BITWISE
    """kinds whose logits must be those of one process, bit for bit"""
    max_mean_abs_d: float | None = None
    """nats; what all other kinds are held against. None: they inform"""


def verdicts_of(found: Sequence[LayoutResult], rule: Rule, *, base_repeats: bool) -> tuple[Verdict, ...]:
    """One for each layout, and one if the base run does not repeat itself."""
    verdicts = [_verdict(one, rule) for one in found]
    if not base_repeats and "repeat" in rule.bitwise:
        verdicts.insert(0, _unstable())
    return tuple(verdicts)


def sentence_of(verdicts: Sequence[Verdict], found: Sequence[LayoutResult]) -> str:
    """The answer in one sentence: what decided it, then what only informs."""
    status = decide(verdicts)
    word = {Status.PASS: "Pass", Status.FAIL: "Fail", Status.UNKNOWN: "Unknown"}[status]
    deciding = [one for one in verdicts if one.required and one.status is status]
    if status is Status.PASS:
        same = [one.check for one in deciding if one.quantity == "bitwise_share"]
        within = [one.check for one in deciding if one.quantity == "mean_abs_d"]
        parts = [f"{_and(same)} {'is' if len(same) == 1 else 'are'} bit-identical to one process"] if same else []
        parts += [f"{_and(within)} within the limit"] if within else []
    else:
        parts = [deciding[0].message.rstrip(".") if deciding else "nothing was required of any layout"]
    parts += [_informing(one) for one in found if _informs(one, verdicts)]
    return f"{word}: {'; '.join(parts)}."


def _verdict(found: LayoutResult, rule: Rule) -> Verdict:
    kind = found.layout.partition("=")[0]
    if found.missing:
        return Verdict(check=found.layout, status=Status.UNKNOWN, message=f"{found.missing} Nothing was measured.")
    if kind in rule.bitwise:
        return _bitwise(found)
    limit = rule.max_mean_abs_d
    passed = limit is not None and found.mean_abs_d is not None and found.mean_abs_d <= limit
    return Verdict(
        check=found.layout,
        status=Status.UNKNOWN if limit is None else Status.PASS if passed else Status.FAIL,
        required=limit is not None,
        quantity="mean_abs_d",
        value=found.mean_abs_d,
        limit=limit,
        unit="nats",
        message=_numbers(found) + ("" if limit is None else f" (limit {limit:.3g} nats)"),
        evidence=_evidence(found),
    )


def _bitwise(found: LayoutResult) -> Verdict:
    if found.is_identical:
        message = f"all {found.identical} sequences have the logits of one process, bit for bit, twice."
    elif not found.repeats:
        message = f"a second pass in the same processes gave other logits; {_numbers(found)}."
    else:
        message = f"{_numbers(found)}; bit-identical was required."
    return Verdict(
        check=found.layout,
        status=Status.PASS if found.is_identical else Status.FAIL,
        quantity="bitwise_share",
        value=found.bitwise_share,
        limit=1.0,
        message=message,
        evidence=_evidence(found),
    )


def _numbers(found: LayoutResult) -> str:
    assert found.bitwise_share is not None
    assert found.mean_abs_d is not None
    if found.bitwise_share == 1.0:
        return "every logit is that of one process"
    return (
        f"{100.0 * (1.0 - found.bitwise_share):.3g} % of the logits are not those of one process, by {found.max_ulp:,} "
        f"ulp at most; mean |d| {found.mean_abs_d:.3g} nats, largest {found.max_abs_d:.3g}"
    )


def _evidence(found: LayoutResult) -> tuple[Evidence, ...]:
    worst = found.worst
    if worst is None:
        return ()
    note = f"logit of token {worst.token_id}: {worst.base:.9g} in one process, {worst.value:.9g} here"
    return (Evidence(rollout_id=worst.sequence, position=worst.position, note=note),)


def _unstable() -> Verdict:
    return Verdict(
        check="repeat",
        status=Status.FAIL,
        quantity="bitwise_share",
        message="one process does not repeat itself: a second pass over the same sequences gave other logits, so a "
        "layout cannot be told from noise. Look for nondeterministic kernels (torch.use_deterministic_algorithms).",
    )


def _informs(found: LayoutResult, verdicts: Sequence[Verdict]) -> bool:
    return any(one.check == found.layout and not one.required for one in verdicts)


def _informing(found: LayoutResult) -> str:
    return f"{found.layout} informs: {_numbers(found)}"


def _and(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
