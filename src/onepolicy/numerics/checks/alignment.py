"""The two sides must not be a few positions apart."""

from __future__ import annotations

from onepolicy.judgement.limits import Limits
from onepolicy.numerics.lags import LAGS, LagSums
from onepolicy.numerics.measurement import Measurement
from onepolicy.records.verdict import Status, Verdict

MIN_PAIRS = 48
"""at a lag, before it is believed"""
BETTER = 3.0
"""times closer than without a lag; two unrelated columns differ by a few percent from lag to lag"""


def alignment(measured: Measurement, limits: Limits) -> Verdict:
    """Fails if both sides agree far better once one of them is moved by up to 8 positions.

    Looks at rollouts in which they are far apart, and passes where there is none: what is close is not shifted.
    """
    if not measured.valid:
        why = "not checked: no token has a logprob on both sides."
        return Verdict(check="alignment", status=Status.UNKNOWN, required=False, message=why)
    lags = measured.lags
    if not lags.rollouts:
        return _passed("no rollout is far enough apart for a shift of positions.")
    for sums, words in ((lags.values, _moved_values), (lags.rows, _other_rows)):
        lag = best_lag(sums)
        if lag:
            return _failed(measured, sums, lag, words(lag))
    return _passed(f"no shift of up to {LAGS[-1]} positions brings the two sides together.")


def best_lag(sums: LagSums) -> int:
    """The lag at which both sides are closest, if the same tokens are far closer there than without one; else 0."""
    closer = [lag for lag in LAGS if sums.pairs(lag) >= MIN_PAIRS and sums.mean(lag) * BETTER < sums.mean_unmoved(lag)]
    return min(closer, key=sums.mean, default=0)


def _moved_values(lag: int) -> str:
    return (
        f"the trainer's logprobs stand {_places(lag)} than the rollout side's. "
        "Entry i belongs to token i on both sides: mend the side that stores it elsewhere"
    )


def _other_rows(lag: int) -> str:
    return (
        f"the trainer's logprob of a token comes from the distribution {_places(lag)} than the one that it was sampled "
        "from. Take token i from the logits of position i - 1, and cut leading positions that are no tokens"
    )


def _places(lag: int) -> str:
    amount = "1 position" if abs(lag) == 1 else f"{abs(lag)} positions"
    return f"{amount} {'later' if lag > 0 else 'earlier'}"


def _passed(message: str) -> Verdict:
    return Verdict(check="alignment", status=Status.PASS, message=message)


def _failed(measured: Measurement, sums: LagSums, lag: int, words: str) -> Verdict:
    return Verdict(
        check="alignment",
        status=Status.FAIL,
        required=measured.same_meaning,
        quantity="lag",
        value=lag,
        limit=0,
        unit="positions",
        message=f"{words} (mean |d| {sums.mean(lag):.2g} nats there, {sums.mean_unmoved(lag):.2g} as it is), over "
        f"{measured.lags.rollouts} rollouts that are far apart; look at {measured.lags.first} first.",
    )
