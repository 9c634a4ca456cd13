"""Would a trainer that is handed the text score the tokens that were sampled?"""

from __future__ import annotations

from collections.abc import Mapping

from onepolicy.records.verdict import Evidence, Status, Verdict
from onepolicy.tokens.round_trip import RoundTripBreak, TokenMeasurement
from onepolicy.tokens.sides import Piece


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
            f"{broken} of {measured.checked} completions do not come back from their text "
            f"({by_cause(measured.causes)}); first rollout {first.rollout_id} at position {first.difference.position}: "
            f"{both_spellings(first)}. Harmless where ids travel, as here; a trainer that is handed text scores other "
            "tokens."
        ),
        evidence=tuple(
            Evidence(
                rollout_id=b.rollout_id,
                position=b.difference.position,
                note=f"{b.difference.cause} ({b.difference.seen}): {both_spellings(b)}",
            )
            for b in measured.breaks
        ),
    )


def by_cause(causes: Mapping[str, int]) -> str:
    """How many by each cause, the commonest first."""
    ranked = sorted(causes.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} by {cause}" for cause, count in ranked)


def both_spellings(broken: RoundTripBreak) -> str:
    """What was sampled and what was encoded, a few tokens of each."""
    return f"sampled {_spelled(broken.difference.first)}, encoded {_spelled(broken.difference.second)}"


def _spelled(pieces: tuple[Piece, ...]) -> str:
    return "|".join(repr(piece.text)[1:-1] for piece in pieces[:4]) or "nothing"
