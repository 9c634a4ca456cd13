"""How alike the samples of one prompt are, on token ids, so that it works in every script."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rapidfuzz.distance import LCSseq

from onepolicy.records.tokens import Float64


def rouge_l(first: Sequence[int], second: Sequence[int]) -> float:
    """F1 of ROUGE-L: twice the longest common subsequence over the sum of both lengths; 1 for the same tokens.

    Shape: [C], [D], neither of them empty.
    Source: C.-Y. Lin, "ROUGE: A Package for Automatic Evaluation of Summaries" (2004), with beta = 1.
    """
    return 2.0 * LCSseq.similarity(first, second) / (len(first) + len(second))


def similarity_matrix(completions: Sequence[Sequence[int]]) -> Float64:
    """[n, n] ROUGE-L of each two completions; 0 on the diagonal, which no mean may hold."""
    n = len(completions)
    found = np.zeros((n, n))
    for i in range(n):
        for j in range(i):
            found[i, j] = found[j, i] = rouge_l(completions[i], completions[j])
    return found
