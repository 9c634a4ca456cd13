"""Both sides must read the same text from the same ids."""

from __future__ import annotations

from onepolicy.records.verdict import Evidence, Status, Verdict
from onepolicy.tokens.checks.round_trip import by_cause
from onepolicy.tokens.round_trip import TextBreak, TokenMeasurement


def same_text(measured: TokenMeasurement) -> Verdict:
    """Fails if the two tokenizers decode a completion's ids to different texts: then an id means two things.

    Required where both sides have a tokenizer. Informs if all texts are the same but for special tokens, or for an end
    inside a character, which a server may leave out of its text: the ids still mean the same.
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
    return Verdict(
        check="same_text",
        status=Status.FAIL,
        required=measured.other_meaning > 0,
        quantity="rollouts_of_other_text",
        value=measured.text_broken,
        limit=0,
        unit="rollouts",
        message=_message(measured),
        evidence=tuple(Evidence(rollout_id=b.rollout_id, note=_note(b)) for b in measured.text_breaks),
    )


def _message(measured: TokenMeasurement) -> str:
    first = next((b for b in measured.text_breaks if b.changes_meaning), measured.text_breaks[0])
    found = (
        f"{measured.text_broken} of {measured.checked} completions are read as another text by the trainer's tokenizer "
        f"({by_cause(measured.reading_causes)}); in rollout {first.rollout_id} the rollout side reads "
        f"{first.expected!r} and the trainer {first.found!r}"
    )
    if measured.other_meaning:
        return f"{found}. The two sides do not have the same tokenizer. {first.difference.advice}"
    return f"{found}. The ids mean the same on both sides; whatever reads the text, as a reward may, misses them."


def _note(broken: TextBreak) -> str:
    return f"{broken.difference.cause} ({broken.difference.seen}): {broken.expected!r} against {broken.found!r}"
