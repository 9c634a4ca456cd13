"""Tokens that one side may draw and the other side's truncation gives no probability."""

from __future__ import annotations

from onepolicy.judgement.limits import Limits
from onepolicy.numerics.measurement import Measurement
from onepolicy.records.tokens import TokenState
from onepolicy.records.verdict import Status, Verdict

MOST_BY_ROUNDING = 0.05
"""share of the tokens. A vLLM in bfloat16 and Transformers in float32 at T = 0.7 and top_p = 0.9 have 0.2 % of 1,024
tokens; 25 times that is no rounding"""


def kept_set(measured: Measurement, limits: Limits) -> list[Verdict]:
    """One verdict where both sides' logprobs are after one truncation; none elsewhere.

    Each side works out from its own logits which tokens are kept, so rounding moves one that lies on the edge. A token
    that the trainer side excludes has the importance ratio 0 and an infinite loss, and is in no mean. Unknown if there
    are some; fails if they are more than rounding makes, or if the side that sampled them excludes them.
    """
    if not measured.same_meaning or not measured.rollout_meaning.truncates or not measured.compared:
        return []
    if not measured.excluded:
        message = "no compared token is outside the kept set of either side."
        return [Verdict(check="kept_set", status=Status.PASS, value=0, message=message)]
    share = measured.excluded / measured.compared
    own = int(measured.rollout_states[TokenState.EXCLUDED])
    wrong = share > MOST_BY_ROUNDING or (measured.is_kl and own > 0)
    return [
        Verdict(
            check="kept_set",
            status=Status.FAIL if wrong else Status.UNKNOWN,
            quantity="excluded_share",
            value=share,
            limit=0,
            unit="share of tokens",
            message=_message(measured, share, own),
            evidence=tuple(place.evidence for place in measured.excluded_places.first),
        )
    ]


def _message(measured: Measurement, share: float, own: int) -> str:
    first = measured.excluded_places.first[0]
    where = f"the first is in rollout {first.rollout_id} at position {first.position}"
    if measured.is_kl and own:
        return (
            f"{own} sampled tokens have no probability in the rollout side's own distribution under "
            f"{measured.rollout_meaning}, so they were not drawn from it; {where}."
        )
    found = (
        f"{measured.excluded} of {measured.compared} tokens ({share:.2%}) lie outside the kept set of one side under "
        f"{measured.rollout_meaning}; {where}. Their importance ratio is 0 and their loss infinite; they are in no mean"
    )
    if share > MOST_BY_ROUNDING:
        return f"{found}. So many are no rounding at the edge: compare what both sides truncate, and in which order."
    return (
        f"{found}. Rounding moves a token at the edge in or out. Sample without truncation, or give the trainer the "
        "kept set that was sampled from; to accept them, name kept_set under `informative` in the limits."
    )
