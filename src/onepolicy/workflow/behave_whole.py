"""Is a side of a comparison all that was asked for, of one model, and sampled one way?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from onepolicy.records.rollout import Span
from onepolicy.records.run import Run
from onepolicy.records.verdict import Status, Verdict
from onepolicy.sampling.checks.one_protocol import several_protocols

_SHOWN = 4


def side_verdicts(name: str, run: Run, spans: Sequence[Span], *, there: int) -> list[Verdict]:
    """Verdicts on a recording before its completions are compared. name: a or b. there: rollouts that were read."""
    others = several_protocols(spans, of_run=run.manifest.protocol.hash)
    return [
        _whole(f"whole_{name}", run, there),
        *(verdict.model_copy(update={"check": f"{verdict.check}_{name}"}) for verdict in others),
        *_several_weights(f"one_weight_version_{name}", run, spans),
    ]


def _whole(check: str, run: Run, there: int) -> Verdict:
    """Whether everything is there: a part of a run may be another mixture of prompts."""
    planned = run.manifest.planned_rollouts
    if run.manifest.status != "complete" or there != planned:
        message = f"{run.path}: {there} of {planned} rollouts are recorded. Finish with --resume."
        return Verdict(check=check, status=Status.UNKNOWN, message=message)
    imported = run.manifest.imported
    if imported is not None and imported.refused:
        message = (
            f"{run.path}: {imported.refused} of {imported.read} recorded rows were refused when they were read in."
        )
        return Verdict(check=check, status=Status.UNKNOWN, message=message)
    return Verdict(check=check, status=Status.PASS, message=f"{run.path}: all {there} rollouts are there.")


def _several_weights(check: str, run: Run, spans: Sequence[Span]) -> list[Verdict]:
    """Unknown if calls were answered by several weight versions; nothing otherwise."""
    versions = Counter(span.weight_version for span in spans if span.weight_version)
    if len(versions) < 2:
        return []
    named = [f"{name} ({count} calls)" for name, count in versions.most_common(_SHOWN)]
    named += [f"{len(versions) - _SHOWN} more"] if len(versions) > _SHOWN else []
    message = (
        f"{run.path}: sampled by {len(versions)} weight versions: {', '.join(named)}. Together they are "
        "no policy. Record it again while the weights stay."
    )
    return [Verdict(check=check, status=Status.UNKNOWN, value=float(len(versions)), limit=1.0, message=message)]
