"""SGLang over HTTP: `sglang:http://localhost:30000`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from onepolicy.engines.contract import Completion, Message, SampleInput, ScoreInput, Wanted
from onepolicy.engines.http import HttpClient, StatusError
from onepolicy.engines.measured import TopList
from onepolicy.engines.obeyed import ALWAYS, as_request
from onepolicy.engines.readable import readable
from onepolicy.engines.server import ServerEngine
from onepolicy.errors import EngineError
from onepolicy.integrations.sglang.answer import completion_of, first_list, row_of
from onepolicy.integrations.sglang.options import SglangOptions
from onepolicy.integrations.sglang.protocol import write_protocol
from onepolicy.integrations.sglang.request import completion, first_token, rendering, scoring
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.reading import EngineInfo, ReadingRow
from onepolicy.records.tokens import IntArray
from onepolicy.tokens.local import LocalTokenizer, local_tokenizer, needed

GENERATE = "/generate"
_TOP = 20


class SglangEngine(ServerEngine[SglangOptions]):
    """An SGLang server, as rollout side or as trainer side.

    Sampled logprobs are a decode reading, after the temperature unless the server was told otherwise. `score` reads
    the input logprobs from position 0 on: a prefill reading, raw, that takes nothing from the cache.
    """

    options_model = SglangOptions
    obeys = ALWAYS | {
        "presence_penalty",
        "frequency_penalty",
        "processors",
        "min_new_tokens",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "constraint",
    }
    """not the repetition penalty, which looks at the completion alone"""

    def __init__(self, client: HttpClient, options: SglangOptions) -> None:
        super().__init__(client, options)
        self._about_path, self._about = _first_of(client, "/model_info", "/get_model_info")

    @cached_property
    def info(self) -> EngineInfo:
        """What the server says that it is."""
        with readable(self.client.url):
            dtype = str(self._settings.get("dtype") or "")
            length = self._settings.get("context_length")
            return EngineInfo(
                name="sglang",
                version=str(self._settings.get("version", "unknown")),
                model=str(self._about.get("model_path", "unknown")),
                dtype=self.options.dtype or ("" if dtype == "auto" else dtype) or "unknown",
                device="server",
                max_length=length if isinstance(length, int) else None,
                options={"sampled_logprobs": str(self.sampled_logprobs), **self._settings_that_matter},
            )

    async def weight_version(self) -> str:
        """How the server names the weights that it has now."""
        return str((await self.client.request("GET", self._about_path)).get("weight_version") or "")

    def refuse_unsayable(self, protocol: SamplingProtocol) -> None:
        """Raise UsageError for another order of processors than SGLang's, and for values that it does not take."""
        write_protocol(as_request(protocol))

    async def sample_one(self, item: SampleInput, protocol: SamplingProtocol, wanted: Wanted) -> Completion:
        """One completion by the ids of its prompt."""
        answer = await self.client.request("POST", GENERATE, completion(item, protocol, top=wanted.top))
        return completion_of(item, answer, wanted)

    async def score_one(self, item: ScoreInput, wanted: Wanted) -> ReadingRow:
        """The input logprobs of a sequence."""
        self.refuse_processed(wanted, of="SGLang's input logprobs")
        top = 0 if item.report is None else self.options.top_logprobs
        return row_of(item, await self.client.request("POST", GENERATE, scoring(item, top=top)))

    def first_position(self, token_ids: IntArray, temperature: float, top_k: int) -> TopList:
        """The most likely tokens of the position after some ids."""
        body = first_token(token_ids, temperature=temperature, top_k=top_k, top=_TOP)
        return first_list(self.client.post(GENERATE, body))

    def encode_chat(self, messages: Sequence[Message]) -> IntArray:
        """Ids of a conversation: by the option `tokenizer`, else as the server renders it, else by its own folder."""
        if not self.options.tokenizer and self._renders:
            return self._rendered(messages)
        what = "does not say which ids a conversation becomes (SGLang 0.5.13 does)"
        return needed(self.tokenizer_here, server=self.client.url, what=what).encode_chat(messages)

    def encode(self, text: str, *, add_special_tokens: bool) -> IntArray:
        """Ids of a text, as the server's tokenizer writes them."""
        body = {"model": self._served, "prompt": text, "add_special_tokens": add_special_tokens}
        answer = self.client.post("/tokenize", body)
        if not isinstance(answer.get("tokens"), list):
            raise EngineError(f"{self.client.url}/tokenize: no token ids came back, but {sorted(answer)}.")
        return np.asarray(answer["tokens"], dtype=np.int32)

    def decode(self, token_ids: IntArray) -> str | None:
        """Text of the ids, special tokens spelled out; the server's default would leave them out."""
        body = {"model": self._served, "tokens": token_ids.tolist(), "skip_special_tokens": False}
        return str(self.client.post("/detokenize", body).get("text", ""))

    @cached_property
    def tokenizer_here(self) -> LocalTokenizer | None:
        """The tokenizer of the option `tokenizer`, or of the server's folder; None if neither can be read here."""
        folder = str(self._about.get("tokenizer_path") or self._about.get("model_path") or "")
        return local_tokenizer(self.options.tokenizer, folder=folder)

    @cached_property
    def _settings(self) -> dict[str, Any]:
        return _first_of(self.client, "/server_info", "/get_server_info")[1]

    @property
    def _settings_that_matter(self) -> dict[str, str]:
        """Of the server, as far as they change numbers."""
        names = ("attention_backend", "sampling_backend", "tp_size", "quantization", "kv_cache_dtype")
        return {name: str(self._settings[name]) for name in names if self._settings.get(name) is not None}

    @property
    def _served(self) -> str:
        return str(self._settings.get("served_model_name") or self._about.get("model_path") or "")

    @cached_property
    def _renders(self) -> bool:
        try:
            return bool(_prompt_ids(self._asked([{"role": "user", "content": "a"}])))
        except StatusError:
            return False

    def _rendered(self, messages: Sequence[Message]) -> IntArray:
        ids = _prompt_ids(self._asked([dict(message) for message in messages]))
        if not ids:
            raise EngineError(f"{self.client.url}: the server does not say which ids a conversation became.")
        return np.asarray(ids, dtype=np.int32)

    def _asked(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        return self.client.post("/v1/chat/completions", rendering(messages, model=self._served))


def _first_of(client: HttpClient, path: str, old: str) -> tuple[str, dict[str, Any]]:
    """A path and what it answers; where the server has none, its old name."""
    try:
        return path, client.get(path)
    except StatusError as error:
        if not error.unknown_path:
            raise
        return old, client.get(old)


def _prompt_ids(answer: dict[str, Any]) -> list[int]:
    """Where a version of the server puts them: in the choice, or beside it."""
    choices = answer.get("choices") or [{}]
    ids = choices[0].get("prompt_token_ids") or answer.get("prompt_token_ids")
    return ids if isinstance(ids, list) else []
