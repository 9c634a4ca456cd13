"""One side reads the conversation in another template: without the system turn, or without what opens the answer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onepolicy.diagnosis.cause import Cause, Edit, Experiment, Situation
from onepolicy.diagnosis.respec import IN_PROCESS, sides
from onepolicy.diagnosis.tokens import Tokens
from onepolicy.records.tokens import IntArray

MOST = 2
"""turns that are taken away at most, the first alone or the first two"""


def shared_beginning(tokens: Tokens) -> IntArray:
    """[N] the ids with which all prompts begin; none where there is one prompt alone."""
    rows = {tokens.prompt_ids[row]: (row, part) for row, part in tokens.parts()}
    prompts = [tokens.sequences[row][: int(tokens.position[part][0])] for row, part in rows.values()]
    if len(prompts) < 2:
        return np.zeros(0, dtype=np.int32)
    size = min(map(len, prompts))
    same = np.all([one[:size] == prompts[0][:size] for one in prompts], axis=0)
    return prompts[0][: size if same.all() else int(np.argmin(same))]


def turns(ids: IntArray, bos: int | None) -> list[int]:
    """Where another turn begins: the id that opens the first one stands there again."""
    first = 1 if len(ids) > 1 and ids[0] == bos else 0
    if len(ids) <= first:
        return []
    return [int(at) for at in np.flatnonzero(ids == ids[first]) if at > first]


def experiments(tokens: Tokens, situation: Situation) -> Iterator[Experiment]:
    """The trainer without the turns that all prompts begin with; a BOS before them stays."""
    shared = shared_beginning(tokens)
    kept = (int(shared[0]),) if len(shared) and shared[0] == situation.bos else ()
    for side in sides(situation, (IN_PROCESS, "callable")):
        if side.name != "trainer":
            continue
        for number, at in enumerate(turns(shared, situation.bos)[:MOST], start=1):
            yield Experiment(
                cause=CAUSE.name,
                label=f"the rollout side reads the prompt without its first {at - len(kept)} ids (turn {number} of "
                "those that all prompts begin with: the system prompt)",
                engine=side.spec,
                edit=Edit(prepend=kept, drop=at),
            )


CAUSE = Cause(
    name="template",
    about="one side renders the conversation in another template than the other",
    remedy=lambda situation, value: (
        "give both sides one template and the same messages: send ids instead of messages, or set chat_template and "
        "add_generation_prompt alike (onepolicy tokens template renders both and shows where they part)"
    ),
    experiments=experiments,
    needs="the other side's rendering: onepolicy tokens template; ids alone tell a system turn that all prompts share",
)
