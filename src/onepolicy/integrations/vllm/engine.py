"""vLLM over HTTP: `vllm:http://localhost:8000?model=NAME`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic_core import from_json

from onepolicy.engines.completions import COMPLETIONS, conversation_of, first_list, probed, served_model
from onepolicy.engines.contract import Completion, Message, SampleInput, ScoreInput, Wanted
from onepolicy.engines.http import HttpClient
from onepolicy.engines.measured import TopList
from onepolicy.engines.obeyed import ALWAYS, as_request
from onepolicy.engines.probing import Questions
from onepolicy.engines.readable import readable
from onepolicy.engines.server import ServerEngine
from onepolicy.errors import EngineError
from onepolicy.integrations.vllm.answer import completion_of, row_of
from onepolicy.integrations.vllm.cache import CachedScoring
from onepolicy.integrations.vllm.columns import parsed
from onepolicy.integrations.vllm.options import VllmOptions
from onepolicy.integrations.vllm.probe import VllmProbe
from onepolicy.integrations.vllm.protocol_writing import write_protocol
from onepolicy.integrations.vllm.request import completion, first_token, scoring
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.reading import EngineInfo, ReadingRow
from onepolicy.records.tokens import IntArray
from onepolicy.tokens.open import open_tokenizer


class VllmEngine(ServerEngine[VllmOptions]):
    """A vLLM server, as rollout side or as trainer side.

    Sampled logprobs are a decode reading. `score` reads the prompt logprobs, which are a prefill reading that never
    uses the prefix cache, and are raw whatever the server does to sampled ones.
    """

    options_model = VllmOptions
    obeys = ALWAYS | {
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "processors",
        "min_new_tokens",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "constraint",
    }

    def __init__(self, client: HttpClient, options: VllmOptions) -> None:
        super().__init__(client, options)
        self._model, self._card = served_model(client, options.model)
        self._names_weights = client.has("/weight_info")

    @cached_property
    def info(self) -> EngineInfo:
        """What the server says that it is."""
        with readable(self.client.url):
            return EngineInfo(
                name="vllm",
                version=str(self.client.get("/version").get("version", "unknown")),
                model=str(self._card.get("root") or self._model),
                dtype=self.options.dtype or self._said_dtype or "unknown",
                device="server",
                max_length=self._card.get("max_model_len"),
                options={"served_model_name": self._model, "sampled_logprobs": str(self.sampled_logprobs)},
            )

    def refuse_unsayable(self, protocol: SamplingProtocol) -> None:
        """Raise UsageError for another order of processors than vLLM's, and for values that it does not take."""
        write_protocol(as_request(protocol))

    async def sample_one(self, item: SampleInput, protocol: SamplingProtocol, wanted: Wanted) -> Completion:
        """One completion by the ids of its prompt."""
        before = await self.weight_version()
        body = completion(item, protocol, model=self._model, top=wanted.top)
        answer = await self.client.request("POST", COMPLETIONS, body)
        after = await self.weight_version()
        version = before if before == after else f"{before} to {after}"
        return completion_of(item, answer, wanted, model=self._model, weight_version=version)

    async def score_one(self, item: ScoreInput, wanted: Wanted) -> ReadingRow:
        """The prompt logprobs of a sequence."""
        self.refuse_processed(wanted, of="vLLM's prompt logprobs")
        if self.options.cache:
            warm = self.options.cache == "warm"
            return await CachedScoring(item=item, ask=self._completed, model=self._model, warm=warm).row()
        top = 0 if item.report is None else self.options.max_logprobs
        body = scoring(item, model=self._model, top=top)
        answer = await self.client.request("POST", COMPLETIONS, body, parse=from_json if top else parsed)
        return row_of(item, answer, model=self._model, top=top)

    async def _completed(self, body: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = await self.client.request("POST", COMPLETIONS, body)
        return answer

    def encode_chat(self, messages: Sequence[Message]) -> IntArray:
        """Ids of a conversation in the model's template, as the server renders it, ready for the answer."""
        return self._tokenized(conversation_of(messages))

    def encode(self, text: str, *, add_special_tokens: bool) -> IntArray:
        """Ids of a text, as the server's tokenizer writes them."""
        return self._tokenized({"prompt": text, "add_special_tokens": add_special_tokens})

    def decode(self, token_ids: IntArray) -> str | None:
        """Text of the ids, special tokens spelled out."""
        body = {"model": self._model, "tokens": token_ids.tolist()}
        return str(self.client.post("/detokenize", body).get("prompt", ""))

    def tokenizer_file(self) -> bytes | None:
        """The tokenizer of the option `tokenizer`, or of the server's folder; None if neither can be read here."""
        if self.options.tokenizer:
            return json.dumps(open_tokenizer(self.options.tokenizer).pipeline, ensure_ascii=False).encode()
        file = Path(str(self._card.get("root") or "")) / "tokenizer.json"
        return file.read_bytes() if file.is_file() else None

    def _tokenized(self, body: dict[str, Any]) -> IntArray:
        answer = self.client.post("/tokenize", {"model": self._model, **body})
        if "tokens" not in answer:
            raise EngineError(f"{self.client.url}/tokenize: no token ids came back, but {sorted(answer)}.")
        with readable(f"{self.client.url}/tokenize"):
            return np.asarray(answer["tokens"], dtype=np.int32)

    def first_position(self, token_ids: IntArray, temperature: float, top_k: int) -> TopList:
        """The most likely tokens of the position after some ids."""
        top = min(self.options.max_logprobs, 20)
        body = first_token(token_ids, model=self._model, temperature=temperature, top_k=top_k, top=top)
        return first_list(probed(self.client, body, model=self._model))

    def questions(self) -> Questions:
        """Beside those of every server: cache, trace replay, its own limits; and what its prompt logprobs mean."""
        known = super().questions()
        own = VllmProbe(client=self.client, model=self._model, listed=min(self.options.max_logprobs, 20))
        return replace(
            known,
            abilities={**known.abilities, **own.abilities()},
            meanings={**known.meanings, "prompt": own.prompt_meaning},
        )

    async def weight_version(self) -> str:
        """As `/weight_info` says; empty where there is none (only its developer mode has it)."""
        if not self._names_weights:
            return ""
        return str((await self.client.request("GET", "/weight_info")).get("weight_version", ""))

    @cached_property
    def _said_dtype(self) -> str:
        if not self.client.has("/server_info"):
            return ""
        found = re.search(r"dtype=torch\.(\w+)", str(self.client.get("/server_info").get("vllm_config", "")))
        return found[1] if found else ""
