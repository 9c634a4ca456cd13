"""From a step's vectors to what is known, kept and said of it. Runs on the host, one step after the trainer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from onepolicy.errors import OnePolicyError
from onepolicy.monitor.evidence import MOST_ALARMS, MOST_SAMPLES, ROWS, HostRow, Kept, Rows, as_records, on_host
from onepolicy.monitor.folder import ALARM, SAMPLE
from onepolicy.monitor.layout import SLICES, extras, merged, step_summary
from onepolicy.monitor.notices import Notices, warn
from onepolicy.monitor.numbers import numbers_of
from onepolicy.monitor.past import Asked, Past, taken_up
from onepolicy.monitor.ranks import Pending, Ranks
from onepolicy.monitor.standing import Standing
from onepolicy.monitor.state import STATE_FILE, STEPS_FILE, MonitorState, write_state
from onepolicy.monitor.trying import Trying
from onepolicy.numerics.steps.record import record_of
from onepolicy.numerics.steps.watch import Watch
from onepolicy.records.step import Alarm, StepRecord
from onepolicy.records.tokens import Float64


class Watching(Protocol):
    """What decides about a step."""

    def add(self, record: StepRecord) -> tuple[Alarm, ...]:
        """Take in the next step; what it shows."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A step that has ended, on its way to the host."""

    step: int
    time: float
    about: dict[str, str]
    pending: Pending | None
    """None if it could not be sent"""
    kept: Kept
    sampling: bool
    numbered: bool
    """whether the trainer gave the step's number"""
    closing: bool = False
    """whether the training ended before the step did: no step if nothing was handed over on any rank"""


class Recorder:
    """Looks at each step, keeps it, and knows how the training stands."""

    def __init__(self, asked: Asked, ranks: Ranks, watch: Watching | None) -> None:
        self.standing = Standing(limits=asked.limits)
        self.last_step = 0
        self._asked, self._ranks = asked, ranks
        self._watch: Watching = watch or Watch(asked.limits)
        self._notices = Notices()
        self._left = {SAMPLE: MOST_SAMPLES, ALARM: MOST_ALARMS}
        self._said_nothing_kept = False
        self._new_failures: list[str] = []
        self._killed_after: int | None = None
        """last step of an earlier process that ended without close()"""
        opened = taken_up(asked) if ranks.is_first else None
        self._folder = opened[0] if opened is not None else None
        told = ranks.told_by_first(None if opened is None else opened[1])
        if isinstance(told, OnePolicyError):
            raise told
        self._go_on(told)

    def take(self, seen: Seen) -> tuple[dict[str, float], tuple[Alarm, ...]]:
        """A step's numbers and what it showed, the same on every rank. Raises: what torch raises for a dead rank."""
        vectors = self._vectors(seen)
        if vectors is not None and seen.closing and not vectors[:, SLICES["rollouts"]].any():
            return {}, ()
        self._note_gap(seen)
        if vectors is None:
            return {}, ()
        record, outliers = None, 0
        with self.trying("make the record of a step"):
            vector = merged(vectors)
            counts = extras(vector)
            self._count(counts)
            summary, outliers = step_summary(vector, step=seen.step), counts["outliers"]
            record = record_of(summary, time=seen.time, about=seen.about, masked=counts["masked"])
        alarms: tuple[Alarm, ...] = ()
        if record is not None:
            with self.trying("look at a step"):
                alarms = self._watch.add(record)
        alarms = self._keep(seen, alarms)
        if record is None:
            return {}, ()
        record = record.model_copy(update={"alarms": (*alarms, *self._own_alarms(seen.step))})
        self._write(record)
        return numbers_of(record, outliers=outliers), alarms

    def finish(self, *, closed: bool, why: str = "") -> None:
        """The end marker; closed: the training came to its end."""
        if why:
            self.standing.fail("see the training to its end", why)
        if closed and self._killed_after is not None:
            self._say_gap(self._killed_after)
        self.standing.closed = closed
        with self.trying("write the end marker"):
            self._write_state(self.standing.status.value)
        if self._folder is not None:
            self._folder.close()

    def trying(self, what: str) -> Trying:
        """Let nothing that goes wrong inside end the training; it is said once, and nothing passes from then on."""
        return Trying(what, self.failed)

    def failed(self, what: str, why: str) -> None:
        """Keep and say that the monitor could not do something."""
        if not self.standing.fail(what, why):
            return
        self._new_failures.append(f"the monitor could not {what}: {why}")
        warn(
            f"the monitor of {self._asked.path} could not {what} ({why[:500]}). Training goes on, and the monitor as "
            "far as it can; its status is unknown from here on and will not become a pass."
        )

    def _vectors(self, seen: Seen) -> Float64 | None:
        """None if they did not come; among several ranks that is torch's error."""
        if seen.pending is None or self._ranks.size > 1:
            return None if seen.pending is None else seen.pending.vectors()
        with self.trying("get a step from the device"):
            return seen.pending.vectors()
        return None

    def _note_gap(self, seen: Seen) -> None:
        """A killed process took its last step along, unless the trainer says that it does that step again."""
        if self._killed_after is None:
            return
        last, self._killed_after = self._killed_after, None
        if not seen.numbered or seen.step > last + 1:
            self._say_gap(last)

    def _say_gap(self, last: int) -> None:
        self.failed("see every step", f"the process before this one ended without close() after step {last}")

    def _go_on(self, past: Past) -> None:
        """Continue what an earlier process began."""
        for note in past.notes:
            warn(note)
        for kept, occasions in past.occasions.items():
            self._left[kept] -= occasions
        records = [StepRecord.model_validate_json(line) for line in past.steps]
        for record in records:
            self._watch.add(record)
        self.last_step = records[-1].step if records else 0
        earlier = MonitorState.model_validate_json(past.state) if past.state else None
        self.standing.go_on(earlier, past.training, first=past.first_step, last=records[-1].step if records else None)
        if earlier is not None and earlier.status == "running":
            self._killed_after = self.last_step
        self._note_lost(earlier, past.training.steps)

    def _note_lost(self, earlier: MonitorState | None, lines: int) -> None:
        """What a folder lacks that was in it."""
        if earlier is None and lines:
            why = f"{STATE_FILE} is absent beside {lines} steps: nobody says how the process before this one ended"
            self.failed("take up its state", why)
        if earlier is not None and lines < earlier.steps:
            why = f"{STEPS_FILE} has {lines} steps, and {STATE_FILE} says that {earlier.steps} were looked at"
            self.failed("take up every step", why)

    def _count(self, counts: dict[str, int]) -> None:
        if counts["odd_masks"]:
            self.failed(
                "read the masks", "`sampled` or `loss_mask` had entries other than 0 and 1; they were taken as 1"
            )
        if counts["failed"] and not self.standing.failures:
            self.failed("go on everywhere", f"it failed on {counts['failed']} ranks, which say why")

    def _own_alarms(self, step: int) -> list[Alarm]:
        said, self._new_failures = self._new_failures, []
        return [Alarm(step=step, kind="monitor", message=text) for text in said]

    def _keep(self, seen: Seen, alarms: tuple[Alarm, ...]) -> tuple[Alarm, ...]:
        """Keep rollouts, on the first rank from all; all ranks take part, whatever has failed on one of them."""
        if seen.sampling and self._left[SAMPLE] > 0:
            self._left[SAMPLE] -= 1
            self._keep_rows(seen, seen.kept.sample, SAMPLE)
        if not alarms or self._left[ALARM] <= 0:
            return alarms
        self._left[ALARM] -= 1
        if not self._keep_rows(seen, seen.kept.worst, ALARM):
            return alarms
        where = f"{self._asked.path}, the rollouts step-{seen.step:06d}-*"
        return tuple(alarm.model_copy(update={"evidence": where}) for alarm in alarms)

    def _keep_rows(self, seen: Seen, rows: Rows | None, kept: str) -> bool:
        """Whether there is evidence, as far as this rank can say."""
        mine: list[HostRow] = []
        with self.trying("copy rollouts to the host"):
            mine = on_host(rows, seen.kept.names)
        found = [row for rank in self._ranks.gathered_by_first(mine) for row in rank]
        if self._folder is None:
            return bool(mine)
        if not found:
            self._say_nothing_kept()
            return False
        found = sorted(found, key=lambda row: -row["score"])[:ROWS] if kept == ALARM else found[:ROWS]
        with self.trying("keep rollouts"):
            self._folder.keep(*as_records(found, step=seen.step, kept=kept, about=seen.about))
            return True
        return False

    def _say_nothing_kept(self) -> None:
        if not self._said_nothing_kept:
            self._said_nothing_kept = True
            warn(f"the monitor of {self._asked.path} keeps no rollouts: `update` is given no token_ids.")

    def _write(self, record: StepRecord) -> None:
        self.standing.add(record)
        if self._folder is not None:
            with self.trying("write a step"):
                self._folder.journal.append(record)
        watched = tuple(alarm for alarm in record.alarms if alarm.kind != "monitor")
        said = self._notices.add(watched) if self._ranks.is_first else False
        if said or len(watched) < len(record.alarms):
            with self.trying("write its state"):
                self._write_state("running")

    def _write_state(self, status: str) -> None:
        if self._folder is not None:
            write_state(self._asked.path, self._state(status))

    def _state(self, status: str) -> MonitorState:
        standing = self.standing
        return MonitorState.model_validate(
            {
                "status": status,
                "why": standing.why,
                "policy": self._asked.policy,
                "limits": self._asked.limits_name,
                "first_step": standing.first_step,
                "last_step": standing.last_step,
                "steps": standing.steps,
                "without_tokens": standing.training.without,
                "alarms": dict(standing.alarms),
                "failures": standing.failures,
                "masked_rollouts": standing.masked_rollouts,
                "evidence_rollouts": self._folder.rollouts if self._folder is not None else 0,
            }
        )
