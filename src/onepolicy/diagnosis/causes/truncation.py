"""One side's logprobs are normalised over the tokens that top-k, top-p or min-p keep, the other's over all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np

from onepolicy.diagnosis.cause import Cause, Experiment, Situation
from onepolicy.diagnosis.causes.temperature import at_temperature, meaning_of, powers, raw_logprobs, statistics_of
from onepolicy.diagnosis.likelihood import Family
from onepolicy.diagnosis.respec import spec_of
from onepolicy.diagnosis.tokens import Tokens
from onepolicy.records.protocol import Meaning
from onepolicy.records.tokens import BoolArray, Float64

KEPT: dict[str, Meaning] = {
    "log_kept_top_p_0_9": Meaning(top_p=0.9),
    "log_kept_top_p_0_95": Meaning(top_p=0.95),
    "log_kept_top_k_20": Meaning(top_k=20),
    "log_kept_top_k_50": Meaning(top_k=50),
    "log_kept_min_p_0_05": Meaning(min_p=0.05),
}
"""statistic -> what it keeps; `logprobs.statistics`, which needs torch, has the same list"""
COMMON = (
    Meaning(top_p=0.8),
    Meaning(top_p=0.9),
    Meaning(top_p=0.95),
    Meaning(top_k=20),
    Meaning(top_k=40),
    Meaning(top_k=50),
    Meaning(min_p=0.05),
    Meaning(min_p=0.1),
)
"""that recipes and servers have; llama.cpp has top-k 40, top-p 0.95 and min-p 0.05 unless told"""
TOP_P = (*(float(x) for x in np.linspace(0.5, 0.98, 17)), 0.99, 0.995, 0.998)
TOP_K = tuple(float(k) for k in (22, 25, 30, 35, 40, 45, 48))
"""between 20 and 50, of which the masses are kept; llama.cpp's is 40"""
EDGE = 4.0
"""times the noise: a token nearer to the edge of the kept set than this may lie on either side of it"""


def families(tokens: Tokens, situation: Situation) -> Iterable[Family]:
    """Each kept set whose mass is known, on the side that has no statistics of it, or on its own."""
    for faulty, known in (("rollout", "trainer"), ("trainer", "rollout")):
        declared = meaning_of(situation, faulty)
        if declared.truncates and "log_kept_declared" in statistics_of(tokens, faulty):
            yield _family(faulty, declared, _as_declared(tokens, situation, faulty))
        if not meaning_of(situation, known).is_raw:
            continue  # the masses are of the raw distribution: a temperature would be undone along with the cut
        for name, meaning in KEPT.items():
            if name in statistics_of(tokens, known):
                yield _family(faulty, meaning, _over_the_kept(tokens, situation, known, name))
            elif name in statistics_of(tokens, faulty):
                yield _family(faulty, meaning, _over_all(tokens, situation, faulty, name))
        if "log_mass_above" in statistics_of(tokens, known):
            yield _any_top_p(tokens, situation, faulty, known)
        if {"rank", "log_kept_top_k_20", "log_kept_top_k_50"} <= set(statistics_of(tokens, known)):
            yield _any_top_k(tokens, situation, faulty, known)


def _family(faulty: str, meaning: Meaning, corrected: Callable[[], Float64]) -> Family:
    return Family(
        cause=CAUSE.name, values=(0.0,), corrected=lambda _: corrected(), label=lambda _: label(meaning, faulty)
    )


def label(meaning: Meaning, side: str) -> str:
    """top-p 0.9 on the rollout side."""
    parts = [f"temperature {meaning.temperature:g}"] if meaning.temperature != 1.0 else []
    parts += [f"top-k {meaning.top_k}"] if meaning.top_k else []
    parts += [f"top-p {meaning.top_p:g}"] if meaning.top_p < 1.0 else []
    parts += [f"min-p {meaning.min_p:g}"] if meaning.min_p > 0.0 else []
    return f"{' and '.join(parts)} on the {side} side: its logprobs are normalised over the kept tokens alone"


def _over_the_kept(tokens: Tokens, situation: Situation, known: str, name: str) -> Callable[[], Float64]:
    """The known side's logprobs over the kept tokens, against what the other side says."""
    raw, kept = raw_logprobs(tokens, situation, known), statistics_of(tokens, known)[name]
    outside = is_outside(tokens, KEPT[name], raw, known=known, slack=EDGE * situation.noise.scale(tokens.p))
    moved = raw - kept - tokens.p if known == "trainer" else tokens.q - (raw - kept)
    moved = np.where(outside, -np.inf, moved)
    return lambda: moved


def _any_top_p(tokens: Tokens, situation: Situation, faulty: str, known: str) -> Family:
    """Top-p of a mass that was not kept: about that mass, and all above the token and its own where that is more."""
    raw, above = raw_logprobs(tokens, situation, known), statistics_of(tokens, known)["log_mass_above"]
    least, slack = np.logaddexp(raw, above), EDGE * situation.noise.scale(tokens.p)

    def corrected(value: float) -> Float64:
        moved = raw - np.maximum(least, math.log(value))
        d = moved - tokens.p if known == "trainer" else tokens.q - moved
        return np.where(above > math.log(value) + slack, -np.inf, d)

    return Family(
        cause=CAUSE.name,
        values=TOP_P,
        corrected=corrected,
        label=lambda value: label(Meaning(top_p=round(value, 3)), faulty).replace(" on the", " or so on the"),
        is_continuous=True,
    )


def _any_top_k(tokens: Tokens, situation: Situation, faulty: str, known: str) -> Family:
    """Top-k between the two of which the mass is kept: what is cut falls as a power of k between them.

    It may as well fall exponentially; how far that is from a power is what the mass may be wrong by.
    """
    statistics, raw = statistics_of(tokens, known), raw_logprobs(tokens, situation, known)
    cut = [np.log(-np.expm1(np.minimum(statistics[f"log_kept_top_k_{k}"], -1e-12))) for k in (20, 50)]

    def kept(share: float) -> Float64:
        found: Float64 = np.log1p(-np.exp((1.0 - share) * cut[0] + share * cut[1]))
        return found

    def corrected(value: float) -> Float64:
        moved = raw - kept(math.log(value / 20) / math.log(50 / 20))
        d = moved - tokens.p if known == "trainer" else tokens.q - moved
        return np.where(statistics["rank"] >= round(value) + 1, -np.inf, d)

    return Family(
        cause=CAUSE.name,
        values=TOP_K,
        corrected=corrected,
        scale=lambda value, noise: (
            noise + np.abs(kept(math.log(value / 20) / math.log(50 / 20)) - kept((value - 20) / (50 - 20)))
        ),
        label=lambda value: label(Meaning(top_k=round(value)), faulty).replace(" on the", " or so on the"),
        is_continuous=True,
    )


def _over_all(tokens: Tokens, situation: Situation, faulty: str, name: str) -> Callable[[], Float64]:
    """The faulty side's logprobs over all tokens again; a token that it would have cut has a value by mistake."""
    kept = statistics_of(tokens, faulty)[name]
    raw = (tokens.p if faulty == "rollout" else tokens.q) + kept
    outside = is_outside(tokens, KEPT[name], raw, known=faulty, slack=EDGE * situation.noise.scale(tokens.p))
    moved = np.where(outside, -np.inf, tokens.q - raw if faulty == "rollout" else raw - tokens.p)
    return lambda: moved


def _as_declared(tokens: Tokens, situation: Situation, faulty: str) -> Callable[[], Float64]:
    """The side that says what it cut, brought to the other's meaning."""
    known, nodes = raw_logprobs(tokens, situation, faulty), powers(statistics_of(tokens, faulty))
    other = meaning_of(situation, "trainer" if faulty == "rollout" else "rollout")
    if nodes is not None:
        known = at_temperature(known, nodes, other.temperature)
    return lambda: tokens.q - known if faulty == "rollout" else known - tokens.p


def is_outside(tokens: Tokens, meaning: Meaning, raw: Float64, *, known: str, slack: Float64 | float) -> BoolArray:
    """[M] whether a token certainly lies outside of what `meaning` keeps of the known side's raw distribution.

    slack: [M] nats by which the two sides may see an edge elsewhere. Top-p keeps a token if the mass strictly above it
    is below p. The most likely token's probability is at least the mass above, divided by how many have it.
    """
    statistics = statistics_of(tokens, known)
    rank, above = statistics.get("rank"), statistics.get("log_mass_above")
    outside: BoolArray = np.zeros(len(tokens), dtype=np.bool_)
    if rank is None or above is None:
        return outside
    if meaning.top_k:
        # Where the ranks are dense a little noise swaps two of them.
        outside |= rank >= meaning.top_k + np.where(np.asarray(slack) > 1e-3, 1, 0)
    if meaning.top_p < 1.0:
        outside |= above > math.log(meaning.top_p) + slack
    if meaning.min_p > 0.0:
        most = np.where(rank > 0, above - np.log(np.maximum(rank, 1)), -np.inf)
        outside |= (rank > 0) & (raw < math.log(meaning.min_p) + most - slack)
    return outside


def experiments(tokens: Tokens, situation: Situation) -> Iterable[Experiment]:
    """The trainer read again over the kept set of the protocol, and over the common ones that it has no mass of."""
    declared, own = Meaning.processed_by(situation.protocol), situation.trainer.meaning
    tried = [declared.model_copy(update={"beyond": ()})] if declared.truncates else []
    offline = [meaning for name, meaning in KEPT.items() if name in tokens.trainer_statistics]
    for common in COMMON:
        meaning = common.model_copy(update={"temperature": own.temperature})
        tried += [meaning] if common not in offline and meaning not in tried else []
    spec = spec_of(situation, "trainer")
    for meaning in tried:
        if spec is not None and meaning != own:
            yield Experiment(
                cause=CAUSE.name,
                label=label(meaning, "rollout"),
                engine=spec,
                meaning=meaning,
            )


def remedy(situation: Situation, value: float) -> str:
    """What to set, by engine."""
    off = "top_p 1, top_k off (vLLM -1, Transformers 0) and min_p 0"
    name = situation.rollout.engine.name
    if name == "vllm":
        return (
            f"sample with {off} for training (verl: actor_rollout_ref.rollout.top_p and top_k; TRL: top_p, top_k, "
            "min_p), sent explicitly or with --generation-config vllm, as vLLM takes what is not sent from the model's "
            "generation_config.json; or score the trainer over the kept set"
        )
    return (
        f"sample with {off} for training (verl: actor_rollout_ref.rollout.top_p and top_k; TRL: top_p, top_k, min_p), "
        "or record the kept set and normalise the trainer over it (NeMo-RL, prime-rl and slime replay it)"
    )


CAUSE = Cause(
    name="truncation",
    about="one side normalises over the tokens that top-k, top-p or min-p keep, the other over the whole vocabulary",
    remedy=remedy,
    families=families,
    experiments=experiments,
    needs="statistics of one side (record or score with --statistics), or the engine with the truncation",
)
