"""Step records from a few numbers."""

import pytest

from onepolicy.records.step import AdvantageLink, ConfidenceCell, LagCell, StepRecord

QUIET_K3 = 1e-3
TOKENS = 1000


def link_of(advantages, ds):
    """The sums that a record keeps of rollouts, by plain loops."""
    pairs = list(zip(advantages, ds, strict=True))
    return AdvantageLink(
        rollouts=len(pairs),
        advantage=sum(a for a, _ in pairs),
        advantage_squared=sum(a * a for a, _ in pairs),
        d=sum(d for _, d in pairs),
        d_squared=sum(d * d for _, d in pairs),
        advantage_d=sum(a * d for a, d in pairs),
    )


def one_step(step, k3=QUIET_K3, *, error=0.05, prompts=16, cells=None, **changes):
    """A step of `TOKENS` tokens of unknown version with this mean k3; error: relative, over prompts."""
    cells = cells or [(TOKENS, TOKENS * k3)]
    tokens = sum(n for n, _ in cells)
    mean = sum(k for _, k in cells) / tokens if tokens else 0.0
    padded = [*cells, *[(0, 0.0)] * (9 - len(cells))]
    values = {
        "rollouts": 64,
        "compared": tokens,
        "valid": tokens,
        "invalid": 0,
        "metrics": {"gate": mean},
        "prompts": prompts,
        "standard_error": error * mean,
        "by_lag": (LagCell(lag=-1, tokens=tokens, mean_d=0.0, mean_abs_d=0.0, mean_k3=mean),),
        "by_confidence": tuple(ConfidenceCell(tokens=n, k3=k) for n, k in padded),
    }
    return StepRecord(step=step, **{**values, **changes})


def declared(step, lags, k3=QUIET_K3):
    """A step whose tokens say how many steps their weights are behind: {lag: tokens}."""
    own = lags.get(0, 0)
    return one_step(
        step,
        cells=[(own, own * k3)],
        compared=sum(lags.values()),
        valid=sum(lags.values()),
        by_lag=tuple(LagCell(lag=g, tokens=n, mean_d=0.0, mean_abs_d=0.0, mean_k3=k3) for g, n in lags.items()),
    )


@pytest.fixture(scope="session")
def step_of():
    return one_step


@pytest.fixture(scope="session")
def declared_step():
    return declared


@pytest.fixture(scope="session")
def link_sums():
    return link_of
