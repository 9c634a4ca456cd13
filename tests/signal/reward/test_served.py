import numpy as np
import pytest

from onepolicy.errors import UsageError
from onepolicy.records.verdict import Status
from onepolicy.signal.reward.served import line, residual, served


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_the_same_scores_pass(function, subject):
    found = served(subject(function(), function()))
    assert found.status is Status.PASS
    assert "12 of 12 pairs stand in the same order" in found.message


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (sigmoid, "they are a sigmoid of the trainer's"),
        (lambda x: np.log(sigmoid(x)), "the logarithm of a sigmoid of"),
        (lambda x: 3.0 * x - 1.0, "they are 3 times the trainer's plus -1"),
        (lambda x: -x, "The sign is turned round"),
        (lambda x: x**3 - 2 * x**2, "no sigmoid, softmax, scale or shift explains it"),
    ],
)
def test_post_processing_of_the_server_is_named(function, plain, subject, made, said):
    found = served(subject(function(), function(lambda one: made(plain(one)))))
    assert found.status is Status.FAIL
    assert said in found.message


def test_post_processing_of_the_trainer_is_named(function, plain, subject):
    found = served(subject(function(lambda one: sigmoid(plain(one))), function()))
    assert found.status is Status.FAIL
    assert "the trainer's are a sigmoid of them" in found.message


def test_a_softmax_over_several_outputs_is_named(function, plain, subject):
    def raw(one):
        return [plain(one), plain(one[:-1])]

    def soft(one):
        both = np.exp(raw(one))
        return both / both.sum()

    found = served(subject(function(raw), function(soft, label=0)))
    assert "a softmax of the trainer's" in found.message


def test_without_a_server_it_is_not_checked(function, subject):
    found = served(subject(function()))
    assert (found.status, found.required) == (Status.UNKNOWN, False)


def test_scores_that_are_no_numbers_fail(function, verdicts):
    assert verdicts(function(), function(lambda one: np.nan))["served"].status is Status.FAIL


def test_several_served_outputs_fail_until_one_is_named_that_there_is(function, plain, subject):
    def two(one):
        return [plain(one), -plain(one)]

    found = served(subject(function(), function(two)))
    assert found.status is Status.FAIL
    assert "2 outputs for a text, and nothing says which is the reward" in found.message
    assert served(subject(function(), function(two, label=0))).status is Status.PASS
    with pytest.raises(UsageError, match="has no output 3; it has 2"):
        served(subject(function(), function(two, label=3)))


def test_constant_served_scores_are_infinitely_far_from_others_and_equal_to_themselves():
    assert residual(np.array([1.0, 2.0]), np.array([1.0, 1.0])) == np.inf
    assert residual(np.array([1.0, 1.0]), np.array([1.0, 1.0])) == 0.0


def test_the_line_is_that_of_least_squares():
    x = np.random.default_rng(1).normal(size=40)
    y = 0.7 * x + 2 + np.random.default_rng(2).normal(size=40)
    assert line(x, y) == pytest.approx(tuple(np.polyfit(x, y, 1)))
    assert line(np.ones(3), np.array([1.0, 2.0, 3.0])) == (0.0, 2.0)
