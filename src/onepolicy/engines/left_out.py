"""Requests to `/v1/completions` that send some fields and leave all others to the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onepolicy.engines.completions import COMPLETIONS, ids_of, the_choice
from onepolicy.engines.http import HttpClient, StatusError

REFUSED = (400, 422)
"""statuses of a body with a value that a server does not take"""
Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutRequests:
    """Of one server and model."""

    client: HttpClient
    model: str
    """as answers name it"""
    names: Mapping[str, str]
    """a protocol's field -> the server's name of it; others are not sent"""
    more: Json = field(default_factory=dict)
    """fields that change nothing of what is drawn, such as those that ask for ids"""
    prompts: Sequence[Sequence[int]]
    """ids of the prompts of `draw`"""
    per_prompt: int
    length: int
    """tokens of each completion"""
    ended: set[int] = field(default_factory=set)
    """ids with which completions ended by themselves"""

    def draw(self, fields: Json) -> list[list[int]] | None:
        """`per_prompt` completions of each prompt, under the same seeds each time; None if the fields are refused."""
        asked = [(ids, seed) for ids in self.prompts for seed in range(self.per_prompt)]
        seeded = [(ids, 1000 * at + seed) for at, (ids, seed) in enumerate(asked)]
        return self._drawn(seeded, fields, length=self.length)

    def drawn_after(self, ids: Sequence[int], fields: Json, *, length: int, count: int) -> list[list[int]] | None:
        """So many completions of one prompt, each with a seed of its own; None if the fields are refused."""
        return self._drawn([(ids, seed) for seed in range(count)], fields, length=length)

    def body(self, ids: Sequence[int], fields: Json, *, seed: int, length: int) -> dict[str, Any]:
        """One request's body. Fields that the server has no name for are left out as well."""
        own = {"model": self.model, "prompt": list(ids), "max_tokens": length, "seed": seed, "stream": False}
        sent = {self.names[name]: _plain(value) for name, value in fields.items() if name in self.names}
        return {**own, **self.more, **sent}

    def _drawn(
        self, asked: Sequence[tuple[Sequence[int], int]], fields: Json, *, length: int
    ) -> list[list[int]] | None:
        bodies = [self.body(ids, fields, seed=seed, length=length) for ids, seed in asked]
        futures = [self.client.submit(self._ids(body)) for body in bodies]
        try:
            return [future.result() for future in futures]
        except StatusError as error:
            if error.status not in REFUSED:
                raise
            return None
        finally:
            for future in futures:
                future.cancel()

    async def _ids(self, body: dict[str, Any]) -> list[int]:
        choice = the_choice(await self.client.request("POST", COMPLETIONS, body), rollout_id="probe", model=self.model)
        given = choice.get("token_ids")
        given = (choice.get("logprobs") or {}).get("tokens") if given is None else given
        advice = "Its effective values cannot be measured without them."
        ids = [int(token) for token in ids_of("probe", given, advice=advice)]
        if choice.get("finish_reason") == "stop":
            self.ended.update(ids[-1:])
        return ids


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
