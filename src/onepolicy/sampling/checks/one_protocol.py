"""The rollouts must be sampled one way: under the one protocol that the run names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from onepolicy.records.rollout import Span
from onepolicy.records.verdict import Status, Verdict

CHECK = "one_protocol"
_SHOWN = 4


def one_protocol(calls: Mapping[str, int], *, of_run: str) -> Verdict:
    """Unknown if calls carry the hashes of several protocols, or of another one than the run's.

    Then no number and no limit speaks of one policy: each protocol draws from a distribution of its own. Informs where
    no call names its protocol. calls: hash -> how many; of_run: the hash of the run's own protocol.
    """
    if not calls:
        return Verdict(
            check=CHECK, status=Status.UNKNOWN, required=False, message="not checked: no call names its protocol."
        )
    if set(calls) == {of_run}:
        message = f"all calls were sampled under the protocol {of_run}."
        return Verdict(check=CHECK, status=Status.PASS, message=message)
    return Verdict(
        check=CHECK,
        status=Status.UNKNOWN,
        quantity="protocols",
        value=len(calls),
        limit=1,
        unit="protocols",
        message=_message(Counter(calls), of_run),
    )


def several_protocols(spans: Iterable[Span], *, of_run: str) -> list[Verdict]:
    """The same of a run's spans where it is no pass and does not merely inform; nothing otherwise."""
    verdict = one_protocol(Counter(span.protocol_hash for span in spans if span.protocol_hash), of_run=of_run)
    return [verdict] if verdict.required and verdict.status is Status.UNKNOWN else []


def _message(calls: Counter[str], of_run: str) -> str:
    named = [f"{name} ({count} calls)" for name, count in calls.most_common(_SHOWN)]
    more = [f"{len(calls) - _SHOWN} more"] if len(calls) > _SHOWN else []
    listed = ", ".join([*named, *more])
    if len(calls) == 1:
        return (
            f"the calls were sampled under {listed}, and the run says {of_run}: its limits and the meaning of its "
            "logprobs are of another protocol. See which one it was with `onepolicy protocol diff`."
        )
    return (
        f"the calls were sampled under {len(calls)} protocols: {listed}; the run says {of_run}. A number over all of "
        "them is of no policy. Judge runs of one protocol each; `onepolicy protocol diff` says in what two differ."
    )
