"""A reward model of Transformers: a sequence classifier, or a head on every token that is read at the last one.

It is called as a trainer calls it: ids and attention mask, nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import torch
from torch import Tensor

from onepolicy.engines.spec import EngineSpec
from onepolicy.errors import EngineError
from onepolicy.integrations.transformers.padding import padded
from onepolicy.integrations.transformers.quiet import quiet_transformers
from onepolicy.integrations.transformers.reward_load import LoadedReward, load_reward
from onepolicy.integrations.transformers.reward_options import RewardOptions
from onepolicy.integrations.transformers.target import model_folder
from onepolicy.records.tokens import Float64, IntArray
from onepolicy.signal.reward.pairs import Conversation
from onepolicy.signal.reward.scorer import OpenScorer, ScorerInfo, Side, TokenIds, TokenizerFacts


def open_reward(spec: EngineSpec, options: RewardOptions) -> OpenScorer:
    """The reward model in a spec's folder, or of its hub id. Raises: EngineError, MissingExtraError."""
    return _loaded(_Named(name=str(spec), folder=model_folder(spec.target), options=options), seed=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Named:
    name: str
    folder: Path
    options: RewardOptions


def _loaded(named: _Named, *, seed: int) -> TransformersReward:
    return TransformersReward(named, load_reward(named.folder, named.options, seed=seed))


class TransformersReward:
    """Scores with a model in this process."""

    def __init__(self, named: _Named, loaded: LoadedReward) -> None:
        self._named = named
        self._options = named.options
        self._loaded = loaded
        self.facts: TokenizerFacts = loaded.facts
        self.missing: tuple[str, ...] = loaded.missing
        self.info = ScorerInfo(
            name=named.name,
            dtype=named.options.dtype,
            label=named.options.label,
            max_length=loaded.max_length,
        )

    def score(self, conversations: Sequence[Conversation]) -> Float64:
        """In batches, cut to the longest length. Shape: -> [B, L]."""
        return self.score_ids(self.encode(conversations, limit=self.info.max_length))

    def encode(self, conversations: Sequence[Conversation], *, limit: int | None = None) -> list[TokenIds]:
        """Ids in the model's own template; without one, messages joined by line breaks, with its special tokens."""
        return [self._encoded(one, limit) for one in conversations]

    def text(self, ids: IntArray) -> str:
        """What ids stand for, special tokens spelled out."""
        return str(self._loaded.tokenizer.decode(ids.tolist(), skip_special_tokens=False))

    def score_ids(self, texts: Sequence[TokenIds]) -> Float64:
        """In batches. Shape: -> [B, L]. Raises: EngineError for ids of another tokenizer."""
        size = self._options.batch_size if self.facts.model_pad_id is not None else 1  # without one it refuses batches
        parts = [texts[start : start + size] for start in range(0, len(texts), size)]
        return np.concatenate([self.score_together(part, side=self.facts.padding_side) for part in parts])

    def score_padded(self, one: TokenIds, *, side: Side, pads: int) -> Float64:
        """One text alone with padding on a side. Shape: -> [L]."""
        ids = self._own([one])[0]
        input_ids = torch.full((1, len(ids) + pads), self._loaded.pad_id, dtype=torch.int64)
        mask = torch.zeros_like(input_ids)
        start = pads if side == "left" else 0
        input_ids[0, start : start + len(ids)] = torch.from_numpy(ids.astype("int64"))
        mask[0, start : start + len(ids)] = 1
        found: Float64 = self._outputs(input_ids, mask)[0]
        return found

    def score_together(self, texts: Sequence[TokenIds], *, side: Side) -> Float64:
        """One batch. Shape: -> [B, L]. Raises: EngineError if the model refuses it, or ids are of another tokenizer."""
        device = torch.device("cpu")
        batch = padded(self._own(texts), side=side, pad_id=self._loaded.pad_id, device=device)
        return self._outputs(batch.input_ids, batch.attention_mask)

    def again(self, *, seed: int = 0, dtype: str | None = None) -> TransformersReward:
        """The same files loaded once more. Raises: EngineError."""
        changed = self._options.model_copy(update={"dtype": dtype} if dtype else {})
        return _loaded(replace(self._named, options=changed), seed=seed)

    def close(self) -> None:
        """Let the weights go."""
        del self._loaded

    def _encoded(self, conversation: Conversation, limit: int | None) -> TokenIds:
        tokenizer = self._loaded.tokenizer
        cut: dict[str, Any] = {"truncation": True, "max_length": limit} if limit else {}
        with quiet_transformers():
            if self.facts.has_template:
                ids = self._templated(conversation, cut)
            else:
                ids = tokenizer("\n".join(message["content"] for message in conversation), **cut)["input_ids"]
        return TokenIds(ids=np.asarray(ids, dtype=np.int32), tokenizer=self._loaded.tokenizer_hash)

    def _templated(self, conversation: Conversation, cut: dict[str, Any]) -> list[int]:
        messages = [dict(message) for message in conversation]
        try:
            ids: list[int] = self._loaded.tokenizer.apply_chat_template(
                messages, tokenize=True, return_dict=False, **cut
            )
        except (jinja2.TemplateError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise EngineError(
                f"{self._named.name}: its chat template refuses a conversation, or is none ({type(error).__name__}: "
                f"{error}). Try it with: onepolicy tokens template."
            ) from error
        return ids

    def _own(self, texts: Sequence[TokenIds]) -> list[IntArray]:
        foreign = next((one for one in texts if one.tokenizer != self._loaded.tokenizer_hash), None)
        if foreign is not None:
            raise EngineError(
                f"{self._named.name}: is given ids of the tokenizer {foreign.tokenizer or 'unknown'}, its own is "
                f"{self._loaded.tokenizer_hash}. Give it the text, or encode with its own tokenizer."
            )
        return [one.ids for one in texts]

    def _outputs(self, input_ids: Tensor, mask: Tensor) -> Float64:
        """[B, L] in float64, whatever they were computed in."""
        model, device = self._loaded.model, self._loaded.device
        try:
            with torch.inference_mode():
                logits = model(input_ids=input_ids.to(device), attention_mask=mask.to(device)).logits
        except (ValueError, RuntimeError, LookupError, TypeError, AttributeError) as error:
            raise EngineError(
                f"{self._named.name}: the model refuses a batch of shape {list(input_ids.shape)}: {error}"
            ) from error
        if logits.ndim == 3:  # an output for each token
            last = mask.shape[1] - 1 - mask.flip(1).argmax(dim=1)
            logits = logits[torch.arange(len(mask)), last.to(logits.device)]
        found: Float64 = logits.to(torch.float64).cpu().numpy()
        return found
