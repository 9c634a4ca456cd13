"""The Python functions behind `onepolicy.check`, `compare` and `assert_same_policy`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onepolicy.engines.spec import EngineSpec, parse_spec
from onepolicy.errors import NotTheSamePolicyError, UsageError
from onepolicy.judgement.limits import Limits
from onepolicy.judgement.load import load_limits
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.rollout import Rollout
from onepolicy.records.verdict import Judgement, Status
from onepolicy.tokens.round_trip import Sample, sample_of
from onepolicy.workflow.check import CheckRequest, Why
from onepolicy.workflow.check import check as _check
from onepolicy.workflow.compare import (
    ColumnLabels,
    Logprobs,
    StoredReading,
    compare_columns,
    compare_readings,
)
from onepolicy.workflow.import_recorded import ImportRequest, compare_request
from onepolicy.workflow.recorded import find_recording
from onepolicy.workflow.tokens_roundtrip import reader_of, refuse_break

Spec = str | Mapping[str, object] | EngineSpec


def check(  # noqa: PLR0913 - the public function of the main job
    *,
    rollout: Spec,
    trainer: Spec,
    suite: str = "quick",
    run: str | Path | None = None,
    limits: Limits | str | None = None,
    protocol: SamplingProtocol | None = None,
    also: Sequence[Spec] = (),
    budget: int | None = None,
    top: int = 20,
    keep_text: bool = True,
    statistics: bool = False,
    resume: bool = False,
    extend: bool = False,
    why: bool = True,
    weights: Mapping[str, Spec] | None = None,
) -> Judgement:
    """Sample a suite with one engine, score it with the other, and judge.

    rollout, trainer: engine specs, such as "transformers:./model?dtype=bfloat16" or the same as a mapping.
    limits: `Limits`, the name of a preset ("strict", "bf16", "quantised", "bitwise"), or a YAML file.
    also: more trainer sides, for example in the rollout side's precision. budget: completion tokens at most.
    top: most likely tokens to keep at each position. keep_text: False for confidential rollouts.
    extend: add to the complete run at `run` what it lacks of the suite and budget.
    why: if it fails, look for the cause, some minutes at most; `Run.open(Path(judgement.run)).diagnosis("default")` has
    it. The judgement is the same without. weights: name -> spec of other weights that the rollout side may have.
    The run stays at `run` (a new folder under `runs/` if None). Raises: OnePolicyError if it could not run.
    """
    request = CheckRequest(
        rollout=parse_spec(rollout),
        trainer=parse_spec(trainer),
        also=tuple(parse_spec(spec) for spec in also),
        suite=suite,
        limits=_limits(limits),
        protocol=protocol or SamplingProtocol(),
        budget=budget,
        top=top,
        keep_text=keep_text,
        statistics=statistics,
        extend=extend,
    )
    others = {name: parse_spec(spec) for name, spec in (weights or {}).items()}
    path = None if run is None else Path(run)
    return _check(request, path=path, resume=resume, why=Why(weights=others) if why else None)


def compare(  # noqa: PLR0913 - what two arrays cannot say by themselves
    *,
    rollout: Logprobs | StoredReading,
    trainer: Logprobs | StoredReading,
    lengths: Sequence[int] | None = None,
    mask: npt.ArrayLike | None = None,
    rollout_ids: Sequence[str] | None = None,
    prompt_ids: Sequence[str] | None = None,
    sampled: bool = True,
    limits: Limits | str | None = None,
) -> Judgement:
    """Judge two columns of logprobs of the same tokens, or two stored readings.

    Shape of the columns: [N] (with `lengths` of the rollouts in it), [B, T] (with a boolean `mask` [B, T] of the tokens
    to compare), or a list of R arrays [T_r]. Unit: nats.
    prompt_ids: [R]; samples of one prompt share it. The interval counts prompts, so give it if you have it.
    sampled: False if the tokens were not sampled by the rollout policy under the meaning of its logprobs; then the
    verdict speaks of these tokens and no KL is claimed.
    Raises: AlignmentError, UsageError, ForeignReadingError.
    """
    held = _limits(limits)
    if isinstance(rollout, StoredReading) and isinstance(trainer, StoredReading):
        return compare_readings(rollout=rollout, trainer=trainer, limits=held)
    if isinstance(rollout, StoredReading) or isinstance(trainer, StoredReading):
        raise UsageError("compare needs two arrays or two stored readings, not one of each.")
    labels = ColumnLabels(lengths=lengths, mask=mask, rollout_ids=rollout_ids, prompt_ids=prompt_ids, sampled=sampled)
    return compare_columns(rollout=rollout, trainer=trainer, labels=labels, limits=held)


def compare_files(
    path: str | Path,
    other: str | Path | None = None,
    *,
    limits: Limits | str | None = None,
    protocol: SamplingProtocol | None = None,
    columns: Mapping[str, str] | None = None,
    format_name: str | None = None,
) -> Judgement:
    """Judge the two sides in files that a framework recorded: a file, a folder, a glob or a URL.

    other: files with the other side of the same rollouts, if `path` holds one. protocol: how the rollouts were sampled,
    if not from the model's own distribution. columns: our name -> theirs, of plain Parquet or JSONL.
    format_name: if the content does not say it; see docs/dumps.md.
    Raises: DumpError if a file is damaged, of no known format, or lacks a side.
    """
    recording = find_recording([path], format_name=format_name, columns=columns)
    second = None if other is None else find_recording([other], format_name=format_name, columns=columns)
    request = ImportRequest(recording=recording, other=second, protocol=protocol or SamplingProtocol())
    return compare_request(request, limits=_limits(limits))[0]


def _limits(limits: Limits | str | None) -> Limits:
    """Limits as they are, by the name of a preset, or from a YAML file."""
    return load_limits(limits) if isinstance(limits, str) else limits or Limits()


def assert_same_policy(*, rollout: Any, trainer: Any, **options: Any) -> Judgement:
    """The same as `compare`, for tests and pipelines: returns the judgement if it is a pass.

    Raises: NotTheSamePolicyError (an AssertionError) if it fails or is unknown; unknown is never a pass.
    """
    judgement = compare(rollout=rollout, trainer=trainer, **options)
    if judgement.status is not Status.PASS:
        raise NotTheSamePolicyError(judgement)
    return judgement


def assert_round_trip(
    rollout: Rollout | Sequence[int], tokenizer: Any, *, scoring: Any = None, text: str | None = None
) -> None:
    """For tests and pipelines: the ids come back from their text, and the text from its ids.

    rollout: a `Rollout`, whose completion and text are taken, or the token ids of a completion.
    tokenizer: of the side that sampled: a `tokenizers.Tokenizer`, a fast tokenizer of Transformers, or what
    `onepolicy tokens` takes, a path or a name. scoring: of the side that scores, if it is another one.
    text: as the engine decoded the ids; None is the rollout's own, or what the tokenizer makes of the ids.
    Raises: NotTheSameTokensError (an AssertionError) that says where, how both sides spell it, and why;
    UsageError if there is nothing to check.
    """
    sampling = reader_of(tokenizer)
    refuse_break(_sample(rollout, text), sampling=sampling, scoring=sampling if scoring is None else reader_of(scoring))


def _sample(rollout: Rollout | Sequence[int], text: str | None) -> Sample:
    if isinstance(rollout, Rollout):
        known = sample_of(rollout)
        return known if text is None else replace(known, text=text)
    return Sample(name="", ids=_ids(rollout), text=text)


def _ids(given: Sequence[int]) -> list[int]:
    """The ids of one completion. Raises: UsageError for anything that is not a flat sequence of whole numbers."""
    ids = np.asarray(given) if hasattr(given, "__array__") or isinstance(given, (list, tuple)) else None
    if ids is None or ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise UsageError(
            f"the ids of one completion are a flat list of whole numbers; this is {type(given).__name__} "
            f"{_shown(given)}. Give the rollouts of a batch one after the other."
        )
    found: list[int] = ids.tolist()
    return found


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
