"""A model of a few hundred weights, for logprobs that depend on how a batch is padded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

VOCABULARY, WIDTH, POSITIONS = 12, 8, 64


class PlantedModel(nn.Module):
    """One head of causal attention, called as a model of Transformers is; random weights from a seed, float64.

    absolute: adds a vector for each position id, as GPT-2 does; else scores fall with the distance between position
    ids, as with rotary embeddings. Without position_ids it counts columns from 0, without attention_mask it attends to
    everything: as Transformers' GPT-2 and Llama do.
    """

    def __init__(self, *, absolute: bool) -> None:
        super().__init__()
        source = torch.Generator().manual_seed(17)
        self.absolute = absolute
        self.embedding = _weights(source, VOCABULARY, WIDTH)
        self.positions = _weights(source, POSITIONS, WIDTH)
        self.query, self.key, self.value = (_weights(source, WIDTH, WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False, dtype=torch.float64)
        self.head.weight = _weights(source, VOCABULARY, WIDTH)
        self.requires_grad_(False)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        **_: Any,
    ) -> Any:
        """An object with `logits`. [B, S] -> [B, S, V]."""
        return SimpleNamespace(logits=self.head(self.hidden(input_ids, attention_mask, position_ids)))

    def hidden(self, input_ids: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None) -> Tensor:
        """What the head is applied to. [B, S] -> [B, S, width]."""
        columns = torch.arange(input_ids.shape[1]).expand(input_ids.shape)
        places = columns if position_ids is None else position_ids
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        states = self.embedding[input_ids]
        if self.absolute:
            states = states + self.positions[places]
        scores = (states @ self.query) @ (states @ self.key).transpose(1, 2) / WIDTH**0.5
        if not self.absolute:
            scores = scores - 0.3 * (places[:, :, None] - places[:, None, :]).abs()
        seen = (columns[:, :, None] >= columns[:, None, :]) & real.bool()[:, None, :]
        # A query that sees nothing, as padding on the left, gets equal weights instead of NaN.
        weights = scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(dim=-1)
        found: Tensor = states + weights @ (states @ self.value)
        return found


def _weights(source: torch.Generator, *shape: int) -> nn.Parameter:
    return nn.Parameter(0.5 * torch.randn(*shape, generator=source, dtype=torch.float64))
