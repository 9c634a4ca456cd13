"""Sampling through `model.generate`: the decode path with its KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

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
    sampling = (
        {}
        if protocol.is_greedy
        else {
            "temperature": protocol.temperature,
            "top_p": protocol.top_p,
            "top_k": protocol.top_k,
            "min_p": protocol.min_p or None,
        }
    )
    return GenerationConfig(
        do_sample=not protocol.is_greedy,
        max_new_tokens=protocol.max_new_tokens,
        min_length=0,
        num_beams=1,
        num_return_sequences=1,
        use_cache=True,
        repetition_penalty=1.0,
        no_repeat_ngram_size=0,
        eos_token_id=list(stop_ids) or None,
        pad_token_id=pad_id,
        **({"top_k": 0, "top_p": 1.0, "temperature": 1.0} | {"typical_p": 1.0} | sampling),
    )


def sample_batch(
    model: PreTrainedModel,
    batch: Sequence[SampleInput],
    protocol: SamplingProtocol,
    wanted: Wanted,
    settings: SampleSettings,
) -> list[Completion]:
    """One completion for each prompt, sampled together."""
    prompts = padded([item.prompt_ids for item in batch], side="left", pad_id=settings.pad_id, device=model.device)
    recorder = StepRecorder(
        ReportRequest(meaning=settings.meaning, statistics=wanted.statistics, top=wanted.top),
        attention_mask=prompts.attention_mask,
    )
    config = neutral_config(protocol, stop_ids=settings.stop_ids, pad_id=settings.pad_id)
    # the criterion also runs when generate appends to its own, and only the model's own forward has logits
    hook = model.register_forward_hook(recorder.catch)
    try:
        with quiet_transformers(), torch.random.fork_rng(devices=_cuda_devices(model)):
            torch.manual_seed(batch[0].seed)
            sequences = model.generate(
                input_ids=prompts.input_ids,
                attention_mask=prompts.attention_mask,
                generation_config=config,
                stopping_criteria=[recorder],
            )
    finally:
        hook.remove()
    new = sequences[:, prompts.input_ids.shape[1] :].cpu()
    report = recorder.report()
    return [_completion(item, new[row], row, report, wanted, settings) for row, item in enumerate(batch)]


def _cuda_devices(model: PreTrainedModel) -> list[torch.device]:
    return [model.device] if model.device.type == "cuda" else []


def _completion(
    item: SampleInput, new: Tensor, row: int, report: TokenReport, wanted: Wanted, settings: SampleSettings
) -> Completion:
    ids, stopped_by = _until_stop(new.numpy().astype(np.int32), settings.stop_ids)
    here = (row, slice(len(ids)))
    logprobs = report.logprobs[here].float().numpy()
    states = states_of(logprobs)
    return Completion(
        rollout_id=item.rollout_id,
        token_ids=ids,
        logprobs=np.where(states == TokenState.VALUE, logprobs, np.nan).astype(np.float32),
        states=states,
        text=settings.tokenizer.decode(ids) if settings.tokenizer else "",
        finish_reason="length" if stopped_by is None else "stop",
        stop_reason="" if stopped_by is None else str(stopped_by),
        top1=report.top1[here].numpy().astype(np.int32),
        statistics={name: values[here].float().numpy() for name, values in report.statistics.items()},
        top=_top(report, here) if wanted.top and item.keep_top else None,
    )


def _until_stop(ids: IntArray, stop_ids: tuple[int, ...]) -> tuple[IntArray, int | None]:
    """The ids up to and with the first end token, and that token."""
    ends = np.flatnonzero(np.isin(ids, stop_ids))
    return (ids, None) if len(ends) == 0 else (ids[: ends[0] + 1], int(ids[ends[0]]))


def _top(report: TokenReport, here: tuple[int, slice]) -> TopLists | None:
    if report.top_ids is None or report.top_logprobs is None:
        return None
    ids = report.top_ids[here].numpy().astype(np.int32)
    return TopLists(
        positions=np.arange(len(ids), dtype=np.int32),
        ids=ids,
        logprobs=report.top_logprobs[here].float().numpy(),
    )
