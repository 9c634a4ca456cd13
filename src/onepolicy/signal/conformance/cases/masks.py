"""Which tokens are trained, and means over them."""

from __future__ import annotations

import torch
from torch import Tensor

from onepolicy.signal.conformance.case import Case, Observed, differentiated, tensor
from onepolicy.signal.conformance.planted import MASK, WITH_EMPTY, normal, under_mask
from onepolicy.signal.conformance.subject import Call

END, PAD = 9, 0
ENDED = ((4, 5, END), (6, END), (7, 8, 3, 2, END))
CUT = ((4, 5, END), (6, 7, 8, 3, 2))
STOPPED = ((4, 5, END), (6, 7), (7, 8, 3, 2, END))


def _mask(call: Call, rows: tuple[tuple[int, ...], ...], pad_id: int) -> Observed:
    width = max(map(len, rows))
    token_ids = torch.tensor([[*row, *[pad_id] * (width - len(row))] for row in rows])
    return {"mask": tensor(call(token_ids, END, pad_id))}


def _mean(call: Call, mask: Tensor, junk: tuple[float, ...]) -> Observed:
    return differentiated(lambda x: tensor(call(x, mask)), under_mask(normal(*mask.shape), mask, junk))


def _empty_mean(call: Call) -> Observed:
    mask = torch.zeros_like(MASK)
    return {"value": tensor(call(normal(*mask.shape), mask)).detach()}


def _whitened(call: Call, values: Tensor, mask: Tensor) -> Observed:
    return {"value": tensor(call(values, mask)).detach()[mask.bool()]}


_JUNK = (torch.nan, torch.inf, -torch.inf, 1e4)
_END = "The policy never learns to stop: its end token has no gradient, and completions grow to the limit."
_PADDING = "Padding is trained: the policy learns to repeat the padding token."
CASES = (
    Case(
        role="completion_mask",
        name="pad is another token",
        planted="completions that end with the end token, padded with another one",
        otherwise=_PADDING,
        puts_through=lambda call: _mask(call, ENDED, PAD),
    ),
    Case(
        role="completion_mask",
        name="pad = EOS",
        planted="the same, padded with the end token",
        otherwise=_END,
        puts_through=lambda call: _mask(call, ENDED, END),
    ),
    Case(
        role="completion_mask",
        name="cut at the limit",
        planted="a completion without an end token, as long as the batch is wide",
        otherwise="The last tokens of cut completions are not trained.",
        puts_through=lambda call: _mask(call, CUT, PAD),
    ),
    Case(
        role="completion_mask",
        name="stopped without the end token",
        planted="a completion that a stop string ended, padded with another token than the end token",
        otherwise=_PADDING,
        puts_through=lambda call: _mask(call, STOPPED, PAD),
    ),
    Case(
        role="masked_mean",
        name="unequal lengths",
        planted="finite values under the mask",
        otherwise="The mean depends on how wide the batch is padded.",
        puts_through=lambda call: _mean(call, MASK, (-7.0, 3.0)),
    ),
    Case(
        role="masked_mean",
        name="NaN, inf and 1e4 under the mask",
        planted="values that no completion has, in positions that the mask leaves out",
        otherwise="One padded row makes the mean of the whole batch NaN or infinite.",
        puts_through=lambda call: _mean(call, MASK, _JUNK),
    ),
    Case(
        role="masked_mean",
        name="zero length",
        planted="a completion without a token among others",
        otherwise="An aborted rollout changes the mean over all.",
        puts_through=lambda call: _mean(call, WITH_EMPTY, (5.0,)),
    ),
    Case(
        role="masked_mean",
        name="nothing marked",
        planted="a batch in which the mask marks nothing",
        otherwise="A metric of nothing looks like a measured 0.",
        puts_through=_empty_mean,
    ),
    Case(
        role="whiten",
        name="unequal lengths",
        planted="finite values under the mask",
        otherwise="Padding moves the mean and the deviation of the advantages.",
        puts_through=lambda call: _whitened(call, under_mask(normal(3, 5, scale=3.0), MASK, (40.0,)), MASK),
    ),
    Case(
        role="whiten",
        name="NaN, inf and 1e4 under the mask",
        planted="values that no completion has, in positions that the mask leaves out",
        otherwise="One padded row makes all advantages NaN.",
        puts_through=lambda call: _whitened(call, under_mask(normal(3, 5), MASK), MASK),
    ),
    Case(
        role="whiten",
        name="all equal",
        planted="the same value everywhere",
        otherwise="A batch that teaches nothing is divided by rounding.",
        puts_through=lambda call: _whitened(call, torch.full((3, 5), 0.1, dtype=torch.float64), MASK),
    ),
    Case(
        role="whiten",
        name="one token",
        planted="one marked token in all",
        otherwise="A batch with one token left stops the training.",
        puts_through=lambda call: _whitened(call, normal(3, 5), torch.eye(3, 5) * torch.tensor([[1.0], [0], [0]])),
    ),
)
