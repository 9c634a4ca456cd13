"""Whether the two sides are two samples, or one that stands there twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from onepolicy.behaviour.completions import PromptPair, Side
from onepolicy.records.verdict import Status, Verdict

_DRAWN = 999
"""labellings that the number of common completions is held against"""
_SEED = 0
_NEXT = "Sample one side with another seed, or take another run."


def one_sample_twice(a: Side, b: Side, pairs: Sequence[PromptPair]) -> list[Verdict]:
    """An unknown verdict if B has more of A's completions than chance gives; else nothing.

    Two sides that share their samples, as those of one seed or of a copied run do, are alike whatever else differs, so
    nothing else about them could fail. If both are drawn by themselves from one distribution, the labels within a
    prompt are exchangeable, and all of 999 labellings have fewer completions in common with a chance of 1 in 1,000.
    """
    shared, of = sum(_in_common(pair) for pair in pairs), sum(len(pair.b) for pair in pairs)
    if not shared:
        return []
    if _beyond_chance(pairs):
        found = f"{shared} of {of} completions of B are those of A, more than two samples have in common by chance"
    elif shared == of and not (a.greedy or b.greedy) and all(len(pair.both) == 2 for pair in pairs):
        found = (
            f"all {of} completions of B are those of A, and with one sample of each prompt it cannot be told whether "
            "the two were drawn by themselves"
        )
    else:
        return []
    return [Verdict(check="independent", status=Status.UNKNOWN, value=float(shared), message=f"{found}. {_NEXT}")]


def _in_common(pair: PromptPair) -> int:
    """Completions of B that A has as well, each of A's counted once."""
    return (Counter(one.token_ids for one in pair.a) & Counter(one.token_ids for one in pair.b)).total()


def _beyond_chance(pairs: Sequence[PromptPair]) -> bool:
    """Whether no labelling of each prompt's completions has as many in common as the observed one."""
    rng = np.random.Generator(np.random.PCG64(_SEED))
    observed, drawn = 0, np.zeros(_DRAWN, dtype=np.int64)
    for pair in pairs:
        kinds = Counter(one.token_ids for one in pair.both)
        if 1 < len(kinds) < len(pair.both):  # else every labelling has the same number
            observed += _in_common(pair)
            drawn += _drawn(rng, list(kinds.values()), len(pair.b))
    return bool((drawn < observed).all())


def _drawn(rng: np.random.Generator, kinds: list[int], b: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """[999] completions in common where B gets `b` at random of those of each kind."""
    of_b = rng.multivariate_hypergeometric(kinds, b, size=_DRAWN)
    common: np.ndarray[tuple[int], np.dtype[np.int64]] = np.minimum(of_b, np.array(kinds) - of_b).sum(axis=1)
    return common
