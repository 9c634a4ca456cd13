"""One side calls its model otherwise than it should: mask, positions, packing, cache, train mode, neighbours.

How much of such a fault a token feels depends on what else was in its batch, which no run keeps. So what shows it is
not the fault made again on the good side, but the faulty side read without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from onepolicy.diagnosis.cause import Cause, Experiment, Situation
from onepolicy.diagnosis.respec import BATCHED, again, with_options, without_option
from onepolicy.diagnosis.tokens import Tokens

_CALLS = ("mask", "positions", "packed", "cache", "chunk", "mode")
"""options of a spec that have a cause of their own"""


def _dropped(cause: str, options: tuple[str, ...], label: str) -> Callable[[Tokens, Situation], Iterable[Experiment]]:
    def experiments(tokens: Tokens, situation: Situation) -> Iterator[Experiment]:
        for option in options:
            yield from without_option(cause, option, situation, label)

    return experiments


def _alone(tokens: Tokens, situation: Situation) -> Iterator[Experiment]:
    """Each side with one sequence at a time; not where its spec itself names what is done to a batch."""
    for side in again(situation, BATCHED):
        if side.spec.options.get("batch_size") == "1" or any(name in side.spec.options for name in _CALLS):
            continue
        yield Experiment(
            cause=BATCH.name,
            label=f"the {side.called} with one sequence at a time",
            engine=with_options(side.spec, batch_size=1),
            side=side.name,
        )


MASK = Cause(
    name="attention mask",
    about="one side gives its model no attention mask, so that padding is attended to",
    remedy=lambda situation, value: (
        "pass attention_mask (and position_ids made of it) to the forward pass: mask by lengths, not by `ids != pad`, "
        "as pad and end may be one token (TRL: per-token logps; verl: actor.use_remove_padding=True needs no mask)"
    ),
    experiments=_dropped("attention mask", ("mask",), "the {side} with an attention mask"),
)
POSITIONS = Cause(
    name="position ids",
    about="one side counts columns as positions, padding on the left included",
    remedy=lambda situation, value: (
        "pass position_ids = attention_mask.cumsum(-1) - 1 (0 on padding) to the forward pass, in prefill and decode"
    ),
    experiments=_dropped("position ids", ("positions",), "the {side} with position ids made of the mask"),
)
PACKING = Cause(
    name="packing",
    about="sequences that one side packs into one row see each other",
    remedy=lambda situation, value: (
        "use an attention that keeps packed sequences apart (flash_attention_2 with position_ids or cu_seqlens; "
        "verl: use_remove_padding with a model that supports it), or turn packing off"
    ),
    experiments=_dropped("packing", ("packed",), "the {side} with every sequence in a row of its own"),
)
CACHE = Cause(
    name="prefix cache",
    about="keys and values that one side took from its cache are not those of these weights and this text",
    remedy=lambda situation, value: (
        "reset the cache after each weight update (vLLM: reset_prefix_cache, SGLang: flush_cache), or start the server "
        "without one (--no-enable-prefix-caching, --disable-radix-cache); check chunked prefill the same way"
    ),
    experiments=_dropped("prefix cache", ("cache", "chunk"), "the {side} computing each sequence anew"),
    needs="the server that sampled, with its cache flushed: onepolicy score RUN with it, or onepolicy legs (warm)",
)
TRAIN_MODE = Cause(
    name="train mode",
    about="one side scores in train mode, so with dropout",
    remedy=lambda situation, value: (
        "call model.eval() before logprobs are computed, or set the model's dropout to 0 "
        "(config: attention_dropout, resid_pdrop, lora_dropout)"
    ),
    experiments=_dropped("train mode", ("mode",), "the {side} in eval mode"),
)
BATCH = Cause(
    name="batch",
    about="a sequence's logprobs on one side depend on what shares its batch",
    remedy=lambda situation, value: (
        "check what padding and neighbours reach the model: attention_mask, position_ids, walls between packed "
        "sequences; numerics alone (vLLM: VLLM_BATCH_INVARIANT=1) are smaller"
    ),
    experiments=_alone,
    is_broad=True,
)
CAUSES = (MASK, POSITIONS, PACKING, CACHE, TRAIN_MODE, BATCH)
