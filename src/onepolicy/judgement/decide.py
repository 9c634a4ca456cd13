"""The one function that decides. Words, JSON and the exit status come from its value."""

from __future__ import annotations

from collections.abc import Sequence

from onepolicy.records.verdict import Status, Verdict


def decide(verdicts: Sequence[Verdict]) -> Status:
    """fail if a required check fails; else unknown if one is unknown or there is none; else pass.

    Informative checks never decide.
    """
    required = [verdict.status for verdict in verdicts if verdict.required]
    if Status.FAIL in required:
        return Status.FAIL
    if not required or Status.UNKNOWN in required:
        return Status.UNKNOWN
    return Status.PASS


def sentence(verdicts: Sequence[Verdict]) -> str:
    """The answer in one sentence: the first check that decided it, in the order of judgement."""
    status = decide(verdicts)
    if status is Status.PASS:
        deciding = [v for v in verdicts if v.required][-1:]
        return f"Pass: {_headline(verdicts) or deciding[0].message}"
    named = [v for v in verdicts if v.required and v.status is status]
    more = f" ({len(named) - 1} more below)" if len(named) > 1 else ""
    first = named[0].message if named else "nothing was compared."
    return f"{'Fail' if status is Status.FAIL else 'Unknown'}: {first}{more}"


def _headline(verdicts: Sequence[Verdict]) -> str:
    return next((v.message for v in verdicts if v.check == "mean_kl" and v.required), "")
