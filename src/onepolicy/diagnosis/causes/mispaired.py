"""Logprobs of one rollout stand beside those of another."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from onepolicy.diagnosis.cause import Cause, Proof, Situation
from onepolicy.diagnosis.causes.shift import LEAST_PAIRED
from onepolicy.diagnosis.noise import CLIP
from onepolicy.diagnosis.tokens import Tokens
from onepolicy.records.tokens import Float64

BAD = 2.0
"""times the noise that mean |d| of a rollout must be for it to be looked for elsewhere"""
GOOD = 1.5
"""times the noise that is left at most with the right partner"""
BETTER = 2.0
"""times as far apart as they are that rollouts must be for another partner to be the right one"""
LEAST_ROWS = 2
LEAST_TOKENS = 8
"""that two rollouts share: fewer may agree by chance"""
MOST_ROWS = 2048
"""rollouts that are compared with each other"""
_FIRST = 16
"""tokens by which partners are looked for, before they are compared in full"""


def proof(tokens: Tokens, situation: Situation) -> Proof | None:
    """Rollouts that are far apart as they are and at the noise with the trainer logprobs of another one.

    No trial over prompts, as two rows of a thousand are as wrong as all of them. Decisive if every rollout that is far
    apart has found its partner: then nothing else is to be explained in them.
    """
    scale = situation.noise.scale(tokens.p)
    parts = dict(tokens.parts())
    bad = [row for row, part in parts.items() if _is_bad(tokens, scale, part)]
    pairing = _pairing(tokens, scale, {row: parts[row] for row in bad[:MOST_ROWS]})
    if len(pairing) < LEAST_ROWS:
        return None
    first, other = next(iter(pairing.items()))
    return Proof(
        label=f"{len(pairing)} of {len(parts)} rollouts have the trainer logprobs of another one",
        seen=f"the trainer logprobs that belong to rollout {tokens.rollout_ids[first]} stand at rollout "
        f"{tokens.rollout_ids[other]}; {len(bad)} rollouts are far apart as they are",
        is_decisive=len(pairing) == len(bad) or len(pairing) >= MOST_ROWS // 2,
    )


def _pairing(tokens: Tokens, scale: Float64, parts: Mapping[int, slice]) -> dict[int, int]:
    """Rollout -> the rollout whose trainer logprobs fit its own, where that is another one and no other has it."""
    if len(parts) < LEAST_ROWS:
        return {}
    taken: dict[int, list[int]] = {}
    for row, other in _nearest(tokens, scale, parts).items():
        if row != other and _fits(tokens, scale, parts[row], parts[other]):
            taken.setdefault(other, []).append(row)
    return {rows[0]: other for other, rows in sorted(taken.items()) if len(rows) == 1}


def _is_bad(tokens: Tokens, scale: Float64, part: slice) -> bool:
    if part.stop - part.start < LEAST_TOKENS:
        return False
    apart = np.minimum(np.abs(tokens.d[part]), CLIP)
    return bool(apart.sum() > BAD * np.minimum(scale[part], CLIP).sum())


def _nearest(tokens: Tokens, scale: Float64, parts: Mapping[int, slice]) -> dict[int, int]:
    """Rollout -> that one of them whose trainer logprobs of the first tokens are nearest to its own."""
    rows = list(parts)
    p, q = (np.stack([_beginning(side[part]) for part in parts.values()]) for side in (tokens.p, tokens.q))
    scales = np.stack([_beginning(scale[part]) for part in parts.values()])
    found = {}
    for number, row in enumerate(rows):
        # In units of the noise, and flat far out: one token that is off must not decide.
        apart = np.log1p(np.square((q - p[number]) / scales[number]))
        found[row] = rows[int(np.nanargmin(np.nanmean(apart, axis=1)))]
    return found


def _beginning(values: Float64) -> Float64:
    padded = np.full(_FIRST, np.nan)
    padded[: min(len(values), _FIRST)] = values[:_FIRST]
    return padded


def _fits(tokens: Tokens, scale: Float64, own: slice, other: slice) -> bool:
    shared = min(own.stop - own.start, other.stop - other.start)
    if shared < max(LEAST_TOKENS, LEAST_PAIRED * (own.stop - own.start)):
        return False
    p, q = tokens.p[own][:shared], tokens.q[other][:shared]
    left, before = (np.minimum(np.abs(values), CLIP).sum() for values in (q - p, tokens.d[own][:shared]))
    return bool(left <= GOOD * np.minimum(scale[own][:shared], CLIP).sum() and before >= BETTER * left)


def remedy(situation: Situation, value: float) -> str:
    """Where rows get mixed up."""
    return (
        "carry a row id from sampling to the loss and join by it (verl: DataProto.non_tensor_batch['uid']; TRL: one "
        "order for inputs and completions of a batch; vLLM: RequestOutput.request_id), as results may come back in "
        "another order than they were asked for; assert that hash(prompt ids) is the same at both ends"
    )


CAUSE = Cause(
    name="rows paired wrongly",
    about="the trainer's logprobs of one rollout stand beside the rollout logprobs of another",
    remedy=remedy,
    proof=proof,
    needs=f"two rollouts of {LEAST_TOKENS} tokens or more that have each other's values; of completions that were "
    "scored under another row's prompt no value is right: compare the hash of each prompt's ids at both ends",
)
