"""The nine mistakes of the copied recipe, each flagged in the cases that are about it."""

from pathlib import Path

import pytest

from onepolicy.integrations.callable.conform import subject
from onepolicy.integrations.callable.function import load_module
from onepolicy.records.conform import Answer
from onepolicy.signal.conformance.run import run
from onepolicy.signal.conformance.subject import Function, Subject

RECIPE = Path(__file__).with_name("copied_recipe.py")
COUNTS = {
    "padding is filled with -inf and summed": ("sequence_logprobs", "unequal lengths"),
    "the first positions of a left-padded batch": ("completion_logprobs", "padded left"),
    "the sign of the KL": ("kl", "mean"),
    "left padding fixes it": ("model_logprobs", "absolute positions, padded left"),
    "a mean near zero proves agreement": ("agrees", "opposite errors"),
    "k1 of 300 tokens, above": ("agrees", "k1 of 300 tokens above the limit by chance"),
    "k1 of 300 tokens, below": ("agrees", "k1 of 300 tokens below the limit by chance"),
    "the mean of d is not zero": ("is_systematic", "mean of chance"),
    "linear growth is a bias": ("is_systematic", "linear growth of chance"),
    "square root growth is chance": ("is_systematic", "square root growth of a cause"),
    "top_p without the kept set": ("processed_logprobs", "top_p 0.9"),
}


@pytest.fixture(scope="module")
def found():
    return run(subject(str(RECIPE), role=None))


@pytest.mark.parametrize("count", COUNTS)
def test_the_recipe_is_flagged_on_every_count(found, count):
    role, case = COUNTS[count]
    (answer,) = (one for one in found.tried if (one.role, one.case) == (role, case))
    assert answer.answer is Answer.WRONG
    assert answer.found
    assert found.exit_status == 1


def test_what_the_recipe_gets_right_is_not_flagged(found):
    right = {(one.role, one.case) for one in found.of(Answer.AGREES)}
    assert {("kl", "same policies"), ("agrees", "equal")} <= right
    assert not found.of(Answer.DIFFERS)


@pytest.mark.parametrize(
    ("name", "cases"),
    [
        ("mean_is_not_zero", {"mean of chance", "linear growth of chance"}),
        ("grows_linearly", {"linear growth of chance", "square root growth of a cause"}),
    ],
)
def test_either_statement_about_a_systematic_difference_is_flagged_alone(name, cases):
    function = getattr(load_module(str(RECIPE), named=str(RECIPE)), name)
    one = Subject(name="x", functions=[Function(role="is_systematic", label=name, call=function)])
    assert cases <= {answer.case for answer in run(one).of(Answer.WRONG)}
