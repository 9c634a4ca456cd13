"""With the whole run in view: what each departure from the level before was."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeGuard

from onepolicy.numerics.steps.about import NEAR, Change, Changes
from onepolicy.numerics.steps.departures import BASE, LEAST_BASE, Departure, departures, onset, rise_within
from onepolicy.numerics.steps.lag import LARGEST, newest_lag
from onepolicy.numerics.steps.link import Link, link_over
from onepolicy.numerics.steps.median import median
from onepolicy.numerics.steps.series import Point, Standardised
from onepolicy.numerics.steps.stale import LINKED_Z
from onepolicy.records.step import StepEvent, StepRecord

Kind = Literal["level", "growing", "single step"]
LEAST_LAG_RISE = 3
"""steps by which the newest weights must fall behind the usual lag, to be named"""


def series(records: Sequence[StepRecord]) -> list[Point]:
    """The points that the watch sees; those of steps that were equal bit by bit have no logarithm and are left out."""
    standardised = Standardised()
    return [p for record in records for p in standardised.add(record) if math.isfinite(p.log_k3)]


def named(records: Sequence[StepRecord]) -> list[StepEvent]:
    """What happened in a run, in the order of steps: levels, growth, single steps, and declared lag."""
    changes = _changes(records)
    departed = departures(series(records))
    found = [_event(_facts(departure, records, changes)) for departure in departed]
    found += [event for departure in departed for event in _on_top(departure, changes)]
    return sorted([*found, *_declared(records, changes)], key=lambda event: event.first)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    departure: Departure
    first: int
    last: int | None
    before: float
    """nats per token"""
    after: float
    link: Link | None
    link_before: Link | None
    """of the steps just before"""
    near: tuple[str, ...]
    during: tuple[str, ...]
    since: int | None
    """step from which updates were missed, by the shape of the growth"""

    @property
    def span(self) -> str:
        """steps 121 to 139."""
        if self.last is None:
            return f"from step {self.first} on"
        return f"step {self.first}" if self.last == self.first else f"steps {self.first} to {self.last}"

    def strong(self, link: Link | None) -> TypeGuard[Link]:
        """Whether the trainer prefers what was rewarded, by more than chance and the numerics of the floor do."""
        return link is not None and link.z >= LINKED_Z and link.slope > self.before / 3


def _facts(departure: Departure, records: Sequence[StepRecord], changes: Sequence[Change]) -> _Facts:
    first, end = departure.points[0].step, departure.points[-1].step
    values = [point.log_k3 for point in departure.points]
    until = end if departure.returned or not departure.growing else records[-1].step
    return _Facts(
        departure=departure,
        first=first,
        last=end if departure.returned else None,
        before=math.exp(departure.base),
        after=math.exp(median(values[-LEAST_BASE:] if departure.growing else values)),
        link=link_over([record for record in records if first <= record.step <= until]),
        link_before=link_over([record for record in records if first - BASE <= record.step < first]),
        near=_near(changes, first),
        since=onset(departure) if departure.growing else None,
        during=tuple(str(c) for c in changes if first + 1 < c.step <= until),
    )


def _event(facts: _Facts) -> StepEvent:
    kind, message = _name(facts)
    return StepEvent(
        kind=kind,
        first=facts.first,
        last=facts.last,
        before=facts.before,
        after=facts.after,
        because=facts.near,
        link_z=None if facts.link is None else facts.link.z,
        message=message,
    )


def _name(facts: _Facts) -> tuple[Kind, str]:
    times = facts.after / facts.before
    moved = f"{facts.span}: k3 {facts.before:.2g} -> {facts.after:.2g} ({times:.2g} times)"
    if facts.departure.single:
        return "single step", f"{moved} and back. A bad or stale step.{_because(facts.near)}"
    if facts.departure.growing and times > 1:
        return "growing", f"{moved}, growing from step to step{_since(facts)}.{_proof(facts)}{_rest(facts)}"
    stays = "and stays" if facts.last is None else "and back after it"
    return "level", f"{moved} {stays}, without growing: another level.{_level(facts)}"


def _since(facts: _Facts) -> str:
    if facts.since is None or facts.since >= facts.first:
        return ""
    return f", by its shape since about step {facts.since}"


def _proof(facts: _Facts) -> str:
    if facts.link is None:
        return " So does what comes from weights that are no longer sent: check the weight sync."
    if facts.strong(facts.link):
        return (
            f" The trainer prefers what was rewarded (z = {facts.link.z:.1f}): the updated weights did not reach the "
            "rollout engine."
        )
    return (
        " So does what comes from weights that are no longer sent, although the trainer does not clearly prefer what "
        f"was rewarded (z = {facts.link.z:.1f}): check the weight sync."
    )


def _rest(facts: _Facts) -> str:
    back = "" if facts.last is None else f" Back at the level before after step {facts.last}: weights arrive again."
    meanwhile = f" Changed meanwhile: {'; '.join(facts.during[:3])}." if facts.during else ""
    return f"{back}{_because(facts.near)}{meanwhile}"


def _level(facts: _Facts) -> str:
    if facts.near:
        return _because(facts.near)
    if facts.strong(facts.link):
        when = ", as before" if facts.strong(facts.link_before) else " and did not before"
        return (
            f" The trainer prefers what was rewarded (z = {facts.link.z:.1f}){when}: rollouts come from older weights. "
            "Check the weight sync."
        )
    return " Missed updates would grow: an engine, a precision or a configuration changed, and the trainer names none."


def _on_top(departure: Departure, changes: Sequence[Change]) -> Iterator[StepEvent]:
    """What else happened while the mismatch grew."""
    found = rise_within(departure) if departure.growing else None
    if found is None:
        return
    point, expected, came = found
    near = _near(changes, point.step)
    why = _because(near) or " An engine, a precision or a configuration changed."
    moved = f"k3 {math.exp(expected):.2g} -> {math.exp(came):.2g}"
    yield StepEvent(
        kind="level",
        first=point.step,
        before=math.exp(expected),
        after=math.exp(came),
        because=near,
        message=f"from step {point.step} on: {moved} at once, on top of the growth: another level.{why}",
    )


def _because(near: tuple[str, ...]) -> str:
    return f" What changed then: {'; '.join(near)}." if near else ""


def _near(changes: Sequence[Change], step: int) -> tuple[str, ...]:
    return tuple(str(change) for change in changes if -NEAR <= change.step - step <= 1)


def _changes(records: Sequence[StepRecord]) -> list[Change]:
    changes = Changes()
    return [change for record in records for change in changes.add(record)]


def _declared(records: Sequence[StepRecord], changes: Sequence[Change]) -> Iterator[StepEvent]:
    """Times in which the newest weights in use fell behind, as their versions say."""
    lags = [(record.step, lag) for record in records if (lag := newest_lag(record)) is not None]
    if not lags:
        return
    usual, run = math.ceil(median(lag for _, lag in lags)), list[tuple[int, int]]()
    for step, lag in lags:
        if lag > usual:
            run.append((step, lag))
            continue
        yield from _fell_behind(run, usual, changes, ended=True)
        run = []
    yield from _fell_behind(run, usual, changes, ended=False)


def _fell_behind(
    run: list[tuple[int, int]], usual: int, changes: Sequence[Change], *, ended: bool
) -> Iterator[StepEvent]:
    most = max((lag for _, lag in run), default=0)
    if most < usual + LEAST_LAG_RISE:
        return
    first, last = run[0][0], run[-1][0]
    span = f"steps {first} to {last}" if ended else f"from step {first} on"
    many = f"{most} or more" if most == LARGEST else str(most)
    back = f" Back at the usual lag after step {last}: weights arrive again." if ended else ""
    yield StepEvent(
        kind="growing",
        first=first,
        last=last if ended else None,
        declared=True,
        because=_near(changes, first),
        message=(
            f"{span}: the newest weights in use fall behind the trainer's, from {usual} to {many} steps, as their "
            f"versions say: weights that are no longer sent. This is staleness, and no numerics.{back}"
        ),
    )
