"""A sequence begins once and ends once."""

from __future__ import annotations

from dataclasses import dataclass

from onepolicy.records.verdict import Evidence, Status, Verdict
from onepolicy.tokens.round_trip import TokenMeasurement
from onepolicy.tokens.special_tokens import SpecialTokens

SYSTEMATIC = 0.5
"""share of rollouts from which on a fault is an engine's; below it, a few texts may spell the token themselves"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fault:
    counted: str
    """field of `SpecialTokens`"""
    words: str
    advice: str
    decides: bool = True
    """whether it fails the check where it is systematic"""


_FAULTS = (
    _Fault(
        counted="doubled",
        words="begin with {token} more than once (BOS doubled)",
        advice="One side encoded a rendered text with special tokens on: send ids, or add_special_tokens=False.",
    ),
    _Fault(
        counted="missing",
        words="are plain texts without the {token} that the tokenizer puts in front (BOS missing)",
        advice="Encode plain text with special tokens on.",
    ),
    _Fault(
        counted="at_boundary",
        words="have {token} where the completion begins (BOS inside)",
        advice="Encode every segment after the first with add_special_tokens=False.",
    ),
    _Fault(
        counted="ended_twice",
        words="end with {token} twice (EOS doubled)",
        advice="Let one side write the end token, the engine or the trainer.",
    ),
    _Fault(
        counted="inside",
        words="have {token} inside (BOS inside)",
        advice="A text that spells it, or the policy, may have put it there.",
        decides=False,
    ),
)


def special_tokens(measured: TokenMeasurement) -> Verdict:
    """Fails if most sequences begin or end twice, or begin anew inside. Informs about a few that do."""
    found = measured.special
    if not found.rollouts:
        why = "not checked: no tokenizer is known that says which tokens begin and end a sequence."
        return Verdict(check="special_tokens", status=Status.UNKNOWN, required=False, message=why)
    faults = [fault for fault in _FAULTS if getattr(found, fault.counted)]
    if not faults:
        return Verdict(check="special_tokens", status=Status.PASS, message=_nothing_found(found))
    systematic = [f for f in faults if f.decides and getattr(found, f.counted) > SYSTEMATIC * found.rollouts]
    worst = (systematic or faults)[0]
    shown = (worst, *(f for f in faults if f is not worst))
    return Verdict(
        check="special_tokens",
        status=Status.FAIL,
        required=bool(systematic),
        quantity="rollouts_with_other_boundaries",
        value=getattr(found, worst.counted),
        limit=0,
        unit="rollouts",
        message=" ".join(_sentence(found, fault) for fault in shown[:2]),
        evidence=tuple(
            Evidence(rollout_id=b.rollout_id, position=b.position, note=f"{b.what.replace('_', ' ')}: {b.token}")
            for fault in shown
            for b in found.breaks
            if b.what == fault.counted
        ),
    )


def _nothing_found(found: SpecialTokens) -> str:
    if not found.boundaries.bos:
        return f"the tokenizer has no token that begins a sequence, and none of {found.rollouts} rollouts ends twice."
    return f"none of {found.rollouts} rollouts begins or ends twice, or begins anew inside."


def _sentence(found: SpecialTokens, fault: _Fault) -> str:
    first = next(b for b in found.breaks if b.what == fault.counted)
    count = getattr(found, fault.counted)
    words = fault.words.format(token=first.token or "BOS")
    return f"{count} of {found.rollouts} rollouts {words}, first {first.rollout_id} at {first.position}. {fault.advice}"
