"""How often the statements about a long horizon err, on mismatches that are drawn with a known drift and bias.

    python benchmarks/horizon.py [trials]        (under a minute for 400)

A token's d is normal with variance v and mean -v / 2, so its importance ratio averages to one and its KL is v / 2. v is
the KL times a factor of the rollout and one of the token, both lognormal: rollouts that differ in their KL, and heavy
tails. A planted bias or drift is added to d. Shown are, per family: the share of runs in which the F-test at 5 % and at
1 % finds a bias, in which a drift is found at 0.1 %, and in which the 98 % interval of the share outside [0.5, 2] holds
the truth, at the measured length and at 8 times of it. Exit status 1 if a figure that the documentation promises is
not kept.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from onepolicy.numerics.horizon.components import components
from onepolicy.numerics.horizon.drift import drift
from onepolicy.numerics.horizon.extrapolate import extrapolate
from onepolicy.numerics.horizon.sums import BLOCK, rollout_sums

Array = npt.NDArray[np.float64]
BAND = (0.5, 2.0)
FALSE_BIAS = 0.03
"""of the F-test at 1 %, where nothing is planted"""
FALSE_DRIFT = 0.01
"""at 0.1 %"""
COVERED = 0.92
"""of the 98 % interval"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Runs of one kind."""

    prompts: int = 48
    samples: int = 1
    length: int = 384
    """tokens; of the longest rollouts where they differ"""
    shortest: float = 1.0
    """of the longest; lengths are uniform between"""
    shared: float = 0.0
    """of the tokens of a prompt's samples, which are the same at first, as at a low temperature"""
    kl: float = 1e-3
    kl_spread: float = 0.0
    """sigma of the log of a rollout's factor"""
    tail: float = 0.0
    """the same of a token's"""
    bias: float = 0.0
    """omega, planted"""
    offset: float = 0.0
    """nats per token, planted"""
    promised: bool = True
    """whether the documentation promises the figures"""
    fits: bool = True
    """whether the formula is meant for it: one spread for all rollouts"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """One run."""

    groups: Array
    """[m, len(GROUP_SUMS)]"""


def run_of(rng: np.random.Generator, family: Family) -> Drawn:
    """Draw a run and add it up by prompt, as the workflow does."""
    rollouts = family.prompts * family.samples
    low = max(round(family.shortest * family.length), 1)
    lengths = rng.integers(low, family.length, rollouts, endpoint=True)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    per_token = 2 * family.kl * np.repeat(_factors(rng, family.kl_spread, rollouts), lengths)
    per_token = per_token * _factors(rng, family.tail, int(offsets[-1]))
    d = rng.normal(-per_token / 2, np.sqrt(per_token)) + family.offset
    d = d + np.repeat(rng.normal(0.0, family.bias, rollouts), lengths)
    if family.shared:
        same = d.reshape(family.prompts, family.samples, family.length)[:, :, : round(family.shared * family.length)]
        same[:] = same[:, :1]
    sums = rollout_sums(d, offsets)
    return Drawn(groups=sums.reshape(family.prompts, family.samples, -1).sum(axis=1))


def _factors(rng: np.random.Generator, sigma: float, count: int) -> Array:
    """Lognormal with mean one."""
    return np.exp(rng.normal(-(sigma**2) / 2, sigma, count)) if sigma else np.ones(count)


def true_share(family: Family, tokens: int, *, draws: int = 200_000) -> float:
    """Of sequence ratios outside the band after so many tokens, by drawing rollouts; their sums are taken normal."""
    rng = np.random.default_rng(12345)
    kl = family.kl * _factors(rng, family.kl_spread, draws)
    second = np.exp(family.tail**2)  # of the square of a token's factor
    mean = (family.offset - kl + rng.normal(0.0, family.bias, draws)) * tokens
    spread = np.sqrt((2 * kl + kl**2 * (second - 1)) * tokens)
    low, high = np.log(BAND)
    return float((ndtr((low - mean) / spread) + ndtr((mean - high) / spread)).mean())


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Shares of runs."""

    bias_5: float
    bias_1: float
    drift: float
    covered: dict[int, float]
    """times the measured length -> of the interval"""


def rates(family: Family, trials: int, *, seed: int = 0, times: tuple[int, ...] = (1, 8)) -> Rates:
    """What is said of so many runs."""
    truth = {n: true_share(family, n * _measured(family)) for n in times}
    found = [_one(drawn, family, truth) for drawn in _runs(family, trials, seed)]
    p, drifts, *covered = (np.array(column) for column in zip(*found, strict=True))
    return Rates(
        bias_5=float((p < 0.05).mean()),
        bias_1=float((p < 0.01).mean()),
        drift=float(drifts.mean()),
        covered={n: float(one.mean()) for n, one in zip(times, covered, strict=True)},
    )


def _runs(family: Family, trials: int, seed: int) -> Iterator[Drawn]:
    for trial in range(trials):
        yield run_of(np.random.default_rng([seed, trial]), family)


def _one(drawn: Drawn, family: Family, truth: dict[int, float]) -> tuple[float, ...]:
    bias = components(drawn.groups, "excess")
    assert bias is not None
    drifted = drift(drawn.groups, missing=0.0)
    inside = []
    for times, share in truth.items():
        said = extrapolate(drawn.groups, times * _measured(family), BAND)
        inside.append(float(said.low <= share <= said.high))
    return bias.p, float(not drifted.low <= drifted.beyond <= drifted.high), *inside


def _measured(family: Family) -> int:
    """That half of the rollouts reach."""
    return round((1 + family.shortest) / 2 * family.length) // BLOCK * BLOCK


NOTHING = {
    "even": Family(),
    "24 prompts": Family(prompts=24),
    "200 prompts": Family(prompts=200),
    "24 prompts x 4": Family(prompts=24, samples=4),
    "24 prompts x 8, the same": Family(prompts=24, samples=8, shared=1.0),
    "48 prompts x 8, the first half the same": Family(samples=8, shared=0.5),
    "lengths 1 to 8": Family(shortest=0.125),
    "heavy tails": Family(tail=1.2),
    "rollouts differ in KL (sigma 0.5)": Family(kl_spread=0.5, fits=False),
    "the same, lengths 1 to 8, heavy tails": Family(kl_spread=0.5, shortest=0.125, tail=1.2, fits=False),
    "KL 1e-5": Family(kl=1e-5),
    "12 prompts": Family(prompts=12, promised=False),
}
"""no fault is planted"""
PLANTED = {
    "omega 0.002": Family(bias=0.002),
    "omega 0.005": Family(bias=0.005),
    "omega 0.005, 200 prompts": Family(bias=0.005, prompts=200),
    "omega 0.005, lengths, tails, KLs": Family(bias=0.005, kl_spread=0.5, shortest=0.125, tail=1.2),
    "offset 0.002": Family(offset=0.002),
    "offset 0.002, 200 prompts": Family(offset=0.002, prompts=200),
}


def main() -> int:
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    broken = False
    print(f"{'nothing planted':40s}{'F 5%':>8s}{'F 1%':>8s}{'drift':>8s}{'x1':>8s}{'x8':>8s}")
    for name, family in NOTHING.items():
        found = rates(family, trials)
        print(_row(name, found), flush=True)
        broken |= family.promised and not kept(found, trials, family)
    print("planted")
    for name, family in PLANTED.items():
        print(_row(name, rates(replace(family, promised=False), trials)), flush=True)
    return 1 if broken else 0


def kept(found: Rates, trials: int, family: Family) -> bool:
    """Whether the figures are what is promised, but for three standard errors of so many trials."""

    def error(share: float) -> float:
        return 3 * float(np.sqrt(share * (1 - share) / trials))

    return (
        found.bias_1 <= FALSE_BIAS + error(FALSE_BIAS)
        and found.drift <= FALSE_DRIFT + error(FALSE_DRIFT)
        and (not family.fits or min(found.covered.values()) >= COVERED - error(COVERED))
    )


def _row(name: str, found: Rates) -> str:
    shares = [found.bias_5, found.bias_1, found.drift, *found.covered.values()]
    return f"{name:40s}" + "".join(f"{share:8.1%}" for share in shares)


if __name__ == "__main__":
    sys.exit(main())
