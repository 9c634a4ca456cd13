"""A checkpoint -> a snapshot: fixed ids with its distribution over them. Two snapshots -> a judgement.

A snapshot is an ordinary run of fixed sequences with one reading, so all that reads runs reads it too.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onepolicy.engines.contract import Engine, Sampler
from onepolicy.engines.spec import EngineSpec
from onepolicy.errors import EngineError, RunError, UsageError
from onepolicy.integrations import check_spec, open_engine
from onepolicy.judgement.decide import decide, sentence
from onepolicy.judgement.limits import Limits
from onepolicy.records.reading import ReadingInfo
from onepolicy.records.run import Run
from onepolicy.records.verdict import Evidence, Judgement, Status, Verdict
from onepolicy.suites import load_suite
from onepolicy.workflow.compare import StoredReading, compare_readings
from onepolicy.workflow.progress import Progress, Silent
from onepolicy.workflow.record import ROLLOUT, RecordRequest, record_with
from onepolicy.workflow.score import ScoreRequest, check_recorded, score_with
from onepolicy.workflow.snapshot_lists import lists_verdict

SUITE = "fixed-quick"
TOP = 20
MADE_WITH = ("versions", "configuration", "tokenizer", "weights")
"""checks of how a snapshot was made, in the order in which a cause is looked for"""
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRequest:
    """Of which checkpoint, and over what."""

    engine: EngineSpec
    suite: str = SUITE
    """of fixed sequences, which the engine encodes"""
    like: Path | None = None
    """take the ids of this snapshot instead of a suite"""
    budget: int | None = None
    """completion tokens at most"""
    top: int = TOP
    """most likely tokens to keep at each position"""


def take(request: SnapshotRequest, path: Path, *, resume: bool = False, progress: Progress | None = None) -> Run:
    """Score fixed ids with a checkpoint and keep the logprobs, the most likely tokens, and what the engine is.

    Raises: EngineError, RunError, UsageError; what was scored before stays, and `resume` goes on from there.
    """
    check_spec(request.engine)
    if not resume and (path / "manifest.json").exists():
        raise RunError(f"{path}: a snapshot or a run is already there. Go on with --resume, or give another --output.")
    shown = progress or Silent()
    engine = open_engine(request.engine)
    try:
        if getattr(engine, "is_follower", False):
            raise EngineError("`snapshot` cannot run under torchrun; let it start the ranks: callable:...?ranks=2")
        run = _recorded(engine, request, path, resume=resume, progress=shown)
        wanted = ScoreRequest(engine=request.engine, name=ROLLOUT, report_ids_of=None, top=request.top, resume=resume)
        score_with(engine, run, wanted, progress=shown)
        return run
    finally:
        engine.close()


def compare_snapshots(before: Path, after: Path, *, limits: Limits) -> Judgement:
    """Hold a snapshot against an earlier one: first what each was made with, then the distributions.

    The earlier one stands where a rollout side would, so d is the later one minus the earlier one.
    Raises: RunError; UsageError if they are not of the same sequences.
    """
    first, second = _opened(before), _opened(after)
    if before.resolve() == after.resolve():
        raise UsageError(f"{before}: would be compared with itself, which always passes. Name two snapshots.")
    _same_sequences(first, second)
    made = _made_with(first.reading_info(ROLLOUT), second.reading_info(ROLLOUT))
    other = _other_ids(first, second)
    if other:
        return _without_numbers(first, [*made, _fixed_ids(first, other)])
    sides = (StoredReading(run=first, name=ROLLOUT), StoredReading(run=second, name=ROLLOUT))
    judged = compare_readings(rollout=sides[0], trainer=sides[1], limits=limits)
    verdicts = [*made, *judged.verdicts, lists_verdict(first, second, limits)]
    return judged.model_copy(
        update={"verdicts": tuple(verdicts), "status": decide(verdicts), "sentence": _sentence(verdicts)}
    )


def compare_engine(
    before: Path, engine: EngineSpec, *, limits: Limits, keep: Path | None = None, progress: Progress | None = None
) -> Judgement:
    """The same against an engine that is there now, such as the one that serves. keep: where its snapshot stays.

    Raises: EngineError, RunError, UsageError.
    """
    first = _opened(before)
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise UsageError(f"{keep}: is not empty, and a new snapshot is taken. Keep it in another folder.")
    request = SnapshotRequest(engine=engine, like=before, top=first.reading_info(ROLLOUT).request.top)
    with tempfile.TemporaryDirectory(prefix="onepolicy-snapshot-") as folder:
        after = keep or Path(folder) / "now"
        take(request, after, progress=progress)
        return compare_snapshots(before, after, limits=limits)


# -- taking -----------------------------------------------------------------------------------------------------


def _recorded(engine: Engine, request: SnapshotRequest, path: Path, *, resume: bool, progress: Progress) -> Run:
    if request.like is not None:
        return _copied(_opened(request.like), path, resume=resume)
    suite = load_suite(request.suite)
    if not suite.is_fixed:
        raise UsageError(
            f"the suite {suite.name!r} is of prompts, and a snapshot samples nothing. Take a suite of fixed sequences, "
            f"such as {SUITE}."
        )
    if not isinstance(engine, Sampler):
        raise EngineError(
            f"{request.engine}: {request.engine.engine} cannot encode a suite's text. Give --like DIR of a snapshot "
            "with the same tokenizer, whose ids are then taken."
        )
    wanted = RecordRequest(engine=request.engine, suite=request.suite, budget=request.budget)
    return record_with(engine, path, wanted, suite, resume=resume, progress=progress)


def _copied(like: Run, path: Path, *, resume: bool) -> Run:
    """A run with the sequences of a snapshot, and nothing of its reading."""
    run = Run.create(path, like.manifest, resume=resume)
    with run.writing("rollouts"):
        for part in sorted((like.path / "rollouts").glob("part-*.parquet")):
            (path / "rollouts").mkdir(exist_ok=True)
            shutil.copyfile(part, path / "rollouts" / part.name)
    return run


def _opened(path: Path) -> Run:
    """Raises: RunError if it is no whole snapshot."""
    run = Run.open(path)
    if run.manifest.kind != "fixed" or ROLLOUT not in run.reading_names():
        raise RunError(
            f"{path}: is a run, and no snapshot: it has no reading {ROLLOUT!r} of fixed sequences. Make one with: "
            "onepolicy snapshot take --engine SPEC --output DIR"
        )
    check_recorded(run)
    return run


# -- what it was made with --------------------------------------------------------------------------------------


def _made_with(then: ReadingInfo, now: ReadingInfo) -> list[Verdict]:
    """Versions, configuration, tokenizer and weights, in the order in which a cause is looked for. They inform."""
    before, after = made_of(then), made_of(now)
    return [_alike(check, changes(before[check], after[check])) for check in before]


def made_of(info: ReadingInfo) -> dict[str, dict[str, str]]:
    """What a reading was made with: versions, configuration, tokenizer, weights -> name -> value, empty if not said."""
    said = (_versions, _configuration, _tokenizer, _weights)
    return {check: of(info) for check, of in zip(MADE_WITH, said, strict=True)}


def _versions(info: ReadingInfo) -> dict[str, str]:
    return {"engine": info.engine.name, "engine version": info.engine.version, **info.environment}


def _configuration(info: ReadingInfo) -> dict[str, str]:
    engine, condition = info.engine, info.condition
    fixed = {
        "dtype": engine.dtype,
        "device": engine.device,
        "longest sequence": str(engine.max_length or "not said"),
        "logprobs": str(info.meaning),
        "path": condition.path,
        "padding side": condition.padding_side or "none",
    }
    return fixed | {f"option {name}": value for name, value in engine.options.items()}


def _tokenizer(info: ReadingInfo) -> dict[str, str]:
    size = info.engine.vocab_size
    return {"tokenizer": info.engine.tokenizer_hash, "vocabulary": "" if size is None else str(size)}


def _weights(info: ReadingInfo) -> dict[str, str]:
    return {"model": info.engine.model, "weights": info.engine.weights_hash[:16]}


def changes(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """`torch 2.9 -> 2.10` for each that is not the same; one that a side does not say is a change too."""
    sides = {name: (then.get(name, "absent"), now.get(name, "absent")) for name in {**then, **now}}
    return [f"{name} {a or 'not said'} -> {b or 'not said'}" for name, (a, b) in sides.items() if a != b]


def _alike(check: str, found: list[str]) -> Verdict:
    return Verdict(
        check=check,
        status=Status.UNKNOWN if found else Status.PASS,
        required=False,
        quantity="differences",
        value=len(found),
        message="; ".join(found) + "." if found else "the same.",
        evidence=tuple(Evidence(rollout_id="", note=change) for change in found),
    )


def _sentence(verdicts: Sequence[Verdict]) -> str:
    """The answer; of a mismatch what differs in how the two were made comes before any number."""
    word, _, rest = sentence(verdicts).partition(": ")
    if decide(verdicts) is Status.PASS:
        return f"{word}: {rest}"
    return f"{word}: {_named(verdicts)} {rest}"


def _named(verdicts: Sequence[Verdict]) -> str:
    made = [v for v in verdicts if v.check in MADE_WITH]
    odd = [f"{v.check} ({'; '.join(_shortened(v))})" for v in made if v.status is not Status.PASS]
    return f"look first at {', '.join(odd)}." if odd else "versions, configuration, tokenizer and weights are the same."


def _shortened(verdict: Verdict) -> list[str]:
    notes = [one.note for one in verdict.evidence]
    more = len(notes) - _SHOWN
    return [*notes[:_SHOWN], f"{more} more"] if more > 0 else notes


# -- ids --------------------------------------------------------------------------------------------------------


def _same_sequences(first: Run, second: Run) -> None:
    suites = [(run.manifest.suite, run.manifest.suite_hash) for run in (first, second)]
    if suites[0] != suites[1]:
        raise UsageError(
            f"{first.path} is of the suite {suites[0][0]} ({suites[0][1]}) and {second.path} of {suites[1][0]} "
            f"({suites[1][1]}). Take both over one: onepolicy snapshot take --like {first.path} ..."
        )
    ids = [set(run.rollout_ids()) for run in (first, second)]
    if ids[0] != ids[1]:
        raise UsageError(
            f"{first.path} holds {len(ids[0])} sequences of {suites[0][0]} and {second.path} {len(ids[1])}. Take both "
            f"with one --budget, or with --like {first.path}."
        )


def _other_ids(first: Run, second: Run) -> list[str]:
    """The sequences that the two have as other ids."""
    digests = {rollout.rollout_id: rollout.digest for rollout in second.rollouts()}
    return [rollout.rollout_id for rollout in first.rollouts() if digests[rollout.rollout_id] != rollout.digest]


def _fixed_ids(first: Run, other: Sequence[str]) -> Verdict:
    return Verdict(
        check="fixed_ids",
        status=Status.FAIL,
        quantity="sequences_of_other_ids",
        value=len(other),
        limit=0,
        unit="sequences",
        message=(
            f"{len(other)} of {len(first.rollout_ids())} sequences became other ids, the first is {other[0]}: the "
            "tokenizer is another one, and logprobs of other ids say nothing. See `onepolicy tokens compare` with "
            "both snapshots' tokenizers/."
        ),
        evidence=tuple(Evidence(rollout_id=name, note="other ids") for name in other[:_SHOWN]),
    )


def _without_numbers(first: Run, verdicts: Sequence[Verdict]) -> Judgement:
    return Judgement(
        run=str(first.path),
        rollout_reading=ROLLOUT,
        trainer_reading=ROLLOUT,
        status=decide(verdicts),
        sentence=_sentence(verdicts),
        verdicts=tuple(verdicts),
    )
