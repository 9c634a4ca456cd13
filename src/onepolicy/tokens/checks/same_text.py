"""Both sides must read the same text from the same ids."""

from __future__ import annotations

from onepolicy.records.verdict import Evidence, Status, Verdict
from onepolicy.tokens.round_trip import TokenMeasurement


def same_text(measured: TokenMeasurement) -> Verdict:
    """Fails if the two tokenizers decode a completion's ids to different texts: then an id means two things.

    Required where both sides have a tokenizer.
    """
    if not measured.checked:
        why = measured.why_unchecked or "no rollout has a text"
        return Verdict(check="same_text", status=Status.UNKNOWN, required=False, message=f"not checked: {why}.")
    if not measured.text_broken:
        return Verdict(
            check="same_text",
            status=Status.PASS,
            message=f"both tokenizers read the same text from the ids of {measured.checked} rollouts.",
        )
    first = measured.text_breaks[0]
    return Verdict(
        check="same_text",
        status=Status.FAIL,
        quantity="rollouts_of_other_text",
        value=measured.text_broken,
        limit=0,
        unit="rollouts",
        message=(
            f"{measured.text_broken} of {measured.checked} completions are read as another text by the trainer's "
            f"tokenizer; in rollout {first.rollout_id} the rollout side reads {first.sampling_text!r} and the trainer "
            f"{first.scoring_text!r}. The two sides do not have the same tokenizer."
        ),
        evidence=tuple(
            Evidence(rollout_id=b.rollout_id, note=f"{b.sampling_text!r} against {b.scoring_text!r}")
            for b in measured.text_breaks
        ),
    )
