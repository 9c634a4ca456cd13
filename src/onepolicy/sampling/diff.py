"""In what two protocols differ, and why it matters."""

from __future__ import annotations

from dataclasses import dataclass

from onepolicy.records.processors import pairs_that_matter
from onepolicy.records.protocol import SamplingProtocol

WHY = {
    "temperature": "Logits divided by another number are another distribution; logprobs of one are not of the other.",
    "top_p": "Tokens outside the kept mass are never drawn, and what is left is renormalised.",
    "top_k": "Tokens of a lower rank are never drawn, and what is left is renormalised.",
    "min_p": "Tokens far below the most likely one are never drawn, and what is left is renormalised.",
    "max_new_tokens": "Longer answers are cut on one side only: their reward is that of half an answer.",
    "samples_per_prompt": "Advantages of a group are normalised over another number of completions.",
    "seed": "The same prompts give other draws; the distribution is the same.",
    "repetition_penalty": "Tokens that were there before get another probability, which no trainer's logprobs have.",
    "presence_penalty": "Tokens that the completion has get another probability, which no trainer's logprobs have.",
    "frequency_penalty": "Tokens that the completion has get another probability, which no trainer's logprobs have.",
    "penalty_window": "The penalties look back over another number of tokens.",
    "processors": "The order in which logits are processed changes what is kept.",
    "min_new_tokens": "Shorter answers are impossible on one side only.",
    "max_total_tokens": "Prompt and completion together are cut at another length.",
    "prompt_truncation": "A prompt that is too long loses another end, or is an error.",
    "max_prompt_tokens": "Another share of the prompts is too long.",
    "stop": "Completions end at another text.",
    "stop_token_ids": "Completions end at other tokens.",
    "ignore_eos": "Completions go on after the end token on one side only.",
    "padding_side": "Padding on the right of a prompt puts other positions in front of the first sampled token.",
    "use_cache": "Decoding without the cache is a prefill of each step, with other rounding.",
    "dtype": "Weights and activations of another precision give other logprobs.",
    "seed_policy": "A prompt that is asked again with the seed of each request gives the same sample again.",
    "add_bos": "A prompt with BOS and one without are two prompts.",
    "chat_template": "The same messages become another prompt.",
    "add_generation_prompt": "A prompt that does not open the assistant's turn is another prompt.",
    "constraint": "Tokens that the constraint forbids are never drawn.",
    "logprobs": "One side's logprobs are raw and the other's are of the distribution that was drawn from.",
    "schedule": "The temperature of a training step is another one.",
}
"""field -> why it matters; one sentence each"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One field in which two protocols differ."""

    field: str
    a: object
    b: object
    why: str
    """why it matters, or why it does not; one sentence"""
    matters: bool = True
    """whether it can change what is sampled, or what its logprobs mean"""


def differences(a: SamplingProtocol, b: SamplingProtocol) -> tuple[Difference, ...]:
    """The fields in which two protocols differ, in the order of the model; empty if they are the same.

    Spellings of "off" are one value already. Something that acts on neither side, such as another order of processors
    that commute, is listed with `matters` False.
    """
    fields = [name for name in SamplingProtocol.model_fields if getattr(a, name) != getattr(b, name)]
    return tuple(_difference(name, a, b) for name in fields)


def _difference(name: str, a: SamplingProtocol, b: SamplingProtocol) -> Difference:
    why, matters = _order(a, b) if name == "processors" else _elsewhere(name, a, b)
    return Difference(field=name, a=getattr(a, name), b=getattr(b, name), why=why, matters=matters)


def _elsewhere(name: str, a: SamplingProtocol, b: SamplingProtocol) -> tuple[str, bool]:
    if name == "penalty_window" and not (a.has_penalties or b.has_penalties):
        return "No penalty is on, on either side.", False
    if a.is_greedy and b.is_greedy and name in ("top_p", "top_k", "min_p", "seed", "seed_policy"):
        return "Both sides take the most likely token, which this does not change.", False
    if name == "seed":
        return WHY[name], False
    if name == "seed_policy" and "each request" not in (a.seed_policy, b.seed_policy):
        return "One side sends no seed: its draws cannot be repeated; the distribution is the same.", False
    return WHY[name], True


def _order(a: SamplingProtocol, b: SamplingProtocol) -> tuple[str, bool]:
    """Another order is another distribution only if two that do not commute are on and change places."""
    turned = [pair for one in (a, b) for pair in pairs_that_matter(a.processors, b.processors, protocol=one)]
    if not turned:
        return (
            "It changes nothing here: of what is on, no two processors change places but such as commute (top_k and "
            "the temperature do).",
            False,
        )
    first, second = turned[0]
    return f"{first} and {second} change places, and both are on: what one keeps depends on the other.", True
