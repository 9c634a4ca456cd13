"""Tokens of a model that is written down, with every number of them by enumeration.

The model is a table: the logits of the next token follow from the last one. Both sides read it with a little noise on
the logits, as two engines do; each may process them in its own way, and so may the sampler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from onepolicy.diagnosis.cause import Cause, Situation
from onepolicy.diagnosis.causes import (
    mispaired,
    penalty,
    placeholders,
    same_wrong_sampling,
    shift,
    temperature,
    truncation,
    vocabulary_padding,
    wrong_entry,
)
from onepolicy.diagnosis.decide import findings_of
from onepolicy.diagnosis.likelihood import Trial
from onepolicy.diagnosis.noise import noise_of_readings
from onepolicy.diagnosis.tokens import Tokens
from onepolicy.records.finding import Finding, Outcome
from onepolicy.records.protocol import Meaning, SamplingProtocol
from onepolicy.records.reading import Condition, EngineInfo, ReadingInfo, ReadingRequest

VOCABULARY, PROMPTS, SAMPLES, LENGTH = 96, 30, 2, 60
SIGMA = 0.01
"""nats: spread of the noise on a logit"""
Process = Callable[[np.ndarray, Sequence[int]], np.ndarray]
"""[V] logits and the ids before -> [V] logits whose log-softmax is meant"""

TABLE = 2.0 * np.random.default_rng(7).standard_normal((VOCABULARY, VOCABULARY)) + 3.0
TABLE[::3] *= 2.0  # where the model is rather certain


def plain(logits: np.ndarray, before: Sequence[int]) -> np.ndarray:
    return logits


def at(temperature: float) -> Process:
    return lambda logits, before: logits / temperature


def top_k(count: int) -> Process:
    return lambda logits, before: np.where(logits >= np.sort(logits)[-count], logits, -np.inf)


def top_p(mass: float) -> Process:
    def process(logits: np.ndarray, before: Sequence[int]) -> np.ndarray:
        order = np.argsort(-logits)
        chances = np.exp(log_softmax(logits))[order]
        kept = logits.copy()
        kept[order[chances.cumsum() - chances >= mass]] = -np.inf
        return kept

    return process


def min_p(share: float) -> Process:
    return lambda logits, before: np.where(logits >= logits.max() + np.log(share), logits, -np.inf)


def repetition(penalty: float) -> Process:
    def process(logits: np.ndarray, before: Sequence[int]) -> np.ndarray:
        seen, changed = np.unique(before), logits.copy()
        changed[seen] = np.where(logits[seen] > 0, logits[seen] / penalty, logits[seen] * penalty)
        return changed

    return process


def presence(nats: float) -> Process:
    def process(logits: np.ndarray, before: Sequence[int]) -> np.ndarray:
        changed = logits.copy()
        changed[np.unique(before)] -= nats
        return changed

    return process


def other_weights(spread: float) -> Process:
    """A model that is a little further in training: its logits moved at random, each time alike for one logit."""
    moves = spread * np.random.default_rng(99).standard_normal(TABLE.shape)
    return lambda logits, before: logits + moves[before[-1]]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def noisy(logits: np.ndarray, sigma: float, rng: np.random.Generator) -> np.ndarray:
    """As one engine computes them: no two passes alike."""
    return logits + sigma * rng.standard_normal(logits.shape)


def draw(process: Process = plain, *, seed: int = 0, sigma: float = SIGMA) -> tuple[list[list[int]], np.ndarray]:
    """Rollouts, the first id of each is its prompt; and the [M, V] logits from which their tokens were drawn."""
    rng, rollouts, rows = np.random.default_rng(seed), [], []
    for number in range(PROMPTS * SAMPLES):
        ids = [number // SAMPLES]
        while len(ids) <= LENGTH:
            rows.append(noisy(TABLE[ids[-1]], sigma, rng))
            chances = np.exp(log_softmax(process(rows[-1], ids)))[:VOCABULARY]
            ids.append(int(rng.choice(VOCABULARY, p=chances / chances.sum())))
        rollouts.append(ids)
    return rollouts, np.array(rows)


def read(logits: np.ndarray, rollouts: Sequence[Sequence[int]], process: Process) -> np.ndarray:
    """[M] logprobs of the drawn tokens."""
    befores = [ids[:i] for ids in rollouts for i in range(1, len(ids))]
    tokens = np.concatenate([ids[1:] for ids in rollouts])
    rows = zip(logits, befores, tokens, strict=True)
    return np.array([log_softmax(process(row, before))[token] for row, before, token in rows])


def statistics(logits: np.ndarray, rollouts: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
    """Name -> [M], of the raw distributions, straight from their definitions."""
    tokens = np.concatenate([ids[1:] for ids in rollouts])
    logp = log_softmax(logits)
    p, own = np.exp(logp), logp[np.arange(len(tokens)), tokens]
    entropy = -(p * logp).sum(axis=1)
    found = {
        "raw_entropy": entropy,
        "raw_varentropy": (p * (-logp - entropy[:, None]) ** 2).sum(axis=1),
        "log_normaliser": np.log(np.exp(logits).sum(axis=1)),
        "rank": (logp > own[:, None]).sum(axis=1),
        "logprob_repetition_1_1": read(logits, rollouts, repetition(1.1)),
    }
    with np.errstate(divide="ignore"):
        found["log_mass_above"] = np.log((p * (logp > own[:, None])).sum(axis=1))
    for i in range(8):
        beta = 1.25 - 0.75 * np.cos((2 * i + 1) * np.pi / 16)
        found[f"log_sum_power_{i}"] = np.log((p**beta).sum(axis=1))
    kept = {"top_p_0_9": top_p(0.9), "top_p_0_95": top_p(0.95), "top_k_20": top_k(20), "top_k_50": top_k(50)}
    kept["min_p_0_05"] = min_p(0.05)
    for name, process in kept.items():
        inside = np.isfinite([process(row, []) for row in logits])
        found[f"log_kept_{name}"] = np.log((p * inside).sum(axis=1))
    return {name: values.astype(np.float32) for name, values in found.items()}


def tokens_of(
    rollout: Process = plain,
    trainer: Process = plain,
    *,
    sampled: Process | None = None,
    kept: Sequence[str] = ("trainer",),
    padding: Mapping[str, tuple[int, float]] | None = None,
    sigma: float = SIGMA,
    seed: int = 0,
) -> Tokens:
    """Tokens that `sampled` (else the rollout side) drew, as the two sides read them.

    kept: sides with statistics. padding: side -> how many more rows its head has, and their logit.
    """
    rollouts, drawn_from = draw(rollout if sampled is None else sampled, seed=seed, sigma=sigma)
    table = np.concatenate([TABLE[ids[:-1]] for ids in rollouts])
    logits = {"rollout": drawn_from, "trainer": noisy(table, sigma, np.random.default_rng(1000 + seed))}
    for one, (count, logit) in (padding or {}).items():
        logits[one] = np.pad(logits[one], ((0, 0), (0, count)), constant_values=logit)
    known = {side: statistics(logits[side], rollouts) for side in kept}
    top1 = {side: values.argmax(axis=1).astype(np.int32) for side, values in logits.items()}
    return Tokens(
        rollout_ids=[f"r{i}" for i in range(len(rollouts))],
        prompt_ids=[f"p{i // SAMPLES}" for i in range(len(rollouts))],
        sequences=[np.array(ids, dtype=np.int32) for ids in rollouts],
        rollout=np.repeat(np.arange(len(rollouts)), LENGTH),
        position=np.tile(np.arange(1, LENGTH + 1), len(rollouts)),
        p=read(logits["rollout"], rollouts, rollout),
        q=read(logits["trainer"], rollouts, trainer),
        rollout_statistics=known.get("rollout", {}),
        trainer_statistics=known.get("trainer", {}),
        rollout_top1=top1["rollout"] if "rollout" in kept else None,
        trainer_top1=top1["trainer"] if "trainer" in kept else None,
    )


def side(name: str, meaning: Meaning, engine: str = "fake") -> ReadingInfo:
    return ReadingInfo(
        name=name,
        request=ReadingRequest(engine="fake:m"),
        engine=EngineInfo(name=engine, version="1", model="m", dtype="float32"),
        condition=Condition(),
        meaning=meaning,
        environment={"python": "3.11"},
    )


def situation(
    *,
    rollout: Meaning | None = None,
    trainer: Meaning | None = None,
    honest: Process = plain,
    sigma: float = SIGMA,
    **more: Any,
) -> Situation:
    """The noise is that of two readings of other rollouts, both processed as `honest` does it."""
    readings = tokens_of(honest, honest, kept=(), sigma=sigma, seed=100)
    settings = {
        "rollout": side("rollout", rollout or Meaning()),
        "trainer": side("trainer", trainer or Meaning()),
        "protocol": SamplingProtocol(),
        "noise": noise_of_readings(readings.p, readings.d, source="two honest readings"),
    }
    return Situation(**(settings | more))


def found(tokens: Tokens, known: Situation, causes: Mapping[str, Cause]) -> list[Finding]:
    """From the data alone, as `diagnose` does it; proofs are not in it."""
    trial = Trial(tokens, known.noise, candidates=max(len(causes), 1))
    families = [family for cause in causes.values() for family in cause.families(tokens, known)]
    return findings_of(trial, [trial.of(one) for one in families], causes, known)


def named(findings: Sequence[Finding]) -> list[Finding]:
    return [one for one in findings if one.outcome in (Outcome.CAUSE, Outcome.PARTLY, Outcome.ONE_OF)]


def first(tokens: Tokens, known: Situation) -> Finding:
    """The best of the causes that are tested here, against each other."""
    findings = named(found(tokens, known, all_causes()))
    assert findings, "nothing was found"
    return findings[0]


def with_p(tokens: Tokens, p: np.ndarray) -> Tokens:
    return replace(tokens, p=p)


def by_rollout(values: np.ndarray) -> np.ndarray:
    """[M] -> [R, LENGTH]."""
    return values.reshape(-1, LENGTH)


def all_causes() -> dict[str, Cause]:
    """Those whose tests plant their faults here."""
    modules = (
        placeholders,
        wrong_entry,
        mispaired,
        shift,
        temperature,
        truncation,
        penalty,
        vocabulary_padding,
        same_wrong_sampling,
    )
    return {module.CAUSE.name: module.CAUSE for module in modules}


def proofs(tokens: Tokens, known: Situation) -> list[str]:
    """Names of the causes that the data prove."""
    return [name for name, cause in all_causes().items() if cause.proof(tokens, known) is not None]
