"""`onepolicy reward`: a reward model, and the same one behind a server -> what is wrong with it as a signal."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from onepolicy.errors import UsageError
from onepolicy.integrations.scorers import open_scorer, scorer_spec
from onepolicy.judgement.decide import decide, sentence
from onepolicy.records.verdict import Status, Verdict
from onepolicy.signal.reward.check import CHECKS, checked
from onepolicy.signal.reward.pairs import load_pairs
from onepolicy.signal.reward.result import RewardChecks
from onepolicy.signal.reward.scorer import Scorer
from onepolicy.signal.reward.subject import Subject, is_finite, subject_of
from onepolicy.workflow.progress import Progress, Silent
from onepolicy.workflow.reward_judge import judge_protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardRequest:
    """Which reward model, and what it is held against."""

    model: str
    """a folder or hub id, a spec (transformers:, callable:, vllm:, sglang:), or the URL of an endpoint"""
    served: str = ""
    """likewise: the same reward model as a server has it"""
    pairs: Path | None = None
    """a JSONL file; the pairs of the package without one"""
    judge: str = ""
    """what a generative judge is asked with: a source of `onepolicy protocol`"""
    protocol: str = ""
    """what it should be asked with, likewise"""


def check_reward(request: RewardRequest, *, progress: Progress | None = None) -> RewardChecks:
    """Score pairs of answers with a reward model in many ways that must not matter, and in some that must.

    What is printed meanwhile goes to stderr.
    Raises: UsageError for a spec or a file that cannot be used; EngineError if the model cannot be loaded, or gives no
    scores.
    """
    if bool(request.judge) != bool(request.protocol):
        raise UsageError("--judge and --protocol are two sides of one comparison. Give both, or neither.")
    pairs = load_pairs(request.pairs)
    shown = progress or Silent()
    of_judge = [judge_protocol(request.judge, request.protocol)] if request.judge else []
    with redirect_stdout(sys.stderr), _opened(request) as (scorer, served):
        shown.start("scoring pairs", len(CHECKS) + 1, "steps")
        subject = subject_of(scorer, pairs, served=served)
        shown.advance(1)
        verdicts = [*of_judge, *_counted(checked(subject), shown)]
        return _result(request, subject, verdicts)


@contextmanager
def _opened(request: RewardRequest) -> Iterator[tuple[Scorer, Scorer | None]]:
    with ExitStack() as open_ones:
        scorer = open_scorer(scorer_spec(request.model))
        open_ones.callback(scorer.close)
        served = open_scorer(scorer_spec(request.served)) if request.served else None
        if served is not None:
            open_ones.callback(served.close)
        yield scorer, served


def _counted(verdicts: Iterator[Verdict], shown: Progress) -> Iterator[Verdict]:
    for verdict in verdicts:
        yield verdict
        shown.advance(1)


def _result(request: RewardRequest, subject: Subject, verdicts: Sequence[Verdict]) -> RewardChecks:
    return RewardChecks(
        model=request.model,
        served=request.served,
        pairs=len(subject.pairs),
        spread=subject.spread if is_finite(subject.scores).all() else None,
        status=decide(verdicts),
        sentence=_sentence(verdicts),
        verdicts=tuple(verdicts),
    )


def _sentence(verdicts: Sequence[Verdict]) -> str:
    if decide(verdicts) is not Status.PASS:
        return sentence(verdicts)
    done = sum(one.required for one in verdicts)
    left = [one.check for one in verdicts if one.status is Status.UNKNOWN]
    return f"Pass: {done} checks of the reward model hold." + (f" Not decided: {', '.join(left)}." if left else "")
