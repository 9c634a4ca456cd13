"""A run -> the tokens on which causes are tried: whole prompts, drawn by the hash of their id."""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from onepolicy.diagnosis.tokens import Tokens
from onepolicy.numerics.pair import Pair, pair_up
from onepolicy.records.join import ReadingJoin, digests_of
from onepolicy.records.run import Run
from onepolicy.records.statistics import statistics_of
from onepolicy.records.tokens import Float32, IntArray

MOST_TOKENS = 200_000
"""of the prompts that are drawn, about"""
FEWEST = 20
"""prompts that are drawn at least: a cause is judged in five folds of them"""


def tokens_of(run: Run, rollout: str, trainer: str, *, most: int = MOST_TOKENS) -> Tokens:
    """The compared tokens of some prompts: the first by the hash of their id. Raises: RunError, ForeignReadingError."""
    prompts = sorted(set(run.prompt_ids()), key=lambda name: (zlib.crc32(name.encode()), name))
    share = most / max(run.token_count(), 1)
    chosen = set(prompts[: max(FEWEST, math.ceil(share * len(prompts)))])
    p_join, q_join = ReadingJoin(run, rollout), ReadingJoin(run, trainer)

    def pairs() -> Iterator[Pair]:
        for block in run.rollout_blocks():
            digests = digests_of(block)
            yield pair_up(block, digests, p_join.take(block, digests), q_join.take(block, digests))

    tokens = tokens_of_pairs(pairs(), chosen=chosen, most_of_prompt=max(most // max(len(chosen), 1), 1))
    return _with_statistics(run, (rollout, trainer), tokens)


def tokens_of_pairs(
    pairs: Iterable[Pair], *, chosen: Collection[str] | None = None, most_of_prompt: float = math.inf
) -> Tokens:
    """The tokens of blocks whose two sides were put together.

    chosen: prompts; None for all. most_of_prompt: tokens of one, beyond which no further rollout of it is taken.
    """
    taken: dict[str, int] = {}
    names: list[str] = []
    prompts: list[str] = []
    sequences: list[IntArray] = []
    columns: dict[str, list[np.ndarray]] = {key: [] for key in ("rollout", "position", "p", "q", "p_top1", "q_top1")}
    for pair in pairs:
        for row, name in enumerate(pair.rollouts.rollout_ids):
            part, whole = pair.part(row), pair.whole(row)
            prompt = pair.rollouts.prompt_ids[row]
            is_wanted = (chosen is None or prompt in chosen) and taken.get(prompt, 0) < most_of_prompt
            if part.start == part.stop or not is_wanted:
                continue
            taken[prompt] = taken.get(prompt, 0) + part.stop - part.start
            both = pair.both[whole]
            columns["rollout"].append(np.full(part.stop - part.start, len(names), dtype=np.int64))
            columns["position"].append(np.flatnonzero(both))
            columns["p"].append(pair.p[part].astype(np.float64))
            columns["q"].append(pair.q[part].astype(np.float64))
            for key, top1 in (("p_top1", pair.rollout_top1), ("q_top1", pair.trainer_top1)):
                if top1 is not None:
                    columns[key].append(top1[whole][both])
            names.append(name)
            prompts.append(prompt)
            sequences.append(pair.rollouts.token_ids[whole])
    joined = {key: np.concatenate(parts) if parts else np.zeros(0) for key, parts in columns.items()}
    size = len(joined["p"])
    return Tokens(
        rollout_ids=names,
        prompt_ids=prompts,
        sequences=sequences,
        rollout=joined["rollout"].astype(np.int64),
        position=joined["position"].astype(np.int64),
        p=joined["p"],
        q=joined["q"],
        rollout_top1=joined["p_top1"].astype(np.int32) if size and len(joined["p_top1"]) == size else None,
        trainer_top1=joined["q_top1"].astype(np.int32) if size and len(joined["q_top1"]) == size else None,
    )


def with_columns(
    tokens: Tokens, of_rollout: Mapping[str, Mapping[str, Float32]]
) -> tuple[dict[str, Float32], list[str]]:
    """Statistics of whole sequences -> of the M tokens, and what of them is not used, and why."""
    parts = tokens.parts()
    rows = [of_rollout.get(tokens.rollout_ids[row], {}) for row, _ in parts]
    names = sorted(set().union(*rows))
    columns: dict[str, Float32] = {}
    left_out: list[str] = []
    for name in names:
        without = sum(name not in row for row in rows)
        if without:
            left_out.append(f"{name}: {without} of {len(rows)} rollouts have none")
            continue
        values = [row[name][tokens.position[part]] for row, (_, part) in zip(rows, parts, strict=True)]
        column = np.concatenate(values)
        wrong = int(np.count_nonzero(np.isnan(column) | (column == np.inf)))
        if wrong:
            left_out.append(f"{name}: {wrong} tokens have no number")
            continue
        columns[name] = column
    return columns, left_out


def _with_statistics(run: Run, readings: tuple[str, str], tokens: Tokens) -> Tokens:
    (p, p_left), (q, q_left) = (with_columns(tokens, statistics_of(run, name, tokens.rollout_ids)) for name in readings)
    left_out = [
        f"statistics of {name!r} not used: {'; '.join(left)}"
        for name, left in zip(readings, (p_left, q_left), strict=True)
        if left
    ]
    return replace(tokens, rollout_statistics=p, trainer_statistics=q, left_out=tuple(left_out))
