"""What a difference does to the recorded completions: how many would be cut, would go on, or hold a stop string."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.tokens import BoolArray, IntArray
from onepolicy.sampling.audit.call import Call
from onepolicy.sampling.consequence import Consequence, counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """Two protocols, what they are called, and the one that the run was sampled under."""

    a: SamplingProtocol
    b: SamplingProtocol
    names: tuple[str, str]
    recorded: SamplingProtocol

    def each(self) -> Iterator[tuple[str, SamplingProtocol, SamplingProtocol]]:
        """Name, its protocol, and the other side's."""
        yield self.names[0], self.a, self.b
        yield self.names[1], self.b, self.a

    def smaller(self, field: str) -> tuple[str, int] | None:
        """The side with the lower limit, and the limit; None if neither has one or both have the same."""
        limits = [(getattr(protocol, field), name) for name, protocol, _ in self.each()]
        known = sorted((value, name) for value, name in limits if value is not None)
        return None if not known or limits[0][0] == limits[1][0] else (known[0][1], known[0][0])


Test = Callable[[Call], bool | None]
"""whether a call shows something; None where it does not say"""


@dataclass(slots=True, kw_only=True)
class Share:
    """The share of completions that show something, counted over one call after the other."""

    field: str
    quantity: str
    what: str
    """how the sentence goes on after the share"""
    test: Test
    count: int = 0
    of: int = 0
    calls: int = 0

    def add(self, call: Call) -> None:
        """Take in one call."""
        shows = self.test(call)
        self.calls += 1
        self.of += shows is not None
        self.count += bool(shows)

    def consequence(self) -> Consequence:
        """What was counted; not known if no call says."""
        return counted(self.field, self.quantity, count=self.count, of=self.of, recorded=self.calls, what=self.what)


@dataclass(slots=True, kw_only=True)
class Repeated:
    """The share of sampled tokens that a penalty acts on: those that were there before."""

    field: str
    window: int | None
    count: int = 0
    tokens: int = 0

    def add(self, call: Call) -> None:
        """Take in one call."""
        own = call.completion
        ids = np.concatenate([call.prompt, own]) if self.field == "repetition_penalty" else own
        self.count += int(was_there(ids, self.window)[len(ids) - len(own) :].sum())
        self.tokens += len(own)

    def consequence(self) -> Consequence:
        """Which tokens it acts on is counted; by how much their logprobs move is not known."""
        share = self.count / self.tokens if self.tokens else None
        where = "prompt or completion" if self.field == "repetition_penalty" else "completion"
        return Consequence(
            field=self.field,
            certainty="exact" if self.tokens else "not known",
            quantity="share_repeated",
            low=share,
            high=share,
            unit="share of tokens",
            of=self.tokens,
            recorded=self.tokens,
            sentence="The run has no sampled token."
            if share is None
            else f"{share:.1%} of the sampled tokens were in the {where} before, so the penalty acts on them: exact. "
            "By how much their logprobs move is not known.",
        )


def was_there(ids: IntArray, window: int | None) -> BoolArray:
    """[T] whether an id is among the `window` before it; all before it if there is none."""
    order = np.argsort(ids, kind="stable")
    before = np.full(len(ids), -1)
    same = ids[order][1:] == ids[order][:-1]
    before[order[1:][same]] = order[:-1][same]
    place = np.arange(len(ids))
    found: BoolArray = (before >= 0) & (True if window is None else place - before <= window)
    return found


def counters(sides: Sides) -> list[Share | Repeated]:
    """What to count for two protocols that differ; each is to be given all calls of the run."""
    return [*_lengths(sides), *_ends(sides), *_penalties(sides)]


def _lengths(sides: Sides) -> Iterator[Share]:
    for field, of, what in _LIMITS:
        limit = sides.smaller(field)
        if limit is not None:
            name, most = limit
            yield Share(
                field=field,
                quantity="share_over_limit",
                what=f"{what} the {most} tokens that {name} allows",
                test=_longer(of, most),
            )
    largest = max(sides.a.max_new_tokens, sides.b.max_new_tokens)
    if sides.a.max_new_tokens != sides.b.max_new_tokens and sides.recorded.max_new_tokens < largest:
        yield Share(
            field="max_new_tokens",
            quantity="share_cut_as_recorded",
            what=f"of the recorded completions were cut at a limit, and would go on under one of {largest} tokens",
            test=lambda call: call.says_length if call.finish_reason else None,
        )
    if sides.a.min_new_tokens != sides.b.min_new_tokens:
        least = max(sides.a.min_new_tokens, sides.b.min_new_tokens)
        yield Share(
            field="min_new_tokens",
            quantity="share_too_short",
            what=f"of the recorded completions ended before {least} tokens, which one side does not allow",
            test=lambda call: (call.says_stop and len(call.completion) < least) if call.finish_reason else None,
        )


_LIMITS: tuple[tuple[str, Callable[[Call], int | None], str], ...] = (
    ("max_new_tokens", lambda call: len(call.completion), "of the recorded completions are longer than"),
    ("max_total_tokens", lambda call: call.total, "of the recorded completions are, with their prompt, longer than"),
    ("max_prompt_tokens", lambda call: len(call.prompt), "of the recorded prompts are longer than"),
)


def _longer(of: Callable[[Call], int | None], most: int) -> Test:
    def test(call: Call) -> bool | None:
        length = of(call)
        return None if length is None else length > most

    return test


def _ends(sides: Sides) -> Iterator[Share]:
    for name, protocol, other in sides.each():
        texts = [text for text in protocol.stop if text not in other.stop]
        if texts:
            yield _of_texts(name, texts, sides.recorded)
        ids = [token for token in protocol.stop_token_ids if token not in other.stop_token_ids]
        if ids:
            yield Share(
                field="stop_token_ids",
                quantity="share_with_stop_id",
                what=f"of the recorded completions hold {_listed(ids)}, which ends one under {name}",
                test=lambda call, ids=ids: bool(np.isin(call.completion, ids).any()),  # type: ignore[misc]
            )
        if protocol.ignore_eos and not other.ignore_eos:
            yield Share(
                field="ignore_eos",
                quantity="share_ended",
                what=f"of the recorded completions ended by themselves, and would go on under {name}",
                test=lambda call: call.says_stop if call.finish_reason else None,
            )


def _of_texts(name: str, texts: list[str], recorded: SamplingProtocol) -> Share:
    """A text that the run was sampled with is where completions ended, and may be left out of what was recorded."""
    if set(texts) <= set(recorded.stop):
        return Share(
            field="stop",
            quantity="share_stopped",
            what=f"of the recorded completions ended at {_listed(texts)}, which only {name} has",
            test=lambda call: _stopped_at(call, texts),
        )
    return Share(
        field="stop",
        quantity="share_with_stop_string",
        what=f"of the recorded completions contain {_listed(texts)}, which ends one under {name}",
        test=lambda call: None if call.text is None else any(text in call.text for text in texts),
    )


def _stopped_at(call: Call, texts: list[str]) -> bool | None:
    if not call.finish_reason or (call.says_stop and not call.stop_reason):
        return None
    return call.says_stop and call.stop_reason in texts


def _penalties(sides: Sides) -> Iterator[Repeated]:
    for field in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
        if getattr(sides.a, field) != getattr(sides.b, field):
            acting = sides.b if field in sides.b.changed else sides.a
            yield Repeated(field=field, window=acting.penalty_window)


def _listed(values: list[str] | list[int]) -> str:
    return " or ".join(repr(value) for value in values)
