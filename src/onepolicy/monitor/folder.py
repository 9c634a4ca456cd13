"""RUN: a run directory with the monitor's steps and its state beside the rollouts that are kept as evidence."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from onepolicy.errors import RunError
from onepolicy.monitor.journal import Journal
from onepolicy.monitor.state import STEPS_FILE, read_state
from onepolicy.records.files import disk_errors
from onepolicy.records.manifest import Manifest
from onepolicy.records.parquet import read_tags
from onepolicy.records.protocol import Meaning, SamplingProtocol
from onepolicy.records.reading import Condition, EngineInfo, ReadingInfo, ReadingRequest, ReadingRow
from onepolicy.records.rollout import Rollout, Span
from onepolicy.records.run import Run
from onepolicy.version import VERSION

SUITE = "monitor"
ROLLOUT, TRAINER = "rollout", "trainer"
SAMPLE, ALARM = "sample", "alarm"
"""why rollouts were kept, as their tag `kept` says"""
PARTS = "part-*.parquet"


class Folder:
    """The files of one training. One process writes them: the first rank.

    Raises: RunError if the folder holds something else, another process writes there, or it cannot be written to.
    """

    def __init__(self, path: Path, about: dict[str, str]) -> None:
        self.run = _opened(path, about)
        self._open = ExitStack()
        self._open.enter_context(self.run.writing("monitor"))
        try:
            self.notes: list[str] = []
            """what was wrong with the evidence when it was opened"""
            self._parts = _whole_parts(path)
            self._drop_halves()
            self.journal = Journal(path / STEPS_FILE)
            self.earlier = read_state(path)
            """how the process before this one left it"""
            tags = [
                read_tags(*row)
                for block in self.run.rollout_blocks()
                for row in zip(block.rollout_ids, block.tags, strict=True)
            ]
            self.rollouts = len(tags)
            if self.run.manifest.planned_rollouts != self.rollouts:
                self._plan(self.rollouts)
            self.occasions = {kind: len({t["step"] for t in tags if t.get("kept") == kind}) for kind in (SAMPLE, ALARM)}
            """steps of which rollouts were kept for either reason"""
        except BaseException:
            self._open.close()
            raise

    def keep(self, rollouts: list[Rollout], spans: list[Span], rows: dict[str, list[ReadingRow]]) -> None:
        """Add evidence; rows: by the reading's name. The run is whole before and after, whatever goes wrong here.

        The rollouts go first: a process that is killed in between leaves some without numbers, which the run is judged
        unknown for, and which the next monitor drops.
        """
        before = self.run.manifest
        try:
            self.run.write_rollouts(rollouts, spans)
            for name, readings in rows.items():
                self.run.write_reading(name, readings)
            self._plan(self.rollouts + len(rollouts))
        except BaseException:
            self.run.manifest = before
            self._drop_halves()
            raise
        self.rollouts += len(rollouts)
        self._parts = _whole_parts(self.run.path)

    def _plan(self, rollouts: int) -> None:
        self.run.manifest = self.run.manifest.model_copy(update={"planned_rollouts": rollouts})
        self.run.complete()

    def _drop_halves(self) -> None:
        """Remove parts that a process wrote which was killed, or whose disk was full, before it wrote the others."""
        parts = [part for folder in _part_folders(self.run.path) for part in folder.glob(PARTS)]
        halves = [part for part in parts if part.name not in self._parts]
        for part in halves:
            with disk_errors(part):
                part.unlink(missing_ok=True)
        if halves:
            names = len({part.name for part in halves})
            self.notes.append(f"{self.run.path}: {names} parts of the evidence were not whole and were dropped")

    def close(self) -> None:
        """Let others write there."""
        self._open.close()


def _part_folders(path: Path) -> list[Path]:
    """Where the parts of a rollout's evidence are, of one name in all. Raises: RunError if a link leads out."""
    folders = [path / "rollouts", path / "spans", *(path / "readings" / name for name in (ROLLOUT, TRAINER))]
    for folder in folders:
        if not folder.resolve().is_relative_to(path.resolve()):
            raise RunError(f"{folder}: a link leads out of the run. Give the monitor a folder of its own.")
    return folders


def _whole_parts(path: Path) -> set[str]:
    """Names of the parts that are there in all folders."""
    names = [{part.name for part in folder.glob(PARTS)} for folder in _part_folders(path)]
    return set.intersection(*names)


def _opened(path: Path, about: dict[str, str]) -> Run:
    if (path / "manifest.json").exists():
        run = Run.open(path)
        if run.manifest.suite != SUITE:
            raise RunError(
                f"{path}: holds a run of the suite {run.manifest.suite!r}, which no monitor wrote. Give the monitor a "
                "folder of its own."
            )
    else:
        run = Run.create(path, _manifest(about))
    for name, path_kind in ((ROLLOUT, "decode"), (TRAINER, "prefill")):
        if name not in run.reading_names():
            run.start_reading(_reading(name, Condition.model_validate({"path": path_kind}), about))
    return run


def _manifest(about: dict[str, str]) -> Manifest:
    return Manifest(
        tool_version=VERSION,
        status="complete",
        kind="fresh",
        suite=SUITE,
        suite_hash="",
        protocol=SamplingProtocol(),
        rollout_engine=_spec(ROLLOUT, about),
        planned_rollouts=0,
        keeps_text=False,
    )


def _reading(name: str, condition: Condition, about: dict[str, str]) -> ReadingInfo:
    return ReadingInfo(
        name=name,
        request=ReadingRequest(engine=_spec(name, about), path=condition.path),
        engine=EngineInfo(
            name="monitor", version=about.get(f"{name}_engine", "?"), model=about.get("model", "?"), dtype="?"
        ),
        condition=condition,
        meaning=Meaning(),
        environment={"onepolicy": VERSION, **about},
    )


def _spec(name: str, about: dict[str, str]) -> str:
    return f"monitor:{about.get(f'{name}_engine', name)}"
