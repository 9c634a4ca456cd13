"""Second readings of the trainer that have a size and no direction: in another precision, and with nothing changed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onepolicy.diagnosis.cause import Experiment, Situation
from onepolicy.diagnosis.causes import calls, precision
from onepolicy.diagnosis.noise import is_known, noise_of_dtypes
from onepolicy.diagnosis.precision import Reread
from onepolicy.diagnosis.respec import IN_PROCESS, sides, with_options
from onepolicy.diagnosis.tokens import Tokens
from onepolicy.records.tokens import Float64

UNKNOWN = "unknown"
"""what an engine says whose precision cannot be seen"""


def rereads(situation: Situation, *, is_apart: bool) -> Iterator[Experiment]:
    """What to read: the trainer in the rollout side's precision; if both say the same one, in another.

    Sides that are apart (`is_apart`) where both say float32, or the rollout side nothing, may be under autocast, which
    no engine reports. A quantised precision that no trainer can be read in is read as 16 bits and scaled.

    A function of somebody's own is read again as it is, since nothing says whether it repeats itself; the model of a
    `transformers:` spec does.
    """
    for side in sides(situation, (IN_PROCESS, "callable")):
        if side.name != "trainer":
            continue
        if side.spec.engine == "callable":
            yield Experiment(cause=calls.TRAIN_MODE.name, label="trainer read again as it is", engine=side.spec)
            continue
        dtype = _read_in(situation, is_apart=is_apart)
        if dtype not in ("", situation.trainer.engine.dtype):
            yield Experiment(
                cause=precision.PRECISION.name,
                label=f"trainer read again in {dtype}",
                engine=with_options(side.spec, dtype=dtype),
            )


def _read_in(situation: Situation, *, is_apart: bool) -> str:
    """The precision to read the trainer in; empty if none says anything."""
    own, other = situation.trainer.engine.dtype, situation.rollout.engine.dtype
    if other in (own, UNKNOWN):
        return "float32" if own != "float32" or not is_apart else "bfloat16"
    if other in precision.DTYPES:
        return other
    return ("bfloat16" if own == "float32" else "float32") if is_known(other) else ""


def _times(tokens: Tokens, situation: Situation, read: str) -> Float64:
    """[M] how many times as far the rollout side's precision moves a small model as the one that was read; 1 if it was
    read itself.
    """
    own, other = situation.trainer.engine.dtype, situation.rollout.engine.dtype
    if other in (UNKNOWN, *precision.DTYPES):
        return np.ones(len(tokens))
    return noise_of_dtypes(other).scale(tokens.p) / noise_of_dtypes(own, read).scale(tokens.p)


def reread_of(experiment: Experiment, column: Float64, tokens: Tokens, situation: Situation) -> Reread:
    """What such a reading stands for. column: [M] its logprobs."""
    own, other = situation.trainer.engine.dtype, situation.rollout.engine.dtype
    read = experiment.engine.options.get("dtype", "float32")
    moved = column - tokens.q
    is_precision = experiment.cause == precision.PRECISION.name
    cause = precision.PRECISION if is_precision else calls.TRAIN_MODE
    label = f"precision: {other} on the rollout side, {own} on the trainer"
    is_undeclared = is_precision and (other == UNKNOWN or other == own == "float32")
    if is_undeclared:
        label = f"precision: the sides are as far apart as {own} and {read} are, though nobody declares {read}"
    elif other == own:
        label = f"precision: {own} on both sides, each of which rounds in its own way"
    said = experiment.label
    if not is_precision:
        label = "the trainer does not repeat itself"
    elif other not in (UNKNOWN, *precision.DTYPES):
        moved = moved * _times(tokens, situation, read)
        said += f", scaled to {other} as a small model has it,"
    return Reread(
        cause=cause.name,
        label=label,
        experiment=said,
        remedy=cause.remedy(situation, 0.0),
        moved=moved,
        is_declared=not is_undeclared,
    )
