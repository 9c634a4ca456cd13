"""What is kept of a token's raw distribution so that causes can be tried later, without the logits.

Everything is of the raw distribution p (temperature 1, nothing truncated), natural logarithms, float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from onepolicy.logprobs.normalise import log_softmax
from onepolicy.logprobs.truncation import ascending, kept_count, truncates
from onepolicy.records.protocol import Meaning

POWERS: tuple[float, ...] = tuple(1.25 - 0.75 * math.cos((2 * k + 1) * math.pi / 16) for k in range(8))
"""the 8 Chebyshev nodes of beta in [0.5, 2], ascending; `log_sum_power_i` belongs to POWERS[i]"""

COMMON_TRUNCATIONS: dict[str, Meaning] = {
    "log_kept_top_p_0_9": Meaning(top_p=0.9),
    "log_kept_top_p_0_95": Meaning(top_p=0.95),
    "log_kept_top_k_20": Meaning(top_k=20),
    "log_kept_top_k_50": Meaning(top_k=50),
    "log_kept_min_p_0_05": Meaning(min_p=0.05),
}

REPETITION_PENALTY = 1.1

REPORTED: dict[str, str] = {
    "entropy": "H = E[-log p] of the distribution that the logprobs belong to",
    "varentropy": "E[(-log p - H)^2] of the same",
}
"""what is kept whenever whole rows are in hand, asked for or not"""

STATISTICS: dict[str, str] = {
    "raw_entropy": "H = E[-log p]",
    "raw_varentropy": "E[(-log p - H)^2]",
    "raw_third_cumulant": "E[(-log p - H)^3]",
    "log_normaliser": "log sum exp of the logits",
    "rank": "how many tokens are more likely than this one; 0 is the most likely",
    "log_mass_above": "log of the probability of the tokens more likely than this one; -inf if there is none",
    **{f"log_sum_power_{i}": f"log sum p^{beta:.4f}" for i, beta in enumerate(POWERS)},
    **{name: f"log of the probability that {meaning} keeps" for name, meaning in COMMON_TRUNCATIONS.items()},
    "log_kept_declared": "log of the probability, at the declared temperature, that the declared truncation "
    "keeps; only if it truncates",
    "logprob_repetition_1_1": "logprob of the token under a repetition penalty of 1.1 over the ids before; "
    "only if those are given",
}
"""every per-token statistic and what it is"""


def reported_moments(logp: Tensor) -> dict[str, Tensor]:
    """Entropy and varentropy of the distributions that logprobs belong to. [N, V] -> [N] each."""
    found = moments(logp.exp(), logp)
    return {name: found[name] for name in REPORTED}


def statistics_of(
    logits: Tensor, token_ids: Tensor, *, declared: Meaning, seen_ids: Sequence[Tensor] | None
) -> dict[str, Tensor]:
    """The statistics of N tokens, in the order of `STATISTICS`.

    Shape: [N, V] float32 raw logits, [N] -> [N] float32 each.
    """
    ordered = ascending(logits)
    logp = log_softmax(ordered)
    p = logp.exp()
    token_logit = logits.gather(1, token_ids[:, None])
    found = {f"raw_{name}": values for name, values in moments(p, logp).items()}
    # The most likely token's logit minus its logprob.
    found["log_normaliser"] = ordered[:, -1] - logp[:, -1]
    found |= _place(ordered, token_logit, p)
    for i, beta in enumerate(POWERS):
        # No shift is needed: the largest term is at least V^-2, the largest sum at most V^0.5.
        found[f"log_sum_power_{i}"] = (logp * beta).exp_().sum(dim=1).log()
    for name, meaning in COMMON_TRUNCATIONS.items():
        found[name] = _log_kept(ordered, p, meaning)
    if truncates(declared):
        tempered = ordered / declared.temperature
        found["log_kept_declared"] = _log_kept(tempered, tempered.softmax(dim=1), declared)
    if seen_ids is not None:
        found["logprob_repetition_1_1"] = _penalised_logprob(logits, token_ids, seen_ids)
    return found


def moments(p: Tensor, logp: Tensor) -> dict[str, Tensor]:
    """Entropy, varentropy and third cumulant of distributions. [N, V], [N, V] -> [N] each."""
    # float32 p is 0 below exp(-104), so the bound changes no product; without it 0 * inf is NaN.
    surprisal = -logp.clamp(min=-200.0)
    entropy = (p * surprisal).sum(dim=1)
    centred = surprisal - entropy[:, None]
    weighted = p * centred.square()
    return {
        "entropy": entropy,
        "varentropy": weighted.sum(dim=1),
        "third_cumulant": (weighted * centred).sum(dim=1),
    }


def _place(ordered: Tensor, token_logit: Tensor, p: Tensor) -> dict[str, Tensor]:
    vocabulary = ordered.shape[1]
    above = vocabulary - torch.searchsorted(ordered, token_logit, right=True)[:, 0]
    return {"rank": above.float(), "log_mass_above": _mass_of_last(p, above).log()}


def _log_kept(ordered: Tensor, p: Tensor, meaning: Meaning) -> Tensor:
    return _mass_of_last(p, kept_count(ordered, meaning)).log().clamp(max=0.0)


def _mass_of_last(p: Tensor, count: Tensor) -> Tensor:
    """Sum of the last `count` entries of each row. [N, V], [N] -> [N]."""
    place = torch.arange(p.shape[1], device=p.device)
    return p.masked_fill(place < p.shape[1] - count[:, None], 0.0).sum(dim=1)


def _penalised_logprob(logits: Tensor, token_ids: Tensor, seen_ids: Sequence[Tensor]) -> Tensor:
    """Source: RepetitionPenaltyLogitsProcessor of Transformers 5; an id counts once."""
    lengths = torch.tensor([len(ids) for ids in seen_ids], device=logits.device)
    rows = torch.repeat_interleave(torch.arange(len(seen_ids), device=logits.device), lengths)
    columns = torch.cat(list(seen_ids)).to(device=logits.device, dtype=torch.int64)
    seen = logits[rows, columns]
    penalised = logits.clone()
    penalised[rows, columns] = torch.where(seen < 0, seen * REPETITION_PENALTY, seen / REPETITION_PENALTY)
    return log_softmax(penalised).gather(1, token_ids[:, None])[:, 0]
