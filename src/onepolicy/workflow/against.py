"""A run and an earlier one of the same tokens -> what changed, and what moved."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from onepolicy.judgement.paired import paired_difference
from onepolicy.numerics.metrics import kl_k3
from onepolicy.numerics.pair import compared_tokens, effective_states
from onepolicy.records.join import ReadingJoin, digests_of
from onepolicy.records.parquet import ReadingBlock, RolloutBlock
from onepolicy.records.past import Against, CheckMoved, Moved, PastRun, SideMoved
from onepolicy.records.run import Run
from onepolicy.records.tokens import BoolArray, Float64, TokenState
from onepolicy.records.verdict import Judgement, Verdict
from onepolicy.workflow.against_changes import SIDES, changes_between, in_order, made_with, of_template, unsaid
from onepolicy.workflow.judge import JudgeRequest, stored_judgement

QUANTITIES = ("mean_abs_d", "k3", "mean_d")
"""per token, then and now; the first two say how far the sides are apart, the third in which direction"""
_SHOWN = 3


def against(run_path: Path, green: PastRun) -> Against:
    """Hold a judged run against a green one: the changes first, then the numbers of the tokens that both have.

    Raises: RunError if a part of either is absent or damaged.
    """
    run, then = Run.open(run_path), Run.open(Path(green.run))
    name = JudgeRequest().name
    now_judged, then_judged = stored_judgement(run.path, name), stored_judgement(then.path, name)
    now_made, then_made = made_with(run, now_judged), made_with(then, then_judged)
    changed = [*changes_between(then_made, now_made), *of_template(then, run)]
    sums = _paired(run, now_judged, then, then_judged)
    found = Against(
        run=str(run.path),
        green=str(then.path),
        green_time=green.time,
        changed=in_order(changed),
        unsaid=unsaid(then_made, now_made),
        rollouts=sums.rollouts,
        same_ids=sums.same_ids,
        tokens=sums.tokens,
        sides=tuple(_side(sums, side) for side in SIDES) if sums.tokens else (),
        moved=tuple(_moved(sums, i) for i in range(len(QUANTITIES))) if sums.tokens else (),
        checks=_checks(then_judged.verdicts, now_judged.verdicts),
        sentence="",
    )
    return found.model_copy(update={"sentence": _sentence(found)})


# -- what moved -------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True, eq=False)
class _Sums:
    """Of the tokens that have a logprob on all four sides, by prompt."""

    rollouts: int = 0
    same_ids: int = 0
    tokens: int = 0
    by_prompt: dict[str, Float64] = field(default_factory=dict)
    """prompt -> [1 + 2 x quantities]: tokens, then the sums of then and of now; one sequence counts for one prompt"""
    seen: dict[str, str] = field(default_factory=dict)
    """digest -> the prompt that it counts for"""
    changes: dict[str, list[float]] = field(default_factory=lambda: {side: [0.0, 0.0, 0.0] for side in SIDES})
    """side -> equal tokens, sum and largest of the absolute changes"""

    def add(self, prompt_id: str, digest: str, then: Sequence[Float64], now: Sequence[Float64]) -> None:
        """One rollout; then and now: each side's logprobs of the same tokens."""
        place = self.seen.setdefault(digest, prompt_id)
        row = np.array([len(then[0]), *map(np.sum, _per_token(*then)), *map(np.sum, _per_token(*now))])
        self.by_prompt[place] = self.by_prompt.get(place, np.zeros(len(row))) + row
        self.tokens += len(then[0])
        for side, before, after in zip(SIDES, then, now, strict=True):
            change = np.abs(after - before)
            sums = self.changes[side]
            sums[0] += np.count_nonzero(change == 0)
            sums[1] += float(change.sum())
            sums[2] = max(sums[2], float(change.max(initial=0.0)))


def _per_token(p: Float64, q: Float64) -> tuple[Float64, ...]:
    """`QUANTITIES` of each token."""
    d = q - p
    return np.abs(d), kl_k3(trainer_logprobs=q, rollout_logprobs=p).astype(np.float64), d


def _paired(run: Run, judged: Judgement, then: Run, then_judged: Judgement) -> _Sums:
    """Stream over the run's rollouts, and take those whose ids were the same then."""
    sums = _Sums()
    joins = [
        ReadingJoin(of, name)
        for of, by in ((then, then_judged), (run, judged))
        for name in (by.rollout_reading, by.trainer_reading)
    ]
    before = {rollout.rollout_id: rollout.digest for rollout in then.rollouts()}
    for block in run.rollout_blocks():
        digests = digests_of(block)
        same = [before.get(name) == digest for name, digest in zip(block.rollout_ids, digests, strict=True)]
        sums.rollouts += len(same)
        sums.same_ids += sum(same)
        if any(same):
            _add_block(sums, _rows_of(block, same), joins)
    return sums


def _add_block(sums: _Sums, block: RolloutBlock, joins: Sequence[ReadingJoin]) -> None:
    digests = digests_of(block)
    readings = [join.take(block, digests) for join in joins]
    valid = compared_tokens(block)
    for reading in readings:
        valid = valid & (effective_states(reading) == TokenState.VALUE)
    for row, prompt_id in enumerate(block.prompt_ids):
        kept = slice(int(block.offsets[row]), int(block.offsets[row + 1]))
        columns = [_values(reading, kept, valid) for reading in readings]
        if len(columns[0]):
            sums.add(prompt_id, digests[row], columns[:2], columns[2:])


def _values(reading: ReadingBlock, kept: slice, valid: BoolArray) -> Float64:
    return reading.logprobs[kept][valid[kept]].astype(np.float64)


def _rows_of(block: RolloutBlock, kept: Sequence[bool]) -> RolloutBlock:
    """The block with some of its rollouts."""
    if all(kept):
        return block
    lengths = np.diff(block.offsets)
    rows = np.flatnonzero(kept)
    tokens: BoolArray = np.repeat(np.array(kept, dtype=np.bool_), lengths)
    return RolloutBlock(
        rollout_ids=[block.rollout_ids[i] for i in rows],
        prompt_ids=[block.prompt_ids[i] for i in rows],
        tags=[block.tags[i] for i in rows],
        offsets=np.concatenate([[0], np.cumsum(lengths[rows])]).astype(np.int64),
        token_ids=block.token_ids[tokens],
        sampled=block.sampled[tokens],
        loss_mask=block.loss_mask[tokens],
    )


def _moved(sums: _Sums, i: int) -> Moved:
    rows = np.array(list(sums.by_prompt.values()))
    lengths, then, now = rows[:, 0], rows[:, 1 + i], rows[:, 1 + len(QUANTITIES) + i]
    difference = paired_difference(sums=now - then, lengths=lengths)
    return Moved(
        quantity=QUANTITIES[i],
        then=float(then.sum() / lengths.sum()),
        now=float(now.sum() / lengths.sum()),
        difference=difference.value,
        low=None if math.isnan(difference.low) else difference.low,
        high=None if math.isnan(difference.high) else difference.high,
    )


def _side(sums: _Sums, side: str) -> SideMoved:
    equal, total, largest = sums.changes[side]
    return SideMoved(side=side, equal=int(equal), mean_abs_change=total / sums.tokens, max_abs_change=largest)


def _checks(then: Sequence[Verdict], now: Sequence[Verdict]) -> tuple[CheckMoved, ...]:
    """Those whose answer or value is not what it was."""
    before, after = ({verdict.check: verdict for verdict in verdicts} for verdicts in (then, now))
    pairs = {name: (before.get(name), after.get(name)) for name in {**after, **before}}
    return tuple(_check(name, *sides) for name, sides in pairs.items() if _answer(sides[0]) != _answer(sides[1]))


def _answer(verdict: Verdict | None) -> tuple[str, float | None]:
    return ("", None) if verdict is None else (verdict.status.value, verdict.value)


def _check(name: str, then: Verdict | None, now: Verdict | None) -> CheckMoved:
    (then_status, then_value), (now_status, now_value) = _answer(then), _answer(now)
    return CheckMoved(check=name, then=then_value, now=now_value, then_status=then_status, now_status=now_status)


# -- words ------------------------------------------------------------------------------------------------------


def _sentence(found: Against) -> str:
    return " ".join([_changed_words(found), *_moved_words(found)])


def _changed_words(found: Against) -> str:
    if found.changed:
        more = len(found.changed) - _SHOWN
        shown = [*found.changed[:_SHOWN], *([f"{more} more"] if more > 0 else [])]
        return f"Look first at {'; '.join(shown)}."
    if found.unsaid:
        return f"Nothing changed that is recorded; not said: {', '.join(found.unsaid)}."
    return "Nothing changed."


def _moved_words(found: Against) -> Iterator[str]:
    if not found.tokens:
        yield (
            "No token can be paired: no rollout has the ids of then."
            if not found.same_ids
            else "No token can be paired: none has a logprob on all four sides."
        )
        return
    if found.same_ids < found.rollouts:
        yield f"Only {found.same_ids} of {found.rollouts} rollouts have the ids of then; the numbers are of these."
    if found.is_bitwise:
        yield f"All {found.tokens:,} paired tokens have the logprobs of then, bit for bit on both sides."
        return
    yield from (_side_words(side, found.tokens) for side in found.sides)
    yield from (_quantity_words(moved) for moved in found.moved[:2])


def _side_words(side: SideMoved, tokens: int) -> str:
    if side.equal == tokens:
        return f"The {side.side} side's logprobs are those of then, bit for bit."
    return (
        f"The {side.side} side's moved by {side.mean_abs_change:.2g} nats in the mean, {side.max_abs_change:.2g} at "
        "most."
    )


def _quantity_words(moved: Moved) -> str:
    name = {"mean_abs_d": "mean |d|", "k3": "mean k3"}[moved.quantity]
    start = f"{name} {moved.then:.2g} -> {moved.now:.2g}"
    if moved.is_significant is None:
        return f"{start}; too few prompts to say whether that is more than chance."
    ends = f"99 % interval of the difference {moved.low:+.2g} to {moved.high:+.2g}"
    return f"{start} ({ends}): {'moved' if moved.is_significant else 'not significant'}."
