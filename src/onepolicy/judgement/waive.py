"""Which verdicts decide: informative checks and waivers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from onepolicy.errors import UsageError
from onepolicy.judgement.limits import Limits, Waiver
from onepolicy.records.verdict import Status, Verdict

ALWAYS_REQUIRED = ("recording", "scoring", "same_ids", "meaning", "valid_logprobs")
"""what the numbers rest on"""


def applied(verdicts: Sequence[Verdict], limits: Limits, *, today: date) -> list[Verdict]:
    """The verdicts with those that only inform marked so.

    Raises: UsageError for a name that is no check, and for a waiver that nothing needs.
    """
    always = [name for name in limits.informative if name in ALWAYS_REQUIRED]
    if always:
        raise UsageError(
            f"the limits make {always[0]!r} informative; without it no number means anything. Waive it, with a reason "
            "and an end, if it must be."
        )
    names = {verdict.check for verdict in verdicts}
    for name in (*limits.informative, *(waiver.check for waiver in limits.waivers)):
        if name not in names:
            raise UsageError(
                f"the limits name the check {name!r}, which there is not. Checks: {', '.join(sorted(names))}."
            )
    informed = [v.model_copy(update={"required": False}) if v.check in limits.informative else v for v in verdicts]
    for waiver in limits.waivers:
        informed = _waived(informed, waiver, today)
    return informed


def _waived(verdicts: list[Verdict], waiver: Waiver, today: date) -> list[Verdict]:
    needing = [v for v in verdicts if v.check == waiver.check and v.required and v.status is not Status.PASS]
    if not needing:
        raise UsageError(
            f"the waiver of {waiver.check!r} ({waiver.reason}) is not needed: the check passes or only informs. Remove "
            "it."
        )
    over = today > waiver.until
    note = f"Its waiver ended on {waiver.until}." if over else f"Waived until {waiver.until}: {waiver.reason}."
    return [
        v.model_copy(
            update={"required": v.required and not (v in needing and not over), "message": f"{v.message} {note}"}
        )
        if v in needing
        else v
        for v in verdicts
    ]
