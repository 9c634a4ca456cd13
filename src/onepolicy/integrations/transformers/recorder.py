"""Logprobs of sampled tokens, taken while `generate` runs, so that no step's logits are kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from onepolicy.integrations.transformers.processing import Processing
from onepolicy.logprobs.report import ReportRequest, TokenReport, report_from_logits


class StepRecorder:
    """Sees each decode step twice: the model's logits, then the tokens that were selected from them.

    The logits come from a forward hook (`catch`), before any processor of `generate` touches them; the tokens come
    from being called as a stopping criterion, which `generate` does right after selection. It never stops anything.
    """

    def __init__(self, request: ReportRequest, *, attention_mask: Tensor, processing: Processing | None = None) -> None:
        """`processing`: what logprobs, top lists and moments are after, beside the request's meaning."""
        self._request = request
        self._processing = processing
        self._prompt_mask = attention_mask.bool()
        self._logits: Tensor | None = None
        self._steps: list[TokenReport] = []

    @contextmanager
    def watching(self, model: torch.nn.Module) -> Iterator[None]:
        """See the model's logits inside."""
        hook = model.register_forward_hook(self.catch)
        try:
            yield
        finally:
            hook.remove()

    def catch(self, module: torch.nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Forward hook: remember the last position's logits, [B, V], and nothing of the others."""
        self._logits = output.logits[:, -1].detach().clone()

    def __call__(self, input_ids: Tensor, scores: object, **kwargs: object) -> Tensor:
        """Stopping criterion: report on the tokens just selected. Shape: [B, T] -> [B] of False."""
        assert self._logits is not None, "generate selected a token before the model's forward"
        request = self._request
        if request.statistics:
            request = replace(request, seen_ids=self._contexts(input_ids[:, :-1]))
        report = report_from_logits(self._logits, input_ids[:, -1], request)
        if self._processing is not None:
            report = self._processed(
                report, self._processing(input_ids[:, :-1], self._logits.float()), input_ids[:, -1]
            )
        self._steps.append(report)
        self._logits = None
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)

    def _processed(self, raw: TokenReport, logits: Tensor, token_ids: Tensor) -> TokenReport:
        """The same of processed logits, but for the statistics that are always of the raw ones."""
        top = self._request.top
        request = ReportRequest(meaning=self._request.meaning, top=max(top, 1))  # a list brings the moments with it
        report = report_from_logits(logits, token_ids, request)
        report = replace(report, statistics=raw.statistics | report.statistics)
        return report if top else replace(report, top_ids=None, top_logprobs=None)

    def _contexts(self, before: Tensor) -> list[Tensor]:
        """B tensors: what came before the selected token in each row, without padding."""
        prompt = self._prompt_mask.shape[1]
        return [
            torch.cat([row[:prompt][mask], row[prompt:]]) for row, mask in zip(before, self._prompt_mask, strict=True)
        ]

    def report(self) -> TokenReport:
        """The report of all S steps with a step axis after the batch axis: [B, S] and [B, S, K]."""
        first = self._steps[0]
        return TokenReport(
            logprobs=_stacked([step.logprobs for step in self._steps]),
            top1=_stacked([step.top1 for step in self._steps]),
            statistics={name: _stacked([step.statistics[name] for step in self._steps]) for name in first.statistics},
            top_ids=_stacked_if([step.top_ids for step in self._steps]),
            top_logprobs=_stacked_if([step.top_logprobs for step in self._steps]),
        )


def _stacked(steps: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(steps), dim=1).cpu()


def _stacked_if(steps: Sequence[Tensor | None]) -> Tensor | None:
    given = [values for values in steps if values is not None]
    return _stacked(given) if given else None
