"""A measurement -> what a report shows beyond the judgement."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from onepolicy.engines.spec import EngineSpec, parse_spec
from onepolicy.errors import RunError, UsageError
from onepolicy.judgement.limits import Limits
from onepolicy.numerics.evidence import RolloutDetail
from onepolicy.numerics.measurement import Measurement
from onepolicy.records.manifest import Manifest
from onepolicy.records.reading import ReadingInfo
from onepolicy.records.run import Run
from onepolicy.records.tables import Points, ReportData, ShownRollout
from onepolicy.records.tokens import Float32, IntArray
from onepolicy.tokens.pieces import Pieces
from onepolicy.workflow.record import ROLLOUT
from onepolicy.workflow.score import TRAINER

MOST_TOKENS = 400
"""shown of one rollout, around its worst token"""
MOST_CHARACTERS = 40
"""shown of one token; a vocabulary may hold a token of a thousand spaces"""
_CONTEXT, _CONTEXT_CHARACTERS = 24, 400
_DIGITS = 7
"""significant digits of a float32"""


def report_data(run: Run, readings: tuple[str, str], measured: Measurement, limits: list[str]) -> ReportData:
    """Tables, points and the worst rollouts, with what is known of both sides; limits: the options that say them."""
    rollout, trainer = (run.reading_info(name) for name in readings)
    pieces = _pieces(run, rollout, trainer)
    return ReportData(
        manifest=run.manifest,
        rollout=rollout,
        trainer=trainer,
        commands=commands(run, (rollout, trainer), limits, compared=measured.compared),
        buckets=measured.buckets.tables(),
        histogram=measured.buckets.histogram(),
        equal=measured.buckets.equal,
        outside_clip=measured.buckets.outside_clip,
        points=Points(rollout=_rounded(measured.sample.rollout), trainer=_rounded(measured.sample.trainer)),
        worst=tuple(shown_rollout(detail, pieces) for detail in _worst(measured)),
    )


def commands(run: Run, sides: tuple[ReadingInfo, ReadingInfo], limits: list[str], *, compared: int) -> tuple[str, ...]:
    """The command that makes such a run anew, if one does, and the one that judges this run again.

    limits: the options that say them. compared: tokens of the run that were to be compared.
    """
    rollout, trainer = sides
    names = _options({"rollout": rollout.name, "trainer": trainer.name}, {"rollout": ROLLOUT, "trainer": TRAINER})
    again = shlex.join(["onepolicy", "judge", str(run.path), *names, *limits])
    if names or run.manifest.imported is not None:
        return (again,)
    return (shlex.join(["onepolicy", "check", *_asked(run.manifest, sides, compared), *_also(run), *limits]), again)


def shown_rollout(detail: RolloutDetail, pieces: Pieces | None) -> ShownRollout:
    """A rollout around its worst token; without text if there are no pieces."""
    total = len(detail.positions)
    first = max(min(detail.worst - MOST_TOKENS // 2, total - MOST_TOKENS), 0)
    part = slice(first, first + MOST_TOKENS)
    positions = detail.positions[part]
    ids, start = detail.token_ids[positions], int(positions[0])
    return ShownRollout(
        rollout_id=detail.rollout_id,
        prompt_id=detail.prompt_id,
        tokens=total,
        mean_abs_d=detail.mean_abs_d,
        mean_k3=detail.mean_k3,
        sum_d=detail.sum_d,
        max_abs_d=detail.max_abs_d,
        before=pieces.joined(detail.token_ids[max(start - _CONTEXT, 0) : start])[-_CONTEXT_CHARACTERS:]
        if pieces
        else "",
        cut_before=first,
        cut_after=total - first - len(positions),
        positions=tuple(positions.tolist()),
        token_ids=tuple(ids.tolist()),
        pieces=_texts(pieces, ids),
        rollout_logprobs=_rounded(detail.rollout_logprobs[part]),
        trainer_logprobs=_rounded(detail.trainer_logprobs[part]),
    )


def _worst(measured: Measurement) -> list[RolloutDetail]:
    both = [*measured.worst_by_token, *measured.worst_by_kl]
    found = {detail.rollout_id: detail for detail in both if detail.max_abs_d > 0}
    return list(found.values())


def _pieces(run: Run, *sides: ReadingInfo) -> Pieces | None:
    name = next((side.engine.tokenizer_hash for side in sides if side.engine.tokenizer_hash), "")
    if not name or not run.manifest.keeps_text:
        return None
    from tokenizers import Tokenizer  # noqa: PLC0415 - only a run with a tokenizer needs it

    return Pieces(Tokenizer.from_file(str(run.tokenizer_file(name))))


def _texts(pieces: Pieces | None, ids: IntArray) -> tuple[str, ...]:
    if pieces is None:
        return ()
    return tuple(t if len(t) <= MOST_CHARACTERS else f"{t[:MOST_CHARACTERS]}…" for t in pieces.texts_of(ids))


def _rounded(values: Float32) -> tuple[float, ...]:
    return tuple(float(f"{value:.{_DIGITS}g}") for value in values.tolist())


def limit_options(limits: Limits, file: Path) -> list[str]:
    """The options that say these limits; `file` holds them, for those that no option can say."""
    if limits.model_dump(exclude=set(Limits.numbers())) != Limits().model_dump(exclude=set(Limits.numbers())):
        return ["--limits", str(file)]
    return _options(limits.model_dump(), Limits().model_dump())


def _asked(manifest: Manifest, sides: tuple[ReadingInfo, ReadingInfo], compared: int) -> list[str]:
    """What makes `check` sample and score the same. A budget brings back as many rollouts, whatever was asked then."""
    rollout, trainer = sides
    protocol = manifest.protocol
    options = ["--rollout", manifest.rollout_engine, "--trainer", trainer.request.engine, "--suite", manifest.suite]
    if manifest.kind == "fresh":
        options += _options(protocol.model_dump(), type(protocol)().model_dump())
        options += ["--budget", str(manifest.planned_rollouts * protocol.max_new_tokens)]
        options += ["--top", str(rollout.request.top)]
    else:
        options += ["--budget", str(compared)]
    options += ["--statistics"] if trainer.request.statistics else []
    return options if manifest.keeps_text else [*options, "--no-text"]


def also_name(spec: EngineSpec) -> str:
    """The name that `check` gives to a further reading: a folder's name, with enough of the spec's hash to be alone."""
    options = "-".join(f"{key}-{value}" for key, value in sorted(spec.options.items()))
    name = re.sub(r"[^A-Za-z0-9._-]", "-", f"{TRAINER}-{spec.engine}-{options}")
    return f"{name[:64].rstrip('-')}-{hashlib.sha256(str(spec).encode()).hexdigest()[:8]}"


def _also(run: Run) -> list[str]:
    """The further readings that `check` made, known by the name that it gives; those of `score --name` are others."""
    options = []
    for name in run.reading_names():
        try:
            spec = run.reading_info(name).request.engine
            made = also_name(parse_spec(spec)) == name
        except (RunError, UsageError):
            continue  # a folder that is no reading of this run, such as a copy
        options += ["--also", spec] if made else []
    return options


def _options(values: Mapping[str, object], usual: Mapping[str, object]) -> list[str]:
    """Those that are not as usual, as they are typed."""
    given = {name: value for name, value in values.items() if value != usual[name]}
    return [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", str(value))]
