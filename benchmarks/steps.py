"""How often a watched training alarms for nothing, and how soon it names what was planted.

    python benchmarks/steps.py [runs]        (about two minutes for the 20 runs of each kind)

Steps are drawn as records: 500 to 5,000 tokens of 8 to 40 prompts, a k3 per token with a coefficient of variation of
2.5 and more between prompts, a level that drifts and wanders with a memory of several steps, a policy that grows
confident, advantages that are normalised within a prompt's group, and rollouts that are uncertain, worse and further
off all at once, so that d and the advantage are correlated although the weights are the same; and recorded rollouts of
vLLM, resampled. Planted: nothing; another level; weights that are not sent from the first step on, or from a later one,
with and without advantages. A jump beside weights that are not sent is no false name, the opposite is.
Exit status 1 if more than one false alarm of any kind comes in 1,000 steps, or too few of the planted are named.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from onepolicy.judgement.limits import Limits
from onepolicy.judgement.statistics import estimate_ratio
from onepolicy.numerics.steps.jumps import named
from onepolicy.numerics.steps.watch import Watch
from onepolicy.records.step import AdvantageLink, Alarm, ConfidenceCell, LagCell, StepRecord
from recorded_trainer import recorded_sums

Array = npt.NDArray[np.float64]

SHARES = np.array([0.01, 0.03, 0.05, 0.11, 0.15, 0.15, 0.2, 0.15, 0.15])
"""of tokens by confidence, as of a small model at temperature 1"""
RATES = np.array([3.0, 2.5, 2.2, 1.8, 1.4, 1.0, 0.5, 0.15, 0.03])
"""k3 of a token by confidence, over the mean; rounding shows most where the policy is unsure"""
RATES /= (SHARES * RATES).sum()
TOKEN_CV = 2.5
"""docs: the coefficient of variation of k3 per token"""
OUTLIER_SHARE, OUTLIER_FACTOR = 0.01, 3.4
"""of prompts that have one rollout 20 times as far off as the others"""
MEAN_OF_OUTLIERS = 1 + OUTLIER_SHARE * (OUTLIER_FACTOR - 1)
SAMPLES = 8
"""rollouts of a prompt"""
TOLD = {"jump": 3, "stale": 20}
"""steps within which what was planted is to be named"""
LEAST = {"jump": 0.85, "stale": 0.95, "both": 0.9}
"""share of runs in which it must be, where it is promised"""
MOST_MISNAMED = 0.1
FALSE_PER_1000 = 1.0
FALSE_PER_10000_ON_LIMIT = 10.0
NO_LIMIT = Limits(mean_kl=1e6, worst_rollout_kl=1e6)
"""the quiet runs drift, and what drifts beyond a limit is no false alarm"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What is simulated."""

    steps: int = 1000
    starts: int = 1
    """how often so many steps are begun anew"""
    prompts: int = 16
    length: float = 16.0
    """tokens of a rollout"""
    level: float = 1e-3
    """mean k3 of the numerics alone"""
    drift: float = 0.0
    """of the level's log, each step"""
    wander: float = 0.01
    """standard deviation of a random walk of the same, each step"""
    memory: float = 0.7
    """from one step's noise to the next"""
    noise: float = 0.08
    """standard deviation of that noise"""
    sharpen: float = 0.002
    """by which the policy grows confident, each step"""
    advantages: bool = True
    uncertain: float = 0.3
    """correlation of a rollout's advantage with how sure it is, so with its mean d"""
    jump_at: int | None = None
    factor: float = 3.0
    stale_from: int | None = None
    stale_to: int = 1 << 30
    update: float = 0.15
    """k3 that one missed update adds, over the level; it grows with the square of their number"""
    prefer: float = 0.3
    """correlation of an update's d with the advantage"""
    upgrade_note: str = ""
    """of the step at which the level jumps, as the trainer would say it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A scene with something in it."""

    scene: Scene
    kind: str
    at: int
    promised: bool = True
    """whether `LEAST` must hold"""


def main() -> int:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    broken = False
    print(f"{'quiet runs':58s}{'steps':>9s}   false alarms per 1,000 steps")
    for name, scene in quiet().items():
        counts = false_alarms(scene, range(runs // 2))
        steps = scene.steps * scene.starts * (runs // 2)
        broken |= 1000 * sum(counts.values()) / steps > FALSE_PER_1000
        kinds = ", ".join(f"{kind} {1000 * count / steps:.2f}" for kind, count in sorted(counts.items()))
        print(f"{name:58s}{steps:9,d}   {kinds or '0'}", flush=True)
    recorded = [alarm for seed in range(runs // 2) for alarm in alarms_of(resampled(1000, seed), NO_LIMIT)]
    broken |= len(recorded) / (runs // 2) > FALSE_PER_1000
    print(f"{'recorded rollouts of vLLM, resampled':58s}{1000 * (runs // 2):9,d}   {len(recorded) / (runs // 2):g}")
    rate = on_the_limit(range(runs // 2))
    broken |= rate > FALSE_PER_10000_ON_LIMIT
    print(f"{'a level exactly on the limit':58s}{1000 * (runs // 2):9,d}   limit {rate:.1f} per 10,000 steps")
    print(f"\n{'planted':58s}{'tokens':>9s}   in time   later  median step   jumps called stale")
    for name, planted in faults().items():
        found = [told(planted, seed) for seed in range(runs)]
        steps_taken = [steps for steps, _ in found if steps is not None]
        misnamed = sum(stale for _, stale in found) / runs
        soon = sum(steps <= TOLD[planted.kind] for steps in steps_taken) / runs
        broken |= planted.promised and soon < LEAST[planted.kind]
        broken |= planted.promised and misnamed > MOST_MISNAMED
        median = f"{np.median(steps_taken):.0f}" if steps_taken else "-"
        tokens = round(planted.scene.prompts * SAMPLES * planted.scene.length * np.exp(0.125))
        late = len(steps_taken) / runs - soon
        print(f"{name:58s}{tokens:9,d}   {soon:7.0%} {late:7.0%} {median:>12s} {misnamed:20.0%}", flush=True)
    for name, scene in timelines().items():
        share = sum(both_named(scene, seed) for seed in range(runs)) / runs
        broken |= share < LEAST["both"]
        print(f"{name:58s}{2321:9,d}   {share:7.0%}", flush=True)
    return 1 if broken else 0


def quiet() -> dict[str, Scene]:
    """Name -> scene in which nothing is wrong."""
    return {
        "600 tokens a step, level wanders": Scene(prompts=8, length=8.0),
        "2,300 tokens, level wanders": Scene(),
        "5,800 tokens, level wanders": Scene(prompts=40),
        "2,300 tokens, level grows 20-fold": Scene(drift=0.003),
        "2,300 tokens, level shrinks 20-fold": Scene(drift=-0.003),
        "2,300 tokens, level wanders twice as much, more memory": Scene(wander=0.02, memory=0.9),
        "2,300 tokens, high KL, uncertain rollouts far worse": Scene(level=2e-2, uncertain=0.6, length=64.0, prompts=4),
        "no advantages, policy grows confident fast": Scene(advantages=False, sharpen=0.004),
        "2,300 tokens, started anew every 60 steps": Scene(steps=60, starts=16),
        "300 tokens of 2 prompts, started anew every 60 steps": Scene(steps=60, starts=16, prompts=2),
        "600 tokens, started anew every 60 steps": Scene(steps=60, starts=16, prompts=8, length=8.0),
    }


def resampled(steps: int, seed: int) -> Iterator[StepRecord]:
    """Steps of 64 rollouts that vLLM sampled and Transformers scored in bfloat16, drawn with replacement."""
    rng = np.random.default_rng(seed)
    lengths, sums = recorded_sums()
    for step in range(1, steps + 1):
        chosen = rng.integers(0, len(lengths), 64)
        tokens, k3 = int(lengths[chosen].sum()), float(sums["bfloat16 k3"][chosen].sum())
        gate = estimate_ratio(sums=sums["bfloat16 k3"][chosen], lengths=lengths[chosen])
        yield StepRecord(
            step=step,
            rollouts=64,
            compared=tokens,
            valid=tokens,
            invalid=0,
            metrics={"gate": gate.value},
            prompts=64,
            standard_error=gate.standard_error,
            by_lag=(LagCell(lag=-1, tokens=tokens, mean_d=0.0, mean_abs_d=0.0, mean_k3=k3 / tokens),),
        )


def faults() -> dict[str, Planted]:
    """Name -> what is planted."""
    jump = Scene(steps=115, jump_at=100)
    start = Scene(steps=22, stale_from=1)
    later = Scene(steps=140, stale_from=120)
    return {
        "threefold jump at 100": Planted(scene=replace(jump, prompts=32), kind="jump", at=100),
        "the same, fewer tokens": Planted(scene=jump, kind="jump", at=100, promised=False),
        "the same, few tokens": Planted(
            scene=replace(jump, length=8.0, prompts=8), kind="jump", at=100, promised=False
        ),
        "tenfold jump at 100": Planted(scene=replace(jump, factor=10.0), kind="jump", at=100),
        "never sent": Planted(scene=start, kind="stale", at=1),
        "never sent, few tokens": Planted(scene=replace(start, length=8.0, prompts=8), kind="stale", at=1),
        "never sent, 300 tokens of 2 prompts": Planted(scene=replace(start, prompts=2), kind="stale", at=1),
        "never sent, no advantages": Planted(scene=replace(start, advantages=False), kind="stale", at=1),
        "never sent, small updates": Planted(scene=replace(start, update=0.02, prefer=0.15), kind="stale", at=1),
        "not sent from 120 on": Planted(scene=later, kind="stale", at=120),
        "not sent from 120 on, no advantages": Planted(scene=replace(later, advantages=False), kind="stale", at=120),
        "not sent from 120 on, large updates": Planted(scene=replace(later, update=10.0), kind="stale", at=120),
        "not sent from 120 on, no advantages, few tokens": Planted(
            scene=replace(later, advantages=False, length=8.0, prompts=8), kind="stale", at=120
        ),
    }


def timelines() -> dict[str, Scene]:
    """200 steps, weights that are not sent from 120 to 139, another engine from 160 on; nothing says so."""
    both = Scene(steps=200, stale_from=120, stale_to=140, jump_at=160)
    return {
        "200 steps with both, told apart afterwards": both,
        "the same, no advantages": replace(both, advantages=False),
        "the same, small updates": replace(both, update=0.03),
    }


def both_named(scene: Scene, seed: int) -> bool:
    """Whether the timeline names both, which is which, and nothing else."""
    found = [(event.kind, event.first) for event in named(list(simulated(scene, seed)))]
    kinds = [kind for kind, _ in found]
    steps = [step for _, step in found]
    return kinds == ["growing", "level"] and abs(steps[0] - 120) <= 10 and abs(steps[1] - 160) <= 2


def false_alarms(scene: Scene, seeds: Iterable[int]) -> Counter[str]:
    """kind -> alarms in which nothing was planted."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        for part in range(scene.starts):
            counts.update(alarm.kind for alarm in watched(scene, seed + 1000 * part, NO_LIMIT))
    return counts


def on_the_limit(seeds: Iterable[int]) -> float:
    """Limit alarms in 10,000 steps of a policy that is exactly on its limit."""
    scene = Scene(wander=0.0, noise=0.0, sharpen=0.0, advantages=False)
    limits = Limits(mean_kl=scene.level * MEAN_OF_OUTLIERS, worst_rollout_kl=1e6)
    alarms = [sum(alarm.kind == "limit" for alarm in watched(scene, seed, limits)) for seed in seeds]
    return 10_000 * sum(alarms) / (scene.steps * len(alarms))


def told(planted: Planted, seed: int) -> tuple[int | None, bool]:
    """Steps until it was named, and whether a jump was called stale weights."""
    alarms = [alarm for alarm in watched(planted.scene, seed, NO_LIMIT) if alarm.step >= planted.at]
    steps = next((alarm.step - planted.at + 1 for alarm in alarms if alarm.kind == planted.kind), None)
    return steps, planted.kind == "jump" and any(alarm.kind == "stale" for alarm in alarms)


def watched(scene: Scene, seed: int, limits: Limits) -> list[Alarm]:
    """All alarms of a training."""
    return alarms_of(simulated(scene, seed), limits)


def alarms_of(records: Iterable[StepRecord], limits: Limits) -> list[Alarm]:
    """What is said of steps as they come."""
    watch = Watch(limits)
    return [alarm for record in records for alarm in watch.add(record)]


def simulated(scene: Scene, seed: int) -> Iterator[StepRecord]:
    """The records of a training."""
    rng = np.random.default_rng(seed)
    walk = wave = 0.0
    for step in range(1, scene.steps + 1):
        walk += scene.drift + rng.normal(0, scene.wander)
        wave = scene.memory * wave + rng.normal(0, scene.noise * np.sqrt(1 - scene.memory**2))
        level = scene.level * np.exp(walk + wave)
        if scene.jump_at is not None and step >= scene.jump_at:
            level *= scene.factor
        missed = 0
        if scene.stale_from is not None and scene.stale_from <= step < scene.stale_to:
            missed = step - scene.stale_from + 1
        yield _record(scene, rng, step, level, missed)


def _record(scene: Scene, rng: np.random.Generator, step: int, level: float, missed: int) -> StepRecord:
    moved = scene.update * scene.level * missed**2
    lengths = rng.poisson(scene.length * SAMPLES * rng.lognormal(0, 0.5, scene.prompts)) + 1
    shares = SHARES * np.exp(scene.sharpen * step * np.linspace(-1, 1, len(SHARES)))
    shares /= shares.sum()
    cells = rng.multinomial(lengths, shares)
    mix = float((shares * RATES).sum())
    hard = rng.lognormal(-0.18, 0.6, (scene.prompts, 1))
    worst = np.where(rng.random((scene.prompts, 1)) < OUTLIER_SHARE, OUTLIER_FACTOR, 1.0)
    mean = level * RATES * hard * worst + moved * RATES * rng.lognormal(-0.08, 0.4, (scene.prompts, 1))
    shape = cells / TOKEN_CV**2
    k3 = np.where(cells > 0, rng.gamma(np.maximum(shape, 1e-9)) * mean * TOKEN_CV**2, 0.0)
    gate = estimate_ratio(sums=k3.sum(axis=1), lengths=lengths.astype(np.float64))
    tokens, total = int(lengths.sum()), float(k3.sum())
    return StepRecord(
        step=step,
        rollouts=scene.prompts * SAMPLES,
        compared=tokens,
        valid=tokens,
        invalid=0,
        metrics={"gate": gate.value, "k3": total / tokens},
        prompts=scene.prompts,
        standard_error=gate.standard_error,
        low=gate.low,
        high=gate.high,
        by_lag=(LagCell(lag=-1, tokens=tokens, mean_d=0.0, mean_abs_d=0.0, mean_k3=total / tokens),),
        by_confidence=tuple(
            ConfidenceCell(tokens=int(n), k3=float(k)) for n, k in zip(cells.sum(axis=0), k3.sum(axis=0), strict=True)
        ),
        advantage=_link(scene, rng, level * hard[:, 0] * mix, moved * mix) if scene.advantages else AdvantageLink(),
        about={"rollout_engine": scene.upgrade_note} if scene.upgrade_note and _after(scene, step) else {},
    )


def _after(scene: Scene, step: int) -> bool:
    return scene.jump_at is not None and step >= scene.jump_at


def _link(scene: Scene, rng: np.random.Generator, levels: Array, moved: float) -> AdvantageLink:
    """Mean d of a rollout: -KL, the noise of its tokens, and what the trainer has learnt."""
    shape = (len(levels), SAMPLES)
    advantage = rng.normal(size=shape)
    advantage = advantage - advantage.mean(axis=1, keepdims=True)
    advantage /= advantage.std(axis=1, keepdims=True)
    sure = scene.uncertain * advantage + np.sqrt(1 - scene.uncertain**2) * rng.normal(size=shape)
    kl = levels[:, None] * np.exp(-0.5 * sure)
    d = -kl + np.sqrt(2 * kl / scene.length) * rng.standard_t(5, shape) / np.sqrt(5 / 3)
    learnt = scene.prefer * advantage + np.sqrt(1 - scene.prefer**2) * rng.normal(size=shape)
    d += np.sqrt(2 * moved / scene.length) * learnt - moved
    return AdvantageLink(
        rollouts=d.size,
        advantage=float(advantage.sum()),
        advantage_squared=float((advantage**2).sum()),
        d=float(d.sum()),
        d_squared=float((d**2).sum()),
        advantage_d=float((advantage * d).sum()),
    )


if __name__ == "__main__":
    sys.exit(main())
