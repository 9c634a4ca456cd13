"""`onepolicy tokens roundtrip`: runs, files of rollouts and suites -> what does not come back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from onepolicy.errors import NotTheSameTokensError, UsageError
from onepolicy.records.files import write_atomically
from onepolicy.records.run import Run
from onepolicy.records.token_breaks import RoundTripReport, ShownBreak
from onepolicy.records.verdict import Status
from onepolicy.report.round_trip import SIDES, spelled
from onepolicy.suites import SUITES, Suite, load_suite
from onepolicy.tokens.open import as_stored, open_tokenizer
from onepolicy.tokens.round_trip import RoundTrip, Sample, TokenMeasurement, sample_of
from onepolicy.tokens.shown import kept_breaks, shown_of
from onepolicy.tokens.sides import Reader
from onepolicy.workflow.measure import readers
from onepolicy.workflow.progress import Progress, Silent
from onepolicy.workflow.rollout_files import count_rows, samples_in
from onepolicy.workflow.score import TRAINER
from onepolicy.workflow.tokens_servers import names_server, reader_for


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTripRequest:
    """What to send on its way, and through which tokenizers."""

    targets: tuple[str, ...]
    """run directories, JSONL or Parquet files of rollouts, suites"""
    sampling: str = ""
    """a tokenizer as `open_tokenizer` takes it; empty: the run's own, or the scoring side's"""
    scoring: str = ""
    listed: Path | None = None
    """where to write every break as a line of JSON"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Source:
    """The samples of one target, and the tokenizers of its two sides."""

    target: str
    samples: Iterable[Sample]
    count: int
    """about how many there are"""
    tokenizers: _Tokenizers
    with_text: bool = True
    """whether text may be shown"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Tokenizers:
    sampling: Reader | None
    scoring: Reader
    names: tuple[str, str]


@dataclass(slots=True, kw_only=True)
class _Tally:
    measured: TokenMeasurement
    empty: int = 0
    broken: int = 0
    with_text: bool = True


def tokens_roundtrip(request: RoundTripRequest, *, progress: Progress | None = None) -> RoundTripReport:
    """Send all samples of the targets both ways, and say what does not come back and why.

    Raises: UsageError for a file that is malformed, with its row and field, or a target without a tokenizer;
    TokenizerError, RunError.
    """
    tally = _Tally(measured=TokenMeasurement())
    shown = progress or Silent()
    with ExitStack() as stack:
        given = _given(request, stack)
        sources = [_source(target, given) for target in request.targets]
        if request.listed is None:
            _send_all(sources, tally, None, shown)
        else:
            write_atomically(_file(request.listed), lambda temporary: _send_listed(sources, tally, temporary, shown))
    return _report(request, tally, [source.tokenizers.names for source in sources])


def _file(path: Path) -> Path:
    """Where a list is written. Raises: UsageError for a device or a pipe, which cannot be replaced."""
    target = path.resolve()
    if target.exists() and not target.is_file():
        raise UsageError(f"{path}: is no regular file. The list replaces a file at the end; name one with --list.")
    return target


def _send_listed(sources: Sequence[_Source], tally: _Tally, path: Path, progress: Progress) -> None:
    with path.open("w", encoding="utf-8") as listed:
        _send_all(sources, tally, listed, progress)


def _send_all(sources: Sequence[_Source], tally: _Tally, listed: TextIO | None, progress: Progress) -> None:
    for source in sources:
        _send(source, tally, listed, progress)


def reader_of(tokenizer: Any) -> Reader:
    """A tokenizer at hand, as the round trip uses it: nothing of it is copied or changed.

    Raises: TokenizerError if it is neither a path or a name, nor a `tokenizers.Tokenizer`, nor has one inside.
    """
    inside = getattr(tokenizer, "backend_tokenizer", tokenizer)
    return Reader(
        inside if hasattr(inside, "encode_batch") and hasattr(inside, "to_str") else as_stored(tokenizer).tokenizer()
    )


def refuse_break(sample: Sample, *, sampling: Reader, scoring: Reader) -> None:
    """Raises: NotTheSameTokensError if the sample does not come back; UsageError if it is empty."""
    if not sample.ids and not sample.text:
        raise UsageError("there is neither a token nor a text, so nothing could come back; give a completion.")
    outcome = next(RoundTrip(sampling=sampling, scoring=scoring).outcomes([sample]))
    for found in shown_of(outcome):
        raise NotTheSameTokensError(_words(found), found)


def _words(found: ShownBreak) -> str:
    where = f"rollout {found.rollout}, " if found.rollout else ""
    first, second = SIDES[found.way]
    return (
        f"{where}{found.counts.removesuffix('s')} {found.position}: {found.cause}: {found.seen}. "
        f"{first} {spelled(found.first)}, {second} {spelled(found.second)}. {found.advice}"
    )


def _given(request: RoundTripRequest, stack: ExitStack) -> _Tokenizers | None:
    """The tokenizers that were asked for by name; None if the targets' own are to be used."""
    named = request.sampling or request.scoring
    if not named:
        return None
    names = (request.sampling or request.scoring, request.scoring or request.sampling)
    if any(map(names_server, names)):
        sampling = reader_for(names[0], stack)
        scoring = sampling if names[0] == names[1] else reader_for(names[1], stack)
        return _Tokenizers(sampling=sampling, scoring=scoring, names=names)
    stored = [open_tokenizer(name) for name in names]
    first = Reader(stored[0].tokenizer())
    same = stored[0].pipeline == stored[1].pipeline
    return _Tokenizers(sampling=first, scoring=first if same else Reader(stored[1].tokenizer()), names=names)


def _source(target: str, given: _Tokenizers | None) -> _Source:
    path = Path(target)
    if path.is_dir():
        return _run_source(path, given)
    if given is None:
        raise UsageError(
            f"{target}: no run, so it brings no tokenizer. Say with --sampling and --scoring which ones the two sides "
            "use; one is enough if both use the same."
        )
    if target in SUITES or (path.is_file() and _is_suite(path)):
        suite = load_suite(target)
        return _Source(
            target=target, samples=_suite_samples(suite), count=len(suite.prompts or suite.sequences), tokenizers=given
        )
    if not path.is_file():
        raise UsageError(f"{target}: no run directory, no file, and no suite. Shipped suites: {', '.join(SUITES)}.")
    return _Source(target=target, samples=samples_in(path), count=count_rows(path), tokenizers=given)


def _run_source(path: Path, given: _Tokenizers | None) -> _Source:
    run = Run.open(path)
    return _Source(
        target=str(path),
        samples=(sample_of(rollout) for rollout in run.rollouts()),
        count=run.manifest.planned_rollouts,
        tokenizers=given or _own(run),
        with_text=run.manifest.keeps_text,
    )


def _own(run: Run) -> _Tokenizers:
    """The tokenizers that a run keeps. Raises: UsageError if it keeps none."""
    other = run.reading_info(TRAINER).engine.tokenizer_hash if TRAINER in run.reading_names() else ""
    sampling, scoring = readers(run, (run, other))
    known = scoring or sampling
    if known is None:
        raise UsageError(f"{run.path}: the run keeps no tokenizer. Give one with --sampling or --scoring.")
    named = tuple("of the run" if own else "of the run's other side" for own in (sampling, scoring))
    return _Tokenizers(sampling=sampling or known, scoring=known, names=(named[0], named[1]))


def _is_suite(path: Path) -> bool:
    """Whether the first line of a JSONL file is one of a suite."""
    with path.open("rb") as file:
        line = next((line for line in file if line.strip()), b"")[: 1 << 20]
    return line.lstrip().startswith(b"{") and (b'"messages"' in line or b'"completion"' in line)


def _suite_samples(suite: Suite) -> Iterator[Sample]:
    for prompt in suite.prompts:
        for number, message in enumerate(prompt.messages):
            yield Sample(name=f"{prompt.id}, message {number}", text=message["content"])
    for sequence in suite.sequences:
        yield Sample(name=f"{sequence.id}, prompt", text=sequence.prompt)
        yield Sample(name=f"{sequence.id}, completion", text=sequence.completion)


def _send(source: _Source, tally: _Tally, listed: TextIO | None, progress: Progress) -> None:
    trip = RoundTrip(sampling=source.tokenizers.sampling, scoring=source.tokenizers.scoring)
    tally.with_text = tally.with_text and source.with_text
    progress.start(f"round trip of {source.target}", source.count)
    for outcome in trip.outcomes(_with_content(source.samples, tally)):
        tally.measured.add(outcome)
        tally.broken += outcome.is_broken
        if listed is not None:
            listed.writelines(one.model_dump_json() + "\n" for one in shown_of(outcome, with_text=source.with_text))
        progress.advance(1)


def _with_content(samples: Iterable[Sample], tally: _Tally) -> Iterator[Sample]:
    for sample in samples:
        if sample.ids or sample.text:
            yield sample
        else:
            tally.empty += 1


def _report(request: RoundTripRequest, tally: _Tally, names: list[tuple[str, str]]) -> RoundTripReport:
    measured = tally.measured
    sampling, scoring = (", ".join(dict.fromkeys(pair[side] for pair in names)) for side in (0, 1))
    status = Status.UNKNOWN if not measured.checked else Status.FAIL if tally.broken else Status.PASS
    of_ids = sum(measured.causes.values())
    return RoundTripReport(
        status=status,
        sentence=_sentence(tally),
        targets=request.targets,
        sampling=sampling,
        scoring=scoring,
        checked=measured.checked,
        empty=tally.empty,
        tokens=measured.tokens,
        broken=tally.broken,
        shifted=measured.shifted / of_ids if of_ids else 0.0,
        causes={"ids": measured.causes, "text": measured.text_causes, "reading": measured.reading_causes},
        breaks=kept_breaks(measured, with_text=tally.with_text),
    )


def _sentence(tally: _Tally) -> str:
    measured = tally.measured
    if not measured.checked:
        return "Unknown: there is no rollout with a token or a text, so nothing was checked."
    amount = f"{measured.checked:,} rollouts ({measured.tokens:,} tokens)"
    if not tally.broken:
        return f"Pass: all {amount} come back the same."
    return f"Fail: {tally.broken:,} of {amount} do not come back the same."
