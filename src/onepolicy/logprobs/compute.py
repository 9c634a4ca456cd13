"""The reference: logprobs of completion tokens under a causal language model of Transformers.

The logits at one token score the next. Where a batch is padded, "the next" skips the padding: token i is scored by
the logits at the last real token before it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from onepolicy.errors import AlignmentError, UsageError
from onepolicy.logprobs.report import ReportRequest, TokenReport, report_from_hidden, report_on
from onepolicy.logprobs.source import EVERYTHING, HeadProduct, HeldLogits

PROBE_TOKENS = 8
_probed: WeakKeyDictionary[nn.Module, tuple[nn.Linear, nn.Linear | None]] = WeakKeyDictionary()
"""model -> the head that was asked about, and that head or None"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedLogprobs:
    """The answer for the N completion tokens of a batch, row by row, each from left to right."""

    rows: Tensor
    """[N] int64, the sequence"""
    positions: Tensor
    """[N] int64, the column, padding counted"""
    report: TokenReport


@torch.no_grad()
def compute_logprobs(
    model: Any,
    *,
    input_ids: Tensor,
    attention_mask: Tensor,
    completion_mask: Tensor,
    position_ids: Tensor | None = None,
    request: ReportRequest | None = None,
) -> ComputedLogprobs:
    """Logprobs, and what else `request` asks for, of the tokens that `completion_mask` marks.

    Padding may be on the left, on the right, on both sides or nowhere. `position_ids` are by default the number of
    real tokens before each. With `request.statistics` the ids seen before each token are filled in unless given.
    The model computes as it is: put it in eval mode first if it has dropout.

    Shape: all [B, T]; N marked tokens. Unit: nats.
    Raises: AlignmentError if shapes differ, or a marked token is padding or the first real one of its sequence;
    UsageError if position_ids are given to a model that has none.
    """
    real = attention_mask.bool()
    rows, positions = _marked(input_ids, real, completion_mask)
    sources = _previous_real(real)[rows, positions]
    _refuse_unscorable(rows, positions, real=real, sources=sources)
    request = request or ReportRequest()
    if request.statistics and request.seen_ids is None:
        request = replace(request, seen_ids=_seen(input_ids, real, rows, positions))
    inputs = _model_inputs(model, input_ids, attention_mask, position_ids)
    report = _report(model, inputs, (rows, sources), input_ids[rows, positions], request)
    return ComputedLogprobs(rows=rows, positions=positions, report=report)


def uses_hidden_states(model: Any) -> bool:
    """Whether the model's logits are exactly its last hidden states times one matrix, seen on a few tokens.

    Then the logits need not be held. Scaled or soft-capped logits and any other head give False, and so does a
    model that does not repeat itself bit by bit.
    """
    return _plain_head(model) is not None


def _marked(input_ids: Tensor, real: Tensor, completion_mask: Tensor) -> tuple[Tensor, Tensor]:
    for name, mask in (("attention_mask", real), ("completion_mask", completion_mask)):
        if mask.shape != input_ids.shape:
            raise AlignmentError(
                f"{name} has shape {list(mask.shape)} and input_ids {list(input_ids.shape)}. "
                "Both are [sequences, tokens]."
            )
    rows, positions = completion_mask.bool().nonzero(as_tuple=True)
    return rows, positions


def _previous_real(real: Tensor) -> Tensor:
    """[B, T] -> [B, T] the column of the last real token before each one, -1 where there is none."""
    columns = torch.arange(real.shape[1], device=real.device).expand(real.shape)
    upto = columns.masked_fill(~real, -1).cummax(dim=1).values
    return torch.cat([torch.full_like(upto[:, :1], -1), upto[:, :-1]], dim=1)


def _refuse_unscorable(rows: Tensor, positions: Tensor, *, real: Tensor, sources: Tensor) -> None:
    for bad, why in (
        (~real[rows, positions], "is padding: its attention_mask is 0"),
        (sources < 0, "is the first real token of its sequence, so nothing predicts it"),
    ):
        if bool(bad.any()):
            first = int(bad.nonzero()[0, 0])
            raise AlignmentError(
                f"completion_mask marks {int(bad.sum())} token(s) without a logprob. The first is in sequence "
                f"{int(rows[first])} at column {int(positions[first])} and {why}. Unmark it."
            )


def _seen(input_ids: Tensor, real: Tensor, rows: Tensor, positions: Tensor) -> list[Tensor]:
    """The real ids before each marked token, as views."""
    before = real.cumsum(dim=1) - real.long()
    contexts = [ids[mask] for ids, mask in zip(input_ids, real, strict=True)]
    lengths = before[rows, positions].tolist()
    return [contexts[row][:length] for row, length in zip(rows.tolist(), lengths, strict=True)]


def _model_inputs(
    model: Any, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor | None
) -> dict[str, Tensor]:
    inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
    if "position_ids" in _parameters(model):
        default = (attention_mask.long().cumsum(dim=1) - 1).clamp(min=0)
        inputs["position_ids"] = default if position_ids is None else position_ids
    elif position_ids is not None:
        raise UsageError(f"position_ids were given, and {type(model).__name__} takes none. Leave them out.")
    return inputs


def _parameters(model: Any) -> Mapping[str, inspect.Parameter]:
    """Of the model's forward; of the one inside, if it is wrapped by PEFT."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return inspect.signature(inner.forward).parameters


def _report(
    model: Any,
    inputs: dict[str, Tensor],
    places: tuple[Tensor, Tensor],
    token_ids: Tensor,
    request: ReportRequest,
) -> TokenReport:
    """The report on tokens that are predicted at `places`, the [N] rows and [N] columns."""
    rows, sources = places
    head = _plain_head(model)
    if head is not None:
        hidden = _hidden(model, inputs)[rows, sources]
        return report_from_hidden(hidden, head.weight, token_ids, request, head_bias=head.bias)
    first = int(sources.min()) if len(sources) else 0
    logits = _logits(model, inputs, first=first)
    index = rows * logits.shape[1] + sources - (inputs["input_ids"].shape[1] - logits.shape[1])
    return report_on(HeldLogits(logits.flatten(0, 1), index.to(logits.device)), token_ids, request)


def _hidden(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    hidden: Tensor = model.get_decoder()(**inputs, use_cache=False).last_hidden_state
    return hidden


def _logits(model: Any, inputs: dict[str, Tensor], *, first: int) -> Tensor:
    """Logits from the column `first` on, or of all columns if the model cannot leave any out."""
    more = {"logits_to_keep": inputs["input_ids"].shape[1] - first} if _can_keep(model) else {}
    logits: Tensor = model(**inputs, use_cache=False, **more).logits
    return logits


def _can_keep(model: Any) -> bool:
    return "logits_to_keep" in _parameters(model)


def _plain_head(model: Any) -> nn.Linear | None:
    """The head if the model's logits are exactly its product with the last hidden states; asked once a model."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if type(head) is not nn.Linear or head.weight.is_meta or not hasattr(model, "get_decoder"):
        return None
    probed, answer = _probed.get(model, (None, None))
    if probed is not head:
        answer = head if _head_is_all(model, head) else None
        _probed[model] = (head, answer)
    return answer


def _head_is_all(model: Any, head: nn.Linear) -> bool:
    """Whether the logits of a few tokens, spread over the vocabulary, equal the product bit by bit.

    Equal within a tolerance would not do: soft-capping hardly changes small logits, and changes large ones a lot.
    """
    if model.get_decoder() is model:
        return False
    ids = torch.linspace(0, head.out_features - 1, PROBE_TOKENS, device=head.weight.device).long()[None]
    inputs = _model_inputs(model, ids, torch.ones_like(ids), None)
    logits = _logits(model, inputs, first=0)
    hidden = _hidden(model, inputs)[0]
    product = HeadProduct(hidden, head.weight, head.bias).block(EVERYTHING, EVERYTHING)
    return torch.equal(logits[0].float(), product)
