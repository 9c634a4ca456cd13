"""Stored answers of SGLang's `/generate`: one side, the rollout's.

* `meta_info.output_token_logprobs` lists [logprob, id, text] for each sampled token; `output_ids`, where they are
  there, must be the same ids. An answer to several prompts is a list of such objects, each of them a rollout.
* Ids of the prompt come from `prompt_token_ids` (0.5.13 or later), from a stored request's `input_ids`, or from
  `input_token_logprobs` recorded from position 0 on. SGLang writes 0 there for the last id of the vocabulary, so a list
  with a 0 is not used.
* null (NaN) is ABSENT; the lowest float32 (minus infinity) is INVALID; 0.0 is a value.
* Logprobs are after temperature, not after top_p, top_k and min_p, unless the server runs with
  SGLANG_RETURN_ORIGINAL_LOGPROB: whether the tokens were drawn from the distribution that they belong to is known only
  where the stored request truncates nothing; the tags say it.

Source: sgl-project/sglang:python/sglang/srt/managers/tokenizer_manager.py and scheduler_output_processor_mixin.py, 0.5.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from onepolicy.dumps.answers import Sampled, Stored, contradicting, first_answer, recorded, unwrapped
from onepolicy.dumps.contract import Format, RecordedRollout, Refusal
from onepolicy.dumps.fields import FieldError, refusing, shown, token_ids
from onepolicy.engines.contract import SampleInput, Wanted
from onepolicy.integrations.sglang.answer import completion_of
from onepolicy.records.tokens import IntArray

if TYPE_CHECKING:
    from onepolicy.dumps.file import DumpFile

Json = Mapping[str, Any]


def recognises(file: DumpFile) -> bool:
    """By the `meta_info` of the first answer."""
    return isinstance(first_answer(file.first()).get("meta_info"), dict)


def rows(file: DumpFile) -> Iterator[RecordedRollout | Refusal]:
    """One rollout for each prompt and sample. Raises: DumpError if a line is no JSON object."""
    for row, where, line in file.numbered_objects():
        found = refusing(where, partial(_answers, line))
        if isinstance(found, Refusal):
            yield found
            continue
        stored, answers = found
        for at in range(len(answers)):
            own, place = ("", "") if len(answers) == 1 else (f"/{at}", f", answer {at}")
            build = partial(_rollout, stored, answers, at, where=where + place, rollout_id=f"{file.label}/{row}{own}")
            yield refusing(where + place, build)


SGLANG_RESPONSES = Format(
    name="sglang-responses",
    title="answers of SGLang's /generate, one to a line",
    recognises=recognises,
    rows=rows,
    sampled_from_reported=False,
    trainer="absent",
    notes=("the logprobs are after temperature and not after top_p, top_k and min_p",),
)


def _answers(line: Json) -> tuple[Stored, Sequence[Json]]:
    stored = unwrapped(line)
    answers = stored.answer if isinstance(stored.answer, list) else [stored.answer]
    if not answers or not all(isinstance(answer, dict) for answer in answers):
        raise FieldError("response", f"{shown(stored.answer)} stands where an answer with meta_info belongs")
    return stored, answers


def _rollout(stored: Stored, answers: Sequence[Json], at: int, *, where: str, rollout_id: str) -> RecordedRollout:
    sent = _sent(stored.request, at, len(answers))
    return recorded(stored, _sampled(answers[at], sent, rollout_id), where=where, rollout_id=rollout_id)


def _sampled(answer: Json, sent: Any, rollout_id: str) -> Sampled:
    with contradicting("meta_info", rollout_id):
        item = SampleInput(rollout_id=rollout_id, prompt_ids=_prompt(answer, sent), seed=0)
        completion = completion_of(item, answer, Wanted())
    return Sampled(
        prompt_ids=item.prompt_ids,
        token_ids=token_ids("meta_info.output_token_logprobs", completion.token_ids.tolist()),
        logprobs=completion.logprobs,
        states=completion.states,
        weight_version=completion.weight_version,
        finish_reason=completion.finish_reason,
    )


def _prompt(answer: Json, sent: Any) -> IntArray:
    """Ids of the prompt, as the request or the answer says. Raises: FieldError if neither does."""
    if sent is not None:
        return token_ids("request.input_ids", sent)
    if answer.get("prompt_token_ids") is not None:
        return token_ids("prompt_token_ids", answer["prompt_token_ids"])
    meta = answer.get("meta_info")
    if not isinstance(meta, dict):
        raise FieldError("meta_info", "no meta_info is there; this is no answer of /generate")
    echoed = [entry[1] for entry in meta.get("input_token_logprobs") or []]
    if echoed and len(echoed) == meta.get("prompt_tokens") and 0 not in echoed:
        return token_ids("meta_info.input_token_logprobs", echoed)
    raise FieldError(
        "prompt_token_ids",
        "nothing says which ids the prompt was. Record with return_prompt_token_ids: true (SGLang 0.5.13 or later), or "
        'store each line as {"request": ..., "response": ...} with input_ids',
    )


def _sent(request: Json, at: int, answers: int) -> Any:
    """The ids that answer `at` belongs to, as the stored request has them; None if it has none."""
    given = request.get("input_ids")
    if not isinstance(given, list) or not given or not isinstance(given[0], list):
        return given
    return given[at // (answers // len(given))] if answers % len(given) == 0 else None
