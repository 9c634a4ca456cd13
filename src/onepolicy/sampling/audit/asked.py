"""What a run was asked for, and what its tokenizer says: what the audit holds completions against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from onepolicy.records.protocol import SamplingProtocol
from onepolicy.sampling.audit.call import Call


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A stop string in a completion."""

    stop: str
    behind: int
    """tokens after the one in which it ends; without a tokenizer, characters"""
    inside: bool
    """whether it begins or ends inside a token, so that no list of ids finds it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Everything that is known beforehand."""

    protocol: SamplingProtocol = SamplingProtocol()
    of_run: str = ""
    """the hash that the calls should carry; empty if it is that of `protocol`, in which no person changed anything"""
    is_told: bool = True
    """whether the run was recorded under the protocol. Of files that were read, only what differs from the defaults is
    known, and that none differs says nothing"""
    of_files: bool = False
    """whether the calls were read from files, which name no protocol: all then carry the hash of what was assumed"""
    told_too: tuple[str, ...] = ()
    """fields of the protocol that a person gave"""
    ends: frozenset[int] = frozenset()
    """ids that end a completion, besides the protocol's own"""
    ends_are_given: bool = False
    """whether a person named them; else they are read from the names of the tokenizer's special tokens"""
    stop: tuple[str, ...] = ()
    """besides the protocol's"""
    is_exact: bool = False
    """whether the logprobs are of the distribution that the tokens were drawn from"""
    content: Callable[[Sequence[int]], bytes] | None = field(default=None, compare=False)
    """the bytes of ids; None without a tokenizer"""

    @property
    def longest(self) -> int | None:
        """Tokens of a completion at most; None where that is not known."""
        return self.protocol.max_new_tokens if self.knows("max_new_tokens") else None

    @property
    def samples(self) -> int | None:
        """Completions of each prompt; None where that is not known."""
        return self.protocol.samples_per_prompt if self.knows("samples_per_prompt") else None

    @property
    def stops(self) -> tuple[str, ...]:
        """All stop strings."""
        return tuple(dict.fromkeys((*self.protocol.stop, *self.stop)))

    @property
    def all_ends(self) -> frozenset[int]:
        """All ids after which a completion may be said to have ended."""
        return self.ends | frozenset(self.protocol.stop_token_ids)

    @property
    def must_end_at(self) -> frozenset[int]:
        """The ids after which nothing may follow."""
        return frozenset() if self.protocol.ignore_eos else self.all_ends

    def knows(self, name: str) -> bool:
        """Whether a field of the protocol is what was asked for."""
        return self.is_told or name in self.told_too or name in self.protocol.changed

    def is_cut(self, call: Call) -> bool:
        """Whether a call was cut: its engine says so, or says nothing and it has the longest length without an end."""
        if call.finish_reason:
            return call.says_length
        return len(call.completion) == self.longest and call.last not in self.all_ends

    def stop_in(self, call: Call, stops: Sequence[str] | None = None) -> Place | None:
        """The stop string of `stops` (all, if None) that ends first, one that ends before `min_new_tokens` apart.

        None if there is none, or neither a tokenizer nor a text to look into.
        """
        wanted = self.stops if stops is None else stops
        if not wanted:
            return None
        if self.content is None:
            return _in_text(call.text or "", wanted)
        return self._in_tokens(call, wanted, self.content)

    def _in_tokens(self, call: Call, stops: Sequence[str], content: Callable[[Sequence[int]], bytes]) -> Place | None:
        ids = call.completion.tolist()
        whole = content(ids)
        found = [stop for stop in stops if stop.encode() in whole]
        if not found:
            return None
        ends = np.cumsum([len(content([token])) for token in ids])
        first_byte = (
            0 if self.protocol.min_new_tokens < 2 else int(ends[min(self.protocol.min_new_tokens, len(ids)) - 2])
        )
        places = [(whole.find(stop.encode(), _from(first_byte, stop)), stop) for stop in found]
        places = [(start + len(stop.encode()), stop) for start, stop in places if start >= 0]
        if not places:
            return None
        end, stop = min(places)
        token = int(np.searchsorted(ends, end))
        starts_token = end - len(stop.encode()) in (0, *ends.tolist())
        inside = not (starts_token and int(ends[token]) == end)
        return Place(stop=stop, behind=len(ids) - 1 - token, inside=inside)


def _from(first_byte: int, stop: str) -> int:
    """Where to look from for a stop that must not end before a byte."""
    return max(0, first_byte + 1 - len(stop.encode())) if first_byte else 0


def _in_text(text: str, stops: Sequence[str]) -> Place | None:
    places = [(text.index(stop) + len(stop), stop) for stop in stops if stop in text]
    if not places:
        return None
    end, stop = min(places)
    return Place(stop=stop, behind=len(text) - end, inside=False)
