"""The checks of a reward model, in the order in which they are shown: what it is, what it reads, what moves it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from onepolicy.errors import EngineError
from onepolicy.records.verdict import Evidence, Status, Verdict
from onepolicy.signal.reward.float32_scores import float32_scores
from onepolicy.signal.reward.found import failed
from onepolicy.signal.reward.length_slope import length_slope
from onepolicy.signal.reward.neighbours import neighbours
from onepolicy.signal.reward.own_tokenizer import own_tokenizer
from onepolicy.signal.reward.padding import padding
from onepolicy.signal.reward.precision import precision
from onepolicy.signal.reward.reads_end import reads_end
from onepolicy.signal.reward.repeats import repeats
from onepolicy.signal.reward.response_swap import response_swap
from onepolicy.signal.reward.scalar_head import scalar_head
from onepolicy.signal.reward.served import served
from onepolicy.signal.reward.subject import NotFiniteError, Subject, is_finite
from onepolicy.signal.reward.truncation import truncation_side
from onepolicy.signal.reward.two_loads import two_loads

CHECKS: tuple[Callable[[Subject], Verdict], ...] = (
    scalar_head,
    own_tokenizer,
    two_loads,
    repeats,
    response_swap,
    reads_end,
    truncation_side,
    padding,
    neighbours,
    precision,
    float32_scores,
    length_slope,
    served,
)
_SHOWN = 5


def checked(subject: Subject) -> Iterator[Verdict]:
    """One verdict after the other; a single one if scores are not finite, as nothing else means anything then."""
    wild = (~is_finite(subject.scores)).nonzero()[0].tolist()
    if wild:
        names = [subject.pairs[at // 2].id for at in wild[:_SHOWN]]
        message = (
            f"{len(wild)} of {len(subject.scores)} scores are NaN, infinite or above float32; the first is of "
            f"{names[0]!r}. Look at the weights and the precision: float16 overflows above 65504."
        )
        evidence = tuple(Evidence(rollout_id=name, note="its score is no finite number") for name in names)
        yield failed("finite_scores", message, value=len(wild), limit=0, unit="scores", evidence=evidence)
        return
    for check in CHECKS:
        yield _verdict(check, subject)


def _verdict(check: Callable[[Subject], Verdict], subject: Subject) -> Verdict:
    """Of one check. A score that is no number fails it; a scorer that fails leaves it open, and that decides."""
    try:
        return check(subject)
    except NotFiniteError as error:
        return failed(check.__name__, str(error))
    except EngineError as error:
        return Verdict(check=check.__name__, status=Status.UNKNOWN, message=f"not decided, the scorer failed: {error}")
