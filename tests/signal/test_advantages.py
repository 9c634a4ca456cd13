"""Oracles: loops over groups in plain Python, a double sum, and the exact policy gradient by enumeration."""

import itertools
import math
import random
import statistics

import pytest
import torch

from onepolicy.errors import AlignmentError, UsageError
from onepolicy.signal.advantages import dr_grpo_advantages, gae, grpo_advantages, rloo_advantages
from onepolicy.signal.masks import mask_from_lengths

FUNCTIONS = (grpo_advantages, dr_grpo_advantages, rloo_advantages)


def looped(name, rewards, groups, *, epsilon=0.0, ddof=1):
    found = []
    for row, reward in enumerate(rewards):
        own = [r for r, group in zip(rewards, groups, strict=True) if group == groups[row]]
        mean = statistics.fmean(own)
        if name == "dr_grpo_advantages":
            found.append(reward - mean)
        elif name == "rloo_advantages":
            others = (math.fsum(own) - reward) / (len(own) - 1) if len(own) > 1 else reward
            found.append(reward - others)
        else:
            spread = (statistics.stdev if ddof else statistics.pstdev)(own) if len(own) > 1 else 0.0
            found.append((reward - mean) / (spread + epsilon) if spread > 1e-12 else 0.0)
    return found


def shuffled(seed):
    """Groups of 4, 2, 3, 1 and a constant one, in any order."""
    rng = random.Random(seed)
    sizes = {11: 4, -3: 2, 7: 3, 100: 1}
    rows = [(rng.gauss(0, 3), group) for group, size in sizes.items() for _ in range(size)] + [(0.7, 5)] * 3
    rng.shuffle(rows)
    return [r for r, _ in rows], [g for _, g in rows]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("function", FUNCTIONS)
def test_advantages_are_those_of_a_loop_over_groups_in_any_order(function, seed):
    rewards, groups = shuffled(seed)
    found = function(torch.tensor(rewards).double(), torch.tensor(groups))
    exact = torch.tensor(rewards).double().tolist()
    assert found.tolist() == pytest.approx(looped(function.__name__, exact, groups), abs=1e-12)


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("epsilon", [0.0, 1e-4, 0.5])
def test_the_deviation_is_of_n_or_n_minus_1_and_gets_the_epsilon(ddof, epsilon):
    rewards, groups = shuffled(9)
    found = grpo_advantages(torch.tensor(rewards).double(), torch.tensor(groups), epsilon=epsilon, ddof=ddof)
    exact = torch.tensor(rewards).double().tolist()
    expected = looped("grpo_advantages", exact, groups, epsilon=epsilon, ddof=ddof)
    assert found.tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_advantages_of_each_prompt_add_up_to_0(function):
    rewards, groups = shuffled(3)
    found = function(torch.tensor(rewards).double(), torch.tensor(groups))
    for group in set(groups):
        assert float(found[torch.tensor(groups) == group].sum()) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_adding_to_all_rewards_of_one_prompt_changes_nothing(function):
    rewards, groups = shuffled(4)
    r, g = torch.tensor(rewards).double(), torch.tensor(groups)
    moved = function(r + 5 * (g == 11), g)
    torch.testing.assert_close(moved, function(r, g), rtol=1e-10, atol=1e-12)


def test_scaling_the_rewards_scales_all_but_grpo():
    rewards, groups = shuffled(5)
    r, g = torch.tensor(rewards).double(), torch.tensor(groups)
    torch.testing.assert_close(grpo_advantages(7 * r, g), grpo_advantages(r, g), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(dr_grpo_advantages(7 * r, g), 7 * dr_grpo_advantages(r, g), rtol=1e-12, atol=1e-12)


# -- edges ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("number", [1, 2, 3, 7, 8, 4096])
@pytest.mark.parametrize("value", [0.1, 0.3, -1e6 / 3])
def test_equal_rewards_of_float32_have_no_advantage_whatever_their_mean_is_rounded_to(function, number, value):
    found = function(torch.full((number,), value), torch.zeros(number, dtype=torch.long))
    assert found.abs().max() <= 1e-6 * abs(value)
    if function is grpo_advantages:
        assert not found.any()


def test_rewards_that_differ_by_the_rounding_of_a_sum_are_equal():
    tenth = torch.tensor(0.1)
    rewards = torch.stack([sum([tenth] * 9, torch.tensor(0.0)), tenth * 9, torch.tensor(0.9), torch.tensor(0.9)])
    assert len(set(rewards.tolist())) == 3
    assert not grpo_advantages(rewards, torch.zeros(4, dtype=torch.long)).any()


def test_rewards_that_differ_by_little_do_differ():
    found = grpo_advantages(torch.tensor([1.0, 1.0001]), torch.tensor([0, 0]))
    torch.testing.assert_close(found, torch.tensor([-1.0, 1.0]) / math.sqrt(2), rtol=1e-5, atol=0)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_reward_that_is_no_number_is_not_hidden_and_stays_in_its_group(function, bad):
    rewards = torch.tensor([1.0, bad, 3.0, 5.0, bad])
    found = function(rewards, torch.tensor([0, 0, 1, 1, 2]))
    assert found[[1, 4]].isnan().all()
    assert not found[0].isfinite()
    torch.testing.assert_close(found[2:4], function(rewards[2:4], torch.tensor([1, 1])))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_no_completions_have_no_advantages(function):
    assert function(torch.zeros(0), torch.zeros(0, dtype=torch.long)).shape == (0,)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_type_of_the_rewards_is_kept_and_whole_numbers_become_float64(function):
    groups = torch.tensor([0, 0])
    for dtype in (torch.float32, torch.bfloat16):
        assert function(torch.tensor([0, 1], dtype=dtype), groups).dtype == dtype
    whole = function(torch.tensor([0, 1]), groups)
    assert whole.dtype == torch.float64
    torch.testing.assert_close(whole, function(torch.tensor([0.0, 1.0]).double(), groups))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_groups_of_another_shape_are_refused(function):
    for groups in (torch.zeros(3, dtype=torch.long), torch.zeros(2, 1, dtype=torch.long)):
        with pytest.raises(AlignmentError, match=r"\[2\]"):
            function(torch.zeros(2), groups)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("groups", [torch.tensor([math.nan] * 2), torch.tensor([0.5, 0.5]), ["a", "a"]])
def test_groups_that_are_no_whole_numbers_are_refused(function, groups):
    with pytest.raises(UsageError, match="whole numbers"):
        function(torch.zeros(2), groups)


@pytest.mark.parametrize("changes", [{"ddof": 2}, {"epsilon": -1e-4}, {"epsilon": math.nan}])
def test_another_deviation_is_refused(changes):
    with pytest.raises(UsageError, match="epsilon is"):
        grpo_advantages(torch.zeros(2), torch.zeros(2, dtype=torch.long), **changes)


# -- the exact policy gradient ----------------------------------------------------------------------------------

LOGITS = torch.tensor([0.2, -0.5, 0.9, 0.1], dtype=torch.float64)
REWARDS = torch.tensor([1.0, 0.0, -2.0, 0.5], dtype=torch.float64)


def expected_gradient(function, *, samples):
    """Of mean(A * logprob) over all groups of so many samples, each with its probability."""
    leaf = LOGITS.clone().requires_grad_()
    logprobs = torch.log_softmax(leaf, dim=0)
    drawn = torch.tensor(list(itertools.product(range(len(LOGITS)), repeat=samples)))
    groups = torch.arange(len(drawn)).repeat_interleave(samples)
    advantages = function(REWARDS[drawn].reshape(-1), groups).reshape(drawn.shape)
    weights = logprobs[drawn].sum(1).exp().detach()
    return torch.autograd.grad((weights * (advantages * logprobs[drawn]).mean(1)).sum(), leaf)[0]


def exact_gradient():
    leaf = LOGITS.clone().requires_grad_()
    return torch.autograd.grad((torch.softmax(leaf, dim=0) * REWARDS).sum(), leaf)[0]


@pytest.mark.parametrize("samples", [2, 3, 5])
def test_rloo_is_unbiased_and_dr_grpo_is_too_small_by_one_over_the_group(samples):
    torch.testing.assert_close(
        expected_gradient(rloo_advantages, samples=samples), exact_gradient(), rtol=1e-10, atol=1e-12
    )
    shrunk = exact_gradient() * (samples - 1) / samples
    torch.testing.assert_close(expected_gradient(dr_grpo_advantages, samples=samples), shrunk, rtol=1e-10, atol=1e-12)


def test_grpo_has_another_direction_than_the_policy_gradient():
    found, exact = expected_gradient(grpo_advantages, samples=3), exact_gradient()
    assert torch.cosine_similarity(found, exact, dim=0) < 0.999


# -- advantages of tokens ---------------------------------------------------------------------------------------

GAMMA, LAM = 0.9, 0.8


def double_sum(rewards, values, gamma, lam):
    """sum over s >= t of (gamma lam)^(s - t) delta_s, of one row without gaps."""
    after = [*values, 0.0][1:]
    delta = [r + gamma * n - v for r, n, v in zip(rewards, after, values, strict=True)]
    return [math.fsum((gamma * lam) ** (s - t) * delta[s] for s in range(t, len(delta))) for t in range(len(delta))]


@pytest.fixture
def rows():
    """Rewards, values and a mask with padding on both sides, a gap, a whole row and an empty one."""
    generator = torch.Generator().manual_seed(3)
    mask = torch.tensor(
        [[1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1], [1, 1, 0, 0, 1, 1], [1] * 6, [0] * 6, [0, 1, 0, 0, 0, 0]]
    )
    rewards = torch.randn(6, 6, dtype=torch.float64, generator=generator) * mask
    return {
        "rewards": rewards,
        "values": torch.randn(6, 6, dtype=torch.float64, generator=generator),
        "loss_mask": mask,
    }


@pytest.mark.parametrize(("gamma", "lam"), [(GAMMA, LAM), (1.0, 1.0), (1.0, 0.95), (0.9, 0.0), (0.9, 1.0)])
def test_gae_is_the_double_sum_over_the_sampled_tokens_of_each_row(rows, gamma, lam):
    found = gae(**rows, gamma=gamma, lam=lam)
    for row, mask in enumerate(rows["loss_mask"].bool()):
        rewards, values = (rows[name][row][mask].tolist() for name in ("rewards", "values"))
        expected = double_sum(rewards, values, gamma, lam)
        assert found.advantages[row][mask].tolist() == pytest.approx(expected, abs=1e-12)
        assert found.returns[row][mask].tolist() == pytest.approx(
            [a + v for a, v in zip(expected, values, strict=True)]
        )
        assert not found.advantages[row][~mask].any()
        assert not found.returns[row][~mask].any()


def test_with_lambda_1_the_return_is_the_discounted_reward_to_come_whatever_the_values(rows):
    found = gae(**rows, gamma=GAMMA, lam=1.0)
    for row, mask in enumerate(rows["loss_mask"].bool()):
        rewards = rows["rewards"][row][mask].tolist()
        expected = [sum(GAMMA**n * r for n, r in enumerate(rewards[t:])) for t in range(len(rewards))]
        assert found.returns[row][mask].tolist() == pytest.approx(expected, abs=1e-12)


def test_with_lambda_0_the_advantage_is_one_steps_error(rows):
    found = gae(**rows, gamma=GAMMA, lam=0.0).advantages
    values, rewards = rows["values"], rows["rewards"]
    torch.testing.assert_close(found[3, :-1], rewards[3, :-1] + GAMMA * values[3, 1:] - values[3, :-1])
    torch.testing.assert_close(found[2, 1], rewards[2, 1] + GAMMA * values[2, 4] - values[2, 1])


@pytest.mark.parametrize("fill", [math.nan, math.inf, 1e30])
def test_values_outside_the_mask_change_nothing(rows, fill):
    planted = rows | {"values": torch.where(rows["loss_mask"].bool(), rows["values"], fill)}
    for lam in (0.0, LAM, 1.0):
        found, expected = gae(**planted, lam=lam), gae(**rows, lam=lam)
        torch.testing.assert_close(found.advantages, expected.advantages, rtol=0, atol=0)
        torch.testing.assert_close(found.returns, expected.returns, rtol=0, atol=0)


def test_columns_of_padding_on_either_side_change_nothing(rows):
    padded = {name: torch.nn.functional.pad(tensor, (3, 5)) for name, tensor in rows.items()}
    found = gae(**padded, gamma=GAMMA, lam=LAM).advantages
    torch.testing.assert_close(found[:, 3:9], gae(**rows, gamma=GAMMA, lam=LAM).advantages, rtol=0, atol=0)


def test_gae_has_no_gradient(rows):
    rows["values"].requires_grad_()
    assert not gae(**rows).advantages.requires_grad


def test_no_columns_are_no_error():
    empty = torch.zeros(2, 0)
    assert gae(rewards=empty, values=empty, loss_mask=empty).advantages.shape == (2, 0)


@pytest.mark.parametrize("reward", [1.0, math.nan])
def test_a_reward_that_the_mask_would_lose_is_refused_with_its_place(reward):
    rewards = torch.zeros(2, 4)
    rewards[1, 3] = reward
    with pytest.raises(AlignmentError, match="row 1 lies at column 3"):
        gae(rewards=rewards, values=torch.zeros(2, 4), loss_mask=mask_from_lengths(torch.tensor([4, 3]), width=4))


@pytest.mark.parametrize("name", ["values", "loss_mask"])
def test_tensors_of_another_shape_are_refused(rows, name):
    with pytest.raises(AlignmentError, match=name):
        gae(**(rows | {name: rows[name][:, :3]}))


def test_tensors_of_one_dimension_are_refused():
    with pytest.raises(AlignmentError, match=r"\[B, T\]"):
        gae(rewards=torch.zeros(3), values=torch.zeros(3), loss_mask=torch.ones(3))


@pytest.mark.parametrize(("rewards", "values"), [(torch.float32, torch.long), (torch.long, torch.float32)])
def test_whole_numbers_beside_others_are_not_cut(rewards, values):
    ones, zeros, mask = torch.ones(1, 2, dtype=rewards), torch.zeros(1, 2, dtype=values), torch.ones(1, 2)
    found = gae(rewards=ones, values=zeros, loss_mask=mask, gamma=0.5, lam=0.5)
    assert found.advantages.tolist() == [[1.25, 1.0]]
    assert found.returns.tolist() == [[1.25, 1.0]]


@pytest.mark.parametrize("changes", [{"gamma": math.nan}, {"gamma": 1.1}, {"lam": 9.0}, {"lam": -0.1}])
def test_a_discount_outside_0_to_1_is_refused(rows, changes):
    with pytest.raises(UsageError, match="0 to 1"):
        gae(**rows, **changes)


def test_a_mask_that_is_none_is_refused(rows):
    with pytest.raises(UsageError, match="something else than 0 and 1"):
        gae(**(rows | {"loss_mask": torch.full((6, 6), math.nan)}))
