"""What a generic server can do, seen in its answers to a few requests for one token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from onepolicy.engines.completions import COMPLETIONS, token_id, top_list
from onepolicy.engines.http import HttpClient, StatusError
from onepolicy.errors import EngineError
from onepolicy.integrations.openai.request import DIALECTS, Dialect, Requests

IDS = np.asarray([5, 6, 7], dtype=np.int32)
"""any vocabulary has them"""
REFUSED = (400, 422)
"""statuses of a body with a field that a server does not take"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """Of one server and model."""

    ids_in: bool = False
    ids_out: bool = False
    """ids of sampled tokens"""
    lists_by_id: bool = False
    """the most likely tokens are named by ids, not by texts"""
    echo: bool = False
    """logprobs of an echoed prompt, by id"""
    given_ids: bool = False
    """logprobs of tokens that a request names"""
    model: str = ""
    """as answers name it; an alias may stand for another name"""
    dialect: Dialect = DIALECTS[-1]
    refusal: str = ""
    """what the server said to ids as a prompt"""

    def __str__(self) -> str:
        named = ("ids_in", "ids_out", "lists_by_id", "echo", "given_ids")
        return " ".join(name for name in named if getattr(self, name)) or "none"


def abilities_of(client: HttpClient, model: str, *, top: int) -> Abilities:
    """Ask. Raises: EngineError if the server does not answer at all."""
    refusal = ""
    for dialect in DIALECTS:
        requests = Requests(model=model, dialect=dialect)
        try:
            answer = client.post(COMPLETIONS, requests.first_token(IDS, top=top))
        except StatusError as error:
            if error.status not in REFUSED:
                raise
            refusal = str(error)
            continue
        return _seen(client, requests, answer, top=top)
    return Abilities(model=model, refusal=refusal)


def _seen(client: HttpClient, requests: Requests, answer: dict[str, Any], *, top: int) -> Abilities:
    choice = _choice(client, answer)
    listed = choice.get("logprobs") or {}
    names, tops = listed.get("tokens") or [], listed.get("top_logprobs") or []
    by_id = bool(top and tops and top_list(tops[0]))
    ids_out = isinstance(choice.get("token_ids"), list) or _all_ids(names)
    return Abilities(
        ids_in=True,
        ids_out=ids_out,
        lists_by_id=by_id and ids_out,
        echo=_echoes(client, requests, top=top),
        given_ids=by_id and ids_out and _heeds(client, requests, top_list(tops[0]), top=top),
        model=str(answer.get("model")),
        dialect=requests.dialect,
    )


def _echoes(client: HttpClient, requests: Requests, *, top: int) -> bool:
    """Whether the prompt comes back by id, with a logprob for each token but the first."""
    try:
        choice = _choice(client, client.post(COMPLETIONS, requests.echoed(IDS, top=top)))
    except StatusError:
        return False
    listed = choice.get("logprobs") or {}
    ids = [token_id(name) for name in listed.get("tokens") or []]
    given = listed.get("token_logprobs") or []
    return ids[: len(IDS)] == IDS.tolist() and len(given) >= len(IDS) and None not in given[1 : len(IDS)]


def _heeds(client: HttpClient, requests: Requests, likely: dict[int, float | None], *, top: int) -> bool:
    """Whether tokens that are not among the most likely are listed when a request names them."""
    named = [token for token in range(2 * top + 16) if token not in likely][: max(top, 1)]
    try:
        choice = _choice(client, client.post(COMPLETIONS, requests.next_token(IDS, named, top=top)))
    except StatusError:
        return False
    tops = (choice.get("logprobs") or {}).get("top_logprobs") or [{}]
    return set(named) <= set(top_list(tops[0]))


def _all_ids(names: list[Any]) -> bool:
    return bool(names) and all(token_id(name) is not None for name in names)


def _choice(client: HttpClient, answer: dict[str, Any]) -> dict[str, Any]:
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise EngineError(f"{client.url}{COMPLETIONS}: the answer has no choice; it has {sorted(answer)}.")
    return choices[0]
