"""Both sides agree, and the tokens were drawn from another distribution than the one that they report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from onepolicy.diagnosis.cause import Cause, Proof, Situation
from onepolicy.diagnosis.causes.temperature import COMMON, at_temperature, log_normaliser, powers
from onepolicy.diagnosis.causes.truncation import KEPT, is_outside
from onepolicy.diagnosis.noise import CLIP
from onepolicy.diagnosis.tokens import Tokens
from onepolicy.records.protocol import Meaning
from onepolicy.records.tokens import Float32, Float64

_NEEDED = {"raw_entropy", "log_sum_power_0"}
"""one of them: the entropy of what is reported, which every reading has, says nothing of the raw distribution"""
SIGMAS = 6.0
"""standard deviations of the entropy identity: 2e-9 of honest runs are further out"""
EXPECTED = 20.7
"""tokens beyond an edge, of which none was drawn: a Poisson count of this mean is 0 with probability 1e-9. A likelihood
ratio of honest tokens exceeds exp of it as rarely, as its mean is 1 (Ville's inequality)"""
QUIET = 1.5
"""times the noise that |d| may be on average; beyond it the logprobs are wrong, not only the sampling"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawn:
    """The distribution that is reported, and the tokens in it."""

    tokens: Tokens
    side: str
    logprobs: Float64
    """[M] raw"""
    statistics: Mapping[str, Float32]

    @property
    def drift(self) -> float:
        """Nats, all tokens together, by which the other side's noise moves a mean: its square, and only if the
        distribution is not that of the side that drew.
        """
        return 0.0 if self.side == "rollout" else float(np.square(self.tokens.d).sum())

    @property
    def z(self) -> float:
        """I2: -logprob - entropy is a martingale difference, so its variance is the sum of the varentropies."""
        entropy, variance = self.statistics.get("raw_entropy"), self.statistics.get("raw_varentropy")
        if entropy is None or variance is None:
            return 0.0
        total, excess = float(variance.astype(np.float64).sum()), float((-self.logprobs - entropy).sum())
        left = math.copysign(max(abs(excess) - self.drift, 0.0), excess)
        return left / math.sqrt(total) if total > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Guess:
    """Another distribution, and by how much it makes the tokens likelier."""

    label: str
    gain: float
    """nats, all tokens together"""
    is_refuted: bool = False
    """whether the tokens are no draws from it either"""


def proof(tokens: Tokens, situation: Situation) -> Proof | None:
    """From the entropy identity, or from an edge beyond which nothing was drawn."""
    if not situation.is_sampled or situation.protocol.is_greedy or not _is_quiet(tokens, situation):
        return None
    drawn = _drawn(tokens, situation)
    if drawn is None:
        return None
    edges, others, z = list(_edges(drawn)), list(_others(drawn)), drawn.z
    if abs(z) <= SIGMAS and not edges and not any(one.gain > EXPECTED + drawn.drift for one in others):
        return None
    how = _how(edges, others)
    return Proof(
        label=f"sampled {how}, while both sides report the model's own distribution",
        seen=f"-logprob - entropy of the sampled tokens is {z:+.1f} standard deviations from 0 ({len(tokens)} tokens, "
        f"{drawn.side} statistics)" + "".join(f"; {one.label}" for one in edges if one.label not in how),
        is_decisive=False,
    )


def _how(edges: Sequence[_Guess], others: Sequence[_Guess]) -> str:
    """The likeliest guess that the tokens do not refute; an edge before a temperature that they refute."""
    best = max((one for one in (*edges, *others) if not one.is_refuted), key=lambda one: one.gain, default=None)
    if best is None or best.gain <= EXPECTED:
        return "from another distribution"
    # Of what a temperature leaves beyond an edge nothing is known, so it does not rule the edge out; and it was fitted
    # as if nothing were cut, so that its error is not that of the temperature beside a cut.
    edge = max(edges, key=lambda one: one.gain, default=best)
    return best.label if edge is best or best in edges else f"{best.label.partition(' +- ')[0]} or so, or {edge.label}"


def _is_quiet(tokens: Tokens, situation: Situation) -> bool:
    noise = np.minimum(situation.noise.scale(tokens.p), CLIP).mean() if len(tokens) else 0.0
    return bool(np.minimum(np.abs(tokens.d), CLIP).mean() <= QUIET * noise)


def _drawn(tokens: Tokens, situation: Situation) -> _Drawn | None:
    """From the side that sampled if it kept statistics; processed logprobs say nothing of the raw distribution."""
    for side, info, statistics, logprobs in (
        ("rollout", situation.rollout, tokens.rollout_statistics, tokens.p),
        ("trainer", situation.trainer, tokens.trainer_statistics, tokens.q),
    ):
        if _NEEDED & set(statistics) and info.meaning.is_raw:
            return _Drawn(tokens=tokens, side=side, logprobs=logprobs, statistics=statistics)
    return None


def _edges(drawn: _Drawn) -> Iterable[_Guess]:
    """Kept sets that have far fewer tokens outside than their mass foretells: none."""
    for name, meaning in KEPT.items():
        kept = drawn.statistics.get(name)
        if kept is None or "rank" not in drawn.statistics or "log_mass_above" not in drawn.statistics:
            continue
        expected = float(-np.expm1(kept.astype(np.float64)).sum())
        if expected > EXPECTED and not _may_lie_outside(drawn, meaning):
            yield _Guess(label=_edge(drawn, meaning, expected), gain=-float(kept.astype(np.float64).sum()))


def _may_lie_outside(drawn: _Drawn, meaning: Meaning) -> bool:
    if meaning.min_p > 0.0:
        # The most likely token has at most the mass above, so this counts some that lie inside: never too few.
        rank, above = drawn.statistics["rank"], drawn.statistics["log_mass_above"]
        return bool(np.any((rank > 0) & (drawn.logprobs < math.log(meaning.min_p) + above)))
    return bool(is_outside(drawn.tokens, meaning, drawn.logprobs, known=drawn.side, slack=0.0).any())


def _edge(drawn: _Drawn, meaning: Meaning, expected: float) -> str:
    none = f"no token outside, where {expected:.0f} were to be expected"
    if meaning.top_k:
        edge = int(drawn.statistics["rank"].max()) + 1
        return f"with top-k {edge} or so ({none} beyond rank {meaning.top_k})"
    if meaning.top_p < 1.0:
        most = math.exp(float(drawn.statistics["log_mass_above"].max()))
        return f"with top-p {most:.2f} or so ({none} of the first {meaning.top_p:g} of the mass)"
    return f"with min-p {meaning.min_p:g} or more ({none})"


def _others(drawn: _Drawn) -> Iterable[_Guess]:
    """A temperature, by maximum likelihood; a repetition penalty."""
    nodes = powers(drawn.statistics)
    if nodes is not None:
        yield _temperature(drawn, nodes)
    penalised = drawn.statistics.get("logprob_repetition_1_1")
    if penalised is not None:
        gain = float((penalised.astype(np.float64) - drawn.logprobs).sum())
        yield _Guess(label="under a penalty on tokens that were there before (repetition 1.1 or so)", gain=gain)


def _temperature(drawn: _Drawn, nodes: Float64) -> _Guess:
    def gain(value: float) -> float:
        return float((at_temperature(drawn.logprobs, nodes, value) - drawn.logprobs).sum())

    low, high = math.log(min(COMMON)), math.log(2.0)
    for _ in range(4):
        tried = np.exp(np.linspace(low, high, 13)).tolist()
        at = max(range(len(tried)), key=lambda i: gain(tried[i]))
        low, high = math.log(tried[max(at - 1, 0)]), math.log(tried[min(at + 1, len(tried) - 1)])
    best, step = tried[at], 0.01
    curve = (gain(best * (1 + step)) - 2 * gain(best) + gain(best * (1 - step))) / (best * step) ** 2
    error = f" +- {1 / math.sqrt(-curve):.2f}" if curve < 0 else ""
    return _Guess(
        label=f"at temperature {best:.2f}{error}",
        gain=gain(best),
        is_refuted=abs(_second(drawn.logprobs, nodes, 1.0 / best)) > SIGMAS,
    )


def _second(raw: Float64, nodes: Float64, beta: float) -> float:
    """z of (log p - mean)² - variance of log p under p^beta: a cut tail has less of it than any temperature.

    Mean and variance are the derivatives of log sum p^beta. The error is the sum of squares, as it is of a martingale.
    """
    step = 0.02
    low, here, high = (log_normaliser(nodes, beta + move) for move in (-step, 0.0, step))
    mean, variance = (high - low) / (2 * step), (high - 2 * here + low) / step**2
    excess = np.square(raw - mean) - variance
    return float(excess.sum() / math.sqrt(float(np.square(excess).sum())))


def remedy(situation: Situation, value: float) -> str:
    """What to set, by engine."""
    neutral = "temperature 1, top_p 1, top_k off, min_p 0, repetition_penalty 1"
    if situation.rollout.engine.name == "vllm":
        return (
            f"send every sampling field ({neutral}) or start vLLM with --generation-config vllm, as it takes what is "
            "not sent from the model's generation_config.json; or report what is drawn from: --logprobs-mode "
            "processed_logprobs, and the same processing in the trainer"
        )
    return (
        f"send every sampling field explicitly ({neutral}), as a server takes what is not sent from the model's "
        "generation_config.json or its own defaults; or process the logprobs of both sides as the sampler does "
        "(SGLang: leave SGLANG_RETURN_ORIGINAL_LOGPROB off)"
    )


CAUSE = Cause(
    name="sampled otherwise than reported",
    about="both sides report one distribution, and the tokens were drawn from a tempered, truncated or penalised one",
    remedy=remedy,
    proof=proof,
    needs="statistics of one side (record or score with --statistics), and tokens that the rollout side sampled",
)
