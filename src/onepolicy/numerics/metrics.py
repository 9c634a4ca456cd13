"""Per-token and per-rollout metrics.

`d = trainer - rollout` in nats. Every function is computed in float64, gives NaN for NaN, and clamps nothing. Where
exp(d) is beyond float64 (d above 709) the result is infinite, and said to be without a warning.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from onepolicy.errors import AlignmentError
from onepolicy.records.tokens import FloatArray


def log_ratio(*, trainer_logprobs: FloatArray, rollout_logprobs: FloatArray) -> FloatArray:
    """d, the log of the importance ratio of each token.

    Two -inf, of a token that both sides exclude, give NaN.
    Shape: [T], [T] -> [T] float64. Unit: nats.
    Raises: AlignmentError if the shapes differ.
    """
    if trainer_logprobs.shape != rollout_logprobs.shape:
        raise AlignmentError(
            f"{trainer_logprobs.shape} trainer logprobs and {rollout_logprobs.shape} rollout logprobs: both must "
            "describe the same tokens, entry for entry"
        )
    with np.errstate(invalid="ignore"):
        d: FloatArray = np.subtract(trainer_logprobs, rollout_logprobs, dtype=np.float64)
    return d


def importance_ratio(*, trainer_logprobs: FloatArray, rollout_logprobs: FloatArray) -> FloatArray:
    """exp(d), the weight by which the trainer corrects a token of the rollout policy.

    Shape: [T], [T] -> [T] float64. Its mean is 1 over tokens sampled from the rollout policy.
    """
    d = log_ratio(trainer_logprobs=trainer_logprobs, rollout_logprobs=rollout_logprobs)
    with np.errstate(over="ignore"):
        ratio: FloatArray = np.exp(d)
    return ratio


def probability_difference(*, trainer_logprobs: FloatArray, rollout_logprobs: FloatArray) -> FloatArray:
    """exp(trainer) - exp(rollout), as verl shows its absolute value.

    Shape: [T], [T] -> [T] float64.
    Raises: AlignmentError if the shapes differ.
    """
    d = log_ratio(trainer_logprobs=trainer_logprobs, rollout_logprobs=rollout_logprobs)
    # From the larger of the two: exp(rollout) * expm1(d) is 0 * inf where the rollout side's is next to nothing.
    larger = np.exp(np.maximum(trainer_logprobs, rollout_logprobs), dtype=np.float64)
    difference: FloatArray = np.where(larger == 0.0, 0.0, np.sign(d) * larger * -np.expm1(-np.abs(d)))
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
    return _k3(log_ratio(trainer_logprobs=trainer_logprobs, rollout_logprobs=rollout_logprobs))


def kl_exact(*, trainer_distribution: FloatArray, rollout_distribution: FloatArray) -> FloatArray:
    """KL(rollout || trainer) at each position, over the whole vocabulary.

    Shape: [T, V], [T, V] logprobs that sum to one -> [T] float64. Unit: nats per token.
    A token that the rollout policy never samples (-inf) adds nothing; one that the trainer excludes gives +inf.
    """
    total: FloatArray = _p_log_ratio(trainer_distribution, rollout_distribution).sum(axis=-1)
    return total


def kl_top_k_bucket(*, trainer_top: FloatArray, rollout_top: FloatArray) -> FloatArray:
    """KL of two distributions coarsened to K tokens and one event for all others: a lower bound of the KL.

    Shape: [T, K], [T, K] logprobs of the same tokens -> [T] float64. Unit: nats per token. It may fail a run and must
    never pass one.
    """
    inside: FloatArray = _p_log_ratio(trainer_top, rollout_top).sum(axis=-1)
    p_tail, q_tail = _tail(rollout_top), _tail(trainer_top)
    # A tail that rounding hides may be as large as rounding: taken as zero it would make the bound infinite.
    q_tail = np.maximum(q_tail, _rounding_of_tail(trainer_top))
    with np.errstate(divide="ignore", invalid="ignore"):
        tail = np.where(p_tail > _rounding_of_tail(rollout_top), p_tail * (np.log(p_tail) - np.log(q_tail)), 0.0)
    return inside + tail


def kl_hybrid(
    *,
    trainer_top: FloatArray,
    rollout_top: FloatArray,
    sampled_in_top: npt.NDArray[np.bool_],
    k3: FloatArray,
) -> FloatArray:
    """Per-token hybrid estimate of KL(rollout || trainer): exact over K tokens, k3 for a sampled token outside them.

    sum over v in S of [p ln(p/q) - p + q], plus k3(x) if x is not in S. Unbiased and never negative if the set S does
    not depend on the sampled token x. With S the whole vocabulary it is the exact KL. A token of S that the rollout
    policy never samples (-inf) adds q; one that the trainer alone excludes gives +inf.
    Shape: [T, K], [T, K] logprobs of the same tokens, [T], [T] -> [T] float64. Unit: nats per token.
    """
    p, q = np.exp(rollout_top, dtype=np.float64), np.exp(trainer_top, dtype=np.float64)
    d = log_ratio(trainer_logprobs=trainer_top, rollout_logprobs=rollout_top)
    with np.errstate(invalid="ignore"):  # two ways of writing one number: the first for small d, the second for any
        each = np.where(d < 50.0, p * _k3(d), _p_log_ratio(trainer_top, rollout_top) + (q - p))
    inside = each.sum(axis=-1)
    total: FloatArray = inside + np.where(sampled_in_top, 0.0, k3)
    return total


def top1_agreement(*, trainer_top1: npt.NDArray[np.integer], rollout_top1: npt.NDArray[np.integer]) -> FloatArray:
    """1 where both engines put the same token first, 0 where not, NaN where one does not say (-1).

    Shape: [T], [T] -> [T] float64.
    """
    unknown = (trainer_top1 < 0) | (rollout_top1 < 0)
    return np.where(unknown, np.nan, (trainer_top1 == rollout_top1).astype(np.float64))


def _k3(d: FloatArray) -> FloatArray:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.where(d == np.inf, np.inf, np.expm1(d) - d)


def _p_log_ratio(trainer: FloatArray, rollout: FloatArray) -> FloatArray:
    """p ln(p/q) of each token; 0 where p is."""
    d = log_ratio(trainer_logprobs=trainer, rollout_logprobs=rollout)
    p = np.exp(rollout, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        return np.where((p == 0.0) & ~np.isnan(trainer), 0.0, p * -d)


def _tail(top: FloatArray) -> FloatArray:
    rest: FloatArray = np.maximum(1.0 - np.exp(top, dtype=np.float64).sum(axis=-1), 0.0)
    return rest


def _rounding_of_tail(top: FloatArray) -> float:
    """By how much one minus the sum of K probabilities may be off."""
    return float(np.finfo(top.dtype).eps * top.shape[-1])
