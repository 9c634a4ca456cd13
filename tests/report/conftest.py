"""A judgement and its tables, as a run of two engines would give them."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from onepolicy.judgement.decide import decide, sentence
from onepolicy.records.manifest import Manifest
from onepolicy.records.protocol import Meaning, SamplingProtocol
from onepolicy.records.reading import Condition, EngineInfo, ReadingInfo, ReadingRequest
from onepolicy.records.tables import Bin, Bucket, BucketTable, Points, ReportData, ShownRollout
from onepolicy.records.verdict import Evidence, Judgement, Status, Verdict

HOSTILE = "</script><img src=x onerror=\"document.title='pwned'\"><b>&amp;{{7*7}}"
NASTY = f"{HOSTILE}\x00\x1b[31m\u202egnp\ud800"
"""markup, a template, control characters, text that runs backwards, half a surrogate"""


def verdict(check: str, status: Status, *, message: str = "", required: bool = True) -> Verdict:
    return Verdict(
        check=check,
        status=status,
        required=required,
        message=message or f"{check} says {status.value}.",
        evidence=(Evidence(rollout_id="r-1", position=7, note="here"),),
    )


def judgement_of(*verdicts: Verdict, tokens: int = 8) -> Judgement:
    return Judgement(
        run="runs/one",
        rollout_reading="rollout",
        trainer_reading="trainer",
        status=decide(verdicts),
        sentence=sentence(verdicts),
        verdicts=verdicts,
        metrics={"abs_d_p50": 0.01, "max_abs_d": 0.5} if tokens else {},
        native={"verl": {"rollout_corr/kl": 0.001}},
        counts={"rollouts": 2, "prompt_groups": 2, "tokens_compared": tokens, "tokens_to_compare": 8},
        coverage_by_language={"en": {"compared": 8, "absent": 8 - tokens}},
    )


def side(name: str, **engine: str) -> ReadingInfo:
    said = {"name": "fake", "version": "1", "model": "m", "dtype": "float32", **engine}
    return ReadingInfo(
        name=name,
        request=ReadingRequest(engine="fake:m"),
        engine=EngineInfo(**said),
        condition=Condition(),
        meaning=Meaning(),
        environment={"python": "3.11"},
    )


def shown(*pieces: str, d: tuple[float, ...] = (), text: bool = True) -> ShownRollout:
    d = d or tuple(0.1 * i for i in range(len(pieces)))
    return ShownRollout(
        rollout_id="r-1",
        prompt_id="p-1",
        tokens=len(d),
        mean_abs_d=0.1,
        mean_k3=0.01,
        sum_d=1.0,
        max_abs_d=max(map(abs, d)),
        before="said: " if text else "",
        cut_before=0,
        cut_after=0,
        positions=tuple(range(3, 3 + len(d))),
        token_ids=tuple(range(100, 100 + len(d))),
        pieces=pieces if text else (),
        rollout_logprobs=tuple(-2.0 for _ in d),
        trainer_logprobs=tuple(-2.0 + x for x in d),
    )


def data_of(*worst: ShownRollout, **changes: object) -> ReportData:
    bucket = Bucket(name="1", tokens=8, mean_d=0.01, mean_abs_d=0.02, mean_k3=0.001, max_abs_d=0.5)
    manifest = Manifest(
        tool_version="0",
        status="complete",
        kind="fresh",
        suite="quick",
        suite_hash="0123456789abcdef",
        protocol=SamplingProtocol(),
        rollout_engine="fake:m",
        planned_rollouts=2,
    )
    usual = {
        "manifest": manifest,
        "rollout": side("rollout"),
        "trainer": side("trainer", dtype="bfloat16"),
        "commands": ("onepolicy check --rollout fake:m --trainer fake:m", "onepolicy judge runs/one"),
        "buckets": (
            BucketTable(axis="position", buckets=(bucket,)),
            BucketTable(axis="confidence", buckets=(bucket,)),
            BucketTable(axis="kind", is_tag=True, buckets=(bucket.model_copy(update={"name": HOSTILE}),)),
        ),
        "histogram": (Bin(low=0.25, trainer_lower=3, trainer_higher=4),),
        "equal": 1,
        "outside_clip": 2,
        "points": Points(rollout=(-1.0, -5.0, math.log(0.5)), trainer=(-1.1, -4.0, math.log(0.5))),
        "worst": worst or (shown("The", " cat"),),
    }
    return ReportData(**(usual | changes))


@pytest.fixture
def failed() -> Judgement:
    return judgement_of(
        verdict("same_ids", Status.PASS),
        verdict("coverage", Status.UNKNOWN),
        verdict("mean_kl", Status.FAIL, message=f"KL of {NASTY} is large."),
        verdict("round_trip", Status.FAIL, required=False),
    )


@pytest.fixture
def passed() -> Judgement:
    return judgement_of(verdict("mean_kl", Status.PASS, message="KL 1e-9."))


@pytest.fixture
def unknown() -> Judgement:
    return judgement_of(verdict("mean_kl", Status.UNKNOWN, message="12 prompts are needed."), tokens=0)


@pytest.fixture
def tables() -> Callable[..., ReportData]:
    return data_of


@pytest.fixture
def rollout_shown() -> Callable[..., ShownRollout]:
    return shown


@pytest.fixture(scope="session")
def chromium() -> Path:
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("chromium is not there (apt-get install chromium)")
    return Path(found)
