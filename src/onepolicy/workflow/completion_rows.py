"""What an engine sampled -> the rollout, the span and the row of the rollout reading that a run keeps of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onepolicy.engines.contract import Completion, SampleInput
from onepolicy.engines.spec import EngineSpec
from onepolicy.errors import EngineError
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.reading import ReadingRow, TopLists
from onepolicy.records.rollout import Rollout, Span
from onepolicy.records.tokens import IntArray, TokenState
from onepolicy.workflow.plan import PlannedRollout


def check_answers(spec: EngineSpec, inputs: Sequence[SampleInput], completions: Sequence[Completion]) -> None:
    """Raise EngineError unless each completion is of what was asked for, and has one entry for each token."""
    asked, got = [i.rollout_id for i in inputs], [c.rollout_id for c in completions]
    if asked != got:
        raise EngineError(f"{spec}: was asked for the rollouts {asked} and answered {got}.")
    empty = [c.rollout_id for c in completions if not len(c.token_ids)]
    if empty:
        raise EngineError(
            f"{spec}: rollout {empty[0]} came back with no token at all; even an empty answer ends with the end token. "
            "See whether the engine hides it."
        )
    for one in completions:
        if not len(one.token_ids) == len(one.logprobs) == len(one.states):
            raise EngineError(
                f"{spec}: rollout {one.rollout_id} came back with {len(one.token_ids)} tokens, {len(one.logprobs)} "
                f"logprobs and {len(one.states)} states. Each token has one of each; a NaN stands where there is none, "
                "and the state says why."
            )


def rollout_of(planned: PlannedRollout, asked: SampleInput, completion: Completion, *, keep_text: bool) -> Rollout:
    """Prompt and completion as one sequence."""
    ids = np.concatenate([asked.prompt_ids, completion.token_ids]).astype(np.int32)
    sampled = np.arange(len(ids)) >= len(asked.prompt_ids)
    return Rollout(
        rollout_id=planned.rollout_id,
        prompt_id=planned.prompt_id,
        trajectory_id=planned.rollout_id,
        token_ids=ids,
        sampled=sampled,
        loss_mask=sampled,
        text=completion.text if keep_text else None,
        tags=dict(planned.tags),
    )


def row_of(rollout: Rollout, asked: SampleInput, completion: Completion) -> ReadingRow:
    """What the engine said of the sequence while it sampled; nothing of the prompt."""
    prompt = len(asked.prompt_ids)
    return ReadingRow(
        rollout_id=rollout.rollout_id,
        digest=rollout.digest,
        logprobs=np.concatenate([np.full(prompt, np.nan, dtype=np.float32), completion.logprobs]),
        states=np.concatenate([np.full(prompt, TokenState.MASKED, dtype=np.uint8), completion.states]),
        top1=None if completion.top1 is None else _behind(prompt, completion.top1),
        statistics={
            name: np.concatenate([np.full(prompt, np.nan, dtype=np.float32), values])
            for name, values in completion.statistics.items()
        },
        top=None if completion.top is None else _shifted(completion.top, by=prompt),
    )


def _behind(prompt: int, ids: IntArray) -> IntArray:
    return np.concatenate([np.full(prompt, -1, dtype=np.int32), ids.astype(np.int32)])


def _shifted(top: TopLists, *, by: int) -> TopLists:
    return TopLists(positions=(top.positions + by).astype(np.int32), ids=top.ids, logprobs=top.logprobs)


def span_of(asked: SampleInput, completion: Completion, protocol: SamplingProtocol) -> Span:
    """The call that sampled it, and under which protocol."""
    start = len(asked.prompt_ids)
    return Span(
        rollout_id=asked.rollout_id,
        start=start,
        end=start + len(completion.token_ids),
        weight_version=completion.weight_version,
        finish_reason=completion.finish_reason,
        stop_reason=completion.stop_reason,
        cached_tokens=completion.cached_tokens,
        protocol_hash=protocol.hash,
    )
