"""Do prompts begin and end as the others do?"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from onepolicy.records.verdict import Verdict
from onepolicy.sampling.audit.asked import Asked
from onepolicy.sampling.audit.call import Call
from onepolicy.sampling.audit.found import Found, passed, shares, unknown

CHECK = "prompt_edges"
MANY = 12
"""prompts from which on a common first or last token is looked for"""
MOST = 0.8
"""share of prompts that must have it"""


@dataclass(slots=True, kw_only=True)
class _Edge:
    """The first or the last token of each prompt."""

    side: str
    tokens: Counter[int] = field(default_factory=Counter)
    first: dict[int, list[tuple[Call, int]]] = field(default_factory=dict)
    """token -> the first calls with it, and their prompts' lengths"""
    lengths: dict[int, set[int]] = field(default_factory=dict)
    """token -> the lengths of the prompts with it"""

    def add(self, call: Call, token: int) -> None:
        self.tokens[token] += 1
        self.lengths.setdefault(token, set()).add(len(call.prompt))
        if self.tokens[token] == 1 and len(self.first) < MANY:
            self.first[token] = [(call, len(call.prompt))]

    def odd(self) -> tuple[int, list[int]] | None:
        """The common token and the others; None if no token is common."""
        total = self.tokens.total()
        if total < MANY or not self.tokens:
            return None
        common, count = self.tokens.most_common(1)[0]
        return (common, [token for token in self.tokens if token != common]) if count >= MOST * total else None

    def is_cut(self, common: int, others: list[int]) -> bool:
        """Whether all others have one and the same length, and no prompt is longer: what a limit leaves."""
        lengths = set().union(*(self.lengths[token] for token in others))
        count = sum(self.tokens[token] for token in others)
        return count > 1 and len(lengths) == 1 and max(lengths) >= max(self.lengths[common])


class PromptEdges:
    """Fails if prompts that lack the common first (or last) token all have the longest length: a limit cut that side.

    A template puts the same tokens in front of every conversation, and the same ones where the answer begins. Where
    the protocol says that this side is cut, it is as asked for.
    """

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._seen: set[tuple[str, str]] = set()
        self._edges = (_Edge(side="left"), _Edge(side="right"))

    def add(self, call: Call) -> None:
        """Take in one call; each prompt counts once."""
        key = (call.prompt_id, call.step)
        if not call.begins or not len(call.prompt) or key in self._seen:
            return
        self._seen.add(key)
        for edge, token in zip(self._edges, (call.prompt[0], call.prompt[-1]), strict=True):
            edge.add(call, int(token))

    def verdicts(self) -> list[Verdict]:
        """One."""
        looked = [(edge, *found) for edge in self._edges if (found := edge.odd()) is not None]
        for edge, common, others in looked:
            if others and edge.is_cut(common, others) and self._asked.protocol.prompt_truncation != edge.side:
                return [self._cut(edge, common, others)]
        if not looked:
            why = (
                f"{len(self._seen)} prompts"
                if len(self._seen) < MANY
                else "prompts without a common first or last token"
            )
            return [unknown(CHECK, f"not checked: {why}.")]
        odd = sum(edge.tokens[token] for edge, _, others in looked for token in others)
        if odd:
            message = f"{odd} of {len(self._seen)} prompts begin or end unlike the others, at different lengths."
            return [unknown(CHECK, message)]
        where = " and ".join("begin" if edge.side == "left" else "end" for edge, _, _ in looked)
        return [passed(CHECK, f"all {len(self._seen)} prompts {where} alike.")]

    def _cut(self, edge: _Edge, common: int, others: list[int]) -> Verdict:
        count = sum(edge.tokens[token] for token in others)
        found = Found()
        for token in others[: len(edge.first)]:
            for call, length in edge.first.get(token, []):
                found.add(call, f"a prompt of {length} tokens with {token} on the {edge.side} instead of {common}")
        found.count = count
        length = max(edge.lengths[others[0]])
        what = "front: the system prompt and the first turn" if edge.side == "left" else "end: where the answer begins"
        message = (
            f"{shares(count, len(self._seen), 'prompts')} lack the {'first' if edge.side == 'left' else 'last'} "
            f"token of all others ({common}), and each has {length} tokens, which no prompt exceeds: a limit cut "
            f"their {what}. Leave out prompts that are too long, or cut between turns."
        )
        return found.failed(CHECK, message, quantity="prompts_cut")
