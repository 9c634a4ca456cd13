"""Completions of two sides -> the one value that the report and the exit status come from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from onepolicy.behaviour.completions import Observed, PromptPair, Side, paired
from onepolicy.behaviour.independence import one_sample_twice
from onepolicy.behaviour.limits import BehaviourLimits
from onepolicy.behaviour.metrics import Asked, metrics_of
from onepolicy.behaviour.permutation import PERMUTATIONS, SEED, permutation_test
from onepolicy.behaviour.result import Agreement, Behaviour, BehaviourMetric, BehaviourSide, RewardEquivalence
from onepolicy.behaviour.reward import OutcomeAgreement, RewardDifference, outcome_agreement, reward_difference
from onepolicy.behaviour.rows import rows_of
from onepolicy.behaviour.table import table_of
from onepolicy.behaviour.verdicts import Extent, censored, of_agreement, of_metric, of_reward, same_prompts
from onepolicy.judgement.decide import decide, sentence
from onepolicy.records.verdict import Status, Verdict

SUCCESS = 0.5
"""a reward of this or more is a success"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of both sides."""

    asked: Asked = Asked()
    limits: BehaviourLimits = BehaviourLimits()
    success: float = SUCCESS
    permutations: int = PERMUTATIONS
    seed: int = SEED


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """A side, and what it was."""

    side: Side
    shown: BehaviourSide
    max_new_tokens: int


def compare_behaviour(a: Configured, b: Configured, question: Question, first: Sequence[Verdict] = ()) -> Behaviour:
    """Whether two configurations behave alike, on the prompts that both have.

    first: verdicts on the recordings themselves. Raises: UsageError if they have no prompt in common.
    """
    pairs = paired(a.side, b.side)
    of_a, of_b = [one for pair in pairs for one in pair.a], [one for pair in pairs for one in pair.b]
    metrics, notes = metrics_of([*of_a, *of_b], question.asked)
    table = table_of(pairs, metrics)
    tested = permutation_test(table, permutations=question.permutations, seed=question.seed)
    rows = rows_of(table, tested, question.limits)
    extent = Extent(prompts=len(pairs), samples_a=len(of_a) / len(pairs), samples_b=len(of_b) / len(pairs))
    verdicts = [*first, same_prompts(pairs), *one_sample_twice(a.side, b.side, pairs)]
    verdicts += [of_metric(row, extent) for row in rows]
    rewarded = _rewarded(pairs, question)
    verdicts += [*rewarded.verdicts, censored(of_a, of_b, (a.max_new_tokens, b.max_new_tokens))]
    return Behaviour(
        a=a.shown.model_copy(update={"rollouts": len(of_a)}),
        b=b.shown.model_copy(update={"rollouts": len(of_b)}),
        prompts=len(pairs),
        status=decide(verdicts),
        sentence=_sentence(verdicts, rows, extent),
        verdicts=tuple(verdicts),
        metrics=tuple(rows),
        reward=rewarded.reward,
        agreement=rewarded.agreement,
        notes=(*_of_sides(a.side, b.side, pairs), *_without_similarity(rows), *notes),
    )


def _sentence(verdicts: Sequence[Verdict], rows: Sequence[BehaviourMetric], extent: Extent) -> str:
    if decide(verdicts) is not Status.PASS:
        return sentence(verdicts)
    return f"Pass: none of {len(rows)} metrics differs by more than chance and its threshold, over {extent}."


# -- reward -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rewarded:
    verdicts: tuple[Verdict, ...] = ()
    reward: RewardEquivalence | None = None
    agreement: Agreement | None = None


def _rewarded(pairs: Sequence[PromptPair], question: Question) -> _Rewarded:
    """Nothing where no completion has a reward; unknown where only some have."""
    every = [one.reward for pair in pairs for one in pair.both]
    without = sum(reward is None or not math.isfinite(reward) for reward in every)
    if every.count(None) == len(every):
        return _Rewarded()
    if without:
        message = (
            f"{without} of {len(every)} completions have no reward, or one that is no finite number, so it is not "
            "compared. Give --reward."
        )
        return _Rewarded(verdicts=(Verdict(check="reward", status=Status.UNKNOWN, message=message),))
    found = reward_difference(pairs)
    verdict = of_reward(found, margin=question.limits.reward_margin)
    outcomes = outcome_agreement(pairs, success=question.success)
    agreement = _agreement(outcomes, question.success)
    return _Rewarded(
        verdicts=(verdict, of_agreement(outcomes, agreement)),
        reward=_equivalence(found, question.limits.reward_margin, decided=verdict.status is not Status.UNKNOWN),
        agreement=agreement,
    )


def _equivalence(found: RewardDifference, margin: float, *, decided: bool) -> RewardEquivalence:
    needed = found.prompts_needed(margin)
    return RewardEquivalence(
        a=found.a,
        b=found.b,
        difference=found.difference,
        low=found.low,
        high=found.high,
        margin=margin,
        prompts_needed=None if decided or not math.isfinite(needed) else math.ceil(needed),
    )


def _agreement(found: OutcomeAgreement, success: float) -> Agreement:
    return Agreement(
        success=success,
        rate_a=found.rate_a,
        rate_b=found.rate_b,
        across=found.across,
        within_a=None if math.isnan(found.within_a) else found.within_a,
        within_b=None if math.isnan(found.within_b) else found.within_b,
    )


# -- what to know of the sides ----------------------------------------------------------------------------------


def _of_sides(a: Side, b: Side, pairs: Sequence[PromptPair]) -> list[str]:
    notes = [
        f"{name} is greedy: the samples of a prompt are copies, and the first counts"
        if side.greedy
        else f"{name}'s samples of each prompt are copies, as if it were greedy or all had one seed; the first counts"
        for name, side in (("A", a), ("B", b))
        if len(side.counted) < len(side.completions)
    ]
    for name, side in (("A", a), ("B", b)):
        alone = len({one.prompt_id for one in side.completions}) - len(pairs)
        notes += [f"{alone} prompts of {name} are not in the other, and not compared"] if alone else []
    copies, of = _copies(pairs)
    if copies:
        notes.append(f"{copies} of {of} completions of B are also in A, token by token")
    return notes


def _without_similarity(rows: Sequence[BehaviourMetric]) -> list[str]:
    """Whether answers vary as much, and say the same, is seen between samples of one prompt alone."""
    there = {row.name for row in rows}
    absent = [name for name in ("self_similarity", "content") if name not in there]
    needs = "no prompt has several samples that count, on both sides"
    return [f"{' and '.join(absent)} {'are' if absent[1:] else 'is'} not compared: {needs}"] if absent else []


def _copies(pairs: Sequence[PromptPair]) -> tuple[int, int]:
    """Completions of B that A has too for the prompt: many mean one seed for both, which are then no two samples."""
    return sum(_known(pair.b, pair.a) for pair in pairs), sum(len(pair.b) for pair in pairs)


def _known(these: Sequence[Observed], those: Sequence[Observed]) -> int:
    known = {one.token_ids for one in those}
    return sum(one.token_ids in known for one in these)
