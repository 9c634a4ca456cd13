"""One side reads the text behind another beginning: with a BOS that the other lacks, or one too many."""

from __future__ import annotations

from collections.abc import Iterator

from onepolicy.diagnosis.cause import Cause, Edit, Experiment, Situation
from onepolicy.diagnosis.respec import IN_PROCESS, sides
from onepolicy.diagnosis.tokens import Tokens


def begins_with(tokens: Tokens, token_id: int) -> bool:
    """Whether every sequence here begins with it."""
    rows = [row for row, _ in tokens.parts()]
    return bool(rows) and all(len(ids) > 1 and int(ids[0]) == token_id for ids in (tokens.sequences[r] for r in rows))


def experiments(tokens: Tokens, situation: Situation) -> Iterator[Experiment]:
    """The trainer with one BOS more; and with one less, where there is one."""
    if situation.bos is None:
        return
    for side in sides(situation, (IN_PROCESS, "callable")):
        if side.name != "trainer":
            continue
        has_one = begins_with(tokens, situation.bos)
        more = "a second BOS" if has_one else "a BOS"
        yield Experiment(
            cause=CAUSE.name,
            label=f"the rollout side reads {more} in front of the prompt that the trainer does not",
            engine=side.spec,
            edit=Edit(prepend=(situation.bos,)),
        )
        if has_one:
            yield Experiment(
                cause=CAUSE.name,
                label="the rollout side reads the prompt without the BOS that the trainer has",
                engine=side.spec,
                edit=Edit(drop=1),
            )


CAUSE = Cause(
    name="special tokens",
    about="one side's context has a BOS that the other's lacks, or one too many",
    remedy=lambda situation, value: (
        "send token ids to the engine; or encode rendered templates with add_special_tokens=False, and plain prompts "
        "with True: exactly one BOS on both sides (onepolicy tokens compare says which side adds it)"
    ),
    experiments=experiments,
    needs="a tokenizer with a BOS, and the trainer's engine",
)
