"""Per-token and per-rollout metrics.

`d = trainer - rollout` in nats. Every function is computed in float64, gives NaN for NaN, and clamps nothing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from onepolicy.errors import AlignmentError
from onepolicy.records.tokens import FloatArray


def log_ratio(*, trainer_logprobs: FloatArray, rollout_logprobs: FloatArray) -> FloatArray:
    """d, the log of the importance ratio of each token.

    Shape: [T], [T] -> [T] float64. Unit: nats.
    Raises: AlignmentError if the shapes differ.
    """
    if trainer_logprobs.shape != rollout_logprobs.shape:
        raise AlignmentError(
            f"{trainer_logprobs.shape} trainer logprobs and {rollout_logprobs.shape} rollout logprobs: both must "
            "describe the same tokens, entry for entry"
        )
    d: FloatArray = np.subtract(trainer_logprobs, rollout_logprobs, dtype=np.float64)
    return d


def importance_ratio(*, trainer_logprobs: FloatArray, rollout_logprobs: FloatArray) -> FloatArray:
    """exp(d), the weight by which the trainer corrects a token of the rollout policy.

    Shape: [T], [T] -> [T] float64. Its mean is 1 over tokens sampled from the rollout policy.
    """
    ratio: FloatArray = np.exp(log_ratio(trainer_logprobs=trainer_logprobs, rollout_logprobs=rollout_logprobs))
    return ratio


def probability_difference(*, trainer_logprobs: FloatArray, rollout_logprobs: FloatArray) -> FloatArray:
    """exp(trainer) - exp(rollout), as verl shows its absolute value.

    Shape: [T], [T] -> [T] float64.
    """
    d = log_ratio(trainer_logprobs=trainer_logprobs, rollout_logprobs=rollout_logprobs)
    difference: FloatArray = np.exp(rollout_logprobs, dtype=np.float64) * np.expm1(d)
    return difference


def kl_k1(*, trainer_logprobs: FloatArray, rollout_logprobs: FloatArray) -> FloatArray:
    """Per-token k1 estimate of KL(rollout || trainer): -d.

    Unbiased, of either sign, and so noisy (coefficient of variation about 40) that it never decides.
    Shape: [T], [T] -> [T] float64. Unit: nats per token.
    Source: J. Schulman, "Approximating KL Divergence" (2020), with r = trainer / rollout.
    """
    return -log_ratio(trainer_logprobs=trainer_logprobs, rollout_logprobs=rollout_logprobs)


def kl_k2(*, trainer_logprobs: FloatArray, rollout_logprobs: FloatArray) -> FloatArray:
    """Per-token k2 estimate of KL(rollout || trainer): d squared over two. Biased, never negative.

    Shape: [T], [T] -> [T] float64. Unit: nats per token.
    Source: J. Schulman, "Approximating KL Divergence" (2020).
    """
    d = log_ratio(trainer_logprobs=trainer_logprobs, rollout_logprobs=rollout_logprobs)
    return d * d / 2


def kl_k3(*, trainer_logprobs: FloatArray, rollout_logprobs: FloatArray) -> FloatArray:
    """Per-token k3 estimate of KL(rollout || trainer).

    Never negative, up to rounding. Its mean is unbiased if the rollout policy sampled the tokens and both sides are
    logprobs over the full vocabulary.
    Shape: [T], [T] -> [T] float64. Unit: nats per token.
    Source: J. Schulman, "Approximating KL Divergence" (2020), with r = trainer / rollout.
    """
    d = log_ratio(trainer_logprobs=trainer_logprobs, rollout_logprobs=rollout_logprobs)
    return np.expm1(d) - d


def kl_exact(*, trainer_distribution: FloatArray, rollout_distribution: FloatArray) -> FloatArray:
    """KL(rollout || trainer) at each position, over the whole vocabulary.

    Shape: [T, V], [T, V] logprobs that sum to one -> [T] float64. Unit: nats per token.
    A token that the rollout policy never samples (-inf) adds nothing; one that the trainer excludes gives +inf.
    """
    d = log_ratio(trainer_logprobs=trainer_distribution, rollout_logprobs=rollout_distribution)
    total: FloatArray = _weighted(rollout_distribution, -d).sum(axis=-1)
    return total


def kl_top_k_bucket(*, trainer_top: FloatArray, rollout_top: FloatArray) -> FloatArray:
    """KL of two distributions coarsened to K tokens and one event for all others: a lower bound of the KL.

    Shape: [T, K], [T, K] logprobs of the same tokens -> [T] float64. Unit: nats per token. It may fail a run and must
    never pass one.
    """
    d = log_ratio(trainer_logprobs=trainer_top, rollout_logprobs=rollout_top)
    p_tail = _tail(rollout_top)
    q_tail = _tail(trainer_top)
    with np.errstate(divide="ignore", invalid="ignore"):
        tail = np.where(p_tail > 0, p_tail * (np.log(p_tail) - np.log(q_tail)), 0.0)
    total: FloatArray = _weighted(rollout_top, -d).sum(axis=-1) + tail
    return total


def kl_hybrid(
    *,
    trainer_top: FloatArray,
    rollout_top: FloatArray,
    sampled_in_top: npt.NDArray[np.bool_],
    k3: FloatArray,
) -> FloatArray:
    """Per-token hybrid estimate of KL(rollout || trainer): exact over K tokens, k3 for a sampled token outside them.

    sum over v in S of [p ln(p/q) - p + q], plus k3(x) if x is not in S. Unbiased and never negative if the set S does
    not depend on the sampled token x. With S the whole vocabulary it is the exact KL.
    Shape: [T, K], [T, K] logprobs of the same tokens, [T], [T] -> [T] float64. Unit: nats per token.
    """
    d = log_ratio(trainer_logprobs=trainer_top, rollout_logprobs=rollout_top)
    inside = _weighted(rollout_top, np.expm1(d) - d).sum(axis=-1)
    total: FloatArray = inside + np.where(sampled_in_top, 0.0, k3)
    return total


def top1_agreement(*, trainer_top1: npt.NDArray[np.integer], rollout_top1: npt.NDArray[np.integer]) -> FloatArray:
    """1 where both engines put the same token first, 0 where not, NaN where one does not say (-1).

    Shape: [T], [T] -> [T] float64.
    """
    unknown = (trainer_top1 < 0) | (rollout_top1 < 0)
    return np.where(unknown, np.nan, (trainer_top1 == rollout_top1).astype(np.float64))


def _weighted(logprobs: FloatArray, values: FloatArray) -> FloatArray:
    """exp(logprobs) * values, where a probability of zero gives zero."""
    weights = np.exp(logprobs, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        return np.where(weights == 0.0, np.where(np.isnan(values) & ~np.isinf(logprobs), np.nan, 0.0), weights * values)


def _tail(top: FloatArray) -> FloatArray:
    rest: FloatArray = np.maximum(1.0 - np.exp(top, dtype=np.float64).sum(axis=-1), 0.0)
    return rest
