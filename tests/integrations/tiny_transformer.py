"""A small decoder written out, so that a test can change one thing in it: window, cap, rotary base, cache, routing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn

VOCABULARY = 96
NOT_RECORDED = -1


@dataclass(frozen=True, kw_only=True)
class Shape:
    layers: int = 2
    width: int = 64
    heads: int = 4
    experts: int = 0
    """per layer, two of which are used; 0 is one MLP"""
    theta: float = 1e4
    window: int | None = None
    """a token attends to itself and to this many minus one before it, in every other layer"""
    cap: float | None = None
    """soft cap of the attention's scores"""
    scaling: float = 1.0
    """positions are divided by it"""


def unchanged(values: Tensor) -> Tensor:
    return values


def never(query: int, key: int) -> bool:
    return False


@dataclass(kw_only=True)
class Pass:
    """What one forward pass does unlike others, and what it recorded."""

    stored: Callable[[Tensor], Tensor] = unchanged
    """keys or values as the cache gives them back"""
    reads_cache: Callable[[int, int], bool] = never
    """whether a query sees a key through the cache"""
    nudge: float = 0.0
    """noise on the router's scores"""
    replay: Sequence[Tensor] | None = None
    """experts of each layer [T, 2], instead of the router's choice; NOT_RECORDED leaves it to the router"""
    masked_scores: bool = False
    """gather replayed experts' scores from those of the router's own choice alone"""
    routes: list[Tensor] = field(default_factory=list)


class Tiny(nn.Module):
    """Random weights of a seed, the output layer scaled so that the distribution is peaked."""

    def __init__(self, shape: Shape | None = None, *, seed: int = 0) -> None:
        super().__init__()
        self.shape = shape or Shape()
        generator = torch.Generator().manual_seed(seed)
        width = self.shape.width

        def matrix(rows: int, columns: int, scale: float = 1.0) -> nn.Parameter:
            return nn.Parameter(torch.randn(rows, columns, generator=generator) * scale * rows**-0.5)

        self.embed = nn.Parameter(torch.randn(VOCABULARY, width, generator=generator))
        self.head = matrix(width, VOCABULARY, 6.0)
        self.layers = nn.ModuleList()
        for _ in range(self.shape.layers):
            layer = nn.ParameterDict({name: matrix(width, width, 1.5) for name in ("q", "k", "v", "o")})
            layer["gate"] = matrix(width, max(self.shape.experts, 1))
            for expert in range(max(self.shape.experts, 1)):
                layer[f"up{expert}"] = matrix(width, 2 * width)
                layer[f"down{expert}"] = matrix(2 * width, width)
            self.layers.append(layer)
        frequencies = self.shape.theta ** -(torch.arange(0, width // self.shape.heads, 2) / (width // self.shape.heads))
        self.register_buffer("frequencies", frequencies / self.shape.scaling, persistent=False)

    def changed(self, **changes) -> Tiny:
        """The same weights under another configuration."""
        other = Tiny(replace(self.shape, **changes))
        other.load_state_dict(self.state_dict())
        return other

    def forward(self, ids: Sequence[int], how: Pass | None = None) -> Tensor:
        """Logits. Shape: [T] -> [T, V]."""
        how = how or Pass()
        x = self.embed[torch.tensor(list(ids))]
        for number, layer in enumerate(self.layers):
            x = x + self._attention(layer, norm(x), number, how)
            x = x + self._mlp(layer, norm(x), number, how)
        return norm(x) @ self.head

    def logprobs(self, ids: Sequence[int], how: Pass | None = None) -> np.ndarray:
        """Of the tokens from the second on. Shape: [T] -> [T - 1]."""
        with torch.no_grad():
            logits = self(ids, how)[:-1].double().log_softmax(-1)
        return logits.gather(1, torch.tensor(list(ids))[1:, None])[:, 0].numpy()

    def _attention(self, layer, x: Tensor, number: int, how: Pass) -> Tensor:
        q, k, v = (self._heads(x @ layer[name]) for name in ("q", "k", "v"))
        q, k = self._rotated(q), self._rotated(k)
        position = torch.arange(len(x))
        query, key = position[:, None], position[None, :]
        allowed = key <= query
        if self.shape.window is not None and number % 2 == 0:
            allowed = allowed & (query - key < self.shape.window)
        through = torch.tensor([[how.reads_cache(i, j) for j in range(len(x))] for i in range(len(x))])
        scores = torch.where(through, q @ how.stored(k).mT, q @ k.mT) * q.shape[-1] ** -0.5
        if self.shape.cap is not None:
            scores = self.shape.cap * torch.tanh(scores / self.shape.cap)
        shares = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
        mixed = (shares * through) @ how.stored(v) + (shares * ~through) @ v
        return mixed.transpose(0, 1).reshape(len(x), -1) @ layer["o"]

    def _heads(self, x: Tensor) -> Tensor:
        return x.reshape(len(x), self.shape.heads, -1).transpose(0, 1)

    def _rotated(self, x: Tensor) -> Tensor:
        angle = torch.arange(x.shape[1])[:, None] * self.frequencies
        cos, sin = angle.cos(), angle.sin()
        left, right = x.chunk(2, dim=-1)
        return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)

    def _mlp(self, layer, x: Tensor, number: int, how: Pass) -> Tensor:
        def expert(which: int) -> Tensor:
            return torch.nn.functional.silu(x @ layer[f"up{which}"]) @ layer[f"down{which}"]

        if not self.shape.experts:
            return expert(0)
        scores = x @ layer["gate"]
        if how.nudge:
            noise = torch.randn(scores.shape, generator=torch.Generator().manual_seed(number))
            scores = scores + how.nudge * noise
        chosen = own = scores.topk(2, dim=-1).indices
        if how.replay is not None:
            chosen = torch.where(how.replay[number] == NOT_RECORDED, own, how.replay[number])
        how.routes.append(chosen)
        if how.masked_scores:
            kept = torch.zeros_like(scores, dtype=torch.bool).scatter(1, own, value=True)
            scores = scores.masked_fill(~kept, -30.0)
        weights = scores.gather(1, chosen).softmax(-1)
        every = torch.stack([expert(which) for which in range(self.shape.experts)], dim=1)
        return (every[torch.arange(len(x))[:, None], chosen] * weights[:, :, None]).sum(1)


def norm(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


def sequences(count: int = 16, length: int = 48, *, seed: int = 0) -> list[list[int]]:
    """Random ids."""
    return np.random.default_rng(seed).integers(VOCABULARY, size=(count, length)).tolist()


def quantised(scale: float) -> Callable[[Tensor], Tensor]:
    """Eight bits with one scale."""
    return lambda values: (values / scale).round().clamp(-127, 127) * scale
