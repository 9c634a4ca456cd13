"""llama.cpp as rollout side, in this process: `llamacpp:model.gguf?parallel=4&threads=2`."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from onepolicy.engines.contract import Completion, Message, SampleInput, ScoreInput, Wanted
from onepolicy.engines.models import PACKAGED_MODELS, digest_of_file, is_packaged, packaged_gguf
from onepolicy.engines.options import read_options
from onepolicy.engines.spec import EngineSpec
from onepolicy.errors import EngineError
from onepolicy.integrations.llamacpp.answer import completion_of
from onepolicy.integrations.llamacpp.options import LlamaCppOptions
from onepolicy.integrations.llamacpp.request import refuse_other_settings, request_of, settings_of
from onepolicy.integrations.llamacpp.server import Server
from onepolicy.integrations.llamacpp.vocabulary import Vocabulary, read_vocabulary
from onepolicy.records.protocol import Meaning, SamplingProtocol
from onepolicy.records.reading import Condition, EngineInfo, ReadingRow
from onepolicy.records.tokens import IntArray


class LlamaCppEngine:
    """A GGUF model behind llama.cpp's own HTTP server."""

    scores = False

    def __init__(self, gguf: Path, *, target: str, options: LlamaCppOptions) -> None:
        self.batch_size = options.batch_size
        self._gguf = gguf
        self._target = target
        self._options = options
        self._server = Server(gguf, options)

    @classmethod
    def open(cls, spec: EngineSpec) -> Self:
        """Serve the GGUF file that a spec names: a path, or a packaged model's name.

        Raises: UsageError for an option, EngineError for a file that is not there or cannot be served.
        """
        options = read_options(spec, LlamaCppOptions)
        return cls(_gguf(spec.target), target=spec.target, options=options)

    @cached_property
    def info(self) -> EngineInfo:
        """What the server says that it is."""
        return EngineInfo(
            name="llamacpp",
            version=version("xllamacpp"),
            model=self._target,
            dtype=_dtype(self._props["model_ftype"]),
            weights_hash=digest_of_file(self._gguf)[:16],
            vocab_size=self._server.get("/v1/models")["data"][0]["meta"]["n_vocab"],
            max_length=self._max_length,
            options={name: str(value) for name, value in self._options.model_dump(exclude_none=True).items()},
        )

    def condition(self, *, path: Literal["decode", "prefill"]) -> Condition:
        """The server decodes up to `parallel` requests together and pads nothing."""
        return Condition(path=path, batch_size=min(self._options.parallel, self.batch_size))

    def score(self, batch: Sequence[ScoreInput], wanted: Wanted) -> list[ReadingRow]:
        """Not possible: the server gives no logprobs of a prompt. Raises EngineError."""
        raise EngineError("llamacpp can only be a rollout side for now; use it as --rollout")

    def sampled_meaning(self, protocol: SamplingProtocol) -> Meaning:
        """Raw: the server takes logprobs from the logits, before any sampler."""
        return Meaning()

    def sample(self, batch: Sequence[SampleInput], protocol: SamplingProtocol, wanted: Wanted) -> list[Completion]:
        """One completion for each prompt, `parallel` at a time, each with its own seed.

        Requests that are decoded together may differ in the last bits from requests alone, so a seed repeats a
        completion only as far as the server's arithmetic does. Statistics are not available.
        Raises: EngineError if the server fails, refuses a prompt, or samples otherwise than it was asked to.
        """
        for item in batch:
            self._refuse_too_long(item, protocol)
        with ThreadPoolExecutor(max_workers=self._options.parallel) as pool:
            return list(pool.map(lambda item: self._complete(item, protocol, wanted), batch))

    def encode_chat(self, messages: Sequence[Message]) -> IntArray:
        """Ids of a conversation in the model's template, as the server renders it, ready for the answer."""
        conversation = [dict(message) for message in messages]
        rendered = self._server.post("/apply-template", {"messages": conversation}, asked_for="a chat template")
        return self._tokenized(rendered["prompt"], parse_special=True, add_special=False)

    def encode(self, text: str, *, add_special_tokens: bool) -> IntArray:
        """Ids of a text; special tokens that it spells out become their ids."""
        return self._tokenized(text, parse_special=True, add_special=add_special_tokens)

    def decode(self, token_ids: IntArray) -> str | None:
        """Text of the ids, special tokens spelled out."""
        answer = self._server.post("/detokenize", {"tokens": token_ids.tolist()}, asked_for="decoding token ids")
        return str(answer["content"])

    def tokenizer_file(self) -> bytes | None:
        """None: a GGUF file holds its tokenizer in another form."""
        return None

    def close(self) -> None:
        """Stop the server."""
        self._server.close()

    def _complete(self, item: SampleInput, protocol: SamplingProtocol, wanted: Wanted) -> Completion:
        settings = settings_of(item, protocol, wanted)
        answer = self._server.post("/completion", request_of(item, settings), asked_for=f"rollout {item.rollout_id}")
        refuse_other_settings(item, sent=settings, used=answer.get("generation_settings", {}))
        return completion_of(item, answer, wanted, bytes_of=self._bytes_of)

    def _tokenized(self, text: str, *, parse_special: bool, add_special: bool) -> IntArray:
        body = {"content": text, "parse_special": parse_special, "add_special": add_special}
        return np.asarray(self._server.post("/tokenize", body, asked_for="encoding a text")["tokens"], dtype=np.int32)

    @cached_property
    def _props(self) -> dict[str, Any]:
        return self._server.get("/props")

    @property
    def _max_length(self) -> int:
        return min(self._options.ctx, int(self._props["default_generation_settings"]["n_ctx"]))

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return read_vocabulary(self._gguf)

    def _bytes_of(self, token_id: int) -> bytes | None:
        return self._vocabulary.bytes_of(token_id)

    def _refuse_too_long(self, item: SampleInput, protocol: SamplingProtocol) -> None:
        length = len(item.prompt_ids)
        if length + protocol.max_new_tokens > self._max_length:
            raise EngineError(
                f"rollout {item.rollout_id}: {length} prompt tokens and max_new_tokens={protocol.max_new_tokens} "
                f"exceed the {self._max_length} tokens of a request. Raise the option ctx (up to the model's own "
                "limit), or lower max_new_tokens."
            )


def _gguf(target: str) -> Path:
    if is_packaged(target):
        return packaged_gguf(target)
    path = Path(target).expanduser()
    if not path.is_file():
        raise EngineError(
            f"there is no GGUF file {path}. Check the path, or give one of: {', '.join(PACKAGED_MODELS)}."
        )
    return path


def _dtype(model_ftype: str) -> str:
    """llama.cpp's name of a weight type in the field's spelling: "all F32" is float32; Q4_1 stays."""
    name = model_ftype.removeprefix("all ")
    return {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}.get(name, name)
