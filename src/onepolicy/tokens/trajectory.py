"""An agent's trajectory: are the ids of the history, at every call, the ids that were sampled?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from onepolicy.records.rollout import Rollout, Span
from onepolicy.records.token_breaks import Kind, ShownHistoryBreak
from onepolicy.records.tokens import IntArray
from onepolicy.records.verdict import Evidence, Status, Verdict
from onepolicy.tokens.alignment import Alignment, Block, align
from onepolicy.tokens.causes import explain
from onepolicy.tokens.changed import Changed, changed
from onepolicy.tokens.shown import shown_piece
from onepolicy.tokens.sides import Difference, Origin, Reader, Side

KEPT = 1000
"""breaks that are kept; all are counted"""
_LONGEST = 400
"""characters of a removed or added text that are kept"""
_EVIDENCE = 5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    """One model call of a trajectory."""

    prompt_ids: IntArray
    """as they were sent"""
    completion_ids: IntArray
    """as they were sampled"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryBreak:
    """A turn that a later prompt does not hold as it was sampled."""

    trajectory_id: str
    call: int
    """whose prompt differs, from 0"""
    turn: int | None
    """whose sampled ids it no longer holds, from 0; None in the first prompt"""
    after_turn: bool
    """whether the break lies behind the turn's completion, in what the environment or the template wrote"""
    kind: Kind
    position: int
    """of the first differing id in the sequence as it was sampled"""
    difference: Difference
    """cause, evidence and both spellings: first as it was, second as it was sent"""
    change: Changed
    """text that was removed and added"""
    missing_ids: tuple[int, ...] = ()
    """ids that only the later prompt has there, where nothing was removed"""

    def shown(self, *, with_text: bool = True) -> ShownHistoryBreak:
        """As a value of text and numbers; without text, ids and the cause remain."""
        found = self.difference
        removed, added = (_cut(text) if with_text else "" for text in (self.change.removed, self.change.added))
        first, second = (
            tuple(shown_piece(piece, with_text=with_text) for piece in pieces) for pieces in (found.first, found.second)
        )
        return ShownHistoryBreak(
            trajectory=self.trajectory_id,
            call=self.call,
            turn=self.turn,
            after_turn=self.after_turn,
            kind=self.kind,
            position=self.position,
            cause=found.cause,
            seen=found.seen if with_text else "",
            advice=found.advice,
            removed=removed,
            added=added,
            missing_ids=self.missing_ids,
            first=first,
            second=second,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trajectory:
    """The calls of one trajectory, in the order in which they were made."""

    trajectory_id: str
    calls: tuple[Call, ...] = ()
    why_unchecked: str = ""
    """what hides the order of the calls; empty if they are known"""


@dataclass(slots=True, kw_only=True)
class History:
    """What was found in the trajectories that were looked at."""

    trajectories: int = 0
    """of at least two calls"""
    calls: int = 0
    """in them"""
    alone: int = 0
    """trajectories of fewer calls"""
    unchecked: int = 0
    why_unchecked: str = ""
    broken: int = 0
    """trajectories with a break"""
    causes: dict[Kind, dict[str, int]] = field(default_factory=dict)
    """kind -> cause -> breaks"""
    breaks: list[ShownHistoryBreak] = field(default_factory=list)
    """the first `KEPT`"""

    def add(self, trajectory: Trajectory, reader: Reader | None, *, with_text: bool = True) -> None:
        """Look at one more trajectory."""
        why = trajectory.why_unchecked or ("" if reader else "no tokenizer is known that says where turns begin")
        if why:
            self.unchecked += 1
            self.why_unchecked = self.why_unchecked or f"{trajectory.trajectory_id}: {why}"
        elif len(trajectory.calls) < 2:
            self.alone += 1
        else:
            assert reader is not None, "without one it is not checked"
            self.trajectories += 1
            self.calls += len(trajectory.calls)
            found = history_breaks(trajectory.calls, reader, trajectory_id=trajectory.trajectory_id)
            self._count(found, with_text=with_text)

    @property
    def found(self) -> int:
        """All breaks."""
        return sum(count for causes in self.causes.values() for count in causes.values())

    def _count(self, found: Sequence[HistoryBreak], *, with_text: bool) -> None:
        self.broken += bool(found)
        for one in found:
            causes = self.causes.setdefault(one.kind, {})
            causes[one.difference.cause] = causes.get(one.difference.cause, 0) + 1
        self.breaks += [one.shown(with_text=with_text) for one in found[: KEPT - len(self.breaks)]]


def trajectory_of(trajectory_id: str, rollouts: Sequence[Rollout], spans: Sequence[Span]) -> Trajectory:
    """From the rollouts of a trajectory and their spans, if these say in which order the calls were made."""
    spanned = {span.rollout_id for span in spans}
    bare = next((rollout.rollout_id for rollout in rollouts if rollout.rollout_id not in spanned), None)
    if bare is not None:
        why = f"rollout {bare} has no span, so where its calls lie is not known"
        return Trajectory(trajectory_id=trajectory_id, why_unchecked=why)
    of_turn: dict[int, str] = {}
    for span in spans:
        other = of_turn.setdefault(span.turn, span.rollout_id)
        if other != span.rollout_id:
            why = f"rollouts {other} and {span.rollout_id} both have a turn {span.turn}"
            return Trajectory(trajectory_id=trajectory_id, why_unchecked=why)
    return Trajectory(trajectory_id=trajectory_id, calls=tuple(calls_of(rollouts, spans)))


def calls_of(rollouts: Iterable[Rollout], spans: Iterable[Span]) -> list[Call]:
    """The calls of one trajectory, from its rollouts and their spans, in the order of turns.

    A rollout that holds several turns says that each prompt was the sequence so far.
    """
    by_id = {rollout.rollout_id: rollout for rollout in rollouts}
    ordered = sorted((s for s in spans if s.rollout_id in by_id), key=lambda s: (s.turn, s.start))
    sequences = ((by_id[span.rollout_id].token_ids, span) for span in ordered)
    return [Call(prompt_ids=ids[: s.start], completion_ids=ids[s.start : s.end]) for ids, s in sequences]


def history_breaks(calls: Sequence[Call], reader: Reader, *, trajectory_id: str = "") -> list[HistoryBreak]:
    """Where each call's prompt does not begin with the previous call's prompt and completion.

    At most one break for each turn and call. Each call is held against the one before it, so a turn that was rewritten
    once and then kept is told once.
    """
    turns: list[tuple[int, int]] = []
    found: list[HistoryBreak] = []
    for number, (before, after) in enumerate(pairwise(calls), start=1):
        earlier = _Sequence(trajectory_id, [*before.prompt_ids.tolist(), *before.completion_ids.tolist()], turns)
        turns.append((len(before.prompt_ids), len(earlier.ids)))
        alignment = align(earlier.ids, after.prompt_ids.tolist(), reader, goes_on=True)
        found += earlier.breaks(number, alignment, reader)
        turns = [(alignment.place(start), alignment.place(end)) for start, end in turns]
    return found


def rendering_breaks(
    token_ids: IntArray, rendered_ids: IntArray, turns: Sequence[tuple[int, int]], reader: Reader, *, name: str = ""
) -> list[HistoryBreak]:
    """Where ids that were accumulated over turns are not those of the conversation as a template renders it.

    turns: start and end of each completion in `token_ids`. The conversation is whole, without a generation prompt.
    """
    accumulated = _Sequence(name, token_ids.tolist(), list(turns))
    alignment = align(accumulated.ids, rendered_ids.tolist(), reader, goes_on=False)
    return accumulated.breaks(len(turns), alignment, reader)


def history_verdict(history: History, *, required: bool = True) -> Verdict:
    """Fails if any call's history is not what was sampled; says of how many which kind."""
    if history.breaks:
        return _broken(history, required=required)
    if history.unchecked or not history.trajectories:
        why = history.why_unchecked or "no trajectory has two calls"
        count = f"{history.unchecked} trajectories are not checked" if history.unchecked else "not checked"
        return Verdict(check="history", status=Status.UNKNOWN, required=required, message=f"{count}: {why}.")
    message = (
        f"all {history.calls} calls of {history.trajectories} trajectories begin with the ids that were sampled before "
        "them."
    )
    return Verdict(check="history", status=Status.PASS, required=required, message=message)


def _broken(history: History, *, required: bool) -> Verdict:
    kinds = ", ".join(f"{sum(causes.values())} {kind}" for kind, causes in sorted(history.causes.items()))
    first = history.breaks[0]
    own = "" if required else " Harmless where each call is trained with the prompt that it had, as here."
    return Verdict(
        check="history",
        status=Status.FAIL,
        required=required,
        quantity="turns_that_change",
        value=history.found,
        limit=0,
        unit="turns",
        message=(
            f"the history changes in {history.found} places over {history.calls} calls ({kinds}). First, in "
            f"{first.trajectory or 'the trajectory'}: {first}. {first.advice}{own}"
        ),
        evidence=tuple(
            Evidence(rollout_id=one.trajectory or "trajectory", position=one.position, note=str(one))
            for one in history.breaks[:_EVIDENCE]
        ),
    )


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


@dataclass(frozen=True, slots=True)
class _Sequence:
    """Ids as they were sampled, and where the turns lie in them."""

    trajectory_id: str
    ids: list[int]
    turns: list[tuple[int, int]]

    def breaks(self, call: int, alignment: Alignment, reader: Reader) -> list[HistoryBreak]:
        """The first break of each turn."""
        found: dict[tuple[int | None, bool], HistoryBreak] = {}
        for block in alignment.changed:
            told = self._told(call, alignment, block, reader)
            found.setdefault((told.turn, told.after_turn), told)
        return list(found.values())

    def _told(self, call: int, alignment: Alignment, block: Block, reader: Reader) -> HistoryBreak:
        a, b = alignment.ids(block)
        before = alignment.before(block)
        difference = explain(
            Side(name="sampled", ids=before + a, reader=reader),
            Side(name="sent", ids=before + b),
            start=block.start - len(before),
        )
        assert difference is not None, "the block differs"
        turn, after_turn = self._turn_at(difference.position)
        at = difference.position - block.start
        change = changed(*(reader.content(ids).decode("utf-8", errors="backslashreplace") for ids in (a, b)))
        missing = b[at : at + len(b) - len(a)] if a == b[:at] + b[at + len(b) - len(a) :] else []
        return HistoryBreak(
            trajectory_id=self.trajectory_id,
            call=call,
            turn=turn,
            after_turn=after_turn,
            kind="retokenisation drift" if difference.origin is Origin.TOKENIZER else "template rewrite",
            position=difference.position,
            difference=difference,
            change=change,
            missing_ids=tuple(missing),
        )

    def _turn_at(self, position: int) -> tuple[int | None, bool]:
        begun = [i for i, (start, _) in enumerate(self.turns) if start <= position]
        return (begun[-1], position >= self.turns[begun[-1]][1]) if begun else (None, False)
