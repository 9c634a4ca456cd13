"""What the differences between two protocols do to a run: counted, computed, bounded, or not known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.rollout import Span
from onepolicy.records.run import Run
from onepolicy.sampling import from_lists, from_statistics
from onepolicy.sampling.audit.call import Call, calls_of
from onepolicy.sampling.bounds import Mean, Range
from onepolicy.sampling.columns import (
    list_blocks,
    readings_with_lists,
    readings_with_statistics,
    sampled_tokens,
    statistic_blocks,
)
from onepolicy.sampling.completions import Sides, counters
from onepolicy.sampling.consequence import Consequence, unknown
from onepolicy.sampling.diff import Difference
from onepolicy.sampling.from_lists import ListBlock
from onepolicy.sampling.from_statistics import StatisticBlock

Block = StatisticBlock | ListBlock
Of = Callable[[Block], Range | None]
"""what a block of tokens gives; None where it cannot"""
TRUNCATIONS = ("top_p", "top_k", "min_p")
_RECORD = "The run keeps no column that says; record with --statistics, or more --top tokens, of raw logprobs."
_EMPTY = "The run has no sampled token: nothing is recorded."
_WITHOUT = "What is recorded is of the distribution without the penalties or the constraint."


def consequences(run: Run, found: Iterable[Difference], sides: Sides) -> tuple[Consequence, ...]:
    """What the differences do to the run's completions and tokens, in no order of weight.

    Only fields that `found` says matter are looked at. Raises: RunError if the run is damaged.
    """
    fields = {one.field for one in found if one.matters}
    said: list[Consequence] = []
    counting = [one for one in counters(sides) if one.field in fields]
    if counting:
        for call in recorded_calls(run):
            for counter in counting:
                counter.add(call)
        said += [counter.consequence() for counter in counting]
    if fields & {"temperature", "processors", *TRUNCATIONS}:
        said += _Tokens(run=run, sides=sides, fields=fields, recorded=sampled_tokens(run)).consequences()
    return tuple(said)


def recorded_calls(run: Run) -> Iterator[Call]:
    """The model calls of a run, rollout by rollout."""
    spans: defaultdict[str, list[Span]] = defaultdict(list)
    for span in run.spans():
        spans[span.rollout_id].append(span)
    for rollout in run.rollouts():
        yield from calls_of(rollout, spans[rollout.rollout_id], None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figure:
    """A mean over the tokens that one reading has columns of."""

    mean: Mean
    source: str
    is_of_statistics: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tokens:
    """Consequences per token."""

    run: Run
    sides: Sides
    fields: set[str]
    recorded: int

    def consequences(self) -> list[Consequence]:
        found = [self._shift()] if self._can_shift else []
        for name, protocol, other in self.sides.each():
            if protocol.is_greedy and not other.is_greedy:
                found.append(self._not_most_likely(name))
            elif _truncates(protocol) and _cut_of(protocol) not in (_cut_of(self.sides.recorded), _cut_of(other)):
                found += [self._removed(name, protocol), self._log_kept(name, protocol)]
        return found

    @property
    def _is_beyond(self) -> bool:
        return _is_beyond(self.sides.a) or _is_beyond(self.sides.b)

    @property
    def _can_shift(self) -> bool:
        return "temperature" in self.fields and not (self.sides.a.is_greedy or self.sides.b.is_greedy)

    def _removed(self, name: str, protocol: SamplingProtocol) -> Consequence:
        def of(block: Block) -> Range:
            if isinstance(block, ListBlock):
                return from_lists.removed(block, protocol)
            return from_statistics.removed(block, protocol)

        what = f"of the sampled tokens would be removed by {_named(protocol)} of {name}"
        return self._said(_first(protocol), "share_removed", self._best(of, protocol), what)

    def _log_kept(self, name: str, protocol: SamplingProtocol) -> Consequence:
        def of(block: Block) -> Range:
            if isinstance(block, ListBlock):
                return from_lists.log_kept(block, protocol)
            return from_statistics.log_kept(block, protocol)

        what = f"is the mean log mass that {_named(protocol)} of {name} keeps"
        return self._said(_first(protocol), "mean_log_kept_mass", self._best(of, protocol), what)

    def _not_most_likely(self, name: str) -> Consequence:
        greedy = SamplingProtocol(top_k=1)

        def of(block: Block) -> Range:
            if isinstance(block, ListBlock):
                return from_lists.removed(block, greedy)
            return from_statistics.removed(block, greedy)

        what = f"of the sampled tokens are not the most likely one, which {name} takes"
        return self._said("temperature", "share_not_most_likely", self._best(of, greedy), what)

    def _shift(self) -> Consequence:
        """By how much the logprobs of the recorded tokens move from A's temperature to B's."""
        betas = 1.0 / self.sides.a.temperature, 1.0 / self.sides.b.temperature

        def of(block: Block) -> Range | None:
            if block.logprobs is None:
                return None
            a, b = (_log_normaliser(block, beta) for beta in betas)
            if a is None or b is None:
                return None
            moved = (betas[1] - betas[0]) * block.logprobs
            return Range(low=moved - (b.high - a.low), high=moved - (b.low - a.high))

        what = (
            f"is the mean by which the recorded tokens' logprobs move from temperature {self.sides.a.temperature:g} "
            f"({self.sides.names[0]}) to {self.sides.b.temperature:g} ({self.sides.names[1]})"
        )
        decides = self.sides.a if _is_beyond(self.sides.a) else self.sides.b
        return self._said("temperature", "mean_shift", self._best(of, decides), what)

    def _best(self, of: Of, protocol: SamplingProtocol) -> _Figure | None:
        """The figure of the reading that says most: an exact one, else the narrowest; None if none says anything."""
        if _is_beyond(protocol):
            return None
        figures = [
            *(self._of_statistics(name, of, protocol) for name in readings_with_statistics(self.run)),
            *(self._of_lists(name, of) for name in readings_with_lists(self.run)),
        ]
        known = [figure for figure in figures if figure.mean.is_known]
        return min(
            known,
            key=lambda one: (not one.mean.is_exact, 0.0 if one.mean.is_exact else one.mean.high - one.mean.low),
            default=None,
        )

    def _of_statistics(self, name: str, of: Of, protocol: SamplingProtocol) -> _Figure:
        blocks = statistic_blocks(self.run, name, protocol)
        source = f"the statistics of reading {name!r}"
        return _Figure(mean=_mean(blocks, of), source=source, is_of_statistics=True)

    def _of_lists(self, name: str, of: Of) -> _Figure:
        source = f"the top lists of reading {name!r}"
        return _Figure(mean=_mean(list_blocks(self.run, name), of), source=source, is_of_statistics=False)

    def _said(self, field: str, quantity: str, figure: _Figure | None, what: str) -> Consequence:
        is_share = quantity.startswith("share")
        why = _EMPTY if not self.recorded else _WITHOUT if self._is_beyond else _RECORD
        if figure is None:
            return unknown(field, quantity, f"It is not known what {'share ' if is_share else ''}{what}. {why}")
        low, high = figure.mean.low, figure.mean.high
        ends = (f"{low:.2%}", f"{high:.2%}") if is_share else (f"{low:+.4f}", f"{high:+.4f}")
        number = ends[0] if figure.mean.is_exact else f"between {ends[0]} and {ends[1]}"
        certainty = "exact" if figure.mean.is_exact else "bounded"
        certainty += " (interpolated, to 0.001 nats)" if quantity == "mean_shift" and figure.is_of_statistics else ""
        over = f"{figure.mean.tokens:,} of {self.recorded:,} tokens"
        return Consequence(
            field=field,
            certainty="exact" if figure.mean.is_exact else "bounded",
            quantity=quantity,
            low=low,
            high=high,
            unit="share of tokens" if is_share else "nats per token",
            of=figure.mean.tokens,
            recorded=self.recorded,
            sentence=f"{number}{'' if is_share else ' nats'} {what}: {certainty}, from {figure.source}, {over}.",
        )


def _mean(blocks: Iterable[Block], of: Of) -> Mean:
    """Over the tokens of the blocks; without a token if a block cannot say."""
    mean = Mean()
    for block in blocks:
        values = of(block)
        if values is None:
            return Mean()
        mean.add(values)
    return mean


def _is_beyond(protocol: SamplingProtocol) -> bool:
    """Whether it draws from a distribution that no recorded column is of."""
    return protocol.has_penalties or protocol.constraint is not None


def _log_normaliser(block: Block, beta: float) -> Range | None:
    if isinstance(block, ListBlock):
        return from_lists.log_normaliser(block, beta)
    return from_statistics.log_normaliser(block, beta)


def _truncates(protocol: SamplingProtocol) -> bool:
    return not protocol.is_greedy and any(name in protocol.changed for name in TRUNCATIONS)


def _cut_of(protocol: SamplingProtocol) -> tuple[object, ...]:
    """What decides which tokens are kept."""
    tempered = protocol.temperature if _truncates(protocol) else None
    return (protocol.top_p, protocol.top_k, protocol.min_p, tempered, protocol.processors)


def _first(protocol: SamplingProtocol) -> str:
    return next(name for name in TRUNCATIONS if name in protocol.changed)


def _named(protocol: SamplingProtocol) -> str:
    return ", ".join(f"{name} {getattr(protocol, name):g}" for name in TRUNCATIONS if name in protocol.changed)
