"""What drawn runs say, judged."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from onepolicy.numerics.horizon.measured import Measured, measured_horizon
from onepolicy.numerics.horizon.sums import Cohort, HorizonSums


@pytest.fixture
def measured_of(rollout, pair) -> Callable[..., Measured]:
    """Everything about rollouts with these d: a list of arrays, a prompt each."""

    def measured(ds, *, tokens=None, length=None, is_kl=True, band=(0.5, 2.0), base=-40.0, missing=0.0) -> Measured:
        rows = [
            rollout(np.full(len(d), base), base + np.asarray(d), name=f"r{i}", prompt=f"p{i}") for i, d in enumerate(ds)
        ]
        longest = min(map(len, ds)) // 32 * 32 if length is None else length
        sums = HorizonSums(cohort=Cohort(length=longest, band=band))
        sums.add(pair(rows))
        sums.wanted = round(sums.wanted / (1 - missing))
        return measured_horizon(sums, tokens=tokens, band=band, is_kl=is_kl)

    return measured


@pytest.fixture
def drawn() -> Callable[..., list[np.ndarray]]:
    """d of rollouts, as benchmarks/horizon.py draws them."""

    def of(*, prompts=48, length=384, kl=1e-3, bias=0.0, offset=0.0, seed=0) -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        spread = np.sqrt(2 * kl)
        return [rng.normal(-kl, spread, length) + offset + rng.normal(0, bias) for _ in range(prompts)]

    return of


@pytest.fixture
def judged(measured_of) -> Callable[..., SimpleNamespace]:
    """Verdicts by the name of their check."""
    from onepolicy.numerics.horizon.verdicts import horizon_verdicts  # noqa: PLC0415 - a fixture of one file

    def verdicts(ds, *, most_outside=None, **how) -> SimpleNamespace:
        found = horizon_verdicts(measured_of(ds, **how), most_outside=most_outside)
        return SimpleNamespace(**{verdict.check: verdict for verdict in found})

    return verdicts
