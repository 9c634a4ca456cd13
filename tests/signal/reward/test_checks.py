import numpy as np
import pytest

from onepolicy.engines.http import StatusError
from onepolicy.errors import EngineError, UsageError
from onepolicy.judgement.decide import decide
from onepolicy.records.verdict import Status
from onepolicy.signal.reward.check import CHECKS, checked
from onepolicy.signal.reward.pairs import load_pairs
from onepolicy.signal.reward.response_swap import _preference

NEED_A_MODEL = ("own_tokenizer", "two_loads", "padding", "precision")


def failing(found):
    return {name for name, one in found.items() if one.status is Status.FAIL and one.required}


def as_bfloat16(score):
    return float(np.float32(score).view(np.uint32).__and__(0xFFFF0000).view(np.float32))


def test_a_sound_function_passes_and_what_needs_a_model_is_said_not_to_be_checked(function, verdicts):
    found = verdicts(function())
    assert len(found) == len(CHECKS)
    assert decide(list(found.values())) is Status.PASS
    for name in NEED_A_MODEL:
        assert found[name].status is Status.UNKNOWN
        assert not found[name].required
        assert found[name].message.startswith("not checked: ")


def test_a_score_of_the_prompt_alone_fails_the_swap_of_the_response(function, plain, verdicts):
    found = verdicts(function(lambda one: plain(one[:-1])))
    assert {"response_swap", "reads_end"} <= failing(found)
    assert found["response_swap"].value == 12
    assert "12 of 12 pairs have one score" in found["response_swap"].message


def test_a_score_that_reads_only_the_first_turns_answer_fails_on_the_pairs_of_several_turns(function, plain, verdicts):
    found = verdicts(function(lambda one: plain(one[:2])))
    assert "response_swap" in failing(found)
    assert found["response_swap"].value == 4
    assert {one.rollout_id for one in found["response_swap"].evidence} >= {"en-turns-boil", "es-turns-week"}


def test_a_score_of_the_beginning_of_the_answer_does_not_read_its_end(function, plain, verdicts):
    def beginning(one):
        return plain([*one[:-1], {"content": one[-1]["content"][: len(one[-1]["content"]) // 2]}])

    def of_head(one):
        return plain([*one[:-1], {"content": one[-1]["content"][:12]}])

    assert "reads_end" in failing(verdicts(function(of_head)))
    assert "reads_end" not in failing(verdicts(function(beginning))), "half of a shorter answer is another text"


def test_a_scorer_that_gives_every_answer_one_score_is_unknown_as_the_pairs_may_be_none_of_its_business(
    function, verdicts
):
    found = verdicts(function(lambda one: 3.0))
    assert failing(found) == set()
    assert decide(list(found.values())) is Status.UNKNOWN
    assert "Give pairs that it should tell apart" in found["response_swap"].message


def test_a_judge_of_whole_numbers_whose_pairs_all_tie_fails(function, plain, verdicts):
    assert "response_swap" in failing(verdicts(function(lambda one: round(plain(one[:-1])))))


def test_an_output_that_there_is_not_is_a_mistake(function, subject):
    with pytest.raises(UsageError, match="has no output 1; it has 1"):
        subject(function(label=1))


def test_a_judge_of_whole_numbers_may_tie(function, plain, verdicts):
    found = verdicts(function(lambda one: round(plain(one))))
    assert "response_swap" not in failing(found)
    assert "float32_scores" not in failing(found)
    assert "have one score (scores take few values)" in found["response_swap"].message


def test_a_score_that_differs_when_asked_again_fails(function, plain, verdicts):
    rng = np.random.default_rng(0)
    found = verdicts(function(lambda one: plain(one) + rng.normal()))
    assert "repeats" in failing(found)
    assert "24 of 24 scores change" in found["repeats"].message


def test_a_score_that_moves_with_its_neighbours_fails(function, plain, verdicts):
    class Batched(function):
        def score(self, conversations):
            longest = max(len(str(one)) for one in conversations)
            padding = np.array([[longest - len(str(one))] for one in conversations])
            return super().score(conversations) + 0.001 * padding

    found = verdicts(Batched())
    assert "neighbours" in failing(found)
    assert found["neighbours"].value > 0.01


def test_a_score_that_depends_on_the_place_in_the_batch_fails(function, verdicts):
    class ByPlace(function):
        def score(self, conversations):
            return super().score(conversations) + 0.1 * np.arange(len(conversations))[:, None]

    assert "neighbours" in failing(verdicts(ByPlace()))


@pytest.mark.parametrize("dtype", ["float32", "unknown"])
def test_the_jitter_of_16_bits_fails_only_where_float32_is_claimed(function, plain, verdicts, dtype):
    class Jitters(function):
        def score(self, conversations):
            return super().score(conversations) * (1 + 0.02 * (len(conversations) > 1))

    assert ("neighbours" in failing(verdicts(Jitters(dtype=dtype)))) is (dtype == "float32")


def test_several_outputs_fail_until_one_is_named(function, plain, verdicts):
    def two(one):
        return [plain(one), -plain(one)]

    assert "scalar_head" in failing(verdicts(function(two)))
    assert "scalar_head" not in failing(verdicts(function(two, label=1)))


def test_a_length_meter_fails_with_an_interval_above_the_limit(function, verdicts):
    found = verdicts(function(lambda one: np.log2(len(one[-1]["content"]))))
    slope = found["length_slope"]
    assert "length_slope" in failing(found)
    assert slope.limit < slope.low < slope.value < slope.high
    assert "the score measures length" in slope.message


def test_a_score_that_dislikes_empty_words_passes_the_length_slope(function, verdicts):
    found = verdicts(function(lambda one: -np.log2(len(one[-1]["content"])) + 0.01 * len(str(one[0]["content"]))))
    assert found["length_slope"].status is Status.PASS


def test_a_slope_that_pairs_do_not_settle_is_unknown_and_no_pass(function, plain, verdicts):
    found = verdicts(function(plain))["length_slope"]
    assert (found.status, found.required) == (Status.UNKNOWN, False)
    assert found.low < found.limit < found.high
    assert "the interval holds the limit" in found.message


def test_scores_rounded_to_16_bits_fail_if_the_steps_are_wide_against_the_spread(function, plain, verdicts):
    narrow = verdicts(function(lambda one: as_bfloat16(20.0 + plain(one) / 4)))
    wide = verdicts(function(lambda one: as_bfloat16(2.125 + plain(one))))
    assert "float32_scores" in failing(narrow)
    assert wide["float32_scores"].status is Status.PASS
    assert "bfloat16 number" in wide["float32_scores"].message


def test_nan_scores_end_it_with_one_verdict(function, plain, verdicts):
    found = verdicts(function(lambda one: np.nan if "43" in one[-1]["content"] else plain(one)))
    assert list(found) == ["finite_scores"]
    assert found["finite_scores"].status is Status.FAIL
    assert found["finite_scores"].evidence[0].rollout_id == "en-sum"


def test_a_server_that_cuts_the_end_off_fails_and_one_that_refuses_passes(function, plain, verdicts):
    def cut(one):
        return plain([*one[:-1], {"content": one[-1]["content"][:2000]}])

    def refuses(one):
        if len(one[-1]["content"]) > 2000:
            raise StatusError("status 400", status=400, said="the text is too long")
        return plain(one)

    assert "truncation_side" in failing(verdicts(function(cut, max_length=2000)))
    assert verdicts(function(refuses, max_length=2000))["truncation_side"].status is Status.PASS
    assert verdicts(function(max_length=2000))["truncation_side"].status is Status.PASS
    assert verdicts(function())["truncation_side"].status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (StatusError("x", status=400, said="maximum context length is 512 tokens"), Status.PASS),
        (StatusError("x", status=400, said="KeyError: 'messages'"), Status.UNKNOWN),
        (StatusError("x", status=401, said="a bad tokenization"), Status.UNKNOWN),
        (StatusError("x", status=429, said="too many tokens per minute"), Status.UNKNOWN),
        (StatusError("x", status=500, said="too long"), Status.UNKNOWN),
        (EngineError("http://host/tokens: no answer"), Status.UNKNOWN),
    ],
)
def test_only_a_refusal_that_names_the_length_is_one(function, plain, verdicts, error, status):
    def refuses(one):
        if len(one[-1]["content"]) > 2000:
            raise error
        return plain(one)

    found = verdicts(function(refuses, max_length=2000))["truncation_side"]
    assert (found.status, found.required) == (status, True)


class Breaks:
    """A scorer whose call of a number, counted from 0, goes wrong."""

    def __init__(self, scorer, at, breaks):
        self.info, self._score, self._at, self._breaks, self.calls = scorer.info, scorer.score, at, breaks, 0

    def score(self, conversations):
        self.calls += 1
        found = self._score(conversations)
        return self._breaks(found) if self.calls - 1 == self._at else found


def nan_in(scores):
    return np.where(np.arange(len(scores))[:, None] == len(scores) - 1, np.nan, scores)


def failing_call(scores):
    raise EngineError("CUDA out of memory")


@pytest.mark.parametrize(("breaks", "status"), [(nan_in, Status.FAIL), (failing_call, Status.UNKNOWN)])
def test_whichever_call_goes_wrong_it_decides(function, subject, breaks, status):
    def run(at):
        scorer = Breaks(function(max_length=100), at, breaks)
        return list(checked(subject(scorer, scorer))), scorer.calls

    whole, calls = run(None)
    assert decide(whole) is Status.PASS
    for at in range(24, calls):
        assert decide(run(at)[0]) is status, at


def test_scores_that_float32_cannot_hold_are_no_numbers(function, plain, verdicts):
    found = verdicts(function(lambda one: plain(one) * 1e308))
    assert found["finite_scores"].status is Status.FAIL


def test_outputs_that_change_their_number_are_an_error(function, plain, subject):
    with pytest.raises(EngineError, match=r"gives \[1, 2\] outputs"):
        subject(function(lambda one: [plain(one)] * (1 + ("43" in one[-1]["content"]))))


def test_a_score_that_prefers_the_worse_answer_is_not_decided(function, plain, verdicts):
    chosen = {pair.chosen for pair in load_pairs(None)}
    found = verdicts(function(lambda one: plain(one) - 9 * (one[-1]["content"] in chosen)))["response_swap"]
    assert (found.status, found.required) == (Status.UNKNOWN, True)
    assert "in 0 of 12 pairs" in found.message


def test_a_preference_of_worse_answers_that_a_coin_may_have_only_informs():
    found = _preference("in 0 of 4 pairs.", 0, 4)
    assert (found.status, found.required) == (Status.UNKNOWN, False)
    assert _preference("in 2 of 4 pairs.", 2, 4).status is Status.PASS
