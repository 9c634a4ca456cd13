"""One side's logprobs lie some positions too early or too late."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from onepolicy.diagnosis.cause import Cause, Situation
from onepolicy.diagnosis.likelihood import Family
from onepolicy.diagnosis.tokens import Index, Tokens
from onepolicy.records.tokens import Float64

LARGEST = 8
BLOCKS = (16, 32, 64, 128, 256)
"""tokens in a block of a key-value cache: vLLM has 16, TensorRT-LLM 32, 64 or 128, Triton kernels up to 256"""
LAGS = tuple(sorted({sign * lag for lag in (*range(1, LARGEST + 1), *BLOCKS) for sign in (-1, 1)}))
LEAST_PAIRED = 0.5
"""share of a rollout's tokens that must have a partner before anything is said of the others"""


def families(tokens: Tokens, situation: Situation) -> Iterable[Family]:
    """The rollout logprob of token t against the trainer logprob of token t + lag, within a rollout."""
    lags = tuple(lag for lag in LAGS if abs(lag) <= LEAST_PAIRED * _longest(tokens))
    if not lags:
        return
    place = _places(tokens)

    def corrected(value: float) -> Float64:
        partner = _partners(place, round(value))
        return with_the_unpaired(tokens, np.where(partner >= 0, tokens.q[partner] - tokens.p, np.nan))

    yield Family(
        cause=CAUSE.name,
        values=tuple(float(lag) for lag in lags),
        corrected=corrected,
        label=lambda value: (
            f"the rollout's logprobs lie {abs(round(value))} positions too {'early' if value > 0 else 'late'}, or the "
            f"trainer's as many too {'late' if value > 0 else 'early'}"
        ),
    )


def with_the_unpaired(tokens: Tokens, moved: Float64) -> Float64:
    """[M] differences after tokens were moved, NaN where a token has no partner -> [M] without NaN.

    A token at an end that has no partner says nothing: it is no impossible one, and no perfect one either, or a lag as
    long as the rollout would explain everything. It counts as those of its rollout do that have one (the square of
    their mean root, so that one of them far out does not stand for all); where fewer than half of a rollout's tokens
    have a partner, all of them stay as they were.
    """
    paired = np.isfinite(moved)
    size = int(tokens.rollout[-1]) + 1 if len(tokens) else 0
    of_all = np.bincount(tokens.rollout, minlength=size)
    of_paired = np.bincount(tokens.rollout[paired], minlength=size)
    roots = np.bincount(tokens.rollout[paired], weights=np.sqrt(np.abs(moved[paired])), minlength=size)
    typical = np.square(roots / np.maximum(of_paired, 1))
    is_enough = of_paired >= LEAST_PAIRED * np.maximum(of_all, 1)
    found = np.where(paired, moved, typical[tokens.rollout])
    return np.where(is_enough[tokens.rollout], found, tokens.d)


def _longest(tokens: Tokens) -> int:
    return max((part.stop - part.start for _, part in tokens.parts()), default=0)


def _places(tokens: Tokens) -> Index:
    """[M] a number for rollout and position that no lag carries into the next rollout; ascending."""
    width = int(tokens.position.max()) + 2 * max(LAGS) + 1
    place: Index = tokens.rollout * width + tokens.position
    return place


def _partners(place: Index, lag: int) -> Index:
    """[M] which of the M tokens lies `lag` positions further on in the same rollout; -1 where none does."""
    at = np.minimum(np.searchsorted(place, place + lag), len(place) - 1)
    return np.where(place[at] == place + lag, at, -1)


def remedy(situation: Situation, value: float) -> str:
    """Where such a lag comes from."""
    lag = abs(round(value))
    if lag in BLOCKS:
        return (
            f"{lag} is a cache's block size: read the logprobs again with the prefix cache off (vLLM: "
            "--no-enable-prefix-caching, SGLang: --disable-radix-cache); if they agree, take the positions that the "
            "cache had from the prompt's length, not from what was computed"
        )
    if lag == 1:
        return (
            "logits at position t belong to token t + 1: use logits[:, :-1] with ids[:, 1:] on both sides (verl: "
            "log_probs of the response are logits[:, -response_length - 1 : -1]; TRL: logits_to_keep + 1, last one "
            "off), and give the first token no logprob"
        )
    return (
        f"align both sides to the end, or take off the {lag} positions that one side has at its front (virtual tokens "
        "of a prompt adapter, a prefix, image tokens), and assert equal lengths before gather()"
    )


CAUSE = Cause(
    name="shift",
    about="one side's logprobs are moved against the tokens by some positions",
    remedy=remedy,
    families=families,
    needs="rollouts of at least two tokens with a logprob on both sides",
)
