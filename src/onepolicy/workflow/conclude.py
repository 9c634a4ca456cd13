"""Verdicts and measurements -> the one value that reports and the exit status come from."""

from __future__ import annotations

from onepolicy.judgement.decide import decide, sentence
from onepolicy.numerics.evidence import RolloutDetail
from onepolicy.numerics.measurement import Measurement
from onepolicy.numerics.table import reductions
from onepolicy.records.tokens import TokenState
from onepolicy.records.verdict import Judgement, Verdict, WorstRollout, WorstToken
from onepolicy.tokens.spell import Speller

_CONTEXT_BEFORE, _CONTEXT_AFTER = 16, 6


def conclude(
    verdicts: list[Verdict],
    measured: Measurement,
    *,
    run: str,
    readings: tuple[str, str],
    speller: Speller,
) -> Judgement:
    """Verdicts and what was measured, as the one value that reports and exit status come from."""
    return Judgement(
        run=run,
        rollout_reading=readings[0],
        trainer_reading=readings[1],
        look=measured.look.number,
        status=decide(verdicts),
        sentence=sentence(verdicts),
        verdicts=tuple(verdicts),
        metrics=reductions(measured),
        native={} if measured.native is None else measured.native.values(),
        counts=_counts(measured),
        coverage_by_language={
            language: {"compared": compared, "absent": absent}
            for language, (compared, absent) in sorted(measured.languages.items())
        },
        worst_rollouts=tuple(_worst_rollout(detail, speller) for detail in measured.worst_by_token),
    )


def _counts(measured: Measurement) -> dict[str, int]:
    counts = {
        "rollouts": measured.rollouts,
        "prompt_groups": len(measured.clusters),
        "duplicates": measured.clusters.duplicates,
        "tokens_to_compare": measured.compared,
        "tokens_compared": measured.valid,
        "hybrid_tokens": measured.hybrid_tokens,
    }
    for side, states in (("rollout", measured.rollout_states), ("trainer", measured.trainer_states)):
        for state in TokenState:
            if state is not TokenState.VALUE and states[state]:
                counts[f"{side}_{state.name.lower()}"] = int(states[state])
    return counts


def _worst_rollout(detail: RolloutDetail, speller: Speller) -> WorstRollout:
    """A bad rollout with its worst token in its text."""
    position = int(detail.positions[detail.worst])
    ids = detail.token_ids
    return WorstRollout(
        rollout_id=detail.rollout_id,
        prompt_id=detail.prompt_id,
        tokens=len(detail.positions),
        mean_abs_d=detail.mean_abs_d,
        sum_d=detail.sum_d,
        max_abs_d=detail.max_abs_d,
        before=speller.spell(ids[max(position - _CONTEXT_BEFORE, 0) : position]),
        worst=WorstToken(
            position=position,
            token_id=int(ids[position]),
            text=speller.spell(ids[position : position + 1]),
            rollout_logprob=float(detail.rollout_logprobs[detail.worst]),
            trainer_logprob=float(detail.trainer_logprobs[detail.worst]),
        ),
        after=speller.spell(ids[position + 1 : position + 1 + _CONTEXT_AFTER]),
    )
