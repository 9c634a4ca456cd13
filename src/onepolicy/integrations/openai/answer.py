"""A generic server's answers as completions and rows. What is not named by an id is not used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onepolicy.engines.columns import TopList, reported, same_ids, scored_row, without_sampled
from onepolicy.engines.completions import completed, ids_of, same_prompt, the_choice, token_id, top_list
from onepolicy.engines.contract import Completion, SampleInput, ScoreInput
from onepolicy.errors import EngineError
from onepolicy.records.reading import ReadingRow
from onepolicy.records.tokens import IntArray

Json = Mapping[str, Any]
NO_IDS = (
    "A text does not say which tokens it was made of, so no number could be given to any. Use a server that returns "
    "ids (return_token_ids or return_tokens_as_token_ids, as vLLM does)"
)


def completion_of(item: SampleInput, answer: Json, *, model: str, top: int) -> Completion:
    """The completion that an answer describes. top: how many of the most likely tokens were asked for, and come by id.

    Raises: EngineError if the server gives no ids, or lacks what was asked for.
    """
    name = item.rollout_id
    choice = the_choice(answer, rollout_id=name, model=model)
    same_prompt(name, answer, choice, sent=item.prompt_ids)
    return completed(item, answer, choice, sampled_ids(name, choice), top=top)


def sampled_ids(rollout_id: str, choice: Json) -> IntArray:
    """Ids of the sampled tokens, as a list or as the names of the tokens; both must agree. Raises: EngineError."""
    names = (choice.get("logprobs") or {}).get("tokens")
    if choice.get("token_ids") is None:
        return ids_of(rollout_id, names, advice=f"{NO_IDS}.")
    ids = ids_of(rollout_id, choice["token_ids"], advice=f"{NO_IDS}.")
    spelled = [token_id(name) for name in names or []]
    if spelled and None not in spelled:
        same_ids(rollout_id, sent=ids, answered=[one for one in spelled if one is not None], of="completion")
    return ids


def echoed_row(item: ScoreInput, answer: Json, *, model: str, top: int) -> ReadingRow:
    """The row of a prompt that was given back with its logprobs. Raises: EngineError if other ids came back."""
    name, ids = item.rollout_id, item.token_ids
    listed = the_choice(answer, rollout_id=name, model=model).get("logprobs") or {}
    spelled = [token_id(one) for one in listed.get("tokens") or []][: len(ids)]
    if None in spelled:
        raise EngineError(f"rollout {name}: the echoed prompt comes back as text. {NO_IDS}.")
    same_ids(name, sent=ids, answered=[one for one in spelled if one is not None], of="prompt")
    given = listed.get("token_logprobs")
    tops = listed.get("top_logprobs") or []

    def list_at(at: int) -> TopList:
        return without_sampled(top_list(tops[at]), int(ids[at]), size=top) if at < len(tops) else {}

    return scored_row(
        item,
        given[: len(ids)] if isinstance(given, list) else [],
        top=None if item.report is None else reported(name, item.report, list_at),
    )


def next_list(answer: Json, *, model: str, sent: IntArray, top: int | None) -> TopList:
    """What may come after the ids that were sent. top: without the sampled token; None: the list is of given tokens.

    Raises: EngineError if other ids stood before it.
    """
    name = f"(its first {len(sent)} tokens)"
    choice = the_choice(answer, rollout_id=name, model=model)
    same_prompt(name, answer, choice, sent=sent)
    listed = (choice.get("logprobs") or {}).get("top_logprobs") or [{}]
    entries = top_list(listed[0])
    return entries if top is None else without_sampled(entries, int(sampled_ids(name, choice)[0]), size=top)
