"""Experiments of all causes on a few prompts, within a time, and what they say."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from onepolicy.diagnosis.cause import Cause, Edit, Experiment, Situation
from onepolicy.diagnosis.causes import CAUSES
from onepolicy.diagnosis.decide import explains, findings_of
from onepolicy.diagnosis.likelihood import Family, Trial, Tried
from onepolicy.diagnosis.precision import finding_of, settled
from onepolicy.diagnosis.rereads import reread_of, rereads
from onepolicy.diagnosis.respec import spec_of
from onepolicy.diagnosis.tokens import Tokens
from onepolicy.diagnosis.two import with_pairs
from onepolicy.records.finding import Finding
from onepolicy.workflow.experiments import Laboratory, few_prompts, grouped
from onepolicy.workflow.progress import Progress

SECONDS = 150.0
"""after which no other experiment is begun: three minutes with what is running then"""


def findings_of_experiments(
    tokens: Tokens, situation: Situation, *, progress: Progress, seconds: float, is_apart: bool
) -> tuple[list[Finding], list[str]]:
    """Findings on a few prompts, and what could not be run.

    is_apart: whether the sides are further apart than noise; else only their precision is looked at.
    """
    meanings = {"rollout": situation.rollout.meaning, "trainer": situation.trainer.meaning}
    laboratory = Laboratory(
        tokens=few_prompts(tokens), meanings=meanings, progress=progress, until=time.monotonic() + seconds
    )
    try:
        found, causes = _corrections(laboratory, situation) if is_apart else ([], {})
        if not explains(found, causes):
            found = _with_rereads(laboratory, situation, found, is_apart=is_apart)
    finally:
        laboratory.close()
    return found, _failures(laboratory.failed)


def _failures(failed: Mapping[str, str]) -> list[str]:
    """One line for each reason."""
    of_reason: dict[str, list[str]] = {}
    for label, why in failed.items():
        of_reason.setdefault(why, []).append(label)
    return [
        f"{labels[0]}{f' and {len(labels) - 1} more readings' if len(labels) > 1 else ''}: {why}"
        for why, labels in of_reason.items()
    ]


def _corrections(laboratory: Laboratory, situation: Situation) -> tuple[list[Finding], dict[str, Cause]]:
    """Statistics first, where the run has none: they may be enough."""
    spec = spec_of(situation, "trainer")
    if spec is not None and "log_normaliser" not in laboratory.tokens.trainer_statistics:
        laboratory.tokens = laboratory.with_statistics(spec)
    tokens = laboratory.tokens
    trial = Trial(tokens, situation.noise, candidates=len(CAUSES))
    tried = [trial.of(family) for cause in CAUSES.values() for family in cause.families(tokens, situation)]
    found = _judged(trial, tried, situation)
    if explains(*found):
        return found
    return _judged(trial, tried + [trial.of(family) for family in _read(laboratory, situation)], situation)


def _judged(trial: Trial, tried: Sequence[Tried], situation: Situation) -> tuple[list[Finding], dict[str, Cause]]:
    both, causes = with_pairs(trial, tried, CAUSES)
    return findings_of(trial, both, causes, situation), causes


def _read(laboratory: Laboratory, situation: Situation) -> list[Family]:
    """Of the causes in their order: those that say something specific before those that are many things."""
    found: list[Family] = []
    for cause in sorted(CAUSES.values(), key=lambda one: one.is_broad):
        found += laboratory.families(grouped(cause.experiments(laboratory.tokens, situation)))
    return found


def _with_rereads(
    laboratory: Laboratory, situation: Situation, found: Sequence[Finding], *, is_apart: bool
) -> list[Finding]:
    """The findings, and what one side moves by itself."""
    trial, tokens = Trial(laboratory.tokens, situation.noise), laboratory.tokens
    findings = list(found)
    # Only where its logprobs are of the distribution that it drew from is the mean importance ratio 1.
    is_drawn = situation.is_sampled and situation.rollout.meaning.is_sampled_from(situation.protocol)
    for experiment in rereads(situation, is_apart=is_apart):
        column = laboratory.column(experiment)
        if column is not None:
            again = reread_of(experiment, column, tokens, situation)
            findings = settled(findings, finding_of(trial, again, is_sampled=is_drawn))
    return findings


def command_for(cause: Cause, tokens: Tokens, situation: Situation, path: Path) -> str:
    """What to type to try a cause that was not; empty if only what it needs can be said."""
    experiment = next(iter(cause.experiments(tokens, situation)), None)
    if experiment is None:
        return ""
    if _is_plain(experiment):
        name = cause.name.replace(" ", "-")
        return shlex.join(["onepolicy", "score", str(path), "--engine", str(experiment.engine), "--name", name])
    return shlex.join(["onepolicy", "diagnose", str(path)])


def _is_plain(experiment: Experiment) -> bool:
    """Whether it is a reading that `onepolicy score` makes."""
    return experiment.edit == Edit() and (experiment.meaning is None or experiment.meaning.is_raw)
