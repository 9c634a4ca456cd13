"""TensorRT-LLM over HTTP: `trtllm:http://localhost:8000?tokenizer=./my-model`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from onepolicy.engines.completions import COMPLETIONS, first_list, first_token_of, probed, served_model
from onepolicy.engines.contract import Completion, Message, SampleInput, ScoreInput, Wanted
from onepolicy.engines.http import HttpClient, StatusError
from onepolicy.engines.measured import DRAWS, NEARLY_GREEDY, TopList
from onepolicy.engines.obeyed import ALWAYS, as_request
from onepolicy.engines.readable import readable
from onepolicy.engines.server import ServerEngine
from onepolicy.errors import EngineError
from onepolicy.integrations.trtllm.answer import completion_of
from onepolicy.integrations.trtllm.options import TrtllmOptions
from onepolicy.integrations.trtllm.protocol import write_protocol
from onepolicy.integrations.trtllm.request import completion, constrained, first_token
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.reading import EngineInfo, ReadingRow
from onepolicy.records.tokens import IntArray
from onepolicy.tokens.local import LocalTokenizer, local_tokenizer, needed

_TOP = 20


class TrtllmEngine(ServerEngine[TrtllmOptions]):
    """A `trtllm-serve` server as rollout side. Over HTTP it gives no logprobs of a prompt, so it cannot score."""

    options_model = TrtllmOptions
    obeys = ALWAYS | {
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "processors",
        "min_new_tokens",
        "stop_token_ids",
        "ignore_eos",
        "constraint",
    }
    """not stop strings: it looks for the ids that one is encoded as, and passes over the same text in other tokens"""
    scores = False

    def __init__(self, client: HttpClient, options: TrtllmOptions) -> None:
        super().__init__(client, options)
        self._model, _ = served_model(client, options.model)

    @cached_property
    def info(self) -> EngineInfo:
        """What the server says that it is."""
        with readable(self.client.url):
            return EngineInfo(
                name="trtllm",
                version=str(self.client.get("/version").get("version", "unknown")),
                model=self._model,
                dtype=self.options.dtype or "unknown",
                device="server",
                options={"sampled_logprobs": str(self.sampled_logprobs)},
            )

    def refuse_unsayable(self, protocol: SamplingProtocol) -> None:
        """Raise UsageError for another order of processors than TensorRT-LLM's, and for values that it has not."""
        write_protocol(as_request(protocol))
        constrained(protocol.constraint)

    async def sample_one(self, item: SampleInput, protocol: SamplingProtocol, wanted: Wanted) -> Completion:
        """One completion by the ids of its prompt, without lists of the most likely tokens."""
        answer = await self.client.request("POST", COMPLETIONS, completion(item, protocol, model=self._model))
        return completion_of(item, answer, model=self._model, text_of=self._encodes.decode)

    async def score_one(self, item: ScoreInput, wanted: Wanted) -> ReadingRow:
        """Not possible. Raises: EngineError."""
        raise EngineError(
            f"{self.client.url}: TensorRT-LLM gives no logprobs of a prompt over HTTP. Use it as --rollout."
        )

    def first_position(self, token_ids: IntArray, temperature: float, top_k: int) -> TopList:
        """The most likely tokens of the position after some ids, by text; none if the backend gives no lists."""
        body = first_token(token_ids, model=self._model, temperature=temperature, top_k=top_k, top=_TOP)
        try:
            return first_list(probed(self.client, body, model=self._model))
        except StatusError:
            return {}

    def _drawn(self, ids: IntArray) -> list[Any]:
        """By text, as the lists are."""
        bodies = (first_token(ids, model=self._model, temperature=NEARLY_GREEDY, seed=seed) for seed in range(DRAWS))
        return [first_token_of(probed(self.client, body, model=self._model)) for body in bodies]

    def encode_chat(self, messages: Sequence[Message]) -> IntArray:
        """Ids of a conversation in the template of the option `tokenizer`, ready for the answer."""
        return self._encodes.encode_chat(messages)

    def encode(self, text: str, *, add_special_tokens: bool) -> IntArray:
        """Ids of a text, by the option `tokenizer`."""
        return self._encodes.encode(text, add_special_tokens=add_special_tokens)

    @property
    def _encodes(self) -> LocalTokenizer:
        return needed(self.tokenizer_here, server=self.client.url, what="(TensorRT-LLM) encodes and decodes nothing")

    @cached_property
    def tokenizer_here(self) -> LocalTokenizer | None:
        """The tokenizer of the option `tokenizer`; None without it."""
        return local_tokenizer(self.options.tokenizer)
