"""What a monitor says while the training runs: through `logging`, and not at every step."""

from __future__ import annotations

import logging
from pathlib import Path

from onepolicy.monitor.halted import TrainingHalted
from onepolicy.records.step import Alarm
from onepolicy.visible import visible

logger = logging.getLogger("onepolicy.monitor")

QUIET_STEPS = 50
"""an alarm of the same kind is said again after this many steps"""


class Notices:
    """Alarms as warnings; the same kind at most once in `QUIET_STEPS` steps, and the rest counted."""

    def __init__(self) -> None:
        self._said: dict[str, int] = {}
        """kind -> how many steps ago was it said"""
        self._unsaid: dict[str, int] = {}

    def add(self, alarms: tuple[Alarm, ...]) -> bool:
        """Say a step's alarms, as far as they are to be said; whether any was."""
        self._said = {kind: steps + 1 for kind, steps in self._said.items() if steps + 1 < QUIET_STEPS}
        said = False
        for alarm in alarms:
            if alarm.kind in self._said:
                self._unsaid[alarm.kind] = self._unsaid.get(alarm.kind, 0) + 1
                continue
            warn(self._sentence(alarm))
            self._said[alarm.kind] = 0
            said = True
        return said

    def _sentence(self, alarm: Alarm) -> str:
        unsaid = self._unsaid.pop(alarm.kind, 0)
        more = f" ({unsaid} more of the kind {alarm.kind!r} since it was last said)" if unsaid else ""
        evidence = f" Evidence: {alarm.evidence}." if alarm.evidence else ""
        return f"{alarm.message}{more}{evidence}"


def warn(text: str) -> None:
    """Say it. What a trainer or a file said is in it, and must not move a terminal's cursor."""
    logger.warning("%s", visible(text))


def halt(alarms: list[Alarm], run: Path) -> TrainingHalted:
    """What ends the training; the process prints it."""
    found = "\n".join(f"  {alarm.kind}: {visible(alarm.message)}" for alarm in alarms)
    where = visible(str(run))
    evidence = next((visible(alarm.evidence) for alarm in alarms if alarm.evidence), "")
    kept = f"rollouts: {evidence}" if evidence else "no rollouts were kept, as `update` was given no token_ids"
    return TrainingHalted(
        f"onepolicy: training halted, the rollout and the trainer policy are not the same.\n{found}\n"
        f"  evidence: {where} ({kept})\n  look at it with: onepolicy timeline {where}"
    )
