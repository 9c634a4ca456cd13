"""Everything the numeric checks need to know about a pair of readings, gathered block by block in flat memory."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from onepolicy.judgement.looks import Look
from onepolicy.judgement.statistics import Estimate
from onepolicy.numerics.buckets import Buckets
from onepolicy.numerics.clusters import Clusters
from onepolicy.numerics.ends import Ends
from onepolicy.numerics.evidence import (
    KEPT,
    Gap,
    Places,
    RolloutDetail,
    Worst,
    contradicted_zeros,
    excluded_tokens,
    gaps_of,
    invalid_values,
    max_abs_d,
    mean_k3,
)
from onepolicy.numerics.hybrid import PairedTop, hybrid_sum
from onepolicy.numerics.lags import Lags
from onepolicy.numerics.native import NativeSums
from onepolicy.numerics.pair import Pair, counted_states
from onepolicy.numerics.sample import TokenSample
from onepolicy.numerics.summary import ROLLOUT_SUMS, TokenTotals
from onepolicy.numerics.surprise import Surprise
from onepolicy.records.parquet import read_tags
from onepolicy.records.protocol import Meaning
from onepolicy.records.tokens import Float64, TokenState


def _no_states() -> npt.NDArray[np.int64]:
    return np.zeros(len(TokenState), dtype=np.int64)


@dataclass(slots=True, kw_only=True, eq=False)
class Measurement:
    """The result; `add` is the only thing that changes it."""

    rollout_meaning: Meaning = Meaning()
    trainer_meaning: Meaning = Meaning()
    is_kl: bool = True
    """whether the tokens were sampled from the distribution that the rollout logprobs belong to"""
    look: Look = Look()
    """which look at the run this is"""
    rollouts: int = 0
    empty_rollouts: int = 0
    """without a token to compare"""
    valid_rollouts: int = 0
    """with a token that has a logprob on both sides"""
    compared: int = 0
    """tokens that were to be compared"""
    rollout_states: npt.NDArray[np.int64] = field(default_factory=_no_states)
    """[len(TokenState)] of the compared tokens"""
    trainer_states: npt.NDArray[np.int64] = field(default_factory=_no_states)
    totals: TokenTotals = field(default_factory=TokenTotals)
    sums: Float64 = field(default_factory=lambda: np.zeros(len(ROLLOUT_SUMS)))
    clusters: Clusters = field(default_factory=Clusters)
    hybrid_tokens: int = 0
    """compared tokens whose gate quantity came from top lists"""
    top1_known: int = 0
    top1_equal: int = 0
    native: NativeSums | None = field(default_factory=NativeSums)
    """None if nobody asked for what dashboards show"""
    surprise: Surprise = field(default_factory=Surprise)
    buckets: Buckets = field(default_factory=Buckets)
    sample: TokenSample = field(default_factory=TokenSample)
    lags: Lags = field(default_factory=Lags)
    ends: Ends = field(default_factory=Ends)
    sequence_outside: int = 0
    """rollouts whose sequence ratio, exp of their summed d, lies outside [0.5, 2]"""
    both_zero: int = 0
    """tokens that are exactly 0.0 on both sides"""
    equal_rollouts: int = 0
    """rollouts with a token, all of which are the same on both sides"""
    max_abs_d: float = 0.0
    """of a token"""
    max_abs_sum_d: float = 0.0
    """of a rollout"""
    languages: dict[str, list[int]] = field(default_factory=dict)
    """language -> [compared tokens, tokens without a logprob on one side]"""
    invalid: Places = field(default_factory=Places)
    excluded: int = 0
    """compared tokens that one side's truncation gives no probability; they are in no mean"""
    excluded_places: Places = field(default_factory=Places)
    zeros: Places = field(default_factory=Places)
    gaps: list[Gap] = field(default_factory=list)
    """the worst of them, largest share without a logprob first"""
    by_kl: Worst = field(default_factory=lambda: Worst(of=mean_k3, key=lambda detail: detail.mean_k3))
    by_token: Worst = field(default_factory=lambda: Worst(of=max_abs_d, key=lambda detail: detail.max_abs_d))

    @property
    def valid(self) -> int:
        """Tokens with a logprob on both sides."""
        return self.totals.tokens

    @property
    def same_meaning(self) -> bool:
        """Whether the two columns belong to the same kind of distribution."""
        return self.rollout_meaning == self.trainer_meaning

    @property
    def worst_by_kl(self) -> list[RolloutDetail]:
        """The rollouts with the largest mean k3."""
        return self.by_kl.rollouts

    @property
    def worst_by_token(self) -> list[RolloutDetail]:
        """The rollouts with the largest |d| of a token."""
        return self.by_token.rollouts

    def mean(self, name: str) -> float:
        """Mean per token of one of `ROLLOUT_SUMS` over all compared tokens; NaN if there is none."""
        return float(self.sums[ROLLOUT_SUMS.index(name)] / self.sums[0]) if self.sums[0] else float("nan")

    def gate(self) -> Estimate:
        """The gate quantity per token (hybrid where there are top lists, k3 elsewhere), by prompt group.

        About a policy no rollout weighs more than one of `GATE_TOKENS` tokens; a mean over these tokens is plain.
        """
        if not self.is_kl:
            return self.clusters.gate_on_these_tokens()
        return self.clusters.gate(upper_alpha=self.look.alpha)

    def add(self, pair: Pair, top: dict[str, PairedTop] | None = None) -> None:
        """Take in one block; `top` holds the rollouts of it for which both sides have top lists."""
        self.buckets.add(pair)
        self.sample.add(pair)
        if self.native is not None:
            self.native.add(pair)
        self.totals.add(pair.totals)
        self.sums += pair.sums.sums.sum(axis=0)
        self.clusters.add(pair, self._gate_sums(pair, top or {}))
        self.by_kl.add(pair)
        self.by_token.add(pair)
        if len(pair.p) < int(pair.wanted.sum()):
            self.invalid.add(pair, invalid_values(pair))
            excluded = excluded_tokens(pair)
            self.excluded += int(np.count_nonzero(excluded))
            self.excluded_places.add(pair, excluded)
        if pair.has_zeros:
            self.zeros.add(pair, contradicted_zeros(pair))
        self.gaps = heapq.nlargest(KEPT, self.gaps + gaps_of(pair), key=lambda gap: gap.without / gap.compared)
        self.surprise.add(pair)
        self.lags.add(pair, top or {})
        self.ends.add(pair)
        self._count(pair)
        self._count_languages(pair)
        self._count_top1(pair)

    def _count(self, pair: Pair) -> None:
        self.rollouts += len(pair.digests)
        self.valid_rollouts += int(np.count_nonzero(pair.sums.column("tokens")))
        self.compared += int(np.count_nonzero(pair.compared))
        self.empty_rollouts += int(np.count_nonzero(pair.wanted == 0))
        self.rollout_states += counted_states(pair, pair.rollout_states)
        self.trainer_states += counted_states(pair, pair.trainer_states)
        sequence = np.abs(pair.sums.column("d"))
        self.sequence_outside += int(np.count_nonzero(sequence > np.log(2)))
        if pair.has_zeros:
            self.both_zero += int(np.count_nonzero((pair.p == 0) & (pair.q == 0)))
        self.equal_rollouts += int(np.count_nonzero((pair.sums.max_abs_d == 0) & (np.diff(pair.offsets) > 0)))
        self.max_abs_d = max(self.max_abs_d, float(pair.sums.max_abs_d.max(initial=0.0)))
        self.max_abs_sum_d = max(self.max_abs_sum_d, float(sequence.max(initial=0.0)))

    def _count_languages(self, pair: Pair) -> None:
        without = (pair.wanted - np.diff(pair.offsets)).tolist()
        rollouts = zip(pair.rollouts.rollout_ids, pair.rollouts.tags, pair.wanted.tolist(), without, strict=True)
        known: dict[str, str] = {}
        for rollout_id, tags, tokens, absent in rollouts:
            if tags not in known:
                known[tags] = read_tags(rollout_id, tags).get("language", "-")
            language = self.languages.setdefault(known[tags], [0, 0])
            language[0] += tokens
            language[1] += absent

    def _count_top1(self, pair: Pair) -> None:
        if pair.rollout_top1 is None or pair.trainer_top1 is None:
            return
        p, q = pair.rollout_top1[pair.both], pair.trainer_top1[pair.both]
        known = (p >= 0) & (q >= 0)
        self.top1_known += int(np.count_nonzero(known))
        self.top1_equal += int(np.count_nonzero(known & (p == q)))

    def _gate_sums(self, pair: Pair, top: dict[str, PairedTop]) -> Float64:
        gate = pair.sums.column("k3").copy()
        if not self.is_kl:
            return gate  # the sampled token is no draw from p, so k3 outside the lists estimates nothing
        for row, rollout_id in enumerate(pair.rollouts.rollout_ids):
            if rollout_id in top:
                gate[row], used = hybrid_sum(top[rollout_id], pair, row)
                self.hybrid_tokens += used
        return gate
