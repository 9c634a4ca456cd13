"""Stored answers of vLLM, of OpenAI's batches and of SGLang, as these servers write them."""

import json
import math

import numpy as np
import pytest

from onepolicy.dumps.answers import is_plain
from onepolicy.dumps.contract import RecordedRollout, Refusal
from onepolicy.dumps.file import DumpFile
from onepolicy.integrations.openai.dump import RESPONSES
from onepolicy.integrations.sglang.dump import SGLANG_RESPONSES
from onepolicy.records.tokens import TokenState

VALUE, MASKED, INVALID, ABSENT, *_ = TokenState
PROMPT, COMPLETION, LOGPROBS = [1, 72, 101], [13, 14, 2], [-0.25, 0.0, -1.5]


def completion(*, ids=COMPLETION, logprobs=LOGPROBS, prompt=PROMPT, index=0, named=True, **changes):
    """A choice of vLLM's /v1/completions under return_token_ids and return_tokens_as_token_ids."""
    return {
        "index": index,
        "text": " é\u2028",
        "finish_reason": "stop",
        "stop_reason": None,
        "logprobs": {
            "tokens": [f"token_id:{i}" if named else f" word{i}" for i in ids],
            "token_logprobs": logprobs,
            "top_logprobs": [{f"token_id:{i}": value} for i, value in zip(ids, logprobs, strict=False)],
            "text_offset": [0] * len(ids),
        },
        "prompt_token_ids": prompt,
        "token_ids": ids,
        "prompt_logprobs": None,
    } | changes


def answer(*choices, **changes):
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 0,
        "model": "m",
        "choices": list(choices),
        "usage": {"prompt_tokens": len(PROMPT), "completion_tokens": 3, "total_tokens": 6},
    } | changes


def chat(*, named=False, **changes):
    """An answer of /v1/chat/completions: ids of the prompt beside the choices, logprobs as a list of entries."""
    entries = [
        {"token": f"token_id:{i}" if named else "x", "logprob": value, "bytes": None, "top_logprobs": []}
        for i, value in zip(COMPLETION, LOGPROBS, strict=True)
    ]
    choice = {"index": 0, "message": {"role": "assistant", "content": "x"}, "logprobs": {"content": entries}}
    choice |= {"finish_reason": "length", "token_ids": COMPLETION}
    return answer(choice, object="chat.completion", prompt_token_ids=PROMPT) | changes


def sglang(*, ids=COMPLETION, logprobs=LOGPROBS, prompt=PROMPT, meta=None, **changes):
    return {
        "text": "x",
        "output_ids": ids,
        "meta_info": {
            "id": "a",
            "finish_reason": {"type": "stop", "matched": 2},
            "prompt_tokens": len(prompt),
            "completion_tokens": len(ids),
            "cached_tokens": 0,
            "weight_version": "v7",
            "output_token_logprobs": [[value, i, None] for value, i in zip(logprobs, ids, strict=False)],
        }
        | (meta or {}),
    } | changes


def stored(tmp_path, *lines):
    path = tmp_path / "answers.jsonl"
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    return DumpFile(path)


def rows(file, form=RESPONSES):
    assert form.recognises(file)
    assert not (SGLANG_RESPONSES if form is RESPONSES else RESPONSES).recognises(file)
    return list(form.rows(file))


def check(row, *, rollout_id, states=(VALUE, VALUE, VALUE), logprobs=LOGPROBS, prompt=PROMPT):
    assert isinstance(row, RecordedRollout), row
    assert row.rollout.rollout_id == rollout_id
    assert row.rollout.token_ids.tolist() == prompt + COMPLETION
    assert row.rollout.sampled.tolist() == row.rollout.loss_mask.tolist() == [False] * len(prompt) + [True] * 3
    assert row.rollout_logprobs.states.tolist() == [MASKED] * len(prompt) + list(states)
    expected = np.float32([math.nan] * len(prompt) + list(logprobs))
    assert np.array_equal(row.rollout_logprobs.logprobs, expected, equal_nan=True)
    assert row.trainer_logprobs is None


REQUEST = {"model": "m", "prompt": PROMPT, "temperature": 0.7, "top_p": 1, "top_k": -1, "min_p": 0.0, "seed": 3}


@pytest.mark.parametrize(
    "line",
    [
        answer(completion()),
        {"request": REQUEST, "response": answer(completion())},
        {"id": "b", "custom_id": "c-1", "response": {"status_code": 200, "body": answer(completion())}, "error": None},
        {"request": {"custom_id": "c-1", "url": "/v1/completions", "body": REQUEST}, "response": answer(completion())},
        {"request": REQUEST, "response": answer(completion(prompt=None))},
        {"request": REQUEST, "response": answer(completion(prompt=None), usage=None)},
        answer(completion(named=False)),
        answer(completion(token_ids=None)),
        chat(),
        chat(named=True),
        chat(named=True, choices=[chat(named=True)["choices"][0] | {"token_ids": None}]),
    ],
)
def test_an_answer_in_any_wrapping_is_the_rollout_side(tmp_path, line):
    (row,) = rows(stored(tmp_path, line))
    check(row, rollout_id="answers/0")


def test_the_engine_endpoint_of_vllm_names_ids_beside_logprobs(tmp_path):
    entries = [{"token_id": i, "logprob": v, "rank": 1} for i, v in zip(COMPLETION, LOGPROBS, strict=True)]
    choice = {"index": 0, "finish_reason": "stop", "logprobs": {"content": entries}, "weight_versions": [7, 7, 8]}
    line = {"request": {"token_ids": PROMPT}, "response": {"request_id": "r", "choices": [choice]}}
    (row,) = rows(stored(tmp_path, line))
    check(row, rollout_id="answers/0")
    assert row.weight_version == "7,8"


def test_the_choices_of_an_answer_share_a_prompt(tmp_path):
    a, b, c = rows(stored(tmp_path, answer(completion(), completion(index=1)), answer(completion(prompt=[1, 9, 9]))))
    check(a, rollout_id="answers/0/0")
    check(b, rollout_id="answers/0/1")
    assert a.rollout.prompt_id == b.rollout.prompt_id != c.rollout.prompt_id
    assert b.where.endswith("line 1, choice 1")


def test_the_choices_of_several_prompts_belong_to_the_prompt_in_their_order(tmp_path):
    request = REQUEST | {"prompt": [[1, 2], [3]], "n": 2}
    choices = [completion(index=i, prompt=None) for i in range(4)]
    found = rows(stored(tmp_path, {"request": request, "response": answer(*choices, usage={"prompt_tokens": 3})}))
    assert [row.rollout.token_ids.tolist() for row in found] == [[1, 2, *COMPLETION]] * 2 + [[3, *COMPLETION]] * 2


def test_null_and_sentinels_are_states(tmp_path):
    line = answer(completion(logprobs=[None, -9999.0, -1.5]))
    (row,) = rows(stored(tmp_path, line))
    check(row, rollout_id="answers/0", states=(ABSENT, INVALID, VALUE), logprobs=[math.nan, math.nan, -1.5])


def test_how_was_sampled_is_in_the_tags_if_the_request_is_there(tmp_path):
    plain = REQUEST | {"temperature": 1.0}
    lines = [{"request": request, "response": answer(completion())} for request in (REQUEST, plain, {"temperature": 1})]
    found = rows(stored(tmp_path, *lines, answer(completion())))
    assert found[0].rollout.tags["temperature"] == "0.7"
    assert [is_plain(row.rollout.tags) for row in found] == [False, True, None, None]
    assert not RESPONSES.sampled_from_reported


TEXT = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "logprobs": None}], "model": "m"}


@pytest.mark.parametrize(
    ("line", "field", "why"),
    [
        (TEXT, "prompt_token_ids", "return_token_ids"),
        (TEXT | {"prompt_token_ids": PROMPT}, "choices[0].logprobs", "Ask for it"),
        (answer(completion(token_ids=None, named=False)), "choices[0].token_ids", "return_token_ids"),
        (answer(completion(prompt=None)), "prompt_token_ids", "nothing says which ids"),
        (
            {"request": {"prompt": "text"}, "response": answer(completion(prompt=None))},
            "prompt_token_ids",
            "Record with",
        ),
        ({"request": REQUEST, "response": answer(completion(prompt=[0, *PROMPT]))}, "prompt_token_ids", "BOS"),
        (
            {"request": REQUEST, "response": answer(completion(prompt=None), usage={"prompt_tokens": 4})},
            "prompt_token_ids",
            "counts 4 prompt tokens, 3 were sent",
        ),
        (answer(completion(token_ids=[13, 14, 3])), "choices[0].token_ids", "other completion ids"),
        (answer(completion(logprobs=LOGPROBS[:2])), "choices[0].logprobs", "2 logprobs came back for 3 tokens"),
        (answer(completion(logprobs=[-1.0, "x", -1.0])), "choices[0].logprobs", "'x'"),
        (answer(completion(logprobs=[-1.0, True, -1.0])), "choices[0].logprobs", "True"),
        (answer(completion(ids=[13, 14, 2**31])), "choices[0].token_ids", ""),
        (answer(completion(ids=[13, 14, -2], named=False)), "choices[0].token_ids", "-2"),
        (
            answer(completion() | {"logprobs": {"token_logprobs": 3}}),
            "choices[0].logprobs",
            "0 logprobs came back for 3",
        ),
        (answer(completion() | {"logprobs": {"content": [3]}}), "choices[0].logprobs", "cannot be read"),
        (answer(completion() | {"logprobs": 3}), "choices[0].logprobs", "cannot be read"),
        (answer({"index": 0, "delta": {"content": "x"}}), "choices[0]", "stream"),
        (answer(), "choices", "a list of 0"),
        ({"custom_id": "c", "response": {"status_code": 429, "body": {}}, "error": None}, "response", "status 429"),
        ({"custom_id": "c", "response": None, "error": {"message": "too long"}}, "error", "too long"),
        ({"request": {}, "response": "x"}, "response", "'x' stands"),
        ({"request": REQUEST | {"prompt": [[1], [2]]}, "response": answer(completion())}, "choices", "1 for 2 prompts"),
    ],
)
def test_a_line_that_says_no_ids_or_contradicts_itself_is_refused_and_the_next_one_read(tmp_path, line, field, why):
    first, found, last = rows(stored(tmp_path, answer(completion()), line, answer(completion())))
    check(first, rollout_id="answers/0")
    check(last, rollout_id="answers/2")
    assert isinstance(found, Refusal)
    assert found.where.endswith("line 2")
    assert found.field == field
    assert why in found.why


def test_a_batch_whose_first_request_failed_is_recognised(tmp_path):
    failed = {"id": "b", "custom_id": "c", "response": None, "error": {"code": "x", "message": "too long"}}
    served = {"custom_id": "d", "response": {"status_code": 200, "body": answer(completion())}, "error": None}
    first, second = rows(stored(tmp_path, failed, served))
    assert first.field == "error"
    check(second, rollout_id="answers/1")
    assert second.rollout.tags["custom_id"] == "d"


def test_text_is_recognised_and_refused_with_what_to_record(tmp_path):
    (found,) = rows(stored(tmp_path, TEXT))
    assert "return_token_ids" in found.why


@pytest.mark.parametrize(
    "line",
    [
        sglang(prompt_token_ids=PROMPT),
        {"request": {"input_ids": PROMPT, "sampling_params": {"temperature": 0.7}}, "response": sglang()},
        {"request": {"input_ids": [PROMPT]}, "response": [sglang()]},
        sglang(meta={"input_token_logprobs": [[None, 1, None], [-1.0, 72, None], [-2.0, 101, None]]}),
        {"request": {"input_ids": PROMPT}, "response": {k: v for k, v in sglang().items() if k != "output_ids"}},
    ],
)
def test_an_answer_of_sglang_is_the_rollout_side(tmp_path, line):
    (row,) = rows(stored(tmp_path, line), SGLANG_RESPONSES)
    check(row, rollout_id="answers/0")
    assert row.weight_version == "v7"
    assert row.rollout.tags["finish_reason"] == "stop"


def test_an_answer_of_sglang_to_several_prompts_is_several_rollouts(tmp_path):
    line = {"request": {"input_ids": [PROMPT, [5, 6]]}, "response": [sglang(), sglang(prompt=[5, 6])]}
    a, b = rows(stored(tmp_path, line), SGLANG_RESPONSES)
    check(a, rollout_id="answers/0/0")
    check(b, rollout_id="answers/0/1", prompt=[5, 6])


def test_sglangs_sentinels_are_states(tmp_path):
    line = sglang(logprobs=[None, -3.4028234663852886e38, -1.5], prompt_token_ids=PROMPT)
    (row,) = rows(stored(tmp_path, line), SGLANG_RESPONSES)
    check(row, rollout_id="answers/0", states=(ABSENT, INVALID, VALUE), logprobs=[math.nan, math.nan, -1.5])


@pytest.mark.parametrize(
    ("line", "field", "why"),
    [
        (sglang(), "prompt_token_ids", "return_prompt_token_ids"),
        (
            sglang(meta={"input_token_logprobs": [[None, 0, None], [-1.0, 72, None], [-2.0, 101, None]]}),
            "prompt_token_ids",
            "nothing says",
        ),
        ({"request": {"input_ids": [0, *PROMPT]}, "response": sglang()}, "meta_info", "3 prompt tokens, 4 were sent"),
        (sglang(output_ids=[13, 14, 3], prompt_token_ids=PROMPT), "meta_info", "other completion ids"),
        (sglang(meta={"completion_tokens": 4}, prompt_token_ids=PROMPT), "meta_info", "3 logprobs came back for 4"),
        (sglang(meta={"finish_reason": {"type": "abort"}}, prompt_token_ids=PROMPT), "meta_info", "gave up"),
        (sglang(meta={"output_token_logprobs": [3]}, prompt_token_ids=PROMPT), "meta_info", "cannot be read"),
        (sglang(prompt_token_ids=[1, "72", 101]), "prompt_token_ids", "'72'"),
        ({"request": {}, "response": []}, "response", "a list of 0"),
        ({"text": "x"}, "meta_info", "no meta_info"),
    ],
)
def test_an_answer_of_sglang_that_contradicts_itself_is_refused(tmp_path, line, field, why):
    good = sglang(prompt_token_ids=PROMPT)
    first, found, last = rows(stored(tmp_path, good, line, good), SGLANG_RESPONSES)
    check(first, rollout_id="answers/0")
    check(last, rollout_id="answers/2")
    assert isinstance(found, Refusal)
    assert found.field == field
    assert why in found.why
