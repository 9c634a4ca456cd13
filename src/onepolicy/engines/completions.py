"""`/v1/completions` as vLLM, TensorRT-LLM and generic servers answer it: by ids, wherever they come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from onepolicy.engines.columns import TopList, column, same_ids, top1_of, top_lists, without_sampled
from onepolicy.engines.contract import Completion, Message, SampleInput
from onepolicy.errors import EngineError, UsageError
from onepolicy.records.tokens import IntArray

if TYPE_CHECKING:
    from onepolicy.engines.http import HttpClient

COMPLETIONS = "/v1/completions"
TOKEN_ID = "token_id:"  # noqa: S105 - how a server spells an id under `return_tokens_as_token_ids`
LOWEST = -1000.0
"""no logprob comes near; what is below stands for minus infinity"""
Json = Mapping[str, Any]


def served_model(client: HttpClient, wanted: str) -> tuple[str, dict[str, Any]]:
    """The name and the card of the model to ask for. Raises: UsageError if it is not there, or not the only one."""
    listed = client.get("/v1/models").get("data") or []
    cards = {str(card["id"]): card for card in listed if isinstance(card, dict) and "id" in card}
    if wanted and wanted not in cards:
        raise UsageError(f"{client.url} serves no model {wanted!r}. It serves: {', '.join(cards) or 'none'}.")
    if not wanted and len(cards) != 1:
        raise UsageError(f"{client.url} serves {', '.join(cards) or 'no model'}. Name one with ?model=NAME.")
    name = wanted or next(iter(cards))
    return name, cards[name]


def conversation_of(messages: Sequence[Message]) -> dict[str, Any]:
    """The fields of a body for `/tokenize` that say which conversation to render, ready for the answer."""
    conversation = [dict(message) for message in messages]
    return {"messages": conversation, "add_generation_prompt": True, "add_special_tokens": False}


def probed(client: HttpClient, body: dict[str, Any], *, model: str) -> Json:
    """The one choice that a probe's body is answered with. Raises: EngineError."""
    return the_choice(client.post(COMPLETIONS, body), rollout_id="probe", model=model)


def the_choice(answer: Json, *, rollout_id: str, model: str) -> Json:
    """The one choice of an answer. Raises: EngineError if there is none, or another model answered."""
    choices = answer.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise EngineError(f"rollout {rollout_id}: the server's answer has no single choice; it has {sorted(answer)}.")
    if answer.get("model") != model:
        raise EngineError(
            f"rollout {rollout_id}: {answer.get('model')!r} answered, {model!r} was asked for. The server was changed; "
            "record or score with one model from the start."
        )
    return choices[0]


def completed(
    item: SampleInput, answer: Json, choice: Json, ids: IntArray, *, top: int = 0, truncates: bool = False
) -> Completion:
    """The completion that a choice with these ids describes. top: how many of the most likely tokens come by id.

    truncates: whether the logprobs are of a distribution in which tokens are cut.

    Raises: EngineError if it lacks a logprob for each token, or with `top` a list.
    """
    name, listed = item.rollout_id, choice.get("logprobs") or {}
    logprobs, states = column(name, listed.get("token_logprobs"), length=len(ids))
    lists = top_lists(name, sampled_lists(name, listed, ids, size=top), size=top, truncates=truncates) if top else None
    return Completion(
        rollout_id=name,
        token_ids=ids,
        logprobs=logprobs,
        states=states,
        text=str(choice.get("text", "")),
        finish_reason=str(choice.get("finish_reason")),
        stop_reason="" if choice.get("stop_reason") is None else str(choice["stop_reason"]),
        cached_tokens=cached_tokens(answer),
        top1=None if lists is None else top1_of(lists),
        top=lists if item.keep_top else None,
    )


def ids_of(rollout_id: str, given: Any, *, advice: str) -> IntArray:
    """Ids of sampled tokens as a list of them, or spelled `token_id:N`. Raises: EngineError that ends in `advice`."""
    listed = given if isinstance(given, list) else [None]
    ids = [token_id(one) for one in listed]
    if None in ids:
        raise EngineError(f"rollout {rollout_id}: the server returns no ids of the tokens that it sampled. {advice}")
    return np.asarray(ids, dtype=np.int32)


def token_id(spelled: Any) -> int | None:
    """The id that a number or `token_id:N` is; None for a text."""
    if isinstance(spelled, int) and not isinstance(spelled, bool):
        return spelled
    number = spelled.removeprefix(TOKEN_ID) if isinstance(spelled, str) and spelled.startswith(TOKEN_ID) else ""
    return int(number) if number.isdecimal() else None


def top_list(entries: Json | None) -> dict[int, float | None]:
    """A list keyed by `token_id:N`. Empty if it is keyed by text: two ids may have one text, and hide each other."""
    given = entries or {}
    by_id = {int(key[len(TOKEN_ID) :]): value for key, value in given.items() if key.startswith(TOKEN_ID)}
    return by_id if len(by_id) == len(given) else {}


def sampled_lists(rollout_id: str, listed: Json, sampled: IntArray, *, size: int) -> list[TopList]:
    """[C] the most likely tokens of each position, whatever was sampled. Raises: EngineError if one has no list."""
    tops = listed.get("top_logprobs")
    if not isinstance(tops, list) or len(tops) != len(sampled):
        raise EngineError(
            f"rollout {rollout_id}: {len(tops) if isinstance(tops, list) else 0} lists of the most likely tokens came "
            f"back for {len(sampled)} tokens."
        )
    return [
        without_sampled(top_list(entries), token, size=size)
        for entries, token in zip(tops, sampled.tolist(), strict=True)
    ]


def first_list(choice: Json) -> dict[int | str, float]:
    """The logprobs listed for the first token, by id, or by text where no ids come; only what is a logprob."""
    listed = (choice.get("logprobs") or {}).get("top_logprobs") or [{}]
    found: dict[int | str, float] = {}
    for key, value in (listed[0] or {}).items():
        token = token_id(key)
        if isinstance(value, float) and value > LOWEST:
            found[key if token is None else token] = value
    return found


def first_token_of(choice: Json) -> int | str:
    """The first sampled token as its list names it: by id, or by text where no ids come."""
    names = (choice.get("logprobs") or {}).get("tokens") or [""]
    token = token_id(names[0])
    return str(names[0]) if token is None else token


def cached_tokens(answer: Json) -> int | None:
    """What the server says that it took from its cache; None if it does not say."""
    details = (answer.get("usage") or {}).get("prompt_tokens_details") or {}
    count = details.get("cached_tokens")
    return count if isinstance(count, int) else None


def same_prompt(rollout_id: str, answer: Json, choice: Json, *, sent: IntArray) -> None:
    """Raise EngineError unless the prompt was the ids that were sent, or where the server names none, as many."""
    told = choice.get("prompt_token_ids")
    told = answer.get("prompt_token_ids") if told is None else told
    if told is not None:
        same_ids(rollout_id, sent=sent, answered=told, of="prompt")
        return
    count = (answer.get("usage") or {}).get("prompt_tokens")
    if count != len(sent):
        raise EngineError(
            f"rollout {rollout_id}: the server counts {count} prompt tokens, {len(sent)} were sent. Look for a BOS "
            "that it adds, or a limit that it cuts at."
        )
