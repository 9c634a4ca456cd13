"""How often `onepolicy behave` alarms on one configuration, what it sees, and what it costs.

    python benchmarks/behave.py [comparisons]        (under two minutes for 400)

Completions are drawn: a prompt has a level of length, words of its own and a chance of success; its samples have
lognormal lengths around the level and tokens that are the prompt's own words or common ones. SPREAD, the standard
deviation of a length's logarithm, is set so that 20 x 3 sees a change of -20 % about half of the time. The whole
analysis runs on them, with few permutations.

Exit status 1 if a promise does not hold: on one configuration some metric alarms in at most 5 %; 50 x 4 sees a length
change of -20 % in at least 90 %, and 20 x 3 hardly a reward gap of 0.05; a gap on the margin passes in at most 7 %;
200 x 8 decides; the analysis of 50 x 4 x 64 tokens takes less than 2 % of the time that sampling them takes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from onepolicy.behaviour.compare import Configured, Question, compare_behaviour
from onepolicy.behaviour.completions import Observed, PromptPair, Side
from onepolicy.behaviour.metrics import Asked, Metric
from onepolicy.behaviour.permutation import FAMILY_ALPHA, permutation_test
from onepolicy.behaviour.result import Behaviour, BehaviourSide
from onepolicy.behaviour.reward import reward_difference
from onepolicy.behaviour.table import BehaviourTable, Block
from onepolicy.behaviour.verdicts import of_reward
from onepolicy.records.verdict import Status

Rng = np.random.Generator
Array = npt.NDArray[np.float64]

SPREAD = 0.45
TOKENS_PER_SECOND = 95
"""that a small model samples on two CPU cores"""
PERMUTATIONS = 299
FALSE_ALARMS, PASSES_ON_MARGIN, COST = 0.05, 0.07, 0.02
MARGIN = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """How a side samples."""

    samples: int
    length: float = 1.0
    """times the prompt's level"""
    spread: float = SPREAD
    blank: float = 0.01
    """share of completions that are the end token alone"""
    most: int = 256
    """longest completion"""
    together: float = 0.0
    """share of prompts whose samples are all alike in format"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prompts:
    """What both sides are asked."""

    level: Array
    """[P] tokens"""
    words: npt.NDArray[np.int64]
    """[P, 40] token ids that belong to the prompt"""
    success: Array
    """[P] chance"""
    fixed: Array
    """[P] in [0, 1], below `together` if the prompt decides its format"""


def prompts_of(rng: Rng, count: int) -> Prompts:
    """So many prompts."""
    return Prompts(
        level=np.exp(rng.normal(3.5, 0.4, count)),
        words=rng.integers(1_000, 30_000, (count, 40)),
        success=rng.random(count),
        fixed=rng.random(count),
    )


def sampled(rng: Rng, prompts: Prompts, how: Configuration) -> Configured:
    """A side."""
    found = [_one(rng, prompts, i, j, how) for i in range(len(prompts.level)) for j in range(how.samples)]
    shown = BehaviourSide(run="", engine="drawn", protocol={}, rollouts=len(found))
    return Configured(side=Side(completions=found), shown=shown, max_new_tokens=how.most)


def _one(rng: Rng, prompts: Prompts, i: int, j: int, how: Configuration) -> Observed:
    wanted = max(1, round(prompts.level[i] * how.length * np.exp(rng.normal(0, how.spread))))
    blank = rng.random() < how.blank
    count = 1 if blank else min(wanted, how.most)
    own = prompts.words[i][rng.integers(0, 40, count)]
    common = np.minimum(rng.zipf(1.5, count), 999)
    ids = np.where(rng.random(count) < 0.5, own, common)
    good = prompts.fixed[i] if prompts.fixed[i] < how.together else rng.random()
    return Observed(
        rollout_id=f"{i}/{j}",
        prompt_id=str(i),
        prompt_digest="",
        token_ids=tuple(ids.tolist()),
        text="" if blank else f"{'好' if good < prompts.success[i] else '不'} {ids[0] % 7}",
        finish_reason="length" if wanted > how.most else "stop",
    )


def compared(seed: int, prompts: int, a: Configuration, b: Configuration) -> Behaviour:
    """One comparison of the two."""
    rng = np.random.default_rng([1, seed])  # another stream than the labels'
    drawn = prompts_of(rng, prompts)
    asked = Asked(keywords=("3",), parses=lambda text: "好" in text)
    question = Question(asked=asked, permutations=PERMUTATIONS, seed=seed)
    return compare_behaviour(sampled(rng, drawn, a), sampled(rng, drawn, b), question)


IDENTICAL = {
    "20 x 3": (20, Configuration(samples=3), 3),
    "50 x 4": (50, Configuration(samples=4), 4),
    "32 x 4 and 2, lengths that scatter widely": (32, Configuration(samples=4, spread=1.0), 2),
    "24 x 4, half of them cut, format by prompt": (24, Configuration(samples=4, most=32, together=0.7), 4),
}


def false_alarms(name: str, comparisons: int) -> tuple[float, float]:
    """Shares of comparisons of one configuration in which some metric is beyond chance, and in which one alarms."""
    prompts, a, samples_b = IDENTICAL[name]
    b = replace(a, samples=samples_b)
    found = [compared(seed, prompts, a, b) for seed in range(comparisons)]
    chance = np.mean([min(row.p for row in one.metrics) <= FAMILY_ALPHA for one in found])
    return float(chance), float(np.mean([one.status is Status.FAIL for one in found]))


def seen(prompts: int, samples: int, comparisons: int, *, length: float = 0.8) -> float:
    """The share of comparisons in which a change of the length alarms."""
    a, b = Configuration(samples=samples), Configuration(samples=samples, length=length)
    found = [compared(seed, prompts, a, b) for seed in range(comparisons)]
    alarms = [any(v.check == "length" and v.status is Status.FAIL for v in one.verdicts) for one in found]
    return float(np.mean(alarms))


# -- reward -----------------------------------------------------------------------------------------------------


def rewarded(rng: Rng, a: Array, b: Array, samples: int) -> list[PromptPair]:
    """Prompts with rewards of 0 and 1. a, b: [P] chances."""

    def one(i: int, chance: float) -> tuple[Observed, ...]:
        rewards = (rng.random(samples) < chance).astype(float).tolist()
        usual = Observed(rollout_id="", prompt_id=str(i), prompt_digest="", token_ids=(0,), text=None)
        return tuple(replace(usual, reward=reward) for reward in rewards)

    return [PromptPair(prompt_id=str(i), a=one(i, x), b=one(i, y)) for i, (x, y) in enumerate(zip(a, b, strict=True))]


def reward_seen(prompts: int, samples: int, gap: float, comparisons: int) -> float:
    """The share in which the rewards alone differ by more than chance at 5 %."""
    rng = np.random.default_rng([1, prompts])
    metric = Metric(name="reward", kind="rate", unit="", of=lambda one: float(one.reward or 0.0))
    hits = 0
    for seed in range(comparisons):
        chance = rng.random(prompts) * (1 - gap)
        pairs = rewarded(rng, chance, chance + gap, samples)
        values = np.array([[[metric.of(one)] for one in pair.both] for pair in pairs])
        table = BehaviourTable(metrics=(metric,), blocks=(Block(a=samples, values=values, similarity=None),))
        hits += permutation_test(table, permutations=PERMUTATIONS, seed=seed).p[0] <= FAMILY_ALPHA
    return hits / comparisons


def reward_decided(prompts: int, samples: int, gap: float, comparisons: int) -> tuple[float, float]:
    """Shares of passes and fails; the chances of prompts are anything, and B's are higher by the gap."""
    rng = np.random.default_rng(prompts)

    def chances() -> tuple[Array, Array]:
        chance = rng.random(prompts) * (1 - gap)
        return chance, chance + gap

    return _shares(rng, chances, samples, comparisons)


def rare_decided(prompts: int, samples: int, comparisons: int) -> tuple[float, float]:
    """The same where B alone is ever rewarded, in as many samples as the margin has."""
    rng = np.random.default_rng(prompts)
    return _shares(rng, lambda: (np.zeros(prompts), np.full(prompts, MARGIN)), samples, comparisons)


def _shares(
    rng: Rng, chances: Callable[[], tuple[Array, Array]], samples: int, comparisons: int
) -> tuple[float, float]:
    found = [
        of_reward(reward_difference(rewarded(rng, *chances(), samples)), margin=MARGIN).status
        for _ in range(comparisons)
    ]
    return found.count(Status.PASS) / comparisons, found.count(Status.FAIL) / comparisons


# -- cost -------------------------------------------------------------------------------------------------------


def cost(prompts: int = 50, samples: int = 4, tokens: int = 64) -> float:
    """Seconds of analysis over the seconds that sampling one side takes."""
    rng = np.random.default_rng(0)
    how = Configuration(samples=samples, length=10.0, most=tokens, blank=0.0)
    drawn = prompts_of(rng, prompts)
    a, b = sampled(rng, drawn, how), sampled(rng, drawn, how)
    asked = Asked(keywords=("3",), parses=lambda text: "好" in text)
    start = time.perf_counter()
    compare_behaviour(a, b, Question(asked=asked))
    spent = time.perf_counter() - start
    return spent / (prompts * samples * tokens / TOKENS_PER_SECOND)


def main() -> int:
    comparisons = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    held = []

    def say(what: str, value: float, holds: bool = True) -> None:
        held.append(holds)
        print(f"{what:64s}{value:8.1%}{'' if holds else '   broken'}", flush=True)

    error = (FALSE_ALARMS * (1 - FALSE_ALARMS) / comparisons) ** 0.5
    every = []
    for name in IDENTICAL:
        chance, alarms = false_alarms(name, comparisons)
        every.append(alarms)
        print(f"one configuration, {name}: beyond chance {chance:.1%}")
        say("  alarms", alarms, alarms <= FALSE_ALARMS + 2 * error)
    say("alarms on one configuration", float(np.mean(every)), float(np.mean(every)) <= FALSE_ALARMS)
    power = seen(20, 3, comparisons)
    say("length -20 % seen in 20 x 3", power, 0.40 <= power <= 0.62)
    power = seen(50, 4, comparisons // 2)
    say("length -20 % seen in 50 x 4", power, power >= 0.90)
    power = reward_seen(20, 3, MARGIN, 3 * comparisons)
    say("reward gap of 0.05 seen in 20 x 3", power, power <= 0.15)
    for prompts, samples in ((12, 4), (50, 4), (200, 1)):
        passed, _ = rare_decided(prompts, samples, 3 * comparisons)
        say(f"rare reward on the margin passes, {prompts} x {samples}", passed, passed <= PASSES_ON_MARGIN)
    few = max(comparisons // 4, 50)
    passed, _ = reward_decided(200, 8, MARGIN, few)
    say("reward gap of 0.05 passes, 200 x 8", passed, passed <= PASSES_ON_MARGIN)
    passed, _ = reward_decided(200, 8, 0.0, few)
    say("no reward gap passes, 200 x 8", passed, passed >= 0.75)
    _, failed = reward_decided(200, 8, 2 * MARGIN, few)
    say("reward gap of 0.1 fails, 200 x 8", failed, failed >= 0.75)
    share = cost()
    say("analysis of 50 x 4 x 64 tokens over sampling of one side", share, share <= COST)
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
