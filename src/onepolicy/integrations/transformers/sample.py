"""Sampling through `model.generate`: the decode path with its KV cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig

from onepolicy.engines.contract import Completion, SampleInput, Wanted
from onepolicy.integrations.transformers.padding import padded
from onepolicy.integrations.transformers.quiet import quiet_transformers
from onepolicy.integrations.transformers.recorder import StepRecorder
from onepolicy.integrations.transformers.tokenizer import TextTokenizer
from onepolicy.logprobs.report import ReportRequest, TokenReport
from onepolicy.records.protocol import Meaning, SamplingProtocol
from onepolicy.records.reading import TopLists
from onepolicy.records.tokens import IntArray, TokenState, states_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampleSettings:
    """What sampling needs beside the model."""

    tokenizer: TextTokenizer | None
    stop_ids: tuple[int, ...]
    pad_id: int
    meaning: Meaning


def neutral_config(protocol: SamplingProtocol, *, stop_ids: tuple[int, ...], pad_id: int) -> GenerationConfig:
    """A generation config that does what the protocol says and nothing else.

    What is left out of a config that is given to `generate` is filled from the model's own and from Transformers'
    defaults (top_k = 50), so everything that could change the distribution is written out.
    """
    return GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=not protocol.is_greedy,
        temperature=1.0 if protocol.is_greedy else protocol.temperature,
        top_p=protocol.top_p,
        top_k=protocol.top_k,
        min_p=protocol.min_p or None,
        typical_p=1.0,
        repetition_penalty=1.0,
        no_repeat_ngram_size=0,
        min_length=0,
        max_new_tokens=protocol.max_new_tokens,
        num_beams=1,
        num_return_sequences=1,
        use_cache=True,
        eos_token_id=list(stop_ids) or None,
        pad_token_id=pad_id,
    )


def sample_batch(
    model: Any, batch: Sequence[SampleInput], protocol: SamplingProtocol, wanted: Wanted, *, settings: SampleSettings
) -> list[Completion]:
    """One completion for each prompt, sampled together."""
    prompts = padded([item.prompt_ids for item in batch], side="left", pad_id=settings.pad_id, device=model.device)
    recorder = StepRecorder(
        ReportRequest(meaning=settings.meaning, statistics=wanted.statistics, top=wanted.top),
        attention_mask=prompts.attention_mask,
    )
    with quiet_transformers(), recorder.watching(model), _seeded(batch[0].seed, model.device):
        sequences = model.generate(
            input_ids=prompts.input_ids,
            attention_mask=prompts.attention_mask,
            generation_config=neutral_config(protocol, stop_ids=settings.stop_ids, pad_id=settings.pad_id),
            stopping_criteria=[recorder],
        )
    new = sequences[:, prompts.input_ids.shape[1] :].cpu().numpy().astype(np.int32)
    report = recorder.report()
    return [_completion(item, new[row], _row_of(report, row), settings) for row, item in enumerate(batch)]


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Torch's random state from `seed` inside, as before afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _completion(item: SampleInput, new: IntArray, report: TokenReport, settings: SampleSettings) -> Completion:
    """The completion in `new` [S], which may go on with padding, and its report [S]."""
    ids, stopped_by = _until_stop(new, settings.stop_ids)
    length = len(ids)
    logprobs = report.logprobs[:length].numpy()
    states = states_of(logprobs)
    return Completion(
        rollout_id=item.rollout_id,
        token_ids=ids,
        logprobs=np.where(states == TokenState.VALUE, logprobs, np.float32(np.nan)),
        states=states,
        text=settings.tokenizer.decode(ids) if settings.tokenizer else "",
        finish_reason="length" if stopped_by is None else "stop",
        stop_reason="" if stopped_by is None else str(stopped_by),
        top1=report.top1[:length].numpy().astype(np.int32),
        statistics={name: values[:length].numpy() for name, values in report.statistics.items()},
        top=_top(report, length) if item.keep_top else None,
    )


def _until_stop(ids: IntArray, stop_ids: tuple[int, ...]) -> tuple[IntArray, int | None]:
    """The ids up to and with the first end token, and that token."""
    ends = np.flatnonzero(np.isin(ids, stop_ids))
    return (ids, None) if len(ends) == 0 else (ids[: ends[0] + 1], int(ids[ends[0]]))


def _row_of(report: TokenReport, row: int) -> TokenReport:
    """[B, S] -> [S]."""
    return TokenReport(
        logprobs=report.logprobs[row],
        top1=report.top1[row],
        statistics={name: values[row] for name, values in report.statistics.items()},
        top_ids=None if report.top_ids is None else report.top_ids[row],
        top_logprobs=None if report.top_logprobs is None else report.top_logprobs[row],
    )


def _top(report: TokenReport, length: int) -> TopLists | None:
    if report.top_ids is None or report.top_logprobs is None:
        return None
    return TopLists(
        positions=np.arange(length, dtype=np.int32),
        ids=report.top_ids[:length].numpy().astype(np.int32),
        logprobs=report.top_logprobs[:length].numpy(),
    )
