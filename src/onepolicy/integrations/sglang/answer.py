"""SGLang's answers as completions and rows: tuples of logprob, id and text, all ids checked.

Minus infinity comes as the lowest float32, NaN as null. The id of a scored token is echoed beside its logprob, but for
the last id of the vocabulary, and padding after it, the server writes 0.
Source: scheduler_output_processor_mixin.py (`_process_input_token_logprobs`) and tokenizer_manager.py, 0.5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onepolicy.engines.columns import Logprob, TopList, column, reported, same_ids, scored_row, top1_of, top_lists
from onepolicy.engines.contract import Completion, SampleInput, ScoreInput, Wanted
from onepolicy.errors import EngineError
from onepolicy.records.reading import ReadingRow
from onepolicy.records.tokens import IntArray

Json = Mapping[str, Any]
Entry = tuple[Logprob, int]


def completion_of(item: SampleInput, answer: Json, wanted: Wanted) -> Completion:
    """The completion that an answer describes. Raises: EngineError if it lacks what was asked for."""
    name, meta = item.rollout_id, _meta(item.rollout_id, answer)
    _same_prompt(item, answer, meta)
    entries = _entries(name, meta, "output_token_logprobs")
    ids = np.asarray([token for _, token in entries], dtype=np.int32)
    _refuse_others(name, answer, meta, ids)
    logprobs, states = column(name, [value for value, _ in entries], length=len(ids))
    lists = _lists(name, meta, "output_top_logprobs", length=len(ids)) if wanted.top else []
    top = top_lists(name, lists, size=wanted.top) if wanted.top else None
    finish, matched = _finish(name, meta)
    return Completion(
        rollout_id=name,
        token_ids=ids,
        logprobs=logprobs,
        states=states,
        text=str(answer.get("text", "")),
        finish_reason=finish,
        stop_reason=matched,
        cached_tokens=meta.get("cached_tokens"),
        weight_version=str(meta.get("weight_version") or ""),
        top1=None if top is None else top1_of(top),
        top=top if item.keep_top else None,
    )


def row_of(item: ScoreInput, answer: Json) -> ReadingRow:
    """The row that a scored sequence describes. Raises: EngineError if other ids were scored."""
    name, meta = item.rollout_id, _meta(item.rollout_id, answer)
    entries = _entries(name, meta, "input_token_logprobs")
    echoed = [token for _, token in entries]
    same_ids(name, sent=item.token_ids, answered=_restored(echoed, item.token_ids), of="prompt")
    lists = _lists(name, meta, "input_top_logprobs", length=len(entries)) if item.report is not None else []
    return scored_row(
        item,
        [value for value, _ in entries],
        top1=top1_of(top_lists(name, lists, size=1)) if lists else None,
        top=None if item.report is None else reported(name, item.report, lambda at: lists[at]),
    )


def first_list(answer: Json) -> dict[int, float]:
    """The most likely tokens of the first sampled position; only what is a logprob."""
    lists = _lists("probe", _meta("probe", answer), "output_top_logprobs", length=1)
    return {token: value for token, value in lists[0].items() if value is not None and value > LOWEST}


LOWEST = -1000.0
"""no logprob comes near; what is below stands for minus infinity"""


def _meta(rollout_id: str, answer: Json) -> Json:
    meta = answer.get("meta_info")
    if not isinstance(meta, dict):
        raise EngineError(f"rollout {rollout_id}: the server's answer has no meta_info; it has {sorted(answer)}.")
    return meta


def _entries(rollout_id: str, meta: Json, name: str) -> list[Entry]:
    listed = meta.get(name)
    if not isinstance(listed, list):
        raise EngineError(
            f"rollout {rollout_id}: the server's answer has no {name}; it has {', '.join(sorted(meta))}. Use SGLang "
            "0.5 or later."
        )
    return [(value, int(token)) for value, token, *_ in listed]


def _lists(rollout_id: str, meta: Json, name: str, *, length: int) -> list[TopList]:
    """[T] the most likely tokens of each position; empty where the server has none. No token is added to them."""
    listed: Sequence[Any] = meta.get(name) or []
    if len(listed) != length:
        raise EngineError(f"rollout {rollout_id}: {len(listed)} {name} came back for {length} tokens.")
    return [{int(token): value for value, token, *_ in entries or []} for entries in listed]


def _same_prompt(item: SampleInput, answer: Json, meta: Json) -> None:
    """The ids where the server says them (0.5.13 or later), else their number."""
    if answer.get("prompt_token_ids") is not None:
        same_ids(item.rollout_id, sent=item.prompt_ids, answered=answer["prompt_token_ids"], of="prompt")
    if meta.get("prompt_tokens") != len(item.prompt_ids):
        raise EngineError(
            f"rollout {item.rollout_id}: the server counts {meta.get('prompt_tokens')} prompt tokens, "
            f"{len(item.prompt_ids)} were sent. Look for a BOS that it adds, or a limit that it cuts at."
        )


def _refuse_others(rollout_id: str, answer: Json, meta: Json, ids: IntArray) -> None:
    """The ids beside the logprobs must be the completion's."""
    told = answer.get("output_ids")
    if told is not None:
        same_ids(rollout_id, sent=ids, answered=told, of="completion")
    if meta.get("completion_tokens", len(ids)) != len(ids):
        raise EngineError(
            f"rollout {rollout_id}: {len(ids)} logprobs came back for {meta['completion_tokens']} sampled tokens. Use "
            "SGLang 0.5 or later."
        )


def _restored(echoed: Sequence[int], sent: IntArray) -> list[int]:
    """The ids as echoed, with the largest one that was sent where the server wrote 0 for it: see above."""
    if len(echoed) != len(sent) or not len(sent):
        return list(echoed)
    last = int(sent.max())
    return [last if e == 0 and s == last else e for e, s in zip(echoed, sent.tolist(), strict=True)]


def _finish(rollout_id: str, meta: Json) -> tuple[str, str]:
    reason = meta.get("finish_reason") or {}
    if reason.get("type") == "abort":
        raise EngineError(f"rollout {rollout_id}: the server gave up: {reason.get('message', 'no reason given')}.")
    return str(reason.get("type", "")), str(reason.get("matched", ""))
