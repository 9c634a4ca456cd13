"""llama.cpp's server: `llamacpp:model.gguf?parallel=4` in this process, or `llamacpp:http://localhost:8080`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cached_property
from importlib.metadata import version
from typing import Any, Literal, Self

import numpy as np

from onepolicy.engines.completions import LOWEST
from onepolicy.engines.contract import Completion, Message, SampleInput, ScoreInput, Wanted
from onepolicy.engines.http import HttpClient, UnreachableError
from onepolicy.engines.measured import DRAWS, TopList
from onepolicy.engines.models import digest_of_file
from onepolicy.engines.obeyed import ALWAYS, as_request, room_for
from onepolicy.engines.options import read_options
from onepolicy.engines.readable import readable
from onepolicy.engines.requests import is_url
from onepolicy.engines.server import ServerEngine, closed_if_unusable
from onepolicy.engines.spec import EngineSpec
from onepolicy.engines.stepping import stepped
from onepolicy.errors import EngineError
from onepolicy.integrations.llamacpp.align import paired_positions
from onepolicy.integrations.llamacpp.answer import (
    Entry,
    bytes_of,
    completion_of,
    ended_by_text,
    entries_of,
    field,
    top_list,
)
from onepolicy.integrations.llamacpp.cache import counted_row
from onepolicy.integrations.llamacpp.options import LlamaCppOptions
from onepolicy.integrations.llamacpp.protocol import write_protocol
from onepolicy.integrations.llamacpp.request import DELIVERY, one_token, refuse_other_settings, request_of, settings_of
from onepolicy.integrations.llamacpp.server import ServedFile, serve
from onepolicy.integrations.llamacpp.stepping import LENGTHS, Slot
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.reading import Condition, EngineInfo, ReadingRow
from onepolicy.records.tokens import IntArray
from onepolicy.tokens.local import LocalTokenizer, local_tokenizer

COMPLETION = "/completion"
PLAIN = "a"
"""a text whose last token ends no character early in any vocabulary"""


class LlamaCppEngine(ServerEngine[LlamaCppOptions]):
    """A model behind llama.cpp's HTTP server, as rollout side or as trainer side. Both of its readings are decode."""

    options_model = LlamaCppOptions
    obeys = ALWAYS | {"repetition_penalty", "penalty_window", "processors", "stop", "ignore_eos", "constraint"}
    """not the presence and frequency penalties, which look at the prompt too; it has no least length and no stop ids"""

    def __init__(self, client: HttpClient, options: LlamaCppOptions, *, here: ServedFile | None = None) -> None:
        """`here`: the server, if it is in this process."""
        super().__init__(client, options)
        self._here = here
        self._props = client.get("/props")
        self._max_length = int(self._props["default_generation_settings"]["n_ctx"])
        if here is not None:
            self._max_length = min(self._max_length, options.ctx)
        self.concurrency = self.batch_size = min(options.concurrency, int(self._props["total_slots"]))
        self._free: asyncio.Queue[int] = asyncio.Queue()
        for number in range(self.concurrency):
            self._free.put_nowait(number)
        self._plain = int(self._tokenized(PLAIN, add_special=False)[-1])
        self._model = ""
        self._model = str(field(client.call(self._asked(request_of([self._plain], one_token()))), "model"))
        self._vocabulary: dict[int, bytes] = {}
        self._spelling = asyncio.Lock()

    @classmethod
    def open(cls, spec: EngineSpec) -> Self:
        """Connect to the server at a URL, or serve the GGUF file that a spec names: a path, or a packaged model.

        Raises: UsageError for an option, EngineError for a file that is not there or cannot be served, and for a server
        that does not answer as llama.cpp's does.
        """
        options = read_options(spec, LlamaCppOptions)
        options = options.of_url() if is_url(spec.target) else options.of_file()
        here = None if is_url(spec.target) else serve(spec.target, options)
        client = HttpClient(spec.target if here is None else here.url, options)
        with closed_if_unusable(client):
            return cls(client, options, here=here)

    @cached_property
    def info(self) -> EngineInfo:
        """What the server says that it is."""
        with readable(self.client.url):
            card = self.client.get("/v1/models")["data"][0].get("meta") or {}
            known = EngineInfo(
                name="llamacpp",
                version=str(self._props.get("build_info", "unknown")),
                model=str(self._props.get("model_path") or self._model),
                dtype=_dtype(str(self._props.get("model_ftype") or self.options.dtype or "unknown")),
                device="server",
                vocab_size=card.get("n_vocab"),
                max_length=self._max_length,
                options={"slots": str(self.concurrency), "sampled_logprobs": str(self.sampled_logprobs)},
            )
        return known if self._here is None else self._of_file(known, self._here)

    def _of_file(self, known: EngineInfo, here: ServedFile) -> EngineInfo:
        options = self.options.model_dump(include={"ctx", "parallel", "threads", "tokenizer"}, exclude_defaults=True)
        return known.model_copy(
            update={
                "version": version("xllamacpp"),
                "model": here.target,
                "device": "cpu",
                "weights_hash": digest_of_file(here.gguf)[:16],
                "options": known.options | {name: str(value) for name, value in options.items()},
            }
        )

    def condition(self, *, path: Literal["decode", "prefill"]) -> Condition:
        """Decode: given tokens are stepped through, but for what is scored from a cold cache.

        The server puts up to a request a slot together.
        """
        path = "prefill" if path == "prefill" and self.options.cache == "cold" else "decode"
        return Condition(path=path, batch_size=self.concurrency)

    def refuse_unsayable(self, protocol: SamplingProtocol) -> None:
        """Raise UsageError for penalties with another scope than the protocol's, and for a regex."""
        write_protocol(as_request(protocol))

    async def sample_one(self, item: SampleInput, protocol: SamplingProtocol, wanted: Wanted) -> Completion:
        """One completion by the ids of its prompt.

        Requests that are decoded together may differ in the last bits from requests alone, so a seed repeats a
        completion only as far as the server's arithmetic does. Statistics are not available.
        """
        settings = settings_of(item, protocol, wanted)
        async with self._slot(item.rollout_id, cached=True) as slot:
            self._refuse_too_long(len(item.prompt_ids), room_for(item, protocol))
            answer = await self._asked(request_of(item.prompt_ids.tolist(), settings, slot=slot.number))
            entries = await self._entries(slot, item, answer, top=settings["n_probs"])
            one = completion_of(item, answer, wanted, entries=entries)
            return replace(one, text=await self._spelled(one.token_ids)) if ended_by_text(answer) else one

    async def score_one(self, item: ScoreInput, wanted: Wanted) -> ReadingRow:
        """The logprob of each wanted token, forced one after the other."""
        self.refuse_processed(wanted, of="llama.cpp's logprobs")
        async with self._slot(item.rollout_id, cached=False) as slot:
            self._refuse_too_long(len(item.token_ids), 0)
            if self.options.cache:
                return await counted_row(item, slot, cold=self.options.cache == "cold")
            return await stepped(item, slot.list_after, at_once=1)

    def first_position(self, token_ids: IntArray, temperature: float, top_k: int) -> TopList:
        """The most likely tokens of the position after some ids."""
        for seed in range(DRAWS):
            settings = one_token(temperature=temperature, top_k=top_k, top=20, seed=seed)
            entries = entries_of(self.client.call(self._asked(request_of(token_ids.tolist(), settings))))
            if entries:  # there is none if the drawn token ends inside a character
                given = top_list(entries[0])
                return {token: value for token, value in given.items() if value is not None and value > LOWEST}
        return {}

    def encode_chat(self, messages: Sequence[Message]) -> IntArray:
        """Ids of a conversation in the model's template, as the server renders it, ready for the answer.

        Where the model wants a BOS, the server takes it out of the rendered text and adds it again with the ids.
        """
        return self._tokenized(self.render(messages), add_special=True)

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """A conversation in the model's template, ready for the answer, without a BOS."""
        answer = self.client.post("/apply-template", {"messages": [dict(message) for message in messages]})
        return str(field(answer, "prompt"))

    def encode(self, text: str, *, add_special_tokens: bool) -> IntArray:
        """Ids of a text; special tokens that it spells out become their ids."""
        return self._tokenized(text, add_special=add_special_tokens)

    def decode(self, token_ids: IntArray) -> str | None:
        """Text of the ids, special tokens spelled out."""
        return str(field(self.client.post("/detokenize", {"tokens": token_ids.tolist()}), "content"))

    def bytes_of(self, token_id: int) -> bytes | None:
        """What a token adds to a text, special tokens spelled out; None if the vocabulary does not have it."""
        content = self.client.call(self._bytes()).get(token_id)
        return content or (None if content is None else (self.decode(np.asarray([token_id])) or "").encode())

    def close(self) -> None:
        """End the connection, and the server if it is in this process."""
        super().close()
        if self._here is not None:
            self._here.close()

    def _scored(self, ids: IntArray) -> dict[str, float]:
        """A canary: one request, where scoring takes one for each id."""
        return self._next(ids)

    @asynccontextmanager
    async def _slot(self, rollout_id: str, *, cached: bool) -> AsyncIterator[Slot]:
        """A slot of the server that no other sequence of ours uses meanwhile. Errors inside name the rollout."""
        number = await self._free.get()
        try:
            yield Slot(self._asked, number=number, plain=self._plain, cached=cached)
        except EngineError as error:
            kind = UnreachableError if isinstance(error, UnreachableError) else EngineError
            said = str(error)
            raise kind(said if said.startswith("rollout ") else f"rollout {rollout_id}: {said}") from error
        finally:
            self._free.put_nowait(number)

    async def _entries(self, slot: Slot, item: SampleInput, answer: Mapping[str, Any], *, top: int) -> dict[int, Entry]:
        """Position -> entry of every sampled token; of none if the server's entries are not those of its tokens.

        Those that it left out are asked for from the last to the first, so that the cache holds what is before each.
        """
        ids: list[int] = field(answer, "tokens")
        given = entries_of(answer)
        spelled = await self._bytes() if len(given) != len(ids) else {}
        cut = ended_by_text(answer)
        positions = paired_positions(ids, [entry["id"] for entry in given], bytes_of=spelled.get, cut=cut)
        if positions is None:
            return {}
        entries = dict(zip(positions, given, strict=True))
        full = np.concatenate([item.prompt_ids, np.asarray(ids, dtype=np.int32)])
        for at in sorted(set(range(len(ids))) - set(positions), reverse=True):
            entries[at] = await slot.entry(full[: len(item.prompt_ids) + at], ids[at], top=top)
        return entries

    async def _spelled(self, token_ids: IntArray) -> str:
        """The text of a completion whose stop string the server has cut off, with what came with it in its token."""
        answer = await self.client.request("POST", "/detokenize", {"tokens": token_ids.tolist()})
        return str(field(answer, "content"))

    async def _bytes(self) -> dict[int, bytes]:
        """What each token of the vocabulary adds to the server's text, from one list of all of them."""
        async with self._spelling:
            if not self._vocabulary:
                answer = await self._asked(request_of([self._plain], one_token(top=LENGTHS[-1])))
                self._vocabulary = bytes_of((entries_of(answer) or [{}])[0])
            return self._vocabulary

    async def _asked(self, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a completion request. Raises: EngineError unless it is one of that very request."""
        answer: dict[str, Any] = await self.client.request("POST", COMPLETION, body)
        used = field(answer, "generation_settings")
        refuse_other_settings(sent={name: value for name, value in body.items() if name not in DELIVERY}, used=used)
        count = len(body["prompt"])
        if field(answer, "tokens_evaluated") != count or answer.get("truncated"):
            raise EngineError(
                f"{self.client.url}: the server counts {answer['tokens_evaluated']} prompt tokens, {count} were sent. "
                "Look for a BOS that it adds, or a limit that it cuts at."
            )
        if self._model and answer.get("model") != self._model:
            raise EngineError(
                f"{self.client.url}: {answer.get('model')!r} answered, {self._model!r} was there before. The server "
                "was changed; record or score with one model from the start."
            )
        return answer

    def _tokenized(self, text: str, *, add_special: bool) -> IntArray:
        body = {"content": text, "parse_special": True, "add_special": add_special}
        with readable(f"{self.client.url}/tokenize"):
            return np.asarray(field(self.client.post("/tokenize", body), "tokens"), dtype=np.int32)

    @cached_property
    def tokenizer_here(self) -> LocalTokenizer | None:
        """The tokenizer of the option `tokenizer`; a server gives none."""
        return local_tokenizer(self.options.tokenizer)

    def _refuse_too_long(self, length: int, new: int) -> None:
        if length + new > self._max_length:
            what = f"{length} prompt tokens and max_new_tokens={new} exceed" if new else f"{length} tokens exceed"
            how = "Raise the option ctx (up to the model's own limit)" if self._here else "Start it with a larger -c"
            raise EngineError(
                f"{what} the {self._max_length} tokens of a request to {self.client.url}. {how}, or lower "
                "max_new_tokens."
            )


def _dtype(model_ftype: str) -> str:
    """llama.cpp's name of a weight type in the field's spelling: "all F32" is float32; Q4_1 stays."""
    name = model_ftype.removeprefix("all ")
    return {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}.get(name, name)
