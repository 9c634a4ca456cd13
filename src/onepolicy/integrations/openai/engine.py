"""A generic OpenAI-style server: `openai:http://localhost:8000?model=NAME&tokenizer=./my-model`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from onepolicy.engines.columns import TopList
from onepolicy.engines.completions import COMPLETIONS, conversation_of, first_list, first_token_of, probed, served_model
from onepolicy.engines.contract import Completion, Message, SampleInput, ScoreInput, Wanted
from onepolicy.engines.http import HttpClient, StatusError
from onepolicy.engines.measured import DRAWS, NEARLY_GREEDY
from onepolicy.engines.measured import TopList as MeasuredList
from onepolicy.engines.obeyed import ALWAYS, as_request
from onepolicy.engines.server import ServerEngine
from onepolicy.engines.stepping import stepped
from onepolicy.errors import EngineError
from onepolicy.integrations.openai.abilities import abilities_of
from onepolicy.integrations.openai.answer import NO_IDS, completion_of, echoed_row, next_list
from onepolicy.integrations.openai.options import OpenAiOptions
from onepolicy.integrations.openai.request import Requests, openai_fields
from onepolicy.records.protocol import Meaning, SamplingProtocol
from onepolicy.records.reading import EngineInfo, ReadingRow
from onepolicy.records.tokens import IntArray
from onepolicy.tokens.local import LocalTokenizer, local_tokenizer, needed


class OpenAiEngine(ServerEngine[OpenAiOptions]):
    """A server of which nothing is known but what its answers show.

    It can be compared only if it takes ids as a prompt and names sampled tokens by ids. It scores by echo where it has
    that, and by stepping where it lists tokens by ids.
    """

    options_model = OpenAiOptions
    obeys = ALWAYS | {"presence_penalty", "frequency_penalty", "stop"}
    """OpenAI's own fields, which all such servers have; another one may be dropped without a word"""

    def __init__(self, client: HttpClient, options: OpenAiOptions) -> None:
        super().__init__(client, options)
        self._model, _ = served_model(client, options.model)
        self.abilities = abilities_of(client, self._model, top=options.max_logprobs)
        self._requests = Requests(model=self._model, dialect=self.abilities.dialect)
        self.scores = self.abilities.lists_by_id if options.score == "stepping" else self.abilities.echo

    @cached_property
    def info(self) -> EngineInfo:
        """What the server says that it is, and what it was seen to do."""
        return EngineInfo(
            name="openai",
            version="unknown",
            model=self.abilities.model,
            dtype=self.options.dtype or "unknown",
            device="server",
            options={"sampled_logprobs": str(self.sampled_logprobs), "abilities": str(self.abilities)},
        )

    def sampled_meaning(self, protocol: SamplingProtocol) -> Meaning:
        """As measured. Raises: EngineError if the server cannot sample by ids, or not by this protocol."""
        self._refuse_texts()
        if not self._requests.takes(protocol):
            raise EngineError(
                f"{self.client.url} takes no field but OpenAI's own, so it cannot sample with top_k or min_p. Leave "
                "them out of the protocol."
            )
        return super().sampled_meaning(protocol)

    def refuse_unsayable(self, protocol: SamplingProtocol) -> None:
        """Raise UsageError for what OpenAI's own fields, top_k and min_p cannot say."""
        openai_fields(as_request(protocol))

    async def sample_one(self, item: SampleInput, protocol: SamplingProtocol, wanted: Wanted) -> Completion:
        """One completion by the ids of its prompt."""
        self._refuse_texts()
        top = min(wanted.top, self.options.max_logprobs) if self.abilities.lists_by_id else 0
        answer = await self._asked(self._requests.completion(item, protocol, top=top))
        return completion_of(item, answer, model=self.abilities.model, top=top)

    async def score_one(self, item: ScoreInput, wanted: Wanted) -> ReadingRow:
        """The logprobs of an echoed prompt, or with `score=stepping` of each token by a request of its own."""
        self._refuse_texts()
        if not self.scores:
            raise EngineError(f"{self.client.url} {self._why_no_score}")
        if not wanted.meaning.is_raw:
            raise EngineError(
                f"{self.client.url}: {wanted.meaning} logprobs are asked for, and what this server does to a prompt's "
                "is not known. Sample with temperature 1 and no truncation, or score with another engine."
            )
        if self.options.score == "stepping":
            return await stepped(item, self._list_after)
        top = 0 if item.report is None else self.options.max_logprobs
        answer = await self._asked(self._requests.echoed(item.token_ids, top=top))
        return echoed_row(item, answer, model=self.abilities.model, top=top)

    def first_position(self, token_ids: IntArray, temperature: float, top_k: int) -> MeasuredList:
        """The most likely tokens of the position after some ids, by id or by text."""
        if not self.abilities.ids_in or (top_k and self.abilities.dialect.off is None):
            return {}
        top = self.options.max_logprobs
        body = self._requests.first_token(token_ids, temperature=temperature, top_k=top_k, top=top)
        return first_list(probed(self.client, body, model=self.abilities.model))

    def _drawn(self, ids: IntArray) -> list[Any]:
        """By id or by text, as the lists are."""
        if not self.abilities.ids_in:
            return []
        return [self._nearly_greedy(ids, seed) for seed in range(DRAWS)]

    def _nearly_greedy(self, ids: IntArray, seed: int) -> int | str:
        top = self.options.max_logprobs
        body = self._requests.first_token(ids, temperature=NEARLY_GREEDY, top=top, seed=seed)
        return first_token_of(probed(self.client, body, model=self.abilities.model))

    def encode_chat(self, messages: Sequence[Message]) -> IntArray:
        """Ids of a conversation, by the option `tokenizer`, else by the server's `/tokenize`."""
        if self.tokenizer_here is not None:
            return self.tokenizer_here.encode_chat(messages)
        return self._tokenized(conversation_of(messages))

    def encode(self, text: str, *, add_special_tokens: bool) -> IntArray:
        """Ids of a text, likewise."""
        if self.tokenizer_here is not None:
            return self.tokenizer_here.encode(text, add_special_tokens=add_special_tokens)
        return self._tokenized({"prompt": text, "add_special_tokens": add_special_tokens})

    async def _asked(self, body: dict[str, Any]) -> dict[str, Any]:
        return await self.client.request("POST", COMPLETIONS, body)

    async def _list_after(self, token_ids: IntArray, tokens: Sequence[int]) -> TopList:
        """What may come next: the tokens asked for where the server takes a list of them, else the most likely."""
        top, model = self.options.max_logprobs, self.abilities.model
        if self.abilities.given_ids:
            answer = await self._asked(self._requests.next_token(token_ids, list(tokens), top=top))
            return next_list(answer, model=model, sent=token_ids, top=None)
        answer = await self._asked(self._requests.first_token(token_ids, top=top))
        return next_list(answer, model=model, sent=token_ids, top=top)

    def _refuse_texts(self) -> None:
        if not self.abilities.ids_in:
            raise EngineError(
                f"{self.client.url} takes no ids as a prompt ({self.abilities.refusal}). A text would be encoded by "
                "the server as it likes; use a server that takes ids."
            )
        if not self.abilities.ids_out:
            raise EngineError(f"{self.client.url} returns no ids of the tokens that it samples. {NO_IDS}.")

    @property
    def _why_no_score(self) -> str:
        if self.options.score == "stepping":
            return (
                "names the most likely tokens by their texts, which two tokens may share, so it cannot score by "
                "stepping. Use it as --rollout."
            )
        return (
            "gives no logprobs of an echoed prompt by id, so it can only be a rollout side"
            + (", or score with one request for each token: ?score=stepping" if self.abilities.lists_by_id else "")
            + "."
        )

    def _tokenized(self, body: dict[str, Any]) -> IntArray:
        try:
            tokens = self.client.post("/tokenize", {"model": self._model, **body}).get("tokens")
        except StatusError:
            tokens = None
        if not isinstance(tokens, list):
            needed(None, server=self.client.url, what="has no /tokenize that returns ids")
        return np.asarray(tokens, dtype=np.int32)

    @cached_property
    def tokenizer_here(self) -> LocalTokenizer | None:
        """The tokenizer of the option `tokenizer`; None without it."""
        return local_tokenizer(self.options.tokenizer)
