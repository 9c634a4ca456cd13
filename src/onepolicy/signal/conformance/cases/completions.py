"""Logprobs of completions in a padded batch: from logits, from a model, and their sum."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from onepolicy.signal.conformance.case import Case, Observed, differentiated, tensor
from onepolicy.signal.conformance.model import VOCABULARY, PlantedModel
from onepolicy.signal.conformance.planted import MASK, WITH_EMPTY, logprobs_like, normal, under_mask
from onepolicy.signal.conformance.subject import Call

PAD = 0
PROMPTS, COMPLETIONS = (3, 1, 2), (2, 4, 3)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """Prompts with their completions, padded. [B, S] each; lengths [B]."""

    input_ids: Tensor
    attention_mask: Tensor
    loss_mask: Tensor
    lengths: Tensor


def batch(layout: str, *, completions: tuple[int, ...] = COMPLETIONS, extra: int = 0) -> Batch:
    """layout: what is padded on which side. extra: columns of padding that nothing needs."""
    source = torch.Generator().manual_seed(5)
    rows = []
    for prompt, completion in zip(PROMPTS, completions, strict=True):
        ids = torch.randint(1, VOCABULARY, (prompt + completion,), generator=source).tolist()
        left, right = _padding(layout, prompt, completion, extra, longest=(max(PROMPTS), max(completions)))
        rows.append(
            (
                [PAD] * left + ids + [PAD] * right,
                [0] * left + [1] * len(ids) + [0] * right,
                [0] * (left + prompt) + [1] * completion + [0] * right,
            )
        )
    ids_, real, marked = (torch.tensor([row[i] for row in rows]) for i in range(3))
    return Batch(input_ids=ids_, attention_mask=real, loss_mask=marked, lengths=torch.tensor(completions))


def _padding(layout: str, prompt: int, completion: int, extra: int, *, longest: tuple[int, int]) -> tuple[int, int]:
    free_prompt, free_completion = longest[0] - prompt + extra, longest[1] - completion
    if layout == "left":
        return free_prompt + free_completion, 0
    if layout == "right":
        return 0, free_prompt + free_completion
    return free_prompt, free_completion


def _from_logits(call: Call, *, layout: str, completions: tuple[int, ...] = COMPLETIONS, extra: int = 0) -> Observed:
    given = batch(layout, completions=completions, extra=extra)
    logits = normal(*given.input_ids.shape, VOCABULARY, seed=6)
    logits[~given.attention_mask.bool()] = 50.0  # what a model says at padding is arbitrary

    def chosen(at: Tensor) -> Tensor:
        found = tensor(call(at, given.input_ids, given.attention_mask, given.lengths))
        return torch.cat([row[:length] for row, length in zip(found, given.lengths.tolist(), strict=True)])

    return differentiated(chosen, logits)


def _from_model(call: Call, *, layout: str, absolute: bool, extra: int) -> Observed:
    given = batch(layout, extra=extra)
    model = PlantedModel(absolute=absolute)
    found = tensor(call(model, given.input_ids, given.attention_mask, given.loss_mask))
    return {"value": found.detach()[given.loss_mask.bool()]}


def _sums(call: Call, mask: Tensor, junk: tuple[float, ...]) -> Observed:
    planted = under_mask(logprobs_like(mask), mask, junk)
    return differentiated(lambda logprobs: tensor(call(logprobs, mask)), planted)


_POSITIONS = (
    "The same completion gets other logprobs beside a longer neighbour: what is trained is not the policy that sampled."
)
_NOT_THE_COMPLETION = "What is trained is padding and prompt, or one token beside the completion."
CASES = (
    Case(
        role="sequence_logprobs",
        name="unequal lengths",
        planted="completions of 2, 4 and 5 tokens, finite values under the mask",
        otherwise="Padding counts as probability: a short completion gets the ratio of its neighbour's length.",
        puts_through=lambda call: _sums(call, MASK, (-7.0, 3.0)),
    ),
    Case(
        role="sequence_logprobs",
        name="NaN, inf and 1e4 under the mask",
        planted="values that no completion has, in positions that the mask leaves out",
        otherwise="One padded row makes the loss of the whole batch NaN or infinite.",
        puts_through=lambda call: _sums(call, MASK, (torch.nan, torch.inf, -torch.inf, 1e4)),
    ),
    Case(
        role="sequence_logprobs",
        name="zero length",
        planted="a completion without a token",
        otherwise="An aborted rollout stops the training, or counts as impossible.",
        puts_through=lambda call: _sums(call, WITH_EMPTY, (0.0,)),
    ),
    *(
        Case(
            role="completion_logprobs",
            name=name,
            planted=planted,
            otherwise=_NOT_THE_COMPLETION,
            puts_through=partial(_from_logits, layout=layout, completions=completions, extra=extra),
        )
        for name, planted, layout, completions, extra in (
            ("padded right", "prompt, completion, padding", "right", COMPLETIONS, 0),
            ("padded left", "padding, prompt, completion: all rows end in one column", "left", COMPLETIONS, 0),
            (
                "prompt left, completion right",
                "padding, prompt, completion, padding: all completions begin in one column",
                "both",
                COMPLETIONS,
                0,
            ),
            ("wider padding", "the same with three more columns of padding", "both", COMPLETIONS, 3),
            ("zero length", "a completion without a token", "both", (2, 0, 3), 0),
        )
    ),
    *(
        Case(
            role="model_logprobs",
            name=name,
            planted=planted,
            otherwise=_POSITIONS,
            puts_through=partial(_from_model, layout=layout, absolute=absolute, extra=extra),
        )
        for name, planted, layout, absolute, extra in (
            ("relative positions", "a model of relative positions, padded left", "left", False, 0),
            (
                "absolute positions, padded left",
                "a model of absolute positions, which numbers the columns unless it is told the positions",
                "left",
                True,
                0,
            ),
            ("absolute positions, padded right", "the same, padded right", "right", True, 0),
            (
                "absolute positions, prompt left",
                "the same, prompts padded left and completions right",
                "both",
                True,
                0,
            ),
            (
                "relative positions, wider padding",
                "a model of relative positions, with three more columns of padding",
                "both",
                False,
                3,
            ),
        )
    ),
)
