"""Answers of servers that were stored, one to a line: out of what they were wrapped in, and as rollouts.

A line is the answer itself, `{"request": {...}, "response": {...}}`, or a line of a batch's output
(`{"custom_id": ..., "response": {"status_code": 200, "body": {...}}, "error": null}`).
Source of the last: OpenAI's batch API, which vLLM's `run_batch` writes too (vllm-project/vllm:vllm/entrypoints/openai/
run_batch.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from onepolicy.dumps.contract import Column, RecordedRollout
from onepolicy.dumps.fields import FieldError, shown
from onepolicy.errors import AlignmentError, EngineError
from onepolicy.records.rollout import Rollout
from onepolicy.records.tokens import Float32, IntArray, StateArray, TokenState, digest_of_ids

Json = Mapping[str, Any]
SAMPLING = ("temperature", "top_p", "top_k", "min_p")
_CHANGES_NOTHING = {"temperature": (1.0,), "top_p": (1.0,), "top_k": (0, -1), "min_p": (0.0,)}
_SERVED = 200


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stored:
    """One line: an answer, and the request if it was stored too."""

    answer: Any
    """an object, or a list of them"""
    request: Json
    """empty if it was not stored"""
    custom_id: str = ""

    @property
    def tags(self) -> dict[str, str]:
        """What the line says of the request: its name, and how was sampled."""
        sampling = self.request.get("sampling_params")
        fields = sampling if isinstance(sampling, dict) else self.request
        told = {name: str(fields[name]) for name in SAMPLING if type(fields.get(name)) in (int, float)}
        return {**({"custom_id": self.custom_id} if self.custom_id else {}), **told}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sampled:
    """One completion of a stored answer. Arrays are over its C tokens."""

    prompt_ids: IntArray
    token_ids: IntArray
    logprobs: Float32
    states: StateArray
    weight_version: str = ""
    finish_reason: str = ""


def unwrapped(line: Json) -> Stored:
    """The answer in a line. Raises: FieldError if the server gave none."""
    if line.get("error") is not None:
        raise FieldError("error", f"the server gave no answer: {_message(line['error'])}")
    answer = line.get("response", line)
    request = line.get("request")
    if isinstance(answer, dict) and "body" in answer and "status_code" in answer:
        if answer["status_code"] != _SERVED:
            raise FieldError("response", f"the server gave no answer: status {answer['status_code']}")
        answer = answer["body"]
    if isinstance(request, dict) and isinstance(request.get("body"), dict):
        request = request["body"]
    if not isinstance(answer, dict | list):
        raise FieldError("response", f"{shown(answer)} stands where the server's answer belongs")
    return Stored(
        answer=answer,
        request=request if isinstance(request, dict) else {},
        custom_id=str(line.get("custom_id") or ""),
    )


def first_answer(line: Json | None) -> Json:
    """The first answer in a line, for recognition; empty if there is none."""
    try:
        answer = unwrapped(line or {}).answer
    except FieldError:
        return {}
    first = answer[0] if isinstance(answer, list) and answer else answer
    return first if isinstance(first, dict) else {}


def is_plain(tags: Mapping[str, str]) -> bool | None:
    """Whether tokens were drawn from the model's own distribution, by a rollout's tags; None if they do not say.

    Then raw and processed logprobs are the same ones. A field that the request left out is the server's default, which
    the line does not say.
    """
    if any(name in tags and float(tags[name]) not in _CHANGES_NOTHING[name] for name in SAMPLING):
        return False
    return True if all(name in tags for name in SAMPLING) else None


def recorded(stored: Stored, sampled: Sampled, *, where: str, rollout_id: str) -> RecordedRollout:
    """A completion after its prompt as a rollout with the rollout side alone."""
    prompt, completion = len(sampled.prompt_ids), len(sampled.token_ids)
    token_ids = np.concatenate([sampled.prompt_ids, sampled.token_ids]).astype(np.int32)
    mask = np.arange(prompt + completion) >= prompt
    before = np.full(prompt, TokenState.MASKED, dtype=np.uint8)
    return RecordedRollout(
        where=where,
        rollout=Rollout(
            rollout_id=rollout_id,
            prompt_id=digest_of_ids(sampled.prompt_ids),
            trajectory_id=rollout_id,
            token_ids=token_ids,
            sampled=mask,
            loss_mask=mask,
            tags=stored.tags | ({"finish_reason": sampled.finish_reason} if sampled.finish_reason else {}),
        ),
        rollout_logprobs=Column(
            logprobs=np.concatenate([np.full(prompt, np.nan), sampled.logprobs]).astype(np.float32),
            states=np.concatenate([before, sampled.states]),
        ),
        trainer_logprobs=None,
        weight_version=sampled.weight_version,
    )


@contextmanager
def contradicting(field: str, rollout_id: str) -> Iterator[None]:
    """Turn what a decoder of live answers says of a stored one into a FieldError: a file may hold anything."""
    try:
        yield
    except (EngineError, AlignmentError) as error:
        raise FieldError(field, str(error).removeprefix(f"rollout {rollout_id}: ")) from error
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        told = " ".join(str(error).split())[:200]
        raise FieldError(field, f"has a form that cannot be read ({type(error).__name__}: {told})") from error


def _message(error: Any) -> str:
    told = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(told).split())[:200]
