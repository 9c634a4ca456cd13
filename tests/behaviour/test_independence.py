"""One sample that stands there twice passes everything else, so it is said."""

import numpy as np
import pytest

from onepolicy.behaviour.compare import Question, compare_behaviour
from onepolicy.behaviour.completions import paired
from onepolicy.behaviour.independence import one_sample_twice
from onepolicy.records.verdict import Status

FEW = Question(permutations=99)


@pytest.fixture
def drawn(one, configured):
    """P prompts x M samples; each is one of so many answers, all equally likely."""

    def make(prompts=40, samples=4, *, seed=0, answers=10**6, greedy=False):
        rng = np.random.default_rng(seed)
        return configured(
            [
                one(f"p{i}", j, token_ids=(i, *np.unravel_index(int(rng.integers(answers)), (100,) * 3)))
                for i in range(prompts)
                for j in range(samples)
            ],
            greedy=greedy,
        )

    return make


def said(a, b):
    return [v for v in compare_behaviour(a, b, FEW).verdicts if v.check == "independent"]


def test_a_copy_is_no_second_sample_however_well_it_agrees(drawn):
    found = compare_behaviour(drawn(400), drawn(400), FEW)
    assert found.status is Status.UNKNOWN
    assert "1600 of 1600 completions of B are those of A" in found.sentence


def test_half_of_the_samples_in_common_is_more_than_chance(drawn, configured):
    a, other = drawn(), drawn(seed=1)
    half = zip(a.side.completions, other.side.completions, strict=True)
    mixed = configured([(mine, theirs)[i % 2] for i, (mine, theirs) in enumerate(half)])
    assert [v.value for v in said(a, mixed)] == [80.0]


def test_common_completions_that_chance_gives_are_no_alarm(drawn):
    """Where three answers are all there are, two samples have most in common; at 1 in 1,000, more than 5 are odd."""
    alarms = 0
    for seed in range(1000):
        a, b = drawn(12, 3, seed=2 * seed, answers=3), drawn(12, 3, seed=2 * seed + 1, answers=3)
        alarms += bool(one_sample_twice(a.side, b.side, paired(a.side, b.side)))
    assert alarms <= 5


def test_with_one_sample_of_each_prompt_equal_sides_cannot_be_told_from_a_copy(drawn):
    found = said(drawn(20, 1), drawn(20, 1))
    assert [v.status for v in found] == [Status.UNKNOWN]
    assert "with one sample of each prompt" in found[0].message


def test_two_greedy_sides_are_one_completion_and_that_is_their_agreement(drawn):
    assert said(drawn(greedy=True, answers=1), drawn(greedy=True, answers=1)) == []
    assert said(drawn(20, 1), drawn(20, 1, seed=1)) == []


def test_that_one_side_is_greedy_leaves_the_similarities_out_and_says_so(drawn):
    note = "self_similarity and content are not compared: no prompt has several samples that count, on both sides"
    assert note in compare_behaviour(drawn(greedy=True, answers=1), drawn(seed=1), FEW).notes
    assert note not in compare_behaviour(drawn(), drawn(seed=1), FEW).notes
