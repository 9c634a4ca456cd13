"""What the numbers say: pass, fail or unknown for each of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from onepolicy.behaviour.completions import Observed, PromptPair
from onepolicy.behaviour.permutation import FAMILY_ALPHA
from onepolicy.behaviour.result import Agreement, BehaviourMetric
from onepolicy.behaviour.reward import OutcomeAgreement, RewardDifference
from onepolicy.judgement.limits import MIN_CLUSTERS
from onepolicy.records.verdict import Evidence, Status, Verdict

SEEN = 2.5
"""a pass must have been able to see a difference of so many thresholds"""
CENSORED = 0.05
"""a larger share of completions that end at the limit is told"""
_MOST_EVIDENCE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much was compared."""

    prompts: int
    samples_a: float
    samples_b: float
    """of a prompt, in the mean"""

    def __str__(self) -> str:
        a, b = f"{self.samples_a:.3g}", f"{self.samples_b:.3g}"
        return f"{self.prompts} prompts with {a if a == b else f'{a} and {b}'} samples"


def same_prompts(pairs: Sequence[PromptPair]) -> Verdict:
    """Whether both sides read the same prompts, token by token."""
    other = [p for p in pairs if {one.prompt_digest for one in p.a} != {one.prompt_digest for one in p.b}]
    if not other:
        message = f"both sides read the same tokens in all {len(pairs)} prompts."
        return Verdict(check="same_prompts", status=Status.PASS, message=message)
    return Verdict(
        check="same_prompts",
        status=Status.FAIL,
        value=float(len(other)),
        message=f"{len(other)} of {len(pairs)} prompts are other tokens for B than for A, {other[0].prompt_id} the "
        "first of them. Compare the templates and tokenizers first: onepolicy tokens --help",
        evidence=tuple(
            Evidence(rollout_id=p.b[0].rollout_id, note="other prompt tokens than in A") for p in other[:_MOST_EVIDENCE]
        ),
    )


def of_metric(row: BehaviourMetric, extent: Extent) -> Verdict:
    """An alarm if the difference is beyond chance and larger than the threshold.

    A pass needs a comparison that could have seen SEEN thresholds, and a difference that is within the threshold or
    beyond chance; anything else is unknown.
    """
    large, beyond_chance = abs(row.difference) > row.threshold, row.p <= FAMILY_ALPHA
    large = large and (row.name != "content" or row.difference > 0)
    found = f"{_shown(row)}, p {row.p:.2g}"
    if large and beyond_chance:
        return _verdict(row, Status.FAIL, f"{found}: beyond chance, and larger than {_size(row, row.threshold)}.")
    if large:
        return _verdict(row, Status.UNKNOWN, f"{found}: large, and may be chance. {_more(row, extent)}")
    if row.visible > SEEN * row.threshold:
        return _verdict(row, Status.UNKNOWN, f"{found}: too few to tell. {_more(row, extent)}")
    if extent.prompts < MIN_CLUSTERS:
        message = f"{found}: {extent.prompts} prompts say nothing of others. Take at least {MIN_CLUSTERS}."
        return _verdict(row, Status.UNKNOWN, message)
    chance = "beyond chance, and small" if beyond_chance else "no more than chance"
    return _verdict(row, Status.PASS, f"{found}: {chance}.")


def _verdict(row: BehaviourMetric, status: Status, message: str) -> Verdict:
    return Verdict(
        check=row.name.replace(" ", "_"),
        status=status,
        kind="about the policy",
        quantity=row.name,
        value=row.difference,
        limit=row.threshold,
        unit=row.unit,
        message=message,
    )


def _shown(row: BehaviourMetric) -> str:
    if row.unit == "tokens":
        return f"length {row.a:.1f} -> {row.b:.1f} tokens ({row.difference:+.0%} within prompts)"
    if row.name == "content":
        return f"content: ROUGE-L {row.a:.3f} within the sides, {row.b:.3f} across"
    return f"{row.name} {row.a:.3f} -> {row.b:.3f}"


def _size(row: BehaviourMetric, value: float) -> str:
    return f"{value:.0%}" if row.unit == "tokens" else f"{value:.2g}"


def _more(row: BehaviourMetric, extent: Extent) -> str:
    """What would decide: the spread falls with the square root of the prompts."""
    wanted = SEEN * row.threshold
    needed = max(math.ceil(extent.prompts * (row.visible / wanted) ** 2), MIN_CLUSTERS)
    if needed <= extent.prompts:
        needed = 2 * extent.prompts
    seen = f"A difference of {_size(row, row.visible)} is seen in 80 % of comparisons of {extent}"
    return f"{seen}; take about {needed} prompts."


def of_reward(found: RewardDifference, *, margin: float) -> Verdict:
    """Equivalent if the 90 % interval is within the margin, different if it is outside, else unknown."""
    status, message = _reward_status(found, margin)
    return Verdict(
        check="reward",
        status=status,
        kind="about the policy",
        quantity="difference of mean reward",
        value=found.difference,
        low=found.low,
        high=found.high,
        limit=margin,
        message=message,
    )


def _reward_status(found: RewardDifference, margin: float) -> tuple[Status, str]:
    what = f"mean reward {found.a:.3f} -> {found.b:.3f}"
    if found.range == 0:
        return Status.UNKNOWN, f"every completion has the reward {found.a:.3g}, which tells nothing apart."
    if found.prompts < MIN_CLUSTERS:
        return Status.UNKNOWN, f"{what} on {found.prompts} prompts, too few to decide. Take at least {MIN_CLUSTERS}."
    what = f"{what}, difference {found.difference:+.3f} ({found.low:+.3f} to {found.high:+.3f})"
    if found.low > margin or found.high < -margin:
        return Status.FAIL, f"{what}: beyond {margin:g} either way."
    if -margin <= found.low and found.high <= margin:
        return Status.PASS, f"{what}: within {margin:g}."
    return Status.UNKNOWN, f"{what}: on both sides of {margin:g}. {_reward_needs(found, margin)}"


def _reward_needs(found: RewardDifference, margin: float) -> str:
    needed = found.prompts_needed(margin)
    if needed > 50 * found.prompts:
        return "The difference is so near the margin that no number of prompts would decide."
    return f"About {math.ceil(needed):,} prompts with as many samples would decide."


def of_agreement(found: OutcomeAgreement, shown: Agreement) -> Verdict:
    """How often both rounds end the same; a note."""
    usual = [f"{x:.0%}" for x in (shown.within_a, shown.within_b) if x is not None]
    would = f"; two rounds of one side give {' and '.join(usual)}" if usual else ""
    turned = f" {len(found.turned)} prompts turn altogether." if found.turned else ""
    return Verdict(
        check="outcomes",
        status=Status.PASS,
        required=False,
        kind="about the policy",
        quantity="per-prompt outcome agreement",
        value=found.across,
        message=f"{found.rate_a:.0%} and {found.rate_b:.0%} succeed (reward of {shown.success:g} or more); the same "
        f"outcome for {found.across:.0%} of samples of one prompt{would}.{turned}",
        evidence=tuple(
            Evidence(
                rollout_id=prompt,
                note=f"{'fails' if b else 'succeeds'} under A, {'succeeds' if b else 'fails'} under B",
            )
            for prompt, b in found.turned[:_MOST_EVIDENCE]
        ),
    )


def censored(a: Sequence[Observed], b: Sequence[Observed], limits: tuple[int, int]) -> Verdict:
    """Whether completions end at the limit of new tokens: their length is only a lower bound. A note.

    limits: `max_new_tokens` of both sides.
    """
    shares = [sum(one.finish_reason == "length" for one in side) / len(side) for side in (a, b)]
    if max(shares) <= CENSORED:
        message = f"at most {max(shares):.0%} of the completions of a side end at the limit of new tokens."
        return Verdict(check="censored", status=Status.PASS, required=False, value=max(shares), message=message)
    cut = " and ".join(
        f"{share:.0%} of {side} (at {limit})" for side, share, limit in zip("AB", shares, limits, strict=True)
    )
    return Verdict(
        check="censored",
        status=Status.UNKNOWN,
        required=False,
        value=max(shares),
        limit=CENSORED,
        message=f"the limit of new tokens cuts {cut}. How long these would be is not known, and everything here is of "
        "the tokens before. Raise max_new_tokens to see more.",
    )
