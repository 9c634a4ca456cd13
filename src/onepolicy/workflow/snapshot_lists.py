"""The lists of likely tokens that two snapshots keep -> how far apart their distributions are at least."""

from __future__ import annotations

import numpy as np

from onepolicy.judgement.limits import Limits
from onepolicy.numerics.metrics import kl_top_k_bucket
from onepolicy.records.join import TopJoin
from onepolicy.records.reading import TopLists
from onepolicy.records.run import Run
from onepolicy.records.tokens import Float32, FloatArray, TokenState, states_of
from onepolicy.records.verdict import Status, Verdict
from onepolicy.workflow.record import ROLLOUT


def lists_verdict(first: Run, second: Run, limits: Limits) -> Verdict:
    """Fails if the lists alone show more than the limit of the mean KL. A lower bound can pass nothing."""
    before, after = TopJoin(first, ROLLOUT), TopJoin(second, ROLLOUT)
    total, places = 0.0, 0
    for rollout_id in first.rollout_ids():
        mine, other = before.get(rollout_id), after.get(rollout_id)
        if mine is not None and other is not None:
            values = list_kl(mine, other)
            total, places = total + float(values.sum()), places + len(values)
    if not places:
        message = "not checked: the two keep no lists of likely tokens at the same positions."
        return Verdict(check="kept_lists", status=Status.UNKNOWN, required=False, message=message)
    bound = total / places
    is_beyond = bound > limits.mean_kl
    return Verdict(
        check="kept_lists",
        status=Status.FAIL if is_beyond else Status.PASS,
        required=is_beyond,
        quantity="kl_top_k_bucket",
        value=bound,
        limit=limits.mean_kl,
        unit="nats per token",
        message=(
            f"over {places:,} positions the KL of the kept tokens and one event for all others is {bound:.2g} nats per "
            f"token in the mean, limit {limits.mean_kl:g}; the whole KL is not less."
        ),
    )


def list_kl(before: TopLists, after: TopLists) -> FloatArray:
    """KL(before || after) of the tokens that both lists hold and one event for all others: a lower bound of the KL.

    Shape: [M] for the M positions that both have. Unit: nats.
    """
    _, mine, other = np.intersect1d(before.positions, after.positions, return_indices=True)
    if not len(mine):
        return np.empty(0)
    same = before.ids[mine][:, :, None] == after.ids[other][:, None, :]  # [M, K, K']
    found = np.where(same.any(axis=2), _gathered(after.logprobs[other], same), np.float32(np.nan))
    values = before.logprobs[mine]
    known = (states_of(values) == TokenState.VALUE) & (states_of(found) == TokenState.VALUE)
    return kl_top_k_bucket(
        trainer_top=np.where(known, found, np.float32(-np.inf)),
        rollout_top=np.where(known, values, np.float32(-np.inf)),
    )


def _gathered(logprobs: Float32, same: np.ndarray) -> Float32:
    gathered: Float32 = np.take_along_axis(logprobs, same.argmax(axis=2), axis=1)
    return gathered
