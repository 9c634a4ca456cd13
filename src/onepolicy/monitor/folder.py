"""RUN: a run directory with the monitor's steps and its state beside the rollouts that are kept as evidence."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from onepolicy.errors import RunError
from onepolicy.monitor.journal import Journal
from onepolicy.monitor.state import STEPS_FILE, read_state
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


class Folder:
    """The files of one training. One process writes them: the first rank.

    Raises: RunError if the folder holds something else, another process writes there, or it cannot be written to.
    """

    def __init__(self, path: Path, about: dict[str, str]) -> None:
        self.run = _opened(path, about)
        self._open = ExitStack()
        self._open.enter_context(self.run.writing("monitor"))
        try:
            self.journal = Journal(path / STEPS_FILE)
            self.earlier = read_state(path)
            """how the process before this one left it"""
            tags = [
                read_tags(*row)
                for block in self.run.rollout_blocks()
                for row in zip(block.rollout_ids, block.tags, strict=True)
            ]
            self.rollouts = len(tags)
            self.occasions = {kind: len({t["step"] for t in tags if t.get("kept") == kind}) for kind in (SAMPLE, ALARM)}
            """steps of which rollouts were kept for either reason"""
        except BaseException:
            self._open.close()
            raise

    def keep(self, rollouts: list[Rollout], spans: list[Span], rows: dict[str, list[ReadingRow]]) -> None:
        """Add evidence; rows: by the reading's name. The run is whole again before this returns."""
        for name, readings in rows.items():
            self.run.write_reading(name, readings)
        self.run.write_rollouts(rollouts, spans)
        self.rollouts += len(rollouts)
        self.run.manifest = self.run.manifest.model_copy(update={"planned_rollouts": self.rollouts})
        self.run.complete()

    def close(self) -> None:
        """Let others write there."""
        self._open.close()


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
