"""What acts on the logits before the temperature: a repetition penalty, and end tokens that have to wait.

Transformers' own penalty also looks at the padding, which is an end token here, so that what is drawn would depend on
the batch. The formula is the same: a logit is divided by the penalty if positive, else multiplied.
Source: huggingface/transformers:src/transformers/generation/logits_process.py (RepetitionPenaltyLogitsProcessor,
MinNewTokensLengthLogitsProcessor), 5.24.
"""

from __future__ import annotations

import torch
from torch import Tensor

from onepolicy.records.protocol import SamplingProtocol


class Processing:
    """A logits processor for `generate`, which the recorder of logprobs applies too."""

    def __init__(self, protocol: SamplingProtocol, *, end_ids: tuple[int, ...], attention_mask: Tensor) -> None:
        """`end_ids`: the tokens that end a completion. `attention_mask`: [B, P] of the prompts."""
        self._penalty = protocol.repetition_penalty
        self._least = protocol.min_new_tokens
        self._end_ids = end_ids
        self._padding = ~attention_mask.bool()

    @property
    def acts(self) -> bool:
        """Whether any logit is changed."""
        return self._penalty != 1.0 or (self._least > 0 and bool(self._end_ids))

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """The processed logits of the next token. Shape: [B, T] padded on the left, [B, V] -> [B, V]."""
        processed = self._penalised(input_ids, scores) if self._penalty != 1.0 else scores
        if self._end_ids and input_ids.shape[1] - self._padding.shape[1] < self._least:
            processed = processed.index_fill(1, torch.tensor(self._end_ids, device=scores.device), -torch.inf)
        return processed

    def _penalised(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        rows, vocabulary = scores.shape
        # what is padding, or an id that has no logit, is counted in a column of its own
        ids = input_ids.clamp(max=vocabulary)
        prompt = self._padding.shape[1]
        ids = torch.cat([ids[:, :prompt].masked_fill(self._padding, vocabulary), ids[:, prompt:]], dim=1)
        seen = torch.zeros(rows, vocabulary + 1, dtype=torch.bool, device=scores.device).scatter(1, ids, value=True)
        penalised = torch.where(scores < 0, scores * self._penalty, scores / self._penalty)
        return torch.where(seen[:, :vocabulary], penalised, scores)
