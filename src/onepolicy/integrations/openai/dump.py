"""Stored answers of `/v1/completions`, `/v1/chat/completions` and vLLM's `/inference/v1/generate`: the rollout side.

* Each choice is a rollout; the choices of one answer share their prompt. Logprobs are over the completion.
* Ids of the completion come from `token_ids` (`return_token_ids`), from tokens spelled `token_id:N`
  (`return_tokens_as_token_ids`), or from `logprobs.content[].token_id`; where two of them are there they must agree.
  Text does not say which tokens it was made of: a choice without ids is refused.
* Ids of the prompt come from `prompt_token_ids`, or from a stored request whose prompt is ids; both must agree.
* null is ABSENT; -9999.0 (vLLM's minus infinity and, in chat, a token without a logprob) and NaN are INVALID; 0.0 is a
  value.
* vLLM's logprobs are raw unless it runs with processed_logprobs, and the answer does not say: whether the tokens were
  drawn from the distribution that they belong to is known only where the stored request changes nothing (temperature 1,
  top_p 1, top_k off, min_p 0; the tags say it).
* float32, as JSON prints it.

Source: vllm-project/vllm:vllm/entrypoints/openai/completion/serving.py and .../chat_completion/serving.py, 0.32;
OpenAI's API reference for completions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from onepolicy.dumps.answers import Sampled, Stored, contradicting, first_answer, recorded, unwrapped
from onepolicy.dumps.contract import Format, RecordedRollout, Refusal
from onepolicy.dumps.fields import FieldError, refusing, shown, token_ids
from onepolicy.engines.columns import column
from onepolicy.engines.completions import same_prompt
from onepolicy.integrations.openai.answer import sampled_ids
from onepolicy.records.tokens import IntArray

if TYPE_CHECKING:
    from onepolicy.dumps.file import DumpFile

Json = Mapping[str, Any]
_BATCH = {"custom_id", "response", "error"}
_HOW = (
    "Record with return_token_ids: true (vLLM), or store each line as "
    '{"request": ..., "response": ...} with the prompt as ids'
)


def recognises(file: DumpFile) -> bool:
    """By the choices of the first answer, or what a batch's output is wrapped in."""
    line = file.first() or {}
    if line.keys() >= _BATCH:
        return True
    choices = first_answer(line).get("choices")
    return isinstance(choices, list) and bool(choices) and all(isinstance(choice, dict) for choice in choices)


def rows(file: DumpFile) -> Iterator[RecordedRollout | Refusal]:
    """One rollout for each choice. Raises: DumpError if a line is no JSON object."""
    for row, where, line in file.numbered_objects():
        found = refusing(where, partial(_choices, line))
        if isinstance(found, Refusal):
            yield found
            continue
        stored, choices = found
        for at in range(len(choices)):
            own, place = ("", "") if len(choices) == 1 else (f"/{at}", f", choice {at}")
            build = partial(_rollout, stored, choices, at, where=where + place, rollout_id=f"{file.label}/{row}{own}")
            yield refusing(where + place, build)


RESPONSES = Format(
    name="responses",
    title="answers of /v1/completions or /v1/chat/completions, one to a line (vLLM, OpenAI's batch output, others)",
    recognises=recognises,
    rows=rows,
    sampled_from_reported=False,
    trainer="absent",
    notes=("the answers do not say whether their logprobs are raw or after temperature and truncation",),
)


def _choices(line: Json) -> tuple[Stored, Sequence[Json]]:
    stored = unwrapped(line)
    choices = stored.answer.get("choices") if isinstance(stored.answer, dict) else None
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, dict) for choice in choices):
        raise FieldError("choices", f"{shown(choices)} stands where the choices of an answer belong")
    return stored, choices


def _rollout(stored: Stored, choices: Sequence[Json], at: int, *, where: str, rollout_id: str) -> RecordedRollout:
    return recorded(stored, _sampled(stored, choices, at, rollout_id), where=where, rollout_id=rollout_id)


def _sampled(stored: Stored, choices: Sequence[Json], at: int, rollout_id: str) -> Sampled:
    choice = choices[at]
    name = f"choices[{at}]"
    if "delta" in choice:
        raise FieldError(name, "is a piece of a stream. Store whole answers (stream: false)")
    prompt_ids = _prompt(stored, choices, at, rollout_id)
    with contradicting(f"{name}.logprobs", rollout_id):
        listed = _listed(choice)
    if listed is None:
        raise FieldError(f"{name}.logprobs", "is not there. Ask for it: logprobs: 0, or in chat logprobs: true")
    with contradicting(f"{name}.token_ids", rollout_id):
        ids = sampled_ids(rollout_id, {"token_ids": choice.get("token_ids"), "logprobs": listed})
        ids = token_ids(f"{name}.token_ids", ids.tolist())
    with contradicting(f"{name}.logprobs", rollout_id):
        logprobs, states = column(rollout_id, listed["token_logprobs"], length=len(ids))
    return Sampled(
        prompt_ids=prompt_ids,
        token_ids=ids,
        logprobs=logprobs,
        states=states,
        weight_version=_versions(choice.get("weight_versions")),
        finish_reason=str(choice.get("finish_reason") or ""),
    )


def _listed(choice: Json) -> Json | None:
    """The logprobs of a choice as completions list them: `tokens` and `token_logprobs`."""
    listed = choice.get("logprobs")
    if listed is None or "content" not in listed:
        return listed if listed is None or "token_logprobs" in listed else None
    entries = listed["content"]
    if entries is None:
        return None
    return {
        "tokens": [entry.get("token_id", entry.get("token")) for entry in entries],
        "token_logprobs": [entry.get("logprob") for entry in entries],
    }


def _prompt(stored: Stored, choices: Sequence[Json], at: int, rollout_id: str) -> IntArray:
    """Ids of the prompt, as the answer or the request says. Raises: FieldError if neither does, or they differ."""
    told = choices[at].get("prompt_token_ids")
    told = stored.answer.get("prompt_token_ids") if told is None else told
    several, sent = _sent(stored.request, at, len(choices))
    if sent is None and told is None:
        raise FieldError("prompt_token_ids", f"nothing says which ids the prompt was. {_HOW}")
    if sent is None:
        return token_ids("prompt_token_ids", told)
    ids = token_ids("request.prompt", sent)
    if told is not None or (not several and _counted(stored.answer)):
        with contradicting("prompt_token_ids", rollout_id):
            same_prompt(rollout_id, {**stored.answer, "prompt_token_ids": told}, {}, sent=ids)
    return ids


def _counted(answer: Json) -> bool:
    usage = answer.get("usage")
    return isinstance(usage, dict) and usage.get("prompt_tokens") is not None


def _sent(request: Json, at: int, choices: int) -> tuple[bool, list[int] | None]:
    """(whether the request had several prompts, the ids of the one of choice `at`; None if it was text)."""
    prompt = request.get("prompt", request.get("token_ids"))
    if not isinstance(prompt, list) or not prompt:
        return False, None
    if not isinstance(prompt[0], list):
        return False, prompt if type(prompt[0]) is int else None
    if choices % len(prompt):
        raise FieldError("choices", f"are {choices} for {len(prompt)} prompts of the stored request")
    return len(prompt) > 1, prompt[at // (choices // len(prompt))]


def _versions(given: Any) -> str:
    """The weight versions of a completion: "7", or "7,8" if they changed on the way."""
    if given is None:
        return ""
    return ",".join(dict.fromkeys(map(str, given if isinstance(given, list) else [given])))
