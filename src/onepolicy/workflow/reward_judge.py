"""Is a generative judge asked as its protocol says?"""

from __future__ import annotations

from onepolicy.records.verdict import Evidence, Status, Verdict
from onepolicy.workflow.protocol import Comparison, compare

CHECK = "judge_protocol"


def judge_protocol(judge: str, protocol: str) -> Verdict:
    """The effective request of a judge against a protocol. Both are sources of `onepolicy protocol`.

    Fails if a field that matters differs, or the judge samples at all: one answer must get one score.
    Raises: UsageError, RunError, EngineError.
    """
    found = compare(judge, protocol)
    differing = [f"{one.field} is {one.a} and should be {one.b}" for one in found.differences if one.matters]
    greedy = found.a.protocol.is_greedy
    wrong = [*differing, *([] if greedy else ["it samples, so one answer gets several scores: ask at temperature 0"])]
    status = Status.FAIL if wrong else found.status
    return Verdict(
        check=CHECK,
        status=status,
        quantity="differing_fields",
        value=len(differing),
        limit=0,
        unit="fields",
        message=_said(wrong, found),
        evidence=tuple(Evidence(rollout_id=judge, note=one) for one in wrong),
    )


def _said(wrong: list[str], found: Comparison) -> str:
    if wrong:
        return f"the judge is not asked as it should be: {'; '.join(wrong)}."
    if found.status is Status.UNKNOWN:
        notes = [note.field for note in (*found.a.open_notes, *found.b.open_notes)]
        notes += [one.field for one in found.untold]
        return f"the judge may be asked otherwise than its protocol says: {', '.join(notes)} cannot be compared."
    return f"the judge is asked as its protocol says, greedily (hash {found.b.protocol.hash})."
