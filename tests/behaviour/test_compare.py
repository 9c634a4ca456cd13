"""Whole comparisons: planted differences, their absence, and what is too little to tell."""

import numpy as np
import pytest

from onepolicy.behaviour.compare import Question, compare_behaviour
from onepolicy.behaviour.limits import BehaviourLimits
from onepolicy.behaviour.metrics import Asked
from onepolicy.errors import UsageError
from onepolicy.records.verdict import Status

FEW = Question(permutations=999)


@pytest.fixture
def side(one, configured):
    """A side of P prompts x M samples with lengths around 40; each field may be a function of the generator."""

    def make(prompts=40, samples=4, *, seed=0, length=40.0, greedy=False, **fields):
        rng = np.random.default_rng(seed)

        def made(i, j):
            count = max(1, round(rng.normal(length, 8)))
            drawn = {name: value(rng, i) for name, value in fields.items()}
            ids = tuple(rng.integers(0, 50, count).tolist())
            return one(f"p{i}", j, **{"token_ids": ids, **drawn})

        return configured([made(i, j) for i in range(prompts) for j in range(samples)], greedy=greedy)

    return make


def verdicts(found):
    return {verdict.check: verdict for verdict in found.verdicts}


def test_two_seeds_of_one_configuration_pass(side):
    found = compare_behaviour(side(), side(seed=1), FEW)
    assert found.status is Status.PASS
    assert found.sentence.startswith("Pass: none of 5 metrics differs by more than chance")
    assert found.exit_status == 0


def test_shorter_completions_fail_and_the_change_is_named(side):
    found = compare_behaviour(side(), side(seed=1, length=32.0), FEW)
    assert verdicts(found)["length"].status is Status.FAIL
    assert found.metrics[0].difference == pytest.approx(-0.2, abs=0.03)
    assert f"({found.metrics[0].difference:+.0%} within prompts)" in found.sentence


def test_a_difference_beyond_chance_and_below_its_threshold_is_no_alarm(side):
    found = compare_behaviour(side(200), side(200, seed=1, length=38.0), FEW)
    assert found.metrics[0].p <= 0.05
    assert verdicts(found)["length"].status is Status.PASS
    assert "beyond chance, and small" in verdicts(found)["length"].message
    tight = Question(permutations=999, limits=BehaviourLimits(length_change=0.02))
    assert verdicts(compare_behaviour(side(200), side(200, seed=1, length=38.0), tight))["length"].status is Status.FAIL


@pytest.mark.parametrize(
    ("check", "fields"),
    [
        ("blank", {"text": lambda rng, i: " " if rng.random() < 0.3 else "a text"}),
        ("finish_length", {"finish_reason": lambda rng, i: "length" if rng.random() < 0.3 else "stop"}),
        ("keyword_月", {"text": lambda rng, i: "明月" if rng.random() < 0.3 else "光"}),
        ("repetition", {"token_ids": lambda rng, i: (1, 2, 3, 4, 5) * 8}),
        (
            "self_similarity",
            {"token_ids": lambda rng, i: tuple((np.arange(40) + 10 * i % 50 + rng.integers(2)).tolist())},
        ),
        ("content", {"token_ids": lambda rng, i: tuple(rng.integers(50, 100, 40).tolist())}),
    ],
)
def test_each_metric_alarms_on_a_difference_planted_for_it(check, fields, side):
    asked = Asked(keywords=("月",))
    found = compare_behaviour(side(), side(seed=1, **fields), Question(asked=asked, permutations=999))
    assert verdicts(found)[check].status is Status.FAIL


def test_a_format_that_breaks_alarms(side):
    parses = Asked(parses=lambda text: text.startswith("{"))
    a = side(text=lambda rng, i: "{}")
    b = side(seed=1, text=lambda rng, i: "{}" if rng.random() < 0.6 else "sorry")
    found = compare_behaviour(a, b, Question(asked=parses, permutations=999))
    assert verdicts(found)["parses"].status is Status.FAIL
    assert "parses 1.000 -> 0.5" in verdicts(found)["parses"].message


def test_too_few_completions_are_unknown_and_say_how_many_would_do(side):
    found = compare_behaviour(side(14, 2, length=16.0), side(14, 2, seed=1, length=16.0), FEW)
    assert verdicts(found)["length"].status is Status.UNKNOWN
    assert "14 prompts with 2 samples; take about" in verdicts(found)["length"].message
    assert found.exit_status == 3


def test_a_handful_of_prompts_can_fail_and_never_pass(side):
    assert compare_behaviour(side(6, 40), side(6, 40, seed=1), FEW).status is Status.UNKNOWN
    assert compare_behaviour(side(6, 40), side(6, 40, seed=1, length=30.0), FEW).status is Status.FAIL


def test_greedy_samples_of_a_prompt_count_once(side):
    """Copies would make any difference between prompts look certain."""
    length = {i: 30 + 20 * (i * 7919 % 13) // 13 for i in range(40)}
    a = side(greedy=True, token_ids=lambda rng, i: tuple(range(length[i])))
    b = side(greedy=True, token_ids=lambda rng, i: tuple(range(length[(i + 3) % 40])))
    found = compare_behaviour(a, b, FEW)
    assert (found.a.rollouts, found.b.rollouts) == (40, 40)
    assert "A is greedy: the samples of a prompt are copies, and the first counts" in found.notes
    assert [row.name for row in found.metrics][:2] == ["length", "repetition"]
    assert found.metrics[0].p > 0.05


def test_copies_count_once_whatever_the_protocol_says(side):
    """A server that ignores seeds, or a greedy one whose run does not say so."""
    a, b = (side(seed=s, token_ids=lambda rng, i, s=s: tuple(range(20 + (i + s) % 3))) for s in (0, 1))
    found = compare_behaviour(a, b, FEW)
    assert (found.a.rollouts, found.b.rollouts) == (40, 40)
    assert "A's samples of each prompt are copies, as if it were greedy or all had one seed; the first counts" in (
        found.notes
    )


@pytest.mark.parametrize("samples", [(4, 4), (4, 1), (1, 6), (2, 5)])
def test_a_length_change_is_the_share_of_a_whatever_the_numbers_of_samples(samples, side):
    lengths = (
        (lambda rng, i: tuple(rng.integers(0, 50, 20 + i).tolist())),
        (lambda rng, i: tuple(rng.integers(0, 50, 40 + 2 * i).tolist())),
    )
    a, b = (side(30, count, token_ids=of) for count, of in zip(samples, lengths, strict=True))
    assert compare_behaviour(a, b, FEW).metrics[0].difference == pytest.approx(1.0)


def test_prompts_of_other_tokens_fail_and_name_the_first(side):
    b = side(seed=1, prompt_digest=lambda rng, i: "other" if i == 7 else f"p{i}")
    found = compare_behaviour(side(), b, FEW)
    assert found.status is Status.FAIL
    assert "1 of 40 prompts are other tokens for B than for A, p7" in found.sentence


def test_prompts_of_one_side_only_are_left_out_and_said(side):
    found = compare_behaviour(side(30), side(45, seed=1), FEW)
    assert found.prompts == 30
    assert "15 prompts of B are not in the other, and not compared" in found.notes


def test_the_order_of_the_completions_changes_nothing(side, configured):
    a, b = side(), side(seed=1)
    turned = configured(list(reversed(b.side.completions)))
    assert compare_behaviour(a, turned, FEW).metrics == compare_behaviour(a, b, FEW).metrics


def test_nothing_in_common_is_an_error(side, one, configured):
    with pytest.raises(UsageError, match="A has 40 prompts and B 1, and none of them under the same id"):
        compare_behaviour(side(), configured([one("else")]), FEW)


def test_copies_between_the_sides_are_told(side):
    assert "160 of 160 completions of B are also in A, token by token" in compare_behaviour(side(), side(), FEW).notes


def test_a_cap_on_new_tokens_is_said(side):
    cut = {"finish_reason": lambda rng, i: "length" if rng.random() < 0.4 else "stop"}
    found = verdicts(compare_behaviour(side(**cut), side(seed=1, **cut), FEW))["censored"]
    assert not found.required
    assert found.status is Status.UNKNOWN
    assert "(at 64)" in found.message
    assert "How long these would be is not known" in found.message


@pytest.mark.parametrize(
    ("chance", "status"), [((0.5, 0.5), Status.PASS), ((0.5, 0.7), Status.FAIL), ((0.5, 0.55), Status.UNKNOWN)]
)
def test_the_reward_has_three_answers(chance, status, side):
    rewards = [{"reward": lambda rng, i, p=p: float(rng.random() < p)} for p in chance]
    found = compare_behaviour(side(300, 6, **rewards[0]), side(300, 6, seed=1, **rewards[1]), Question(permutations=19))
    assert verdicts(found)["reward"].status is status
    assert (found.reward.prompts_needed is None) is (status is not Status.UNKNOWN)


def test_rewards_of_some_completions_only_are_unknown(side):
    found = compare_behaviour(side(), side(seed=1, reward=lambda rng, i: 1.0), FEW)
    assert "160 of 320 completions have no reward" in verdicts(found)["reward"].message
    assert found.status is Status.UNKNOWN


def test_a_reward_that_is_the_same_everywhere_tells_nothing(side):
    constant = {"reward": lambda rng, i: 0.0}
    found = verdicts(compare_behaviour(side(**constant), side(seed=1, **constant), FEW))["reward"]
    assert found.status is Status.UNKNOWN
    assert "tells nothing apart" in found.message


def test_both_rounds_are_reported_with_their_agreement(side):
    rewards = {"reward": lambda rng, i: float(i % 2)}
    found = compare_behaviour(side(**rewards), side(seed=1, **rewards), FEW)
    assert (found.agreement.rate_a, found.agreement.rate_b, found.agreement.across) == (0.5, 0.5, 1.0)
    assert not verdicts(found)["outcomes"].required
