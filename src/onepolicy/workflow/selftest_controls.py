"""Honest pairs: two sides that differ in nothing that matters, of which a diagnosis must say nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

Protocol = Mapping[str, object]
LEFT = "padding_side=left"


@dataclass(frozen=True, slots=True, kw_only=True)
class Honest:
    """A pair without a fault. `{name}` in specs is a model of the bench, with the gain 1."""

    rollout: str
    trainer: str
    protocol: Protocol = field(default_factory=dict)
    first: int = 0
    """number of the first prompt"""
    value: float = 1.0

    @property
    def has_two_dtypes(self) -> bool:
        """Whether the sides compute in two precisions."""
        return _dtype(self.rollout) != _dtype(self.trainer)

    @property
    def keeps_more(self) -> bool:
        """Whether the trainer side can keep more than logprobs; of packed sequences it cannot."""
        return "packed" not in self.trainer

    @property
    def pair(self) -> str:
        """As a person says it, without folders."""
        drawn = ", ".join(f"{name} = {value}" for name, value in self.protocol.items())
        sides = f"{self.rollout} | {self.trainer}".replace("transformers:", "").replace("{", "").replace("}", "")
        return sides + (f" | {drawn}" if drawn else "") + (f" | prompts from {self.first}" if self.first else "")


CALLS = (
    "batch_size=1",
    "batch_size=3",
    f"batch_size=8&{LEFT}",
    "batch_size=8&rows=reversed",
    "attn=eager",
    "packed=true",
    "cache=steps",
    "cache=prefix",
    "chunk=32",
)
"""ways of calling a model rightly"""
DTYPES = (
    ("float32", "bfloat16"),
    ("bfloat16", "float32"),
    ("bfloat16", "bfloat16"),
    ("float16", "float32"),
    ("float32", "float16"),
)
"""of the rollout side and the trainer"""
SAMPLED = (
    {"temperature": 0.7},
    {"temperature": 1.3},
    {"top_p": 0.9},
    {"top_k": 20},
    {"min_p": 0.05},
    {"temperature": 0.8, "top_p": 0.95},
)
"""what both sides know of: logprobs after it on both"""
SEEDS = 10
MODELS = ("llama", "gpt2", "gemma", "experts")


def controls(*, tiny: bool) -> Iterator[Honest]:
    """Of all models of the bench; of a base that is not tiny only those on it."""
    for model in MODELS if tiny else MODELS[:1]:
        plain = _spec(model)
        yield Honest(rollout=plain, trainer=plain)
        yield from (Honest(rollout=plain, trainer=_spec(model, call)) for call in _calls(model))
        for p, q in DTYPES:
            yield Honest(rollout=_spec(model, f"dtype={p}"), trainer=_spec(model, f"dtype={q}"))
    plain = _spec("llama")
    for protocol in SAMPLED:
        yield Honest(rollout=_spec("llama", "logprobs=processed"), trainer=plain, protocol=protocol)
    for seed in range(1, SEEDS + 1):
        yield Honest(rollout=plain, trainer=plain, protocol={"seed": seed}, first=16 * seed)


def _spec(model: str, *options: str) -> str:
    """Gemma 2 has soft caps, which only the eager attention knows."""
    given = (*options, *(("attn=eager",) if model == "gemma" else ()))
    return f"transformers:{{{model}}}" + (f"?{'&'.join(given)}" if given else "")


def _calls(model: str) -> tuple[str, ...]:
    """Packed rows are kept apart by positions that start again, which only the plain model takes for walls."""
    left_out = {"llama": (), "gemma": ("packed", "eager")}.get(model, ("packed",))
    return tuple(call for call in CALLS if not any(word in call for word in left_out))


def _dtype(spec: str) -> str:
    return spec.partition("dtype=")[2].partition("&")[0] or "float32"
