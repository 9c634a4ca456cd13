"""The two sides compute in other precisions: of the whole model, of the LM head, or of quantised weights.

A precision moves logprobs; it has no direction. Two engines that share their kernels move alike, and then the
correction below fits; where they do not, `onepolicy.diagnosis.precision` compares how far each of them moves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from onepolicy.diagnosis.cause import Cause, Experiment, Situation
from onepolicy.diagnosis.respec import again, side_named, with_options
from onepolicy.diagnosis.tokens import Tokens

DTYPES = ("float32", "bfloat16", "float16")


def dtypes(tokens: Tokens, situation: Situation) -> Iterator[Experiment]:
    """Each side in the precision of the other one."""
    of_side = {"trainer": situation.trainer.engine.dtype, "rollout": situation.rollout.engine.dtype}
    for side in again(situation):
        wanted = of_side["rollout" if side.name == "trainer" else "trainer"]
        if wanted in DTYPES and wanted != of_side[side.name]:
            yield Experiment(
                cause=PRECISION.name,
                label=f"the {side.called} in {wanted}, as the {side.other}",
                engine=with_options(side.spec, dtype=wanted),
                side=side.name,
            )


def heads(tokens: Tokens, situation: Situation) -> Iterator[Experiment]:
    """Each side with its LM head in the other precision."""
    for side in again(situation):
        own = side.spec.options.get("head") or side.spec.options.get("dtype", "float32")
        other = "float32" if own != "float32" else "bfloat16"
        yield Experiment(
            cause=HEAD.name,
            label=f"the LM head of the {side.called} in {other}",
            engine=with_options(side.spec, head=other),
            side=side.name,
        )


def files(tokens: Tokens, situation: Situation) -> Iterator[Experiment]:
    """The trainer with the weights of the rollout side's file, back in the trainer's precision."""
    trainer = side_named(situation, "trainer")
    target = situation.rollout.request.engine.partition(":")[2].partition("?")[0]
    if trainer is None or not target.endswith(".gguf") or trainer.spec.target == target:
        return
    yield Experiment(
        cause=QUANTISED.name,
        label=f"the rollout side has quantised weights ({situation.rollout.engine.dtype})",
        engine=replace(with_options(trainer.spec, adapter=None, replaced=None), target=target),
    )


PRECISION = Cause(
    name="precision",
    about="the two sides compute in other precisions; nothing else is wrong",
    remedy=lambda situation, value: (
        f"nothing needs fixing if this is small enough; else run both sides in one precision "
        f"({situation.trainer.engine.dtype} and {situation.rollout.engine.dtype} now; vLLM: --dtype float16 is eight "
        "times finer than bfloat16), or correct in the loss (truncated importance sampling)"
    ),
    experiments=dtypes,
    needs="the trainer in the rollout side's precision",
)
HEAD = Cause(
    name="LM head precision",
    about="one side multiplies the LM head in a lower precision",
    remedy=lambda situation, value: (
        "compute logits in float32 on both sides (TRL: cast_lm_head_to_fp32=True; transformers here: head=float32)"
    ),
    experiments=heads,
)
QUANTISED = Cause(
    name="quantised weights",
    about="the rollout side's weights, activations or KV cache are quantised and the trainer's are not",
    remedy=lambda situation, value: (
        "serve in the trainer's precision, quantise again after each update, or correct in the loss; "
        "KV cache: vLLM --kv-cache-dtype auto, SGLang --kv-cache-dtype auto, llama.cpp -ctk f16 -ctv f16"
    ),
    experiments=files,
    needs="the quantised file (a .gguf target), or the server with a 16-bit KV cache",
)
CAUSES = (PRECISION, HEAD, QUANTISED)
