"""What a fault is that a self-test plants: data. It has one strength, which any size is a value of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from onepolicy.records.protocol import Meaning
from onepolicy.records.selftest import Size, Way

ALL = (Size.LARGE, Size.NEAR, Size.BELOW)
ONLY_LARGE = (Size.LARGE,)
"""of what is there or is not"""
NOT_BELOW = (Size.LARGE, Size.NEAR)
"""of a structural one: a single row or value is wrong however small the average"""
SYSTEM = "\x01You are kind and say little.\n\x01"
"""a turn with which all prompts begin: the token that opens it stands again before what follows"""

Protocol = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One way in which a pair is wrong. In specs `{name}` is a model of the bench, `{value}` the fault's value."""

    name: str
    right: tuple[str, ...]
    """causes that are a right answer; none where the honest answer is that no cause is known"""
    large: float
    """strength of the large size; 0 is no fault, and d is about linear near it"""
    rollout: str = "transformers:{llama}"
    trainer: str = "transformers:{llama}"
    value: Callable[[float], float] = lambda strength: strength
    """strength -> what is planted"""
    says: str = "strength {value:.3g}"
    """the value as a person says it"""
    sizes: tuple[Size, ...] = ALL
    way: Way = Way.ENGINE
    protocol: Callable[[float], Protocol] = lambda value: {}
    meaning: Callable[[float], Meaning | None] = lambda value: None
    """of the trainer side, where it is not the rollout side's"""
    sampled: str = ""
    """the sound engine that samples; then both sides read its tokens. Empty: the rollout side samples"""
    function: str = ""
    """of `integrations.transformers.served`, around the model of `rollout`"""
    argument: float | None = None
    """of the function; None: the value"""
    weights: Mapping[str, str] = field(default_factory=dict)
    """other weights that the diagnosis is told of"""
    own_head: bool = False
    """whether it takes a model whose head is not its embedding, as the tiny one's; of others that is not known"""
    has_system: bool = False
    """whether all prompts begin with one turn"""


def inverse(strength: float) -> float:
    """One in so many: the whole number whose inverse is nearest to the strength."""
    return max(1.0, float(round(1.0 / strength)))
