"""One side's softmax is over rows of the head that are no tokens, the other's is not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from onepolicy.diagnosis.cause import Cause, Experiment, Situation
from onepolicy.diagnosis.causes.temperature import statistics_of
from onepolicy.diagnosis.likelihood import Family
from onepolicy.diagnosis.respec import again, with_options
from onepolicy.diagnosis.tokens import Tokens
from onepolicy.records.tokens import Float64

ROWS = tuple(float(x) for x in np.geomspace(1, 65536, 33))
"""padded rows whose logit is 0, as rows of zeros have: heads are padded to multiples of 64 up to 65536"""
ONE_SIGN = 0.75
"""share of the tokens beyond the noise whose d has one sign; noise as large as the offset turns about a quarter"""
LEAST_TOKENS = 20


def families(tokens: Tokens, situation: Situation) -> Iterable[Family]:
    """A loss of mass as rows of zeros have it; only where d has one sign.

    A sign that is not the same for all rules it out before any fit: another model is less likely on average too.
    """
    sign = _sign(tokens, situation)
    masked = "rollout" if sign < 0 else "trainer"
    for known in ("trainer", "rollout"):
        normaliser = statistics_of(tokens, known).get("log_normaliser")
        if sign and normaliser is not None:
            yield Family(
                cause=CAUSE.name,
                values=ROWS,
                corrected=_of_zeros(tokens, normaliser.astype(np.float64), known, masked),
                label=lambda value: f"{_label(masked)}{_or_a_cut(situation)}: {value:.0f} rows of zeros",
                is_continuous=True,
                seen=_seen(situation),
                settles=False,
            )


def experiments(tokens: Tokens, situation: Situation) -> Iterator[Experiment]:
    """Each side over the ids of the tokenizer alone, where its head has more rows."""
    engines = {"trainer": situation.trainer.engine, "rollout": situation.rollout.engine}
    for side in again(situation):
        rows, ids = engines[side.name].vocab_size, situation.vocabulary
        if rows is None or ids is None or ids >= rows or "config" in side.spec.options:
            continue
        yield Experiment(
            cause=CAUSE.name,
            label=f"{_label('trainer' if side.name == 'rollout' else 'rollout')}: the {side.called} without its "
            f"{rows - ids} rows beyond the tokenizer's {ids} ids",
            engine=with_options(side.spec, config=f"vocab_size={ids}"),
            side=side.name,
        )


def _of_zeros(tokens: Tokens, normaliser: Float64, known: str, masked: str) -> Callable[[float], Float64]:
    """A row of zeros has the logit 0 whatever the context: n of them have n·exp(-normaliser) of what the rest has."""
    sign = 1.0 if masked == "rollout" else -1.0

    def corrected(value: float) -> Float64:
        share = value * np.exp(-normaliser)
        # The known side's normaliser has these rows in it unless it is the one that leaves them out.
        lost = np.log1p(share) if known == masked else -np.log1p(-np.minimum(share, 1 - 1e-9))
        found: Float64 = tokens.d + sign * lost
        return found

    return corrected


def _sign(tokens: Tokens, situation: Situation) -> int:
    """Of d where it is beyond the noise; 0 where it has both."""
    beyond = tokens.d[np.abs(tokens.d) > situation.noise.scale(tokens.p)]
    if len(beyond) < LEAST_TOKENS:
        return 0
    negative = float(np.mean(beyond < 0))
    return -1 if negative >= ONE_SIGN else 1 if 1 - negative >= ONE_SIGN else 0


def _label(masked: str) -> str:
    return f"rows of the head that are no tokens are left out on the {masked} side alone"


def _or_a_cut(situation: Situation) -> str:
    """What takes mass off every token as well; not where the sizes of the vocabularies say more."""
    return "" if _seen(situation) else " (or tokens that a truncation cuts, at a value that was not tried)"


def _seen(situation: Situation) -> str:
    sizes = situation.rollout.engine.vocab_size, situation.trainer.engine.vocab_size
    if None in sizes or sizes[0] == sizes[1]:
        return ""
    return f"the rollout side has a vocabulary of {sizes[0]}, the trainer of {sizes[1]}"


def remedy(situation: Situation, value: float) -> str:
    """Where padded rows are masked."""
    return (
        "mask the rows from len(tokenizer) on in both engines before the softmax (Megatron: they come from "
        "make_vocab_size_divisible_by; verl's vLLM rollout masks them in the sampler alone), or cut the head to "
        "len(tokenizer) rows with model.resize_token_embeddings"
    )


CAUSE = Cause(
    name="vocabulary padding",
    about="one side's softmax has rows of the head in it that are no tokens, the other's leaves them out",
    remedy=remedy,
    families=families,
    experiments=experiments,
    is_broad=True,
    needs="the log-normaliser of one side (score with --statistics), or a side's engine (transformers), to be read "
    "over the tokenizer's ids alone",
)
