"""Does precision alone account for a failed comparison?"""

from __future__ import annotations

from onepolicy.numerics.measurement import Measurement
from onepolicy.records.verdict import Status, Verdict

ACCOUNTS_FOR = 1.5
"""the mismatch may exceed the trainer's own change of precision by this factor and still be put down to it"""


def precision_alone(
    measured: Measurement, alone: Measurement, matched: Measurement, *, dtype: str, other_dtype: str
) -> Verdict:
    """Hold the pair's mean k3 against that of the trainer in two precisions on the same tokens.

    `alone` compares the trainer's reading in the rollout side's precision with its reading in its own, `matched` the
    rollout side with the former: that a change of precision makes a difference of this size does not say that the same
    precision on both sides removes it. Informs only.
    Unknown if one of the two has nothing to compare, or compares logprobs of differing meaning.
    """
    if not (measured.valid and alone.valid and measured.same_meaning and alone.same_meaning):
        return Verdict(
            check="precision_alone",
            status=Status.UNKNOWN,
            required=False,
            message=(
                f"whether precision alone accounts for it is not known: the trainer in {other_dtype} and in {dtype} "
                "cannot be compared on these tokens."
            ),
        )
    ours, precision = measured.mean("k3"), alone.mean("k3")
    accounts = ours <= ACCOUNTS_FOR * precision
    verdict = "accounts for it" if accounts else "does not account for it"
    return Verdict(
        check="precision_alone",
        status=Status.PASS if accounts else Status.FAIL,
        required=False,
        quantity="k3_of_precision_alone",
        value=precision,
        limit=ours / ACCOUNTS_FOR,
        unit="nats per token",
        message=(
            f"precision alone {verdict}: the trainer in {other_dtype} against itself in {dtype} has a mean k3 of "
            f"{precision:.2g} on these tokens, the two engines {ours:.2g}; with the trainer in {other_dtype} they have "
            f"{matched.mean('k3'):.2g}."
        ),
    )
