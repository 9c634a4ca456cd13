"""Would a trainer that is handed the text score the tokens that were sampled?"""

from __future__ import annotations

from onepolicy.records.verdict import Evidence, Status, Verdict
from onepolicy.tokens.round_trip import TokenMeasurement


def round_trip(measured: TokenMeasurement) -> Verdict:
    """Fails if a completion's ids do not survive decoding and encoding. Informs: here the ids themselves travelled."""
    if not measured.checked:
        why = measured.why_unchecked or "no rollout has a text"
        return Verdict(check="round_trip", status=Status.UNKNOWN, required=False, message=f"not checked: {why}.")
    broken = sum(measured.causes.values())
    if not broken:
        return Verdict(
            check="round_trip",
            status=Status.PASS,
            required=False,
            message=f"the ids of all {measured.checked} completions come back from their text.",
        )
    causes = ", ".join(f"{count} by {cause}" for cause, count in sorted(measured.causes.items()))
    first = measured.breaks[0]
    return Verdict(
        check="round_trip",
        status=Status.FAIL,
        required=False,
        quantity="rollouts_that_do_not_come_back",
        value=broken,
        limit=0,
        unit="rollouts",
        message=(
            f"{broken} of {measured.checked} completions do not come back from their text ({causes}); first rollout "
            f"{first.rollout_id} at position {first.position}: sampled {_spelled(first.sampled)}, encoded "
            f"{_spelled(first.encoded)}. Harmless where ids travel, as here; a trainer that is handed "
            "text scores other tokens."
        ),
        evidence=tuple(
            Evidence(
                rollout_id=b.rollout_id,
                position=b.position,
                note=f"{b.cause}: sampled {_spelled(b.sampled)}, encoded {_spelled(b.encoded)}",
            )
            for b in measured.breaks
        ),
    )


def _spelled(pieces: tuple[str, ...]) -> str:
    return "|".join(repr(piece)[1:-1] for piece in pieces) or "nothing"
