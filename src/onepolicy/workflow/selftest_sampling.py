"""Faults of sampling: the rollout side draws otherwise than the trainer scores."""

from __future__ import annotations

import math
from collections.abc import Callable

from onepolicy.records.protocol import Meaning
from onepolicy.workflow.selftest_fault import ONLY_LARGE, Fault, Protocol, inverse

HALF = "dtype=float16"
"""of a rollout side that samples otherwise: in float32 a temperature as small as the noise is 1.00001, which is what
noise does; float16 has the noise in which 1.02 is three times it"""

SAMPLED = f"transformers:{{llama}}?logprobs=processed&{HALF}"


def _processed(**protocol: Callable[[float], object]) -> Callable[[float], Protocol]:
    return lambda value: {name: make(value) for name, make in protocol.items()}


def _raw(value: float) -> Meaning:
    return Meaning()


def faults() -> tuple[Fault, ...]:
    """The rollout side samples otherwise and says so in its logprobs; the trainer scores raw ones."""
    return (
        Fault(
            name="temperature, rollout side",
            right=("temperature",),
            large=-math.log(0.7),
            value=lambda s: math.exp(-s),
            says="T = {value:.4g}",
            rollout=SAMPLED,
            protocol=_processed(temperature=float),
            meaning=_raw,
        ),
        Fault(
            name="temperature above 1",
            right=("temperature",),
            large=math.log(1.3),
            value=math.exp,
            says="T = {value:.4g}",
            rollout=SAMPLED,
            protocol=_processed(temperature=float),
            meaning=_raw,
        ),
        Fault(
            name="temperature, trainer side",
            right=("temperature",),
            large=-math.log(0.7),
            value=lambda s: math.exp(-s),
            says="T = {value:.4g}",
            rollout=f"transformers:{{llama}}?{HALF}",
            meaning=lambda value: Meaning(temperature=value),
        ),
        Fault(
            name="repetition penalty",
            right=("penalty",),
            large=math.log(1.2),
            value=math.exp,
            says="penalty {value:.4g}",
            rollout=SAMPLED,
            protocol=_processed(repetition_penalty=float),
            meaning=_raw,
        ),
        Fault(
            name="top-p renormalised",
            right=("truncation",),
            large=0.1,
            value=lambda s: 1.0 - s,
            says="top-p {value:.5g}",
            rollout=SAMPLED,
            protocol=_processed(top_p=float),
            meaning=_raw,
        ),
        Fault(
            name="top-k renormalised",
            right=("truncation",),
            large=0.2,
            value=inverse,
            says="top-k {value:.0f}",
            rollout=SAMPLED,
            protocol=_processed(top_k=int),
            meaning=_raw,
        ),
        Fault(
            name="min-p renormalised",
            right=("truncation",),
            large=0.05,
            says="min-p {value:.3g}",
            rollout=SAMPLED,
            protocol=_processed(min_p=float),
            meaning=_raw,
        ),
        Fault(
            name="temperature and top-p",
            right=("temperature and truncation", "truncation"),  # whose label names both, with both values
            large=-math.log(0.7),
            sizes=ONLY_LARGE,
            value=lambda s: math.exp(-s),
            says="T = {value:.3g}, top-p 0.9",
            rollout=SAMPLED,
            protocol=_processed(temperature=float, top_p=lambda value: 0.9),
            meaning=_raw,
        ),
        Fault(
            name="temperature and penalty",
            right=("temperature and penalty",),
            large=-math.log(0.7),
            sizes=ONLY_LARGE,
            value=lambda s: math.exp(-s),
            says="T = {value:.3g}, penalty 1.1",
            rollout=SAMPLED,
            protocol=_processed(temperature=float, repetition_penalty=lambda value: 1.1),
            meaning=_raw,
        ),
        Fault(
            name="sampled at T, raw on both sides",
            right=("sampled otherwise than reported",),
            large=-math.log(0.7),
            sizes=ONLY_LARGE,
            value=lambda s: math.exp(-s),
            says="T = {value:.3g}",
            protocol=_processed(temperature=float),
        ),
        Fault(
            name="sampled with top-k, raw on both sides",
            right=("sampled otherwise than reported",),
            large=0.2,
            sizes=ONLY_LARGE,
            value=inverse,
            says="top-k {value:.0f}",
            protocol=_processed(top_k=int),
        ),
    )
