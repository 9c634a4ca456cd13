"""Two id sequences cut at the tokens that mark turns, and laid side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise

from onepolicy.tokens.sides import Reader, common_prefix

Stretch = tuple[int, ...]
Range = tuple[int, int, int, int]
"""start and end in the first, start and end in the second"""
_SAME, _REPLACE, _DELETE, _INSERT = range(4)
_MOST_COMPARED = 1 << 18
"""pairs of stretches; where there are more, all from the first difference is one block"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Ids `start` to `end` of the first sequence stand where `other_start` to `other_end` of the second do."""

    start: int
    end: int
    other_start: int
    other_end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """The blocks that differ; everything between them is the same."""

    first: list[int]
    second: list[int]
    changed: tuple[Block, ...]

    def ids(self, block: Block) -> tuple[list[int], list[int]]:
        """The ids of a block on both sides."""
        return self.first[block.start : block.end], self.second[block.other_start : block.other_end]

    def before(self, block: Block) -> list[int]:
        """The ids before the first block, which are the same on both sides; nothing before a later one."""
        return self.first[: block.start] if block == self.changed[0] and block.start == block.other_start else []

    def place(self, position: int) -> int:
        """Where a position of the first sequence lies in the second; inside a block, from the end that is nearer."""
        shift = 0
        for block in self.changed:
            if position <= block.start:
                break
            shift = block.other_end - block.end
            if position < block.end:
                a, b = self.ids(block)
                inside = position - block.start <= common_prefix(a, b)
                return position + (block.other_start - block.start if inside else shift)
        return position + shift


def align(first: list[int], second: list[int], reader: Reader, *, goes_on: bool) -> Alignment:
    """Where two sequences differ. With `goes_on` the second may be longer: what follows the first is no block."""
    if second[: len(first)] == first and (goes_on or len(first) == len(second)):
        return Alignment(first=first, second=second, changed=())
    marks = frozenset(reader.tokenizer.get_added_tokens_decoder())
    a, b = _stretches(first, marks), _stretches(second, marks)
    places = _places(a), _places(b)
    blocks = (_block(op, *places) for op in _differences(a, b, goes_on=goes_on))
    ended = (_ended(block, first, second, marks) if goes_on and block.end == len(first) else block for block in blocks)
    changed = (
        block for block in ended if first[block.start : block.end] != second[block.other_start : block.other_end]
    )
    return Alignment(first=first, second=second, changed=tuple(changed))


def _differences(a: list[Stretch], b: list[Stretch], *, goes_on: bool) -> list[Range]:
    """Ranges of stretches that differ, by the fewest changed ids; what `b` goes on with costs nothing."""
    same = common_prefix(a, b)
    if (len(a) - same + 1) * (len(b) - same + 1) > _MOST_COMPARED:
        return [(same, len(a), same, len(b))]
    steps, end = _cheapest(a[same:], b[same:], goes_on=goes_on)
    pairs = [(i + same, j + same) for i, j in _same_pairs(steps, len(a) - same, end)]
    anchors = [(-1, -1), *((k, k) for k in range(same)), *pairs, (len(a), end + same if goes_on else len(b))]
    gaps = ((i + 1, k, j + 1, m) for (i, j), (k, m) in pairwise(anchors))
    return [gap for gap in gaps if gap[0] < gap[1] or gap[2] < gap[3]]


def _cheapest(a: list[Stretch], b: list[Stretch], *, goes_on: bool) -> tuple[list[bytearray], int]:
    """The step that leads to each pair of places, and the place in `b` at which `a` ends."""
    row = list(accumulate(map(len, b), initial=0))
    steps = [bytearray([_INSERT]) * (len(b) + 1)]
    for i, here in enumerate(a, start=1):
        above, row = row, [row[0] + len(here)]
        taken = bytearray([_DELETE])
        for j, there in enumerate(b, start=1):
            cost, step = min(
                (above[j - 1] + _changed_ids(here, there, open_end=goes_on and i == len(a)), _REPLACE),
                (above[j] + len(here), _DELETE),
                (row[j - 1] + len(there), _INSERT),
            )
            row.append(cost)
            taken.append(_SAME if step == _REPLACE and here == there else step)
        steps.append(taken)
    cheapest = min(row)
    return steps, max(j for j, cost in enumerate(row) if cost == cheapest) if goes_on else len(b)


def _changed_ids(a: Stretch, b: Stretch, *, open_end: bool) -> int:
    """How many ids must go and come to make one of the other; where the first was cut, what goes on costs nothing."""
    if a == b:
        return 0
    same = common_prefix(a, b)
    if open_end:
        return len(a) - same
    shorter = min(len(a), len(b)) - same
    return len(a) + len(b) - 2 * (same + min(common_prefix(a[::-1], b[::-1]), shorter))


def _same_pairs(steps: list[bytearray], i: int, j: int) -> list[tuple[int, int]]:
    """The stretches that are the same on the cheapest way, first to last."""
    found = []
    while i or j:
        step = steps[i][j]
        i, j = i - (step != _INSERT), j - (step != _DELETE)
        if step == _SAME:
            found.append((i, j))
    return found[::-1]


def _stretches(ids: Sequence[int], marks: frozenset[int]) -> list[Stretch]:
    """Every mark alone, and the ids between two marks."""
    marked = (i for i, token_id in enumerate(ids) if token_id in marks)
    cuts = sorted({0, len(ids), *chain.from_iterable((i, i + 1) for i in marked)})
    return [tuple(ids[start:end]) for start, end in pairwise(cuts)]


def _places(stretches: list[Stretch]) -> list[int]:
    return list(accumulate(map(len, stretches), initial=0))


def _block(op: Range, a: list[int], b: list[int]) -> Block:
    return Block(start=a[op[0]], end=a[op[1]], other_start=b[op[2]], other_end=b[op[3]])


def _ended(block: Block, first: list[int], second: list[int], marks: frozenset[int]) -> Block:
    """The last block without what the second sequence goes on with: up to the mark that ends the first."""
    a, b = first[block.start :], second[block.other_start : block.other_end]
    if not a or b[: len(a)] == a:
        return Block(
            start=block.start, end=block.end, other_start=block.other_start, other_end=block.other_start + len(a)
        )
    same = common_prefix(a, b)
    if a[-1] not in marks:
        return block
    wanted = a[same:].count(a[-1])
    places = [i for i, token_id in enumerate(b) if i >= same and token_id == a[-1]]
    end = places[wanted - 1] + 1 if 0 < wanted <= len(places) else len(b)
    return Block(start=block.start, end=block.end, other_start=block.other_start, other_end=block.other_start + end)
