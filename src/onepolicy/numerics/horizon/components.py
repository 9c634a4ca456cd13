"""How much of a mismatch belongs to single tokens, and how much to whole rollouts."""

from __future__ import annotations

import math

import numpy as np

from onepolicy.judgement.limits import ALPHA
from onepolicy.numerics.horizon.result import Components
from onepolicy.numerics.horizon.sums import BLOCK, GROUP_SUMS
from onepolicy.records.tokens import Float64

_RELATIVE_ROUNDING = 1e-12
"""a sum of squares below this share of what it was subtracted from is rounding"""


def parts(sums: Float64, variable: str) -> dict[str, Float64]:
    """The mean squares of a one-way analysis of variance over rollouts, from sums over any set of them.

    Shape: [..., len(GROUP_SUMS)] -> inside, between, size and the degrees of freedom, each [...]; NaN without any.
    size: blocks of a rollout, of which the variance of rollouts is a multiple. Source: S. R. Searle, "Linear Models"
    (1971), ch. 9: between = inside + size * omega^2 in expectation.
    """

    def column(name: str) -> Float64:
        return sums[..., GROUP_SUMS.index(name)]

    blocks, rollouts = column("blocks"), column("with_blocks")
    between, square = column(f"{variable}_between"), column(f"{variable}_square")
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        overall = column(f"{variable}_sum") ** 2 / blocks
        freedom, free_blocks = rollouts - 1, blocks - rollouts
        return {
            "inside": _difference(square, between) / free_blocks,
            "between": _difference(between, overall) / freedom,
            "size": (blocks - column("blocks_squared") / blocks) / freedom,
            "freedom": freedom,
            "free_blocks": free_blocks,
        }


def persistent_variance(found: dict[str, Float64]) -> Float64:
    """omega^2, unbiased, so also below zero; [...]."""
    with np.errstate(divide="ignore", invalid="ignore"):
        variance: Float64 = (found["between"] - found["inside"]) / found["size"]
    return variance


def components(groups: Float64, variable: str) -> Components | None:
    """The two parts of the variance with the F-test for the second; None if no rollout has two blocks, or only one has.

    Shape: [m, len(GROUP_SUMS)], one row for each prompt group. The test is of one-way analysis of variance, exact for
    normal means of equal variance; how often it errs for others: benchmarks/horizon.py. The interval is that of the
    ratio of the two, of the same family. Samples of one prompt may share tokens, so the degrees of freedom are those of
    one sample a prompt.
    """
    sums = groups.sum(axis=0)
    found = {name: float(value) for name, value in parts(sums, variable).items()}
    if not found["freedom"] >= 1 or not found["free_blocks"] >= 1 or not found["size"] > 0:
        return None
    prompts = np.count_nonzero(groups[:, GROUP_SUMS.index("with_blocks")])
    found["free_blocks"] *= prompts / sums[GROUP_SUMS.index("with_blocks")]
    found["freedom"] = float(prompts - 1)
    if not prompts > 1:
        return None
    f, p = _f_test(found)
    low, high = _interval(found, f)
    return Components(
        rollouts=int(sums[GROUP_SUMS.index("with_blocks")]),
        blocks=int(sums[GROUP_SUMS.index("blocks")]),
        per_token=BLOCK * found["inside"],
        persistent=(found["between"] - found["inside"]) / found["size"],
        low=low,
        high=high,
        f=f,
        p=p,
    )


def _f_test(found: dict[str, float]) -> tuple[float, float]:
    from scipy.special import fdtrc  # noqa: PLC0415 - a slow import that `onepolicy --help` must not pay

    if found["inside"] == 0:  # every rollout is constant: either all alike, or each with a value of its own
        return (math.inf, 0.0) if found["between"] > 0 else (1.0, 1.0)
    f = found["between"] / found["inside"]
    return f, float(fdtrc(found["freedom"], found["free_blocks"], f))


def _interval(found: dict[str, float], f: float) -> tuple[float, float]:
    from scipy.special import fdtri  # noqa: PLC0415 - a slow import that `onepolicy --help` must not pay

    if found["inside"] == 0:
        both = found["between"] / found["size"]
        return both, both
    ends = (1 - ALPHA, ALPHA)
    low, high = (f / float(fdtri(found["freedom"], found["free_blocks"], end)) for end in ends)
    scale = found["inside"] / found["size"]
    return scale * (low - 1), scale * (high - 1)


def _difference(whole: Float64, part: Float64) -> Float64:
    """whole - part of two sums of squares; what rounding leaves of equal ones is none."""
    rest: Float64 = whole - part
    return np.where(np.abs(rest) <= _RELATIVE_ROUNDING * np.abs(whole), 0.0, rest)
