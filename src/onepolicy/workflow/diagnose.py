"""A run -> why its two sides differ, with the experiment that proves it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onepolicy.diagnosis.answer import answer
from onepolicy.diagnosis.cause import Cause, Proof, Situation, no_proof
from onepolicy.diagnosis.causes import CAUSES
from onepolicy.diagnosis.decide import Excess, excess_of, explains, findings_of
from onepolicy.diagnosis.likelihood import Trial
from onepolicy.diagnosis.noise import noise_of_dtypes, noise_of_floor
from onepolicy.diagnosis.rereads import UNKNOWN
from onepolicy.diagnosis.tokens import Tokens
from onepolicy.diagnosis.two import with_pairs
from onepolicy.engines.spec import EngineSpec
from onepolicy.errors import UsageError
from onepolicy.records.finding import NO_EXCESS, Diagnosis, Finding, Outcome
from onepolicy.records.floor import Floor
from onepolicy.records.run import Run
from onepolicy.records.verdict import Verdict
from onepolicy.workflow.diagnose_experiments import SECONDS, command_for, findings_of_experiments
from onepolicy.workflow.diagnose_tokens import tokens_of
from onepolicy.workflow.measure import readers
from onepolicy.workflow.progress import Progress, Silent
from onepolicy.workflow.record import ROLLOUT
from onepolicy.workflow.score import TRAINER

FEWEST_PROMPTS = 5
"""a cause is judged on prompts that it was not fitted on, in five folds"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnoseRequest:
    """Which readings to explain, and with what."""

    rollout: str = ROLLOUT
    trainer: str = TRAINER
    floor: Floor | None = None
    """the noise, measured by `calibrate`; None: what the two precisions do to a small model"""
    weights: Mapping[str, EngineSpec] = field(default_factory=dict)
    """other weights of the trainer, `step 0` -> spec; older ones first"""
    experiments: bool = True
    """open the engines and read some rollouts again; without, only what the data say"""
    seconds: float = SECONDS
    """after which no other experiment is begun"""
    verdicts: tuple[Verdict, ...] = ()
    """of a judgement on the two readings; without, those of the judgement that the run keeps of them"""


def diagnose(path: Path, request: DiagnoseRequest | None = None, *, progress: Progress | None = None) -> Diagnosis:
    """Try every known cause on a run. Raises: EngineError, RunError, UsageError."""
    request = request or DiagnoseRequest()
    run = Run.open(path)
    tokens = tokens_of(run, request.rollout, request.trainer)
    if not len(tokens):
        raise UsageError(f"{path}: no token has a logprob on both sides, so there is no difference to explain.")
    situation = _situation(run, request)
    excess = excess_of(Trial(tokens, situation.noise))
    findings, notes = _findings(tokens, excess, request, situation, progress or Silent())
    findings = _with_commands(findings, tokens, excess, situation, path, is_over=request.experiments)
    return Diagnosis(
        run=str(run.path),
        rollout_reading=request.rollout,
        trainer_reading=request.trainer,
        sentence=answer(findings, excess, situation),
        tokens=len(tokens),
        prompts=len(set(tokens.prompt_ids)),
        mean_abs_d=excess.mean,
        noise=excess.noise,
        noise_source=situation.noise.source,
        excess=excess.mean - excess.noise,
        excess_error=excess.error if math.isfinite(excess.error) else None,
        differs=excess.is_there,
        findings=tuple(findings),
        notes=(*_notes(run, tokens, excess, situation, request.floor), *notes),
    )


def _notes(run: Run, tokens: Tokens, excess: Excess, situation: Situation, floor: Floor | None) -> list[str]:
    """What limits the answer."""
    found = list(tokens.left_out)
    found += [
        f"the precision of the {side} side is not known: the noise is {situation.noise.source}. Its spec may say it "
        "(dtype=bfloat16), and onepolicy calibrate measures the noise"
        for side, info in (("rollout", situation.rollout), ("trainer", situation.trainer))
        if info.engine.dtype == UNKNOWN and floor is None
    ]
    prompts, all_tokens = len(set(tokens.prompt_ids)), run.token_count()
    if prompts < FEWEST_PROMPTS:
        found.append(f"{prompts} prompts are too few to judge a cause on others than it was fitted on")
    if sum(map(len, tokens.sequences)) < all_tokens:
        found.append(f"of {all_tokens:,} tokens a share was looked at, whole rollouts of {prompts} prompts")
    if excess.is_of_few:
        worst = Trial(tokens, situation.noise).worst_prompts()
        found.append(f"most of the difference is in {', '.join(worst)}; look at these rollouts first")
    return found


def _situation(run: Run, request: DiagnoseRequest) -> Situation:
    rollout, trainer = run.reading_info(request.rollout), run.reading_info(request.trainer)
    dtypes = (rollout.engine.dtype, trainer.engine.dtype)
    sampling, scoring = readers(run, (run, trainer.engine.tokenizer_hash))
    reader = scoring or sampling
    return Situation(
        rollout=rollout,
        trainer=trainer,
        protocol=run.manifest.protocol,
        noise=noise_of_dtypes(*dtypes) if request.floor is None else noise_of_floor(request.floor),
        verdicts=request.verdicts or _kept_verdicts(run, request),
        bos=min(reader.boundaries.bos, default=None) if reader else None,
        eos=min(reader.boundaries.eos, default=None) if reader else None,
        vocabulary=reader.vocabulary if reader else None,
        weights=request.weights,
        is_sampled=run.manifest.kind == "fresh" and request.rollout == ROLLOUT,
    )


def _kept_verdicts(run: Run, request: DiagnoseRequest) -> tuple[Verdict, ...]:
    """Of the judgements that the run keeps, the one on these readings."""
    for name in run.judgement_names():
        judgement = run.judgement(name)
        if (judgement.rollout_reading, judgement.trainer_reading) == (request.rollout, request.trainer):
            return judgement.verdicts
    return ()


def _findings(
    tokens: Tokens, excess: Excess, request: DiagnoseRequest, situation: Situation, progress: Progress
) -> tuple[list[Finding], list[str]]:
    """What the data prove, what they explain, and experiments where they leave a doubt; and notes."""
    proofs = [(cause, proof) for cause in CAUSES.values() if (proof := cause.proof(tokens, situation)) is not None]
    proven = [_proven(cause, proof, situation) for cause, proof in proven_first(proofs)]
    if any(proof.is_decisive for _, proof in proofs):
        return proven, []
    found, causes = _from_data(tokens, situation) if excess.is_there else ([], {})
    if explains(found, causes) or not request.experiments:
        return proven + found, []
    more, notes = findings_of_experiments(
        tokens, situation, progress=progress, seconds=request.seconds, is_apart=excess.is_there
    )
    return proven + (more or found), notes


def proven_first(proofs: Sequence[tuple[Cause, Proof]]) -> list[tuple[Cause, Proof]]:
    """Decisive ones first; else in the order of `CAUSES`."""
    return sorted(proofs, key=lambda one: not one[1].is_decisive)


def _from_data(tokens: Tokens, situation: Situation) -> tuple[list[Finding], dict[str, Cause]]:
    trial = Trial(tokens, situation.noise, candidates=len(CAUSES))
    tried = [trial.of(family) for cause in CAUSES.values() for family in cause.families(tokens, situation)]
    tried, causes = with_pairs(trial, tried, CAUSES)
    return findings_of(trial, tried, causes, situation), causes


def _proven(cause: Cause, proof: Proof, situation: Situation) -> Finding:
    return Finding(
        cause=cause.name,
        outcome=Outcome.CAUSE,
        label=proof.label,
        seen=proof.seen,
        remedy=cause.remedy(situation, 0.0),
        experiment="none is needed: the data prove it",
    )


def _with_commands(
    findings: Sequence[Finding], tokens: Tokens, excess: Excess, situation: Situation, path: Path, *, is_over: bool
) -> list[Finding]:
    """The findings, and every other cause as not tested, with what it takes.

    is_over: whether experiments were run, so that a command says nothing that was not tried.
    """
    tried = {one.cause for one in findings}
    rest = [
        Finding(
            cause=cause.name,
            outcome=Outcome.UNTESTED,
            seen=cause.needs if excess.is_there or cause.proof is not no_proof else NO_EXCESS,
            command=command_for(cause, tokens, situation, path) if excess.is_there and not is_over else "",
        )
        for cause in CAUSES.values()
        if cause.name not in tried
    ]
    return [*findings, *(one for one in rest if one.seen or one.command)]
