"""Transformers as rollout or trainer side: `transformers:TARGET?dtype=bfloat16&batch_size=8`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Literal, Self

import numpy as np

from onepolicy.engines.contract import Completion, Message, SampleInput, ScoreInput, Wanted
from onepolicy.engines.obeyed import ALWAYS, as_request, for_request, room_for
from onepolicy.engines.options import read_options
from onepolicy.engines.spec import EngineSpec
from onepolicy.engines.threads import sleeping_threads
from onepolicy.errors import EngineError, MissingExtraError, UsageError
from onepolicy.integrations.transformers.options import TransformersOptions
from onepolicy.integrations.transformers.protocol import write_protocol
from onepolicy.records.protocol import Meaning, SamplingProtocol
from onepolicy.records.reading import Condition, EngineInfo, ReadingRow
from onepolicy.records.tokens import IntArray

try:
    with sleeping_threads():
        import torch  # noqa: F401
    import transformers

    from onepolicy.integrations.transformers.altered import altered
    from onepolicy.integrations.transformers.load import Loaded, load
    from onepolicy.integrations.transformers.sample import SampleSettings, sample_batch
    from onepolicy.integrations.transformers.score import ScoreSettings, score_batch
    from onepolicy.integrations.transformers.target import model_folder
    from onepolicy.integrations.transformers.tokenizer import TextTokenizer
except ImportError as error:
    if (error.name or "").startswith("onepolicy"):
        raise  # a fault of ours, not a package to install
    raise MissingExtraError(
        package=error.name or "transformers", extra="transformers", needed_for="the engine 'transformers'"
    ) from error


class TransformersEngine:
    """A causal language model in this process, in eval mode."""

    scores = True
    obeys = ALWAYS | {
        "repetition_penalty",
        "processors",
        "min_new_tokens",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "use_cache",
        "padding_side",
    }
    """not the presence and frequency penalties, nor a window of penalties, which Transformers does not have"""

    def __init__(self, loaded: Loaded, *, target: str, options: TransformersOptions) -> None:
        self.batch_size = options.batch_size
        self._loaded = loaded
        self._target = target
        self._options = options
        self._altered = altered(loaded.model, options)

    @classmethod
    def open(cls, spec: EngineSpec) -> Self:
        """Load the model that a spec names: a folder, a hub id, a `.gguf` file or a packaged model's name.

        Raises: UsageError for an option, EngineError for a model that is not there, not complete or not readable.
        """
        options = read_options(spec, TransformersOptions)
        return cls(load(model_folder(spec.target), options), target=spec.target, options=options)

    @property
    def info(self) -> EngineInfo:
        """What was loaded."""
        loaded = self._loaded
        return EngineInfo(
            name="transformers",
            version=transformers.__version__,
            model=self._target,
            dtype=self._options.dtype,
            device=self._options.device,
            weights_hash=loaded.weights_hash,
            tokenizer_hash=loaded.tokenizer.hash() if loaded.tokenizer else "",
            vocab_size=loaded.vocab_size,
            max_length=loaded.max_length,
            options={name: str(value) for name, value in self._options.model_dump(exclude_none=True).items()},
        )

    def condition(self, *, path: Literal["decode", "prefill"]) -> Condition:
        """The batch size, and the side that shorter sequences are padded on."""
        side = None if self.batch_size == 1 else "left" if path == "decode" else self._scoring_side
        decodes = path == "decode" or self._options.cache in ("steps", "blocks")
        return Condition(path="decode" if decodes else path, batch_size=self.batch_size, padding_side=side)

    @property
    def _scoring_side(self) -> Literal["left", "right"]:
        return self._options.padding_side or "right"

    def score(self, batch: Sequence[ScoreInput], wanted: Wanted) -> list[ReadingRow]:
        """Teacher-forced logprobs, at most `batch_size` sequences in a forward pass.

        A wanted first token is ABSENT, as nothing comes before it; wanted tokens past the model's length are TRUNCATED.
        Where a sequence asks for reported ids, its `top` has these instead of its own top list.
        Raises: EngineError if an id is outside the vocabulary.
        """
        settings = ScoreSettings(
            padding_side=self._scoring_side, pad_id=self._loaded.pad_id, max_length=self._loaded.max_length
        )
        for item in batch:
            self._refuse_unknown_ids(item.rollout_id, item.token_ids)
        parts = [batch[start : start + self.batch_size] for start in range(0, len(batch), self.batch_size)]
        if self._altered is not None:
            return [row for part in parts for row in self._altered.score(part, wanted, settings)]
        return [row for part in parts for row in score_batch(self._loaded.model, part, wanted, settings)]

    def sampled_meaning(self, protocol: SamplingProtocol) -> Meaning:
        """Raw, or processed where the option `logprobs` or the protocol says so.

        Raises: UsageError for another order of processors than Transformers', for penalties that it does not have, and
        for padding on the right.
        """
        if protocol.padding_side == "right":
            raise UsageError(
                "transformers: sampling.padding_side = right: decoding would go on after the padding. Prompts are "
                "padded on the left here; write that."
            )
        # an empty list of end tokens is not filled here: the model's own config was taken away
        write_protocol(as_request(protocol).model_copy(update={"ignore_eos": False}))
        raw = self._options.logprobs == "raw" and protocol.logprobs == "raw"
        return Meaning() if raw else Meaning.processed_by(protocol)

    def sample(self, batch: Sequence[SampleInput], protocol: SamplingProtocol, wanted: Wanted) -> list[Completion]:
        """One completion for each prompt, at most `batch_size` together, through `generate`.

        Torch draws for a whole batch from one seed, that of the batch's first prompt: a completion repeats exactly
        when its batch does, so callers keep batches stable. The caller's random state is left as it was.
        Prompts that leave unlike room in `max_total_tokens` are sampled apart.
        Raises: EngineError if an id is outside the vocabulary, or prompt and completion exceed the model's length.
        """
        loaded = self._loaded
        settings = SampleSettings(
            tokenizer=loaded.tokenizer,
            stop_ids=loaded.stop_ids,
            pad_id=loaded.pad_id,
            meaning=self.sampled_meaning(protocol),
        )
        for item in batch:
            self._refuse_prompt(item, protocol)
        return [
            completion
            for together in self._batches(batch, protocol)
            for completion in sample_batch(
                loaded.model, together, for_request(together[0], protocol), wanted, settings=settings
            )
        ]

    def _batches(self, batch: Sequence[SampleInput], protocol: SamplingProtocol) -> Iterator[list[SampleInput]]:
        for start in range(0, len(batch), self.batch_size):
            part = batch[start : start + self.batch_size]
            yield from (list(alike) for _, alike in groupby(part, key=lambda item: room_for(item, protocol)))

    def encode_chat(self, messages: Sequence[Message]) -> IntArray:
        """Ids of a conversation in the model's template, ready for the answer.

        Without a template: the contents joined by newlines, see `TextTokenizer.encode_chat`.
        """
        return self._text_tokenizer.encode_chat(messages)

    def encode(self, text: str, *, add_special_tokens: bool) -> IntArray:
        """Ids of a text."""
        return self._text_tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, token_ids: IntArray) -> str | None:
        """Text of the ids, special tokens spelled out; None if the model came without a tokenizer."""
        tokenizer = self._loaded.tokenizer
        return tokenizer.decode(token_ids) if tokenizer else None

    def tokenizer_file(self) -> bytes | None:
        """The content of the model's `tokenizer.json`, or None."""
        tokenizer = self._loaded.tokenizer
        return tokenizer.file() if tokenizer else None

    def close(self) -> None:
        """Let go of the model."""
        self.__dict__.pop("_loaded", None)
        self.__dict__.pop("_altered", None)

    @property
    def _text_tokenizer(self) -> TextTokenizer:
        if self._loaded.tokenizer is None:
            raise EngineError(
                f"{self._loaded.folder} has no tokenizer, so text cannot be encoded. Save the model's tokenizer there."
            )
        return self._loaded.tokenizer

    def _refuse_unknown_ids(self, rollout_id: str, token_ids: IntArray) -> None:
        size = self._loaded.vocab_size
        outside = np.flatnonzero((token_ids < 0) | (token_ids >= size))
        if len(outside):
            raise EngineError(
                f"rollout {rollout_id}: token {int(outside[0])} has the id {int(token_ids[outside[0]])}, and the "
                f"vocabulary of {self._target} has {size} ids (0 to {size - 1}). "
                "The ids come from another tokenizer; use the model that produced them."
            )

    def _refuse_prompt(self, item: SampleInput, protocol: SamplingProtocol) -> None:
        self._refuse_unknown_ids(item.rollout_id, item.prompt_ids)
        length, limit = len(item.prompt_ids), self._loaded.max_length
        if length == 0:
            raise EngineError(f"rollout {item.rollout_id}: its prompt has no tokens, so there is nothing to continue.")
        new = room_for(item, protocol)
        if limit is not None and length + new > limit:
            raise EngineError(
                f"rollout {item.rollout_id}: {length} prompt tokens and max_new_tokens={new} "
                f"exceed the {limit} positions of {self._target}. Lower max_new_tokens or shorten the prompt."
            )
