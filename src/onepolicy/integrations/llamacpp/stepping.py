"""Logprobs of given tokens from a server that lists none of a prompt: each token is forced, one after the other.

A logit bias forces a token and leaves the reported logprobs alone, so the server lists the forced token at the logprob
that it would have had. In one slot of the server each step goes on from the last one's cache, so that it computes one
token, as sampling does: this is a decode reading, and the same each time. The server's rounding depends on what is
decoded together and, it seems, on where a sequence lies in its cache; quantised activations amplify that. So its own
sampled logprobs come back to 3e-5 nats or, in some rollouts, differ by 0.07 in the mean (SmolLM2-135M in Q4_1: 3 of 21
with one request at a time, half with four).

A token that ends inside a character has no entry even then. It is looked up among the most likely tokens at its
position, in a list that is as long as it must be.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from onepolicy.engines.columns import TopList
from onepolicy.errors import EngineError
from onepolicy.integrations.llamacpp.answer import Entry, entries_of, listed, top_list
from onepolicy.integrations.llamacpp.request import forcing, one_token, request_of
from onepolicy.records.tokens import IntArray

LENGTHS = (100, 5_000, 1 << 22)
"""of the lists in which a token is looked up; the server ends the last one at its vocabulary"""
Ask = Callable[[dict[str, Any]], Awaitable[Mapping[str, Any]]]
"""a body -> the answer"""


class Slot:
    """One slot of a server, for one sequence at a time."""

    def __init__(self, ask: Ask, *, number: int, plain: int, cached: bool = False) -> None:
        """`plain`: a token that ends no character early. `cached`: whether the slot has computed the sequence."""
        self.number = number
        self._ask, self._plain, self._cached = ask, plain, cached

    def through(self, wrap: Callable[[Ask], Ask]) -> Slot:
        """The same slot, asked through what `wrap` makes of the way it is asked."""
        return Slot(wrap(self._ask), number=self.number, plain=self._plain, cached=self._cached)

    async def list_after(self, token_ids: IntArray, tokens: Sequence[int]) -> TopList:
        """The most likely tokens after some ids, about twice `tokens`, and the logprob of the first of `tokens`."""
        own, top = tokens[0], 2 * len(tokens) - 1
        found = await self._forced(token_ids, own, top=top)
        if found is None:
            found = await self.entry(token_ids, own, top=top)
        return {**top_list(found), own: found.get("logprob")}

    async def entry(self, token_ids: IntArray, token: int, *, top: int) -> Entry:
        """What the server would list for `token` after some ids if it did not end inside a character."""
        for length in (max(top, LENGTHS[0]), *LENGTHS[1:]):
            among = listed(await self._forced(token_ids, self._plain, top=length) or {})
            if not among:
                raise EngineError("the llama.cpp server lists no logprobs (n_probs). Use a version of 2026 or later.")
            found = next((one for one in among if one["id"] == token), None)
            if found is not None:
                return {**found, "top_logprobs": among[:top]}
        raise EngineError(
            f"token {token} is not among those that the llama.cpp server lists after {len(token_ids)} ids, so its "
            "vocabulary does not have it. Score with the model that sampled."
        )

    async def _forced(self, token_ids: IntArray, token: int, *, top: int) -> Entry | None:
        """The entry of a token that is made to come next; None if the server lists none."""
        settings = one_token(top=top) | forcing(token)
        body = request_of(token_ids.tolist(), settings, slot=self.number, cached=self._cached)
        answer = await self._ask(body)
        self._cached = True
        if answer.get("tokens") != [token]:
            raise EngineError(
                f"the llama.cpp server was made to give token {token} and gave {answer.get('tokens')}, so it does not "
                "heed logit_bias and cannot score. Use it as --rollout."
            )
        entries = entries_of(answer)
        if entries and entries[0]["id"] != token:
            raise EngineError(f"the llama.cpp server lists token {entries[0]['id']} where it gave {token}.")
        return entries[0] if entries else None
