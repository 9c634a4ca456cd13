"""One side has other weights: of an older step, in part of an older step, or without the adapter."""

from __future__ import annotations

from collections.abc import Iterator

from onepolicy.diagnosis.cause import Cause, Experiment, Situation
from onepolicy.diagnosis.respec import IN_PROCESS, Side, side_named, with_options, without_option
from onepolicy.diagnosis.tokens import Tokens

PARTS = {"lm_head": "LM head", "norm": "norms", "embed": "embedding"}
"""word in the names of weights -> what they are: what derived copies and separate transfers forget"""


def stale(tokens: Tokens, situation: Situation) -> Iterator[Experiment]:
    """Each set of weights that a person named, in place of the trainer's. The parameter counts them from 1."""
    for number, (name, spec) in enumerate(situation.weights.items(), start=1):
        yield Experiment(
            cause=STALE.name,
            label=f"the rollout side has the weights of {name}",
            engine=spec,
            value=float(number),
        )


def partial(tokens: Tokens, situation: Situation) -> Iterator[Experiment]:
    """The trainer with some weights of each other set: the rollout side forgot to update these."""
    trainer = side_named(situation, "trainer")
    if trainer is None or "replaced" in trainer.spec.options:
        return
    for name, spec in situation.weights.items():
        if spec.engine == IN_PROCESS:
            yield from _parts_of(trainer, name, spec.target)


def _parts_of(trainer: Side, name: str, folder: str) -> Iterator[Experiment]:
    for word, called in PARTS.items():
        yield Experiment(
            cause=PARTIAL.name,
            label=f"the {called} of the rollout side is that of {name}, the rest is the trainer's",
            engine=with_options(trainer.spec, replaced=f"{word}={folder}"),
        )


def adapter(tokens: Tokens, situation: Situation) -> Iterator[Experiment]:
    """A side that has an adapter without it; a trainer that has none with the rollout side's."""
    yield from without_option(ADAPTER.name, "adapter", situation, "the {side} without its adapter")


def merged(tokens: Tokens, situation: Situation) -> Iterator[Experiment]:
    """The trainer's adapter added to the weights and the sums rounded, as a server does that cannot keep it apart."""
    trainer = side_named(situation, "trainer")
    if trainer is None or "adapter" not in trainer.spec.options or "merged" in trainer.spec.options:
        return
    for dtype in ("bfloat16", "float16"):
        yield Experiment(
            cause=MERGED.name,
            label=f"the rollout side has the adapter merged in {dtype}",
            engine=with_options(trainer.spec, merged=dtype),
        )


def _step(situation: Situation, value: float) -> str:
    """Name of the weights with a number, or words for it."""
    names = list(situation.weights)
    return names[int(value) - 1] if 1 <= value <= len(names) else "an older step"


STALE = Cause(
    name="stale weights",
    about="the rollout side has the weights of another step than the trainer",
    remedy=lambda situation, value: (
        f"the rollout side still serves {_step(situation, value)}: send the weights after each step and wait for the "
        "answer (then vLLM: reset_prefix_cache, SGLang: flush_cache), or lower the staleness limit of an "
        "asynchronous trainer"
    ),
    experiments=stale,
    needs="weights of earlier steps: onepolicy diagnose RUN --weights 'step 0=transformers:FOLDER'",
)
PARTIAL = Cause(
    name="partly synced weights",
    about="some weights of the rollout side are of another step, the others are the trainer's",
    remedy=lambda situation, value: (
        "compare what was sent with what is served, tensor by tensor (onepolicy weights compare), and "
        "refresh what is derived from weights after each update: float32 copies of the head, fused and quantised ones"
    ),
    experiments=partial,
    needs="weights of earlier steps: onepolicy diagnose RUN --weights 'step 0=transformers:FOLDER'",
)
ADAPTER = Cause(
    name="adapter",
    about="one side has an adapter that the other lacks",
    remedy=lambda situation, value: (
        "load the adapter on both sides (vLLM: --enable-lora and lora_request on every call; TRL: sync the merged "
        "weights), and leave it on where the trainer scores (no disable_adapter outside the reference policy)"
    ),
    experiments=adapter,
    needs="the adapter, in the spec of the side that has it (adapter=FOLDER)",
)
MERGED = Cause(
    name="adapter merged in low precision",
    about="one side added the adapter to 16-bit weights, which rounds small updates away",
    remedy=lambda situation, value: (
        "merge in float32 and cast once, or serve the adapter unmerged (peft: merge_and_unload on a float32 model)"
    ),
    experiments=merged,
)
CAUSES = (STALE, PARTIAL, ADAPTER, MERGED)
