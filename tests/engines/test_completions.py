"""Tokens of `/v1/completions` by id, and nothing that is named by text alone."""

import numpy as np
import pytest

from onepolicy.engines.completions import first_list, ids_of, same_prompt, sampled_lists, the_choice, token_id, top_list
from onepolicy.errors import EngineError

SENT = np.asarray([5, 6], dtype=np.int32)


@pytest.mark.parametrize(
    ("spelled", "found"),
    [(7, 7), ("token_id:7", 7), ("7", None), ("token_id:", None), ("token_id:x", None), (True, None), (None, None)],
)
def test_a_token_has_an_id_only_if_it_is_spelled_as_one(spelled, found):
    assert token_id(spelled) == found


def test_a_list_with_one_text_in_it_is_no_list_of_ids():
    assert top_list({"token_id:5": -0.5, "token_id:6": -1.0}) == {5: -0.5, 6: -1.0}
    assert top_list({"token_id:5": -0.5, " a": -1.0}) == {}
    assert top_list(None) == {}


def test_one_text_among_ids_leaves_no_ids():
    with pytest.raises(EngineError, match=r"no ids of the tokens that it sampled\. Do this\."):
        ids_of("r", ["token_id:5", " a"], advice="Do this.")
    with pytest.raises(EngineError, match="no ids"):
        ids_of("r", None, advice="Do this.")


@pytest.mark.parametrize("tops", [None, [], [{"token_id:5": -1.0}] * 3])
def test_a_list_for_each_token_or_an_error(tops):
    with pytest.raises(EngineError, match="for 2 tokens"):
        sampled_lists("r", {"top_logprobs": tops}, SENT, size=1)


@pytest.mark.parametrize("answer", [{}, {"choices": []}, {"choices": [{}, {}]}, {"choices": [None]}])
def test_an_answer_without_one_choice_is_an_error(answer):
    with pytest.raises(EngineError, match="no single choice"):
        the_choice({"model": "m", **answer}, rollout_id="r", model="m")


@pytest.mark.parametrize(
    ("answer", "choice", "good"),
    [
        ({}, {"prompt_token_ids": [5, 6]}, True),
        ({"prompt_token_ids": [5, 6]}, {}, True),
        ({}, {"prompt_token_ids": [5, 7]}, False),
        ({"usage": {"prompt_tokens": 2}}, {"prompt_token_ids": [1, 5, 6]}, False),
        ({"usage": {"prompt_tokens": 2}}, {}, True),
        ({"usage": {"prompt_tokens": 3}}, {}, False),
        ({}, {}, False),
    ],
)
def test_the_prompt_is_known_by_its_ids_or_at_least_by_their_number(answer, choice, good):
    if good:
        same_prompt("r", answer, choice, sent=SENT)
    else:
        with pytest.raises(EngineError, match="BOS"):
            same_prompt("r", answer, choice, sent=SENT)


def test_what_is_measured_holds_logprobs_alone():
    entries = {"token_id:5": -0.5, " a": -1.0, "token_id:6": -9999.0, "token_id:7": None}
    assert first_list({"logprobs": {"top_logprobs": [entries]}}) == {5: -0.5, " a": -1.0}
    assert first_list({}) == {}
