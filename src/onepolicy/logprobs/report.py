"""What is kept of each token's distribution while its logits are in hand."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from onepolicy.errors import AlignmentError
from onepolicy.logprobs.normalise import log_softmax
from onepolicy.logprobs.source import EVERYTHING, HeadProduct, HeldLogits, LogitSource
from onepolicy.logprobs.statistics import reported_moments, statistics_of
from onepolicy.logprobs.streaming import spans, stream_logprobs
from onepolicy.logprobs.truncation import scores, truncates
from onepolicy.records.protocol import Meaning

CHUNK = 2**22
"""logits in hand at a time when a report needs whole rows: 16 MiB of float32, and some temporaries as large"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRequest:
    """What to return for each of N tokens."""

    meaning: Meaning = field(default_factory=Meaning)
    """what logprobs, top lists and reported ids are of; statistics are always of the raw distribution"""
    statistics: bool = False
    """also the per-token statistics, see `onepolicy.logprobs.statistics`"""
    top: int = 0
    """K most likely tokens; 0 is none"""
    report_ids: Tensor | None = None
    """[N, J] ids whose logprobs to return as well"""
    seen_ids: list[Tensor] | None = None
    """N tensors of the ids in each token's context; only the penalty statistics need them"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenReport:
    """The answer for N tokens, in the order asked."""

    logprobs: Tensor
    """[N] float32; -inf for a token that the declared truncation removes"""
    top1: Tensor
    """[N] int64, the most likely token"""
    statistics: dict[str, Tensor] = field(default_factory=dict)
    """name -> [N] float32; entropy and varentropy of what the logprobs are of, whenever whole rows were in hand"""
    top_ids: Tensor | None = None
    """[N, K] int64, most likely first; K is at most the vocabulary"""
    top_logprobs: Tensor | None = None
    """[N, K] float32"""
    reported: Tensor | None = None
    """[N, J] float32"""


def report_from_logits(logits: Tensor, token_ids: Tensor, request: ReportRequest) -> TokenReport:
    """Report on tokens whose logits are at hand.

    Shape: [N, V] any float dtype, [N] -> N tokens. Computed in float32, in chunks; never a full float32 copy.
    Raises: AlignmentError if the lengths differ or an id is outside the vocabulary.
    """
    return report_on(HeldLogits(logits), token_ids, request)


def report_from_hidden(
    hidden: Tensor,
    head_weight: Tensor,
    token_ids: Tensor,
    request: ReportRequest,
    *,
    head_bias: Tensor | None = None,
) -> TokenReport:
    """Report on tokens from the last hidden states and the LM head, never holding [N, V].

    The product is computed in the dtype of its factors, as the model would, everything after it in float32.

    Shape: [N, D], [V, D], [N], [V] -> N tokens.
    Raises: AlignmentError if the lengths differ or an id is outside the vocabulary.
    """
    return report_on(HeadProduct(hidden, head_weight, head_bias), token_ids, request)


@torch.no_grad()
def report_on(source: LogitSource, token_ids: Tensor, request: ReportRequest) -> TokenReport:
    """Report on tokens whose logits come from `source`; the two functions above call it."""
    token_ids = token_ids.to(device=source.device, dtype=torch.int64)
    _refuse_what_does_not_fit(source, token_ids, request)
    meaning = request.meaning
    plain = not (request.statistics or request.top or request.report_ids is not None or truncates(meaning))
    if plain:
        temperature = meaning.temperature
        logprobs, top1 = stream_logprobs(source, token_ids, temperature=temperature)
        return TokenReport(logprobs=logprobs, top1=top1)
    count, vocabulary = source.shape
    chunks = list(spans(count, max(1, CHUNK // vocabulary))) or [slice(0, 0)]
    return _joined([_report_on_rows(source, rows, token_ids[rows], request) for rows in chunks])


def _report_on_rows(source: LogitSource, rows: slice, token_ids: Tensor, request: ReportRequest) -> TokenReport:
    """The report on one chunk of tokens, all of their logits in hand."""
    logits = source.block(rows, EVERYTHING)
    logp = log_softmax(scores(logits, request.meaning))
    statistics = reported_moments(logp)
    if request.statistics:
        seen = None if request.seen_ids is None else request.seen_ids[rows]
        statistics |= statistics_of(logits, token_ids, declared=request.meaning, seen_ids=seen)
    top = logp.topk(min(request.top, logp.shape[1]), dim=1) if request.top else None
    asked = None if request.report_ids is None else request.report_ids[rows].to(logp.device)
    return TokenReport(
        logprobs=logp.gather(1, token_ids[:, None])[:, 0],
        top1=logp.argmax(dim=1),
        statistics=statistics,
        top_ids=None if top is None else top.indices,
        top_logprobs=None if top is None else top.values,
        reported=None if asked is None else logp.gather(1, asked),
    )


def _joined(parts: list[TokenReport]) -> TokenReport:
    names = parts[0].statistics
    return TokenReport(
        logprobs=torch.cat([part.logprobs for part in parts]),
        top1=torch.cat([part.top1 for part in parts]),
        statistics={name: torch.cat([part.statistics[name] for part in parts]) for name in names},
        top_ids=_joined_or_none([part.top_ids for part in parts]),
        top_logprobs=_joined_or_none([part.top_logprobs for part in parts]),
        reported=_joined_or_none([part.reported for part in parts]),
    )


def _joined_or_none(parts: list[Tensor | None]) -> Tensor | None:
    present = [part for part in parts if part is not None]
    return torch.cat(present) if present else None


def _refuse_what_does_not_fit(source: LogitSource, token_ids: Tensor, request: ReportRequest) -> None:
    count, vocabulary = source.shape
    lengths = {"token ids": len(token_ids)}
    if request.report_ids is not None:
        lengths["rows of report_ids"] = len(request.report_ids)
    if request.seen_ids is not None:
        lengths["entries of seen_ids"] = len(request.seen_ids)
    for what, length in lengths.items():
        if length != count:
            raise AlignmentError(f"{length} {what} for {count} rows of logits. Pass one for each row.")
    _refuse_ids_outside(token_ids, vocabulary, "token_ids")
    if request.report_ids is not None:
        _refuse_ids_outside(request.report_ids, vocabulary, "report_ids")


def _refuse_ids_outside(ids: Tensor, vocabulary: int, what: str) -> None:
    outside = (ids < 0) | (ids >= vocabulary)
    if bool(outside.any()):
        place = outside.nonzero()[0].tolist()
        raise AlignmentError(
            f"{what}{place} is {int(ids[tuple(place)])}, and there are logits for ids 0 to {vocabulary - 1}. "
            "Check that the ids come from this model's tokenizer."
        )
