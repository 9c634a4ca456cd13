"""The sampling configuration of a run, and what a logprob means under it."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from onepolicy.records.processors import DEFAULT_ORDER, Processor, pairs_that_matter, switched_on
from onepolicy.records.strict import Count, Flag, Real, Strict, Text


class TemperatureSchedule(Strict):
    """How the temperature moves over the training's steps."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    kind: Literal["linear", "cosine", "constant"]
    """how it gets from start to end; a constant one has both alike"""
    start: Annotated[Real, Field(ge=0.0)]
    """of step 0"""
    end: Annotated[Real, Field(ge=0.0)]
    """of step `steps` and of all after it"""
    steps: Annotated[Count, Field(ge=1)]
    """training steps from start to end"""

    @model_validator(mode="after")
    def _constant_stays(self) -> Self:
        if self.kind == "constant" and self.start != self.end:
            raise ValueError(f"a constant schedule goes from {self.start:g} to {self.end:g}; make it linear or cosine")
        return self

    @property
    def moves(self) -> bool:
        """Whether two steps differ."""
        return self.start != self.end

    def at(self, step: int) -> float:
        """The temperature of a step; step 0 is the first. Raises: ValueError for a step before it."""
        if step < 0:
            raise ValueError(f"step {step}: the first step is 0.")
        done = min(step / self.steps, 1.0)
        if not self.moves or done == 1.0:
            return self.end
        left = 1.0 - done if self.kind == "linear" else (1.0 + math.cos(math.pi * done)) / 2.0
        return self.end + (self.start - self.end) * left


class Constraint(Strict):
    """What the text of a completion must match; other tokens are never drawn."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    kind: Literal["json_schema", "regex", "grammar"]
    """what `text` is"""
    text: Text = Field(min_length=1)
    """the schema, the expression, or the grammar"""


class SamplingProtocol(Strict):
    """How completions are sampled. The defaults change nothing: the model's own distribution.

    One value for one behaviour: whatever spelling of "off" a framework has (0, -1, None, 1.0), here it is the default.
    """

    model_config = ConfigDict(use_attribute_docstrings=True)

    temperature: Annotated[Real, Field(ge=0.0)] = 1.0
    """logits are divided by it; 0 is greedy, 1 is off. A trainer that does not divide too has another policy"""
    top_p: Annotated[Real, Field(gt=0.0, le=1.0)] = 1.0
    """probability mass that is kept, most likely tokens first; 1 is off. Raw logprobs leave the cut out"""
    top_k: Annotated[Count, Field(ge=0)] = 0
    """most likely tokens that are kept; 0 is off. Raw logprobs leave the cut out"""
    min_p: Annotated[Real, Field(ge=0.0, le=1.0)] = 0.0
    """share of the most likely token's probability below which tokens are cut; 0 is off"""
    max_new_tokens: Annotated[Count, Field(ge=1)] = 64
    """longest completion, in tokens; a longer answer is cut, and its reward is that of half an answer"""
    samples_per_prompt: Annotated[Count, Field(ge=1)] = 1
    """completions of each prompt; a group's advantages need all of them"""
    seed: Count = 0
    """of the run; `seed_policy` says which seed a rollout gets from it"""
    repetition_penalty: Annotated[Real, Field(gt=0.0)] = 1.0
    """logits of tokens in the prompt or completion are divided by it (multiplied if negative); 1 is off"""
    presence_penalty: Real = 0.0
    """nats off the logit of each token that the completion has; 0 is off"""
    frequency_penalty: Real = 0.0
    """nats off the logit of a token for each time that the completion has it; 0 is off"""
    penalty_window: Annotated[Count, Field(ge=1)] | None = None
    """last tokens that the penalties look at; none: all. llama.cpp looks at 64 unless told"""
    processors: tuple[Processor, ...] = DEFAULT_ORDER
    """the order in which what is switched on acts; llama.cpp has the temperature last"""
    min_new_tokens: Annotated[Count, Field(ge=0)] = 0
    """shortest completion, in tokens: until then none that ends it is drawn; 0 is off"""
    max_total_tokens: Annotated[Count, Field(ge=1)] | None = None
    """longest prompt and completion together, in tokens; none: as long as the model's context"""
    prompt_truncation: Literal["left", "right"] | None = None
    """the side of a prompt that is cut if it is too long; none: such a prompt is an error"""
    max_prompt_tokens: Annotated[Count, Field(ge=1)] | None = None
    """longest prompt, in tokens; none: as long as the model's context"""
    stop: tuple[Text, ...] = ()
    """text that ends a completion, in any order; a trainer that also trains on what comes after sees other tokens"""
    stop_token_ids: tuple[Annotated[Count, Field(ge=0)], ...] = ()
    """ids that end a completion besides the model's own end tokens, in any order"""
    ignore_eos: Flag = False
    """whether a completion goes on after the model's end token, up to its limit"""
    padding_side: Literal["left", "right"] | None = None
    """where a batch of prompts is padded; none: it is not. Decoding needs the left"""
    use_cache: Flag = True
    """whether keys and values are kept between steps; without, each step is a prefill and its rounding another"""
    dtype: Text | None = Field(default=None, min_length=1)
    """of the weights and activations that sample, such as bfloat16; none: as the engine decides"""
    seed_policy: Literal["each rollout", "each request", "none"] = "each rollout"
    """which seed is sent: one for each rollout, one for all samples of a prompt, or none. One seed on several ranks
    draws the same samples again"""
    add_bos: Flag | None = None
    """whether a prompt begins with the BOS token; none: as the tokenizer does. Two are another prompt"""
    chat_template: Text | None = Field(default=None, min_length=1)
    """name or SHA-256 of the template that renders messages; none: the tokenizer's own"""
    add_generation_prompt: Flag = True
    """whether a rendered prompt ends where the assistant begins"""
    constraint: Constraint | None = None
    """what the text of a completion must match; none: anything"""
    logprobs: Literal["raw", "processed"] = "raw"
    """what the sampling side's logprobs are of: the model's own distribution, or the one that was drawn from"""
    schedule: TemperatureSchedule | None = None
    """how the temperature moves over the training; it must end at `temperature`, which is what is served"""

    @field_validator("processors")
    @classmethod
    def _once_each(cls, order: tuple[Processor, ...]) -> tuple[Processor, ...]:
        twice = sorted({name for name in order if order.count(name) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)} stands twice; each processor acts once")
        return order

    @field_validator("stop")
    @classmethod
    def _stops_somewhere(cls, stop: tuple[str, ...]) -> tuple[str, ...]:
        if "" in stop:
            raise ValueError("an empty stop string ends every completion before its first token")
        return tuple(sorted(set(stop)))

    @field_validator("stop_token_ids")
    @classmethod
    def _in_one_order(cls, ids: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(set(ids)))

    @model_validator(mode="after")
    def _acts_somewhere(self) -> Self:
        absent = sorted(switched_on(self) - set(self.processors))
        if absent:
            raise ValueError(f"{', '.join(absent)} is switched on and not among processors {list(self.processors)}")
        return self

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(f"min_new_tokens = {self.min_new_tokens} is above max_new_tokens = {self.max_new_tokens}")
        if self.max_total_tokens is not None and self.min_new_tokens >= self.max_total_tokens:
            raise ValueError(
                f"min_new_tokens = {self.min_new_tokens} leaves no room for a prompt in max_total_tokens = "
                f"{self.max_total_tokens}"
            )
        return self

    @model_validator(mode="after")
    def _ends_one_way(self) -> Self:
        if self.ignore_eos and self.stop_token_ids:
            raise ValueError(
                f"ignore_eos and stop_token_ids = {list(self.stop_token_ids)} conflict: SGLang then ignores these ids "
                "too, vLLM ends at them. Leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _schedule_arrives(self) -> Self:
        if self.schedule is not None and self.schedule.end != self.temperature:
            raise ValueError(
                f"the schedule ends at {self.schedule.end:g} and temperature is {self.temperature:g}: what is trained "
                "last is not what is served. Make them one value"
            )
        return self

    @property
    def hash(self) -> str:
        """The first 16 hex digits of the SHA-256 of the canonical JSON.

        Fields that came later count only where they differ from their defaults, so a new one changes no hash.
        """
        values = self.model_dump(mode="json")
        said = {name: value for name, value in values.items() if name in COMMON_FIELDS or name in self.changed}
        return hashlib.sha256(json.dumps(said, separators=(",", ":")).encode()).hexdigest()[:16]

    @property
    def changed(self) -> tuple[str, ...]:
        """The fields that are not at their defaults."""
        fields = type(self).model_fields
        return tuple(name for name, field in fields.items() if getattr(self, name) != field.default)

    @property
    def is_greedy(self) -> bool:
        """Whether nothing is drawn at random."""
        return self.temperature == 0.0

    @property
    def has_penalties(self) -> bool:
        """Whether tokens that were there before are less, or more, likely."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def is_plain(self) -> bool:
        """Whether tokens are drawn from the model's own distribution, at every step of the training."""
        return not switched_on(self) and not self.is_greedy and not self.beyond_meaning

    @property
    def beyond_meaning(self) -> tuple[str, ...]:
        """What changes the distribution and is no part of a `Meaning` that an engine can score under.

        ignore_eos is here as llama.cpp makes the end token impossible under it; vLLM draws it and goes on.
        """
        order = pairs_that_matter(self.processors, DEFAULT_ORDER, protocol=self)
        found = [f"{name} {getattr(self, name):g}" for name in _PENALTIES if name in self.changed]
        found += [f"penalty_window {self.penalty_window}"] if found and self.penalty_window else []
        found += [f"order {' '.join(name for name in self.processors if name in switched_on(self))}"] if order else []
        found += [f"min_new_tokens {self.min_new_tokens}"] if self.min_new_tokens else []
        found += ["ignore_eos"] if self.ignore_eos else []
        found += [f"constraint {self.constraint.kind}"] if self.constraint else []
        found += ["schedule"] if self.schedule and self.schedule.moves else []
        return tuple(found)

    def at_step(self, step: int) -> SamplingProtocol:
        """The protocol of one training step: at the schedule's temperature, without the schedule."""
        if self.schedule is None:
            return self
        return self.model_copy(update={"temperature": self.schedule.at(step), "schedule": None})

    def seed_for(self, rollout_id: str) -> int:
        """A 31-bit seed that depends on the run's seed and the rollout alone, so a resumed run repeats it."""
        return int.from_bytes(hashlib.sha256(f"{self.seed}:{rollout_id}".encode()).digest()[:4], "big") >> 1


COMMON_FIELDS = ("temperature", "top_p", "top_k", "min_p", "max_new_tokens", "samples_per_prompt", "seed")
"""fields that have an option on the command line, and that a hash has in it at their defaults too"""
_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")


class Meaning(Strict):
    """Which distribution the logprobs of a reading belong to: how the model's logits were processed before log-softmax.

    The defaults change nothing; logprobs under them are raw.
    """

    temperature: float = Field(default=1.0, gt=0.0, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=0, ge=0)
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    beyond: tuple[str, ...] = ()
    """what else was done that no engine here scores under, such as "repetition_penalty 1.1"; see SamplingProtocol"""

    @property
    def is_raw(self) -> bool:
        """Whether nothing is processed: the log-softmax of the model's own logits."""
        return self == Meaning()

    @property
    def truncates(self) -> bool:
        """Whether some tokens have probability zero under it."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    @classmethod
    def processed_by(cls, protocol: SamplingProtocol) -> Meaning:
        """The meaning of logprobs after `protocol` was applied; raw if it changes nothing.

        A greedy choice needs no distribution; its logprobs are taken to be raw but for penalties and the like.
        """
        if protocol.is_plain:
            return cls()
        if protocol.is_greedy:
            return cls(beyond=protocol.beyond_meaning)
        return cls(
            temperature=protocol.temperature,
            top_p=protocol.top_p,
            top_k=protocol.top_k,
            min_p=protocol.min_p,
            beyond=protocol.beyond_meaning,
        )

    def __str__(self) -> str:
        if self.is_raw:
            return "raw"
        parts = [f"temperature {self.temperature:g}"]
        parts += [f"top_p {self.top_p:g}"] if self.top_p < 1.0 else []
        parts += [f"top_k {self.top_k}"] if self.top_k else []
        parts += [f"min_p {self.min_p:g}"] if self.min_p else []
        return f"processed ({', '.join([*parts, *self.beyond])})"

    def is_sampled_from(self, protocol: SamplingProtocol) -> bool:
        """Whether tokens sampled under `protocol` are draws from the distribution these logprobs belong to.

        Only then do k1, k2 and k3 estimate a KL divergence. Never under a schedule that moves: the step is not known.
        """
        moves = protocol.schedule is not None and protocol.schedule.moves
        return not protocol.is_greedy and not moves and self == Meaning.processed_by(protocol)
