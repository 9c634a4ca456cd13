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
from onepolicy.errors import EngineError
from onepolicy.integrations.transformers.padding import padded
from onepolicy.integrations.transformers.processing import Processing
from onepolicy.integrations.transformers.quiet import quiet_transformers
from onepolicy.integrations.transformers.recorder import StepRecorder
from onepolicy.integrations.transformers.stopping import StopTexts
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
    """the model's own end tokens"""
    pad_id: int
    meaning: Meaning

    def end_ids(self, protocol: SamplingProtocol) -> tuple[int, ...]:
        """Every token that ends a completion."""
        return () if protocol.ignore_eos else tuple(dict.fromkeys((*self.stop_ids, *protocol.stop_token_ids)))


def neutral_config(protocol: SamplingProtocol, *, stop_ids: tuple[int, ...], pad_id: int) -> GenerationConfig:
    """A generation config that does what the protocol says and nothing else.

    What is left out of a config that is given to `generate` is filled from the model's own and from Transformers'
    defaults (top_k = 50), so everything that could change the distribution is written out. A repetition penalty and a
    least length are `Processing`'s, stop strings `StopTexts`'s.
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
        use_cache=protocol.use_cache,
        eos_token_id=list(stop_ids) or None,
        pad_token_id=pad_id,
    )


def sample_batch(
    model: Any, batch: Sequence[SampleInput], protocol: SamplingProtocol, wanted: Wanted, *, settings: SampleSettings
) -> list[Completion]:
    """One completion for each prompt, sampled together. Raises: EngineError for stop strings without a tokenizer."""
    ends = settings.end_ids(protocol)
    prompts = padded([item.prompt_ids for item in batch], side="left", pad_id=settings.pad_id, device=model.device)
    processing = Processing(protocol, end_ids=ends, attention_mask=prompts.attention_mask)
    stops = _stop_texts(protocol, settings, prompt_length=prompts.input_ids.shape[1])
    recorder = StepRecorder(
        ReportRequest(
            meaning=settings.meaning.model_copy(update={"beyond": ()}), statistics=wanted.statistics, top=wanted.top
        ),
        attention_mask=prompts.attention_mask,
        processing=processing if processing.acts and settings.meaning.beyond else None,
    )
    with quiet_transformers(), recorder.watching(model), _seeded(batch[0].seed, model.device):
        sequences = model.generate(
            input_ids=prompts.input_ids,
            attention_mask=prompts.attention_mask,
            generation_config=neutral_config(protocol, stop_ids=ends, pad_id=settings.pad_id),
            logits_processor=[processing] if processing.acts else [],
            stopping_criteria=[recorder, *([stops] if protocol.stop else [])],
        )
    new = sequences[:, prompts.input_ids.shape[1] :].cpu().numpy().astype(np.int32)
    report = recorder.report()
    ended = [_ended(new[row], ends, stops.ended.get(row)) for row in range(len(batch))]
    return [_completion(item, ended[row], _row_of(report, row), settings) for row, item in enumerate(batch)]


def _stop_texts(protocol: SamplingProtocol, settings: SampleSettings, *, prompt_length: int) -> StopTexts:
    tokenizer = settings.tokenizer
    if protocol.stop and tokenizer is None:
        raise EngineError(
            f"stop = {list(protocol.stop)}: the model has no tokenizer, so no text is seen in its completions. Save "
            "the model's tokenizer in its folder, or give stop_token_ids."
        )

    def decode(ids: list[int]) -> str:
        return "" if tokenizer is None else tokenizer.decode(np.asarray(ids, dtype=np.int32))

    return StopTexts(protocol.stop, decode, prompt_length=prompt_length, least=protocol.min_new_tokens)


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Torch's random state from `seed` inside, as before afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Ended:
    """A completion up to its end."""

    ids: IntArray
    stopped_by: str | None
    """an id or a stop string; None for the longest length"""


def _completion(item: SampleInput, ended: _Ended, report: TokenReport, settings: SampleSettings) -> Completion:
    """A completion and its report, which may go on with padding."""
    ids, stopped_by = ended.ids, ended.stopped_by
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
        stop_reason=stopped_by or "",
        top1=report.top1[:length].numpy().astype(np.int32),
        statistics={name: values[:length].numpy() for name, values in report.statistics.items()},
        top=_top(report, length) if item.keep_top else None,
    )


def _ended(ids: IntArray, end_ids: tuple[int, ...], text: tuple[int, str] | None) -> _Ended:
    """The ids [S] up to and with the first end token, or the token that completes a stop string."""
    ends = np.flatnonzero(np.isin(ids, end_ids))
    by_id = int(ends[0]) + 1 if len(ends) else None
    if by_id is not None and (text is None or by_id <= text[0]):
        return _Ended(ids=ids[:by_id], stopped_by=str(ids[by_id - 1]))
    return _Ended(ids=ids, stopped_by=None) if text is None else _Ended(ids=ids[: text[0]], stopped_by=text[1])


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
