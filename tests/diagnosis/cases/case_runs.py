"""What the cases share: runs with statistics, servers that sample otherwise, functions, tokens without engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from causes.planted import situation
from planted_runs import SERVED, suite

from onepolicy.diagnosis.answer import answer
from onepolicy.diagnosis.cause import Situation
from onepolicy.diagnosis.decide import excess_of
from onepolicy.diagnosis.likelihood import Trial
from onepolicy.diagnosis.noise import noise_of_dtypes
from onepolicy.diagnosis.tokens import Tokens
from onepolicy.engines.spec import parse_spec
from onepolicy.integrations import open_engine
from onepolicy.records.finding import Diagnosis, Finding, Outcome
from onepolicy.records.protocol import Meaning, SamplingProtocol
from onepolicy.suites import load_suite
from onepolicy.workflow.diagnose import DiagnoseRequest, _findings, _with_commands, diagnose
from onepolicy.workflow.progress import Silent
from onepolicy.workflow.record import RecordRequest, record_with
from onepolicy.workflow.score import ScoreRequest, score

NEW = 40
NAMED = (Outcome.CAUSE, Outcome.PARTLY, Outcome.ONE_OF)


class Server:
    """An engine that samples under other values than those of the request, as one that fills in defaults does."""

    def __init__(self, spec: str, **changes: Any) -> None:
        self._engine = open_engine(parse_spec(spec))
        self._changes = changes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def sample(self, batch, protocol, wanted):
        return self._engine.sample(batch, protocol.model_copy(update=self._changes), wanted)


def sampled(
    path: Path,
    spec: str,
    *,
    changes: Mapping[str, Any] | None = None,
    before: str = "",
    statistics: bool = False,
    **protocol: Any,
) -> Path:
    """A run under this protocol; `changes` is what the server does otherwise, unsaid."""
    server = Server(spec, **(changes or {}))
    file = suite(path.with_suffix(".jsonl"), before=before)
    request = RecordRequest(
        engine=parse_spec(spec),
        suite=str(file),
        statistics=statistics,
        protocol=SamplingProtocol.model_validate({"max_new_tokens": NEW, **protocol}),
    )
    try:
        record_with(server, path, request, load_suite(str(file)), resume=False, progress=Silent())
    finally:
        server.close()
    return path


def trained(path: Path, spec: str, *, meaning: Meaning | None = None, statistics: bool = False) -> Path:
    """The trainer's reading of the run."""
    score(path, ScoreRequest(engine=parse_spec(spec), meaning=meaning, statistics=statistics))
    return path


def served(path: Path, spec: str, *, meaning: Meaning | None = None) -> Path:
    """Another rollout side: its reading of the run is `served`."""
    score(path, ScoreRequest(engine=parse_spec(spec), name=SERVED, meaning=meaning))
    return path


def why(path: Path, *, of: str = "rollout", weights: Mapping[str, str] | None = None, **more: Any) -> Diagnosis:
    named = {name: parse_spec(spec) for name, spec in (weights or {}).items()}
    return diagnose(path, DiagnoseRequest(rollout=of, weights=named, **more))


def function(folder: Path, model: Path, code: str, *, name: str = "served") -> str:
    """The spec of a scoring function; `code` is its body, of `MODEL` and `token_ids`."""
    file = folder / f"{name}.py"
    body = "\n".join(f"    {line}" for line in code.strip().splitlines())
    file.write_text(
        "import leg_faults\nimport torch\nfrom leg_faults import *\n\n"
        f"MODEL = leg_faults.loaded({str(model)!r})\n\n\ndef score(token_ids):\n{body}\n"
    )
    return f"callable:{file}:score"


def of_tokens(tokens: Tokens, known: Situation) -> tuple[list[Finding], str]:
    """From the data alone, as `diagnose` does it without engines: findings, and the sentence."""
    excess = excess_of(Trial(tokens, known.noise))
    findings, _ = _findings(tokens, excess, DiagnoseRequest(experiments=False), known, Silent())
    return _with_commands(findings, tokens, excess, known, Path("run"), is_over=False), answer(findings, excess, known)


def named(findings: Any) -> list[tuple[str, str]]:
    """What explains something, the best first: (cause, outcome)."""
    found = findings.findings if isinstance(findings, Diagnosis) else findings
    return [(one.cause, one.outcome.value) for one in found if one.outcome in NAMED]


def first(findings: Any) -> Finding:
    found = findings.findings if isinstance(findings, Diagnosis) else findings
    return next(one for one in found if one.outcome in NAMED)


def of(findings: Any, cause: str) -> Finding:
    found = findings.findings if isinstance(findings, Diagnosis) else findings
    return next(one for one in found if one.cause == cause)


def columns(ids: Sequence[Sequence[int]], p: Any, q: Any, *, start: int = 1, **more: Any) -> Tokens:
    """Tokens of a model without an engine: logprobs of the tokens from the second on, the first `start` are a prompt.

    Shapes: [R][T], [R][T - 1], [R][T - 1]. Each sequence is a prompt of its own.
    """
    count, length = len(ids), len(ids[0])
    return Tokens(
        rollout_ids=[f"r{n}" for n in range(count)],
        prompt_ids=[f"p{n}" for n in range(count)],
        sequences=[np.array(one, dtype=np.int32) for one in ids],
        rollout=np.repeat(np.arange(count), length - start),
        position=np.tile(np.arange(start, length), count),
        p=np.concatenate([one[start - 1 :] for one in p]),
        q=np.concatenate([one[start - 1 :] for one in q]),
        **more,
    )


def known(dtype: str = "float32", **more: Any) -> Situation:
    """Of two readings in this precision, of ids that nobody sampled."""
    return replace(situation(is_sampled=False, **more), noise=noise_of_dtypes(dtype))
