"""How far do 16 bits move the scores?"""

from __future__ import annotations

import numpy as np

from onepolicy.records.verdict import Status, Verdict
from onepolicy.signal.reward.found import not_checked
from onepolicy.signal.reward.subject import ROUNDED, NotFiniteError, Subject, alone

CHECK = "precision"


def precision(subject: Subject) -> Verdict:
    """Fails if the precision that the model is used in moves scores by more than `ROUNDED` spreads from float32.

    Of a model in float32 it says what bfloat16 would do, and informs.
    """
    if subject.open is None:
        return not_checked(CHECK, "the scorer cannot be loaded here in another precision.")
    if subject.spread == 0:
        return not_checked(CHECK, "all pairs have one score for both answers; see `response_swap`.")
    dtype = subject.open.info.dtype
    used = dtype != "float32"
    low, compared = (dtype, "float32") if used else ("bfloat16", "bfloat16")
    other = subject.open.again(dtype=compared)
    try:
        scores = subject.read(alone(other, subject.answers))
    except NotFiniteError as error:
        return Verdict(check=CHECK, status=Status.FAIL, required=used, message=f"in {compared} {error}")
    finally:
        other.close()
    moved = float(np.sqrt(np.mean(subject.shares(scores, subject.scores) ** 2)))
    turned = int((np.sign(scores[::2] - scores[1::2]) != np.sign(subject.scores[::2] - subject.scores[1::2])).sum())
    bad = moved > ROUNDED
    remedy = " Score in float32, or keep the head and its sum in float32." if bad else ""
    message = (
        f"{low} moves scores by {moved:.2g} spreads (root mean square, limit {ROUNDED}) from float32 and turns "
        f"{turned} of {len(subject.pairs)} pairs round or ties them{'' if used else '; the model is used in float32'}."
        f"{remedy}"
    )
    return Verdict(
        check=CHECK,
        status=Status.FAIL if bad else Status.PASS,
        required=used,
        quantity="rms_score_shift",
        value=moved,
        limit=ROUNDED,
        unit="spreads",
        message=message,
    )
