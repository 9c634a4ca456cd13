"""How far two engines differ when nothing is wrong: the scale on which causes are judged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onepolicy.numerics.buckets import CONFIDENCE_EDGES
from onepolicy.records.floor import Floor
from onepolicy.records.tokens import Float64

CLIP = 1.0
"""nats; |d| is cut here before it is averaged, so that a few tokens far apart do not hide what the others say"""
LEAST = 2e-6
"""nats: the spacing of float32 logits between 16 and 32; two engines in float32 do not agree better"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Noise:
    """Mean |d| by the probability that the rollout side gave to a token, and where it comes from."""

    by_confidence: Float64
    """[9] nats, in the buckets of `CONFIDENCE_EDGES`"""
    source: str

    def scale(self, p: Float64) -> Float64:
        """[M] rollout logprobs -> [M] mean |d| expected there.

        It is the scale of a Student-t with 4 degrees of freedom too, as the mean of its absolute value is its scale.
        """
        bucket = np.searchsorted(CONFIDENCE_EDGES, np.exp(np.minimum(p, 0.0)), side="right") - 1
        return self.by_confidence[np.clip(bucket, 0, len(self.by_confidence) - 1)]


def noise_of_floor(floor: Floor) -> Noise:
    """Of the largest variation of a measured floor, bucket by bucket; an empty bucket takes its neighbour's."""
    worst = np.zeros(len(CONFIDENCE_EDGES) - 1)
    for variation in floor.variations:
        for bucket in variation.by_confidence:
            at = CONFIDENCE_EDGES.index(bucket.low)
            worst[at] = max(worst[at], bucket.mean_abs_d)
    return Noise(by_confidence=_filled(worst), source=f"the measured floor of {floor.engine.name}")


def noise_of_readings(p: Float64, d: Float64, *, source: str) -> Noise:
    """Of two readings that differ by nothing but noise. p: [M] logprobs of the first, d: [M] their difference."""
    bucket = np.searchsorted(CONFIDENCE_EDGES, np.exp(np.minimum(p, 0.0)), side="right") - 1
    bucket = np.clip(bucket, 0, len(CONFIDENCE_EDGES) - 2)
    size = len(CONFIDENCE_EDGES) - 1
    counts = np.bincount(bucket, minlength=size)
    sums = np.bincount(bucket, weights=np.minimum(np.abs(d), CLIP), minlength=size)
    return Noise(by_confidence=_filled(sums / np.maximum(counts, 1)), source=source)


def noise_of_dtypes(*dtypes: str) -> Noise:
    """Of the coarser of two precisions, as `TYPICAL` has it; of the other one where one is not known."""
    known = {dtype: measured for dtype in dtypes if (measured := _measured(dtype))}
    coarsest = max(known.values(), key=lambda name: TYPICAL[name][0], default="bfloat16")
    nearest = sorted({dtype for dtype, measured in known.items() if measured == coarsest != dtype})
    source = f"what {coarsest} does to a small model"
    if nearest:
        source += f" (the nearest to {', '.join(nearest)} that was measured)"
    return Noise(by_confidence=np.maximum(np.array(TYPICAL[coarsest]), LEAST), source=source)


def is_known(dtype: str) -> bool:
    """Whether there is a measured noise of this precision, or of one near to it."""
    return bool(_measured(dtype))


def _measured(dtype: str) -> str:
    return dtype if dtype in TYPICAL else _FAMILY.get(dtype.upper()[:3], "")


def _filled(values: Float64) -> Float64:
    """At least `LEAST`; an empty bucket takes the largest, so that it never makes a cause look certain."""
    known = values > 0
    largest = float(values.max()) if known.any() else LEAST
    filled: Float64 = np.maximum(np.where(known, values, largest), LEAST)
    return filled


TYPICAL: dict[str, tuple[float, ...]] = {
    "float32": (7.0e-6, 7.5e-6, 7.7e-6, 9.0e-6, 8.9e-6, 7.5e-6, 5.8e-6, 2.1e-6, 4.3e-6),
    "float16": (6.1e-3, 6.2e-3, 5.6e-3, 4.5e-3, 2.9e-3, 1.4e-3, 4.3e-4, 4.4e-5, 5.8e-6),
    "bfloat16": (5.1e-2, 5.1e-2, 4.2e-2, 3.5e-2, 2.3e-2, 1.1e-2, 3.5e-3, 3.1e-4, 3.7e-5),
    "Q4_1": (9.7e-2, 8.4e-2, 7.8e-2, 5.5e-2, 3.5e-2, 1.8e-2, 5.0e-3, 7.1e-4, 5.6e-5),
}
"""dtype -> mean |d| against float32 by confidence, SmolLM2-135M; printed by `benchmarks/noise.py`. Of float32 it is the
larger of two other ways to compute it: with a KV cache, and with torch's log_softmax. Of Q4_1 it is what llama.cpp's
arithmetic does beside the same weights in float32, not what was lost when they were quantised"""
_FAMILY = {
    "FLO": "float32",  # float64
    "F32": "float32",
    "F16": "float16",
    "BF1": "bfloat16",
    "FP8": "Q4_1",
    "Q8_": "Q4_1",
    "Q6_": "Q4_1",
    "Q5_": "Q4_1",
    "Q4_": "Q4_1",
    "IQ4": "Q4_1",
}
"""first letters of a dtype, as GGUF files and servers write it -> the nearest that was measured"""
