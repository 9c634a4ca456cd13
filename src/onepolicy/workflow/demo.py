"""Two comparisons on a packaged model: one that must pass and one that must fail."""

from __future__ import annotations

from dataclasses import dataclass

from onepolicy.engines.spec import EngineSpec
from onepolicy.integrations import open_engine, open_sampler
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.run import Run
from onepolicy.records.verdict import Judgement, Status
from onepolicy.suites import load_suite
from onepolicy.workflow.check import new_run_path
from onepolicy.workflow.judge import judge
from onepolicy.workflow.progress import Progress, Silent
from onepolicy.workflow.record import RecordRequest, record_with
from onepolicy.workflow.score import ScoreRequest, score_with

_MODEL = "smollm2"
_TRAINER = EngineSpec(
    engine="transformers",
    target=_MODEL,
    options={"dtype": "float32", "batch_size": "4", "padding_side": "left"},
)
_PROTOCOL = SamplingProtocol(max_new_tokens=16)
_PROMPTS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoCase:
    """A comparison whose outcome is known beforehand."""

    title: str
    rollout: EngineSpec
    expected: Status


CASES = (
    DemoCase(title="the trainer against itself, in padded batches", rollout=_TRAINER, expected=Status.PASS),
    DemoCase(
        title="llama.cpp rollouts with Q4_1 weights against the de-quantised trainer",
        rollout=EngineSpec(engine="llamacpp", target=_MODEL),
        expected=Status.FAIL,
    ),
)


def demo(*, progress: Progress | None = None) -> list[tuple[DemoCase, Judgement]]:
    """Run the cases; each leaves its run under `runs/`. Raises: EngineError if an engine or the model is absent."""
    shown = progress or Silent()
    runs = [_record(case, shown) for case in CASES]
    trainer = open_engine(_TRAINER)
    try:
        for run in runs:
            score_with(trainer, run, ScoreRequest(engine=_TRAINER), progress=shown)
    finally:
        trainer.close()
    return [(case, judge(run.path, progress=shown)) for case, run in zip(CASES, runs, strict=True)]


def _record(case: DemoCase, progress: Progress) -> Run:
    request = RecordRequest(
        engine=case.rollout, suite="quick", protocol=_PROTOCOL, budget=_PROMPTS * _PROTOCOL.max_new_tokens
    )
    sampler = open_sampler(case.rollout)
    try:
        path = new_run_path(f"demo-{case.rollout.engine}")
        return record_with(sampler, path, request, load_suite(request.suite), resume=False, progress=progress)
    finally:
        sampler.close()
