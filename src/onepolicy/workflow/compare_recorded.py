"""Recorded files that hold both sides -> verdicts, without a run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from onepolicy.dumps.block import RecordedBlock, block_digests
from onepolicy.errors import DumpError
from onepolicy.judgement.floor import refuse_expired
from onepolicy.judgement.limits import Limits
from onepolicy.judgement.waive import applied
from onepolicy.numerics.checks.one_weight_version import one_weight_version
from onepolicy.numerics.measurement import Measurement
from onepolicy.numerics.native import NativeSums
from onepolicy.numerics.pair import Pair, pair_up
from onepolicy.records.manifest import Imported
from onepolicy.records.protocol import Meaning, SamplingProtocol
from onepolicy.records.verdict import Judgement
from onepolicy.tokens.spell import Speller
from onepolicy.workflow.conclude import conclude
from onepolicy.workflow.judge import numbers_of_one_policy, recorded_verdicts
from onepolicy.workflow.progress import Progress, Silent
from onepolicy.workflow.recorded import Recording, Tally, blocks_of, refuse_other_sampling
from onepolicy.workflow.versions import Versions
from onepolicy.workflow.whole import rows_verdicts


def meanings(recording: Recording, protocol: SamplingProtocol) -> tuple[Meaning, Meaning]:
    """Of the rollout side's logprobs, and of the trainer's, which frameworks compute to match what was sampled."""
    processed = Meaning.processed_by(protocol)
    return (processed if recording.format.sampled_from_reported else Meaning()), processed


@dataclass(slots=True, kw_only=True)
class Compared:
    """What came out of some files."""

    measured: Measurement
    versions: Versions
    tally: Tally


def compare_recorded(
    recording: Recording,
    *,
    limits: Limits,
    protocol: SamplingProtocol = SamplingProtocol(),
    speller: Speller | None = None,
    native: bool = True,
    progress: Progress | None = None,
) -> tuple[Judgement, Imported]:
    """Judge the two columns of some recorded files, sampled under `protocol`; says also what was read.

    native: also compute what the dashboards of frameworks show, which no verdict needs.
    Raises: DumpError if a side is absent, or a file is damaged.
    """
    refuse_expired(limits, [])
    found = _measured(recording, protocol, native, progress or Silent())
    whose = [*found.versions.verdicts(), *one_weight_version(found.measured)]
    imported = found.tally.imported(recording)
    verdicts = [*rows_verdicts(imported), *recorded_verdicts(found.measured, limits)]
    verdicts += numbers_of_one_policy(whose, found.measured, limits)
    judgement = conclude(
        applied(verdicts, limits, today=date.today()),
        found.measured,
        run="",
        readings=("rollout", "trainer"),
        speller=speller or Speller(None),
    )
    rows = {"rows_read": imported.read, "rows_used": imported.used, "rows_refused": imported.refused}
    return judgement.model_copy(update={"counts": {**judgement.counts, **rows}}), imported


def _measured(recording: Recording, protocol: SamplingProtocol, native: bool, progress: Progress) -> Compared:
    rollout, trainer = meanings(recording, protocol)
    measured = Measurement(
        rollout_meaning=rollout,
        trainer_meaning=trainer,
        is_kl=rollout.is_sampled_from(protocol),
        native=NativeSums() if native else None,
    )
    tally, versions = Tally(), Versions(current=recording.format.trainer == "current")
    measured.buckets.version_of = versions.names
    for block in blocks_of(recording, tally, progress):
        refuse_other_sampling(recording, block, protocol)
        versions.add(block)
        measured.add(paired(recording, block))
    if not measured.rollouts:
        raise DumpError(nothing_used(recording, tally))
    if versions.by_step.one_each:
        measured.buckets.versions.clear()
    return Compared(measured=measured, versions=versions, tally=tally)


def paired(recording: Recording, block: RecordedBlock) -> Pair:
    """Both sides of a block. Raises: DumpError if the files hold one side only."""
    if block.rollout is None or block.trainer is None:
        side = "no logprobs" if block.rollout is block.trainer else "the rollout side's logprobs only"
        side = "the trainer's logprobs only" if block.rollout is None and block.trainer is not None else side
        raise DumpError(
            f"{recording.name}: holds {side}, from row {block.rollouts.rollout_ids[0]}. Give the file of the other "
            "side too (onepolicy compare A B), or score what was sampled: onepolicy import FILES --run RUN, then "
            "onepolicy score RUN --engine SPEC, then onepolicy judge RUN."
        )
    return pair_up(block.rollouts, block_digests(block), block.rollout, block.trainer)


def nothing_used(recording: Recording, tally: Tally) -> str:
    """What to say of files without a rollout."""
    if not tally.read:
        return f"{recording.name}: holds no row ({recording.format.title}). Nothing was compared."
    return f"{recording.name}: all {tally.read} rows were refused. The first: {tally.refusals[0]}"
