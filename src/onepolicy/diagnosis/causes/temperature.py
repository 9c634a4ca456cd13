"""One side's logprobs are of another temperature than the other's: not applied, applied twice, or on one side alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.polynomial import chebyshev

from onepolicy.diagnosis.cause import Cause, Experiment, SideName, Situation
from onepolicy.diagnosis.likelihood import Family
from onepolicy.diagnosis.noise import CLIP
from onepolicy.diagnosis.respec import spec_of
from onepolicy.diagnosis.tokens import Tokens
from onepolicy.records.protocol import Meaning
from onepolicy.records.tokens import Float32, Float64

NEUTRAL = 0.002
"""nearer to the other side's temperature than this, as a ratio, it is numerics whatever the noise"""
LOW, HIGH = 0.48, 2.1
"""temperatures that the log-normalisers reach: kept for powers of p in [0.5, 2], and a little beyond the fit is still
good to 1e-4 nats; 0.7 applied twice is 0.49"""
_NODES = 8
_AT = np.array([-math.cos((2 * k + 1) * math.pi / (2 * _NODES)) for k in range(_NODES)])
"""[8] where they lie in [-1, 1]"""
GRID = tuple(float(x) for x in np.round(np.geomspace(LOW, HIGH, 43), 4))
COMMON = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5)
"""that recipes sample with; tried with the engine where there are no statistics"""
ALIKE = 0.1
"""log of a temperature below which one side at T and the other at 1/T are the same but for terms of second order"""
SAME = 0.01
"""as a ratio: nearer to a declared temperature than this, it is that one"""


def families(tokens: Tokens, situation: Situation) -> Iterable[Family]:
    """One side at T, by the other side's raw logprobs and the normalisers of that one of the two that kept them; and
    logprobs that were divided by T after the softmax, which needs no normaliser.
    """
    for faulty, other in (("rollout", "trainer"), ("trainer", "rollout")):
        if meaning_of(situation, other).truncates:
            continue  # what it cut is put back along with its temperature, which is another change
        kept = powers(statistics_of(tokens, other))
        nodes = powers(statistics_of(tokens, faulty)) if kept is None else kept
        if nodes is not None:
            yield _family(tokens, situation, faulty, nodes)
    yield _divided(tokens, situation)


def _family(tokens: Tokens, situation: Situation, faulty: str, nodes: Float64) -> Family:
    other = "trainer" if faulty == "rollout" else "rollout"
    neutral, raw = meaning_of(situation, other).temperature, raw_logprobs(tokens, situation, other, nodes=nodes)
    numerics = _numerics(situation.noise.scale(tokens.p), nodes)

    def corrected(value: float) -> Float64:
        if abs(value / neutral - 1.0) <= numerics:
            return tokens.d
        moved = at_temperature(raw, nodes, value)
        return moved - tokens.p if faulty == "rollout" else tokens.q - moved

    def scale(value: float, noise: Float64) -> Float64:
        if abs(value / neutral - 1.0) <= numerics:
            return noise
        of_raw = neutral * interpolation_error(nodes, 1.0 / neutral) if neutral != 1.0 else 0.0
        inexact: Float64 = of_raw / value + interpolation_error(nodes, 1.0 / value)
        return noise * neutral / value + inexact

    return Family(
        cause=CAUSE.name,
        values=tuple(value for value in GRID if abs(value / neutral - 1.0) > numerics),
        corrected=corrected,
        label=lambda value: _label(value, faulty, situation),
        is_continuous=True,
        scale=scale,
        remedy=lambda value: remedy(situation, value if faulty == "rollout" else neutral),
    )


def _numerics(scale: Float64, nodes: Float64) -> float:
    """How near to 1 a temperature is what noise does: noise on the logits of the side that draws sharpens what it draws
    from, by about its variance over that of the logprobs. 0.002 for bfloat16, some hundredths for 4 bits.
    """
    step = 0.02
    of_logprobs = (log_normaliser(nodes, 1.0 + step) + log_normaliser(nodes, 1.0 - step)) / step**2
    # Of a Student-t with 4 degrees of freedom: twice the square of its scale.
    of_noise = 2.0 * np.square(np.minimum(scale, CLIP))
    spread = float(of_logprobs.mean())
    return max(NEUTRAL, float(of_noise.mean()) / spread) if spread > 0 else NEUTRAL


def _divided(tokens: Tokens, situation: Situation) -> Family:
    """Only by a temperature that somebody chooses: a factor that is fitted explains a little of many other faults."""
    declared = situation.protocol.temperature
    divisors = {*COMMON, *((declared,) if declared > 0 else ())} - {1.0}
    p, q = (
        said if meaning_of(situation, side).truncates else raw_logprobs(tokens, situation, side)
        for side, said in (("rollout", tokens.p), ("trainer", tokens.q))
    )
    return Family(
        cause=CAUSE.name,
        values=tuple(sorted({*divisors, *(round(1 / one, 6) for one in divisors)})),
        corrected=lambda value: q - value * tokens.p if value in divisors else tokens.q - value * p,
        label=lambda value: (
            f"{'rollout' if value in divisors else 'trainer'} logprobs divided by "
            f"{value if value in divisors else 1 / value:.2f} after the softmax, so without a normaliser"
        ),
        seen="the same factor between the two sides for every token",
        settles=False,
    )


def statistics_of(tokens: Tokens, side: str) -> Mapping[str, Float32]:
    """Name -> [M], of the raw distribution of a side."""
    return tokens.trainer_statistics if side == "trainer" else tokens.rollout_statistics


def powers(statistics: Mapping[str, Float32]) -> Float64 | None:
    """[8, M] log sum p^beta at the Chebyshev nodes; None where they were not kept."""
    found = [statistics.get(f"log_sum_power_{i}") for i in range(_NODES)]
    return None if any(one is None for one in found) else np.array(found, dtype=np.float64)


def raw_logprobs(tokens: Tokens, situation: Situation, side: str, *, nodes: Float64 | None = None) -> Float64:
    """[M] logprobs of a side under its raw distribution, out of those that it declares to be processed.

    nodes: [8, M] normalisers where the side has none of its own.
    """
    said, meaning = (tokens.q if side == "trainer" else tokens.p), meaning_of(situation, side)
    statistics = statistics_of(tokens, side)
    if meaning.truncates and "log_kept_declared" in statistics:
        said = said + statistics["log_kept_declared"]
    own = powers(statistics)
    nodes = nodes if own is None else own
    return said if nodes is None else from_temperature(said, nodes, meaning.temperature)


def _place(beta: float) -> float:
    """Of a power in [0.5, 2] in the interval [-1, 1] of the polynomials."""
    return (beta - 1.25) / 0.75


def log_normaliser(nodes: Float64, beta: float) -> Float64:
    """[8, M] log sum p^beta at Chebyshev nodes -> [M] at this beta, interpolated over [0.5, 2]."""
    # The weights of the nodes, once, instead of a fit for each token.
    weights = chebyshev.chebvander(np.array([_place(beta)]), _NODES - 1) @ np.linalg.inv(
        chebyshev.chebvander(_AT, _NODES - 1)
    )
    found: Float64 = weights[0] @ nodes
    return found


def interpolation_error(nodes: Float64, beta: float) -> Float64:
    """[8, M] log sum p^beta at Chebyshev nodes -> [M] nats that `log_normaliser` may be wrong by.

    About: as if the first term that is left out were as large as the last one that is kept; it is 0 at the nodes.
    """
    last: Float64 = np.linalg.inv(chebyshev.chebvander(_AT, _NODES - 1))[-1] @ nodes
    return np.abs(last * chebyshev.chebval(_place(beta), [0.0] * _NODES + [1.0]))


def at_temperature(logprobs: Float64, nodes: Float64, temperature: float) -> Float64:
    """[M] raw logprobs, [8, M] log sum p^beta at Chebyshev nodes -> [M] logprobs at a temperature.

    log softmax(z / T) = log p / T - log sum p^(1/T).
    """
    if temperature == 1.0:
        return logprobs
    beta = 1.0 / temperature
    return beta * logprobs - log_normaliser(nodes, beta)


def from_temperature(logprobs: Float64, nodes: Float64, temperature: float) -> Float64:
    """[M] logprobs at a temperature -> [M] raw ones: the inverse of `at_temperature`."""
    if temperature == 1.0:
        return logprobs
    return temperature * (logprobs + log_normaliser(nodes, 1.0 / temperature))


def meaning_of(situation: Situation, side: str) -> Meaning:
    """What a side says that its logprobs are of."""
    return situation.trainer.meaning if side == "trainer" else situation.rollout.meaning


def _label(value: float, side: str, situation: Situation) -> str:
    """How the temperature that was found relates to the one that the run declares."""
    declared = situation.protocol.temperature
    text = f"temperature {value:.2f} on the {side} side"
    if declared in (0.0, 1.0):
        other = "trainer" if side == "rollout" else "rollout"
        return text if abs(math.log(value)) > ALIKE else f"{text}, or {1 / value:.2f} on the {other} side"
    if abs(value / declared - 1.0) < SAME:
        return f"{text} alone, the sampling temperature"
    if abs(value / declared**2 - 1.0) < SAME:
        return f"{text}: {declared:g} applied twice"
    return f"{text}: {declared:g} not applied" if abs(value - 1.0) < SAME else text


def experiments(tokens: Tokens, situation: Situation) -> Iterable[Experiment]:
    """The trainer read again at the temperatures that the protocol and recipes name; statistics are exact without."""
    spec = spec_of(situation, "trainer")
    known = (powers(tokens.trainer_statistics), powers(tokens.rollout_statistics))
    if spec is None or any(one is not None for one in known):
        return
    declared, own = situation.protocol.temperature, situation.trainer.meaning
    tried = {*COMMON, *((declared, declared**2) if declared > 0 else ())}
    side: SideName = "trainer"
    for value in sorted(tried):
        if abs(value / own.temperature - 1.0) > NEUTRAL:
            yield Experiment(
                cause=CAUSE.name,
                label=_label(value, "rollout", situation),
                engine=spec,
                side=side,
                value=value,
                meaning=own.model_copy(update={"temperature": value}),
            )


def remedy(situation: Situation, value: float) -> str:
    """What to set, by engine. value: the temperature that the rollout side's logprobs are of."""
    name = situation.rollout.engine.name
    trainer = f"score with the temperature {value:.2f} (verl: actor_rollout_ref.rollout.temperature, TRL: temperature)"
    if name == "vllm":
        return (
            "give both sides one temperature: start vLLM with --logprobs-mode processed_logprobs and let the trainer "
            f"divide its logits by it too, or keep raw_logprobs and sample at T = 1; here {trainer}"
        )
    if name == "sglang":
        return (
            "SGLang's output logprobs are after the temperature, its input logprobs are not: set "
            f"SGLANG_RETURN_ORIGINAL_LOGPROB=1 and sample at T = 1, or {trainer}"
        )
    return f"{trainer}, which is what the rollout side samples with, or sample at T = 1"


CAUSE = Cause(
    name="temperature",
    about="one side divides its logits by a temperature that the other side does not",
    remedy=remedy,
    families=families,
    experiments=experiments,
    needs="statistics of one side (record or score with --statistics), or the engine at another temperature",
)
