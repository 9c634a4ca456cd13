"""`onepolicy audit`: a run -> what its lengths, stops and seeds say. Reads the run and nothing else."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from pydantic import ValidationError

from onepolicy.errors import RunError, UsageError
from onepolicy.judgement.decide import decide, sentence
from onepolicy.records.join import ReadingJoin, digests_of
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.rollout import Span
from onepolicy.records.run import Run
from onepolicy.records.strict import Strict
from onepolicy.records.tokens import Float32
from onepolicy.records.verdict import Status, Verdict
from onepolicy.sampling.audit.asked import Asked
from onepolicy.sampling.audit.call import Call, calls_of
from onepolicy.sampling.audit.check import audited
from onepolicy.tokens.sides import Reader
from onepolicy.workflow.measure import readers
from onepolicy.workflow.progress import Progress, Silent
from onepolicy.workflow.record import ROLLOUT


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRequest:
    """What the run itself does not say."""

    stop: tuple[str, ...] = ()
    """strings that should have ended a completion, besides the protocol's"""
    ends: tuple[int, ...] = ()
    """ids that end a completion, instead of those that the tokenizer names"""
    max_new_tokens: int | None = None
    """longest completion, instead of the protocol's"""
    samples_per_prompt: int | None = None


class Audit(Strict):
    """What the rollouts of a run say of lengths, stops and seeds."""

    run: str
    status: Status
    sentence: str
    """the answer in one sentence"""
    rollouts: int
    calls: int
    """model calls; several in a rollout of several turns"""
    tokens: int
    """sampled"""
    verdicts: tuple[Verdict, ...]

    @property
    def exit_status(self) -> int:
        """What the command ends with."""
        return self.status.exit_status


@dataclass(slots=True, kw_only=True)
class _Counted:
    rollouts: int = 0
    calls: int = 0
    tokens: int = 0


def audit(path: Path, request: AuditRequest | None = None, *, progress: Progress | None = None) -> Audit:
    """Look at every model call of a run: how it ended, how long it is, and whether its samples are independent.

    Raises: RunError for a run that is absent or damaged; UsageError for one of fixed sequences, or an option that is
    not possible.
    """
    request = request or AuditRequest()
    run = Run.open(path)
    if run.manifest.kind == "fixed":
        raise UsageError(f"{path}: the completions came with the suite, so nothing was sampled. Audit a fresh run.")
    shown = progress or Silent()
    shown.start("auditing", run.manifest.planned_rollouts)
    counted = _Counted()
    spans = _spans(run)
    verdicts = [*_whole(run), *audited(_calls(run, spans, counted, shown), _asked(run, spans, request))]
    if not counted.calls:
        raise RunError(
            f"{path}: no rollout of the run has a sampled token. Record it first: onepolicy record --run {path}"
        )
    return Audit(
        run=str(path),
        status=decide(verdicts),
        sentence=_sentence(verdicts, counted),
        rollouts=counted.rollouts,
        calls=counted.calls,
        tokens=counted.tokens,
        verdicts=tuple(verdicts),
    )


def _whole(run: Run) -> list[Verdict]:
    """Unknown if rollouts that were planned are not there; nothing otherwise."""
    have, planned = len(run.rollout_ids()), run.manifest.planned_rollouts
    if have == planned or not _is_told(run):
        return []
    message = (
        f"{have} of {planned} rollouts are recorded: what is missing may differ from what is there, as long "
        f"completions come last. Go on with: onepolicy record ... --run {run.path} --resume"
    )
    return [
        Verdict(check="recording", status=Status.UNKNOWN, value=have, limit=planned, unit="rollouts", message=message)
    ]


def _sentence(verdicts: Sequence[Verdict], counted: _Counted) -> str:
    if decide(verdicts) is not Status.PASS:
        return sentence(verdicts)
    looked = f"{counted.rollouts:,} rollouts ({counted.tokens:,} tokens)"
    open_ = [one.check for one in verdicts if one.status is Status.UNKNOWN]
    return f"Pass: nothing odd in the lengths, stops and seeds of {looked}.{_not_checked(open_)}"


def _not_checked(names: Sequence[str]) -> str:
    return f" Not checked: {', '.join(names)}." if names else ""


# -- what was asked for -----------------------------------------------------------------------------------------


def _asked(run: Run, spans: Mapping[str, Sequence[Span]], request: AuditRequest) -> Asked:
    protocol = _protocol(run, request)
    reader = _reader(run)
    named = frozenset() if reader is None else reader.boundaries.eos
    named |= _ended_calls(spans, {*protocol.stop, *request.stop})
    return Asked(
        protocol=protocol,
        of_run=run.manifest.protocol.hash,
        is_told=_is_told(run),
        of_files=run.manifest.imported is not None,
        told_too=tuple(_changes(request)),
        ends=frozenset(request.ends) or named,
        ends_are_given=bool(request.ends),
        stop=request.stop,
        is_exact=_is_exact(run, protocol),
        content=None if reader is None else reader.content,
    )


def _is_told(run: Run) -> bool:
    """Whether the run was recorded under its protocol: a monitor's is of a sample, and files name none."""
    return run.manifest.imported is None and bool(run.manifest.suite_hash)


def _reader(run: Run) -> Reader | None:
    """The tokenizer of the side that sampled, or else of one that scored the same ids; None if the run keeps none."""
    hashes = (run.reading_info(name).engine.tokenizer_hash for name in run.reading_names())
    sampling, scoring = readers(run, (run, next((name for name in hashes if name), "")))
    return sampling or scoring


def _ended_calls(spans: Mapping[str, Sequence[Span]], stops: Collection[str]) -> frozenset[int]:
    """The ids that the engine itself named as what ended a call."""
    named = {span.stop_reason for calls in spans.values() for span in calls if span.finish_reason == "stop"}
    return frozenset(int(reason) for reason in named if reason.isdecimal() and reason not in stops)


def _protocol(run: Run, request: AuditRequest) -> SamplingProtocol:
    """The run's, with what the request says in its place."""
    changes = _changes(request)
    if "" in request.stop:
        raise UsageError("an empty --stop ends every completion before its first token. Give a text.")
    if not changes:
        return run.manifest.protocol
    try:
        return SamplingProtocol.model_validate(run.manifest.protocol.model_dump() | changes)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the protocol with it"
        raise UsageError(f"{where}: {first['msg']}. The run's own protocol is in {run.path}/manifest.json.") from error


def _changes(request: AuditRequest) -> dict[str, int]:
    said = {"max_new_tokens": request.max_new_tokens, "samples_per_prompt": request.samples_per_prompt}
    return {name: value for name, value in said.items() if value is not None}


def _is_exact(run: Run, protocol: SamplingProtocol) -> bool:
    """Whether the rollout reading has the logprobs of the distribution that the tokens were drawn from."""
    if ROLLOUT not in run.reading_names():
        return False
    return run.reading_info(ROLLOUT).meaning.is_sampled_from(protocol)


# -- the calls --------------------------------------------------------------------------------------------------


def _calls(run: Run, spans: Mapping[str, Sequence[Span]], counted: _Counted, progress: Progress) -> Iterator[Call]:
    for rollout, logprobs in zip(run.rollouts(), _logprobs(run), strict=True):
        counted.rollouts += 1
        for call in calls_of(rollout, spans.get(rollout.rollout_id, ()), logprobs):
            counted.calls += 1
            counted.tokens += len(call.completion)
            yield call
        progress.advance(1)


def _spans(run: Run) -> dict[str, list[Span]]:
    found: dict[str, list[Span]] = defaultdict(list)
    for span in run.spans():
        found[span.rollout_id].append(span)
    return found


def _logprobs(run: Run) -> Iterator[Float32 | None]:
    """The rollout side's logprobs of each rollout, in the order of the run; None where there is no such reading."""
    join = ReadingJoin(run, ROLLOUT) if ROLLOUT in run.reading_names() else None
    for block in run.rollout_blocks():
        if join is None:
            yield from (None for _ in block.rollout_ids)
            continue
        rows = join.take(block, digests_of(block))
        yield from (rows.logprobs[start:end] for start, end in pairwise(rows.offsets.tolist()))
