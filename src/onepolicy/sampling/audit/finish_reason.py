"""Does a completion end as its engine says?"""

from __future__ import annotations

from collections import Counter

from onepolicy.records.verdict import Verdict
from onepolicy.sampling.audit.asked import Asked
from onepolicy.sampling.audit.call import Call
from onepolicy.sampling.audit.found import KEPT, Found, passed, unknown

CHECK = "finish_reason"


class FinishReason:
    """Fails if "stop" stands where nothing ends the completion, or "length" where an end token does.

    An end token at the very limit is another matter (`forced_end`), a "length" below it too (`length_limit`).
    """

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._calls = 0
        self._said = 0
        self._unended, self._undecided = Found(), Found()
        self._ended: dict[int, Found] = {}
        """length -> calls of it that say that they were cut and end with an end token"""
        self._longest = asked.longest or 0
        self._others: Counter[str] = Counter()

    def add(self, call: Call) -> None:
        """Take in one call."""
        self._calls += 1
        self._said += bool(call.finish_reason)
        if call.says_stop:
            self._add_stop(call)
        elif call.says_length:
            self._add_length(call)
        elif call.finish_reason:
            self._others[call.finish_reason] += 1

    def verdicts(self) -> list[Verdict]:
        """One."""
        if self._unended.count:
            return [self._unended.failed(CHECK, self._without_end(), quantity="calls_without_an_end")]
        if (early := self._cut_after_an_end()).count:
            return [early.failed(CHECK, self._with_end(early), quantity="calls_cut_after_an_end")]
        if self._undecided.count:
            message = (
                f"{self._undecided.count} calls say that they stopped, the first in rollout {self._undecided.first}, "
                "and neither the ids nor the run tell what ended them. Name the stop strings (--stop) or the end ids "
                "(--end)."
            )
            return [unknown(CHECK, message, required=True)]
        if not self._said:
            return [unknown(CHECK, "not checked: the run has no finish reasons.")]
        others = "".join(f"; {count} say {word!r}" for word, count in self._others.most_common(3))
        return [passed(CHECK, f"{self._said} calls end as they say{others}.")]

    def _add_length(self, call: Call) -> None:
        count = len(call.completion)
        self._longest = max(self._longest, count)
        if call.last in self._asked.must_end_at:
            note = f"says {call.finish_reason!r} and ends with the end token {call.last}"
            self._ended.setdefault(count, Found()).add(call, note, position=count - 1)

    def _cut_after_an_end(self) -> Found:
        """Those below the limit, which is the longest length that was cut where it is not known."""
        early = [found for count, found in self._ended.items() if count < self._longest]
        evidence = [one for found in early for one in found.evidence]
        return Found(count=sum(found.count for found in early), evidence=evidence[:KEPT])

    def _add_stop(self, call: Call) -> None:
        has_end = self._has_end(call)
        if has_end is None:
            self._undecided.add(call, f"says {call.finish_reason!r} and ends with the id {call.last}")
        elif not has_end:
            said = f" at {call.stop_reason!r}" if call.stop_reason else ""
            note = f"says {call.finish_reason!r}{said} and ends with the id {call.last}"
            self._unended.add(call, note, position=len(call.completion) - 1)

    def _has_end(self, call: Call) -> bool | None:
        asked = self._asked
        if call.last in asked.all_ends or call.stop_reason == str(call.last):
            return True
        named = (call.stop_reason,) if call.stop_reason and not call.stop_reason.isdecimal() else ()
        stops = (*asked.stops, *named)
        looked = asked.content is not None or call.text is not None
        if stops and not looked:
            return None
        if (place := asked.stop_in(call, stops)) is not None:
            return place.behind == 0
        knows_ends = bool(asked.all_ends) or call.stop_reason.isdecimal()
        return False if (knows_ends and asked.is_told) or named else None

    def _without_end(self) -> str:
        return (
            f"{self._unended.count} of {self._said} calls say that they stopped, and their last token is no end "
            f"token and ends no stop string; the first is in rollout {self._unended.first}. The end token was cut "
            "off the ids, so it is never trained, or something else stopped them. Ask the engine for all ids, or "
            "name what ends them (--stop, --end)."
        )

    def _with_end(self, early: Found) -> str:
        return (
            f"{early.count} of {self._said} calls say that a limit cut them, and end with an end token before "
            f"it; the first is in rollout {early.first}. Who decides it knows only one of several end ids, and "
            "counts finished answers as cut. Compare with all end ids of the model's configuration and its template."
        )
