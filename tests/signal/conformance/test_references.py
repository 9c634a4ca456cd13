"""The references in their roles, against oracles that share no code with them."""

import torch
from torch.distributions import Categorical, kl_divergence

from onepolicy.logprobs.truncation import scores
from onepolicy.records.protocol import Meaning
from onepolicy.signal.conformance import references
from onepolicy.signal.conformance.cases import CASES, kl, scoring
from onepolicy.signal.conformance.cases.completions import batch
from onepolicy.signal.conformance.cases.statements import LIMIT, chance, misleading, opposite, other_temperature
from onepolicy.signal.conformance.model import PlantedModel


def observed(role, name):
    (case,) = (case for case in CASES if (case.role, case.name) == (role, name))
    return case.observe(getattr(references, role))


def same(one, other):
    torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_the_planted_kl_and_its_gradient_are_the_exact_ones():
    for name, gradient, pair in (
        ("mean", "gradient", kl._near()),
        ("far reference", "gradient, far reference", kl._far()),
    ):
        logits = pair[0].clone().requires_grad_()
        exact = kl_divergence(Categorical(logits=logits), Categorical(logits=pair[1]))
        exact.backward()
        same(observed("kl", name)["mean"], exact.detach())
        same(observed("kl_loss", gradient)["gradient"], logits.grad)


def test_logprobs_under_temperature_are_a_categoricals():
    found = observed("token_logprobs", "temperature 0.7")["value"]
    logits = scoring.normal(*scoring._SHAPE, scale=2.0) / 0.7
    same(found, Categorical(logits=logits).log_prob(scoring._token_ids(1)))


def test_the_kept_set_of_top_p_is_that_of_transformers():
    logits = scoring.normal(40, 11, seed=3)
    warped = scores(logits.float(), Meaning(temperature=0.7, top_p=0.9)).log_softmax(dim=-1)
    for token in range(11):
        ids = torch.full((40,), token)
        found = references.processed_logprobs(logits.float(), ids, 0.7, 0.9)
        torch.testing.assert_close(found, warped[:, token])


def test_the_planted_tokens_of_top_p_can_be_sampled():
    for name in ("top_p 0.9", "top_p after temperature"):
        assert observed("processed_logprobs", name)["value"].isfinite().all()


def test_a_completion_has_the_same_logprobs_however_it_is_padded():
    for absolute in (True, False):
        model, alone = PlantedModel(absolute=absolute), batch("left")
        found = []
        for layout, extra in (("left", 0), ("right", 0), ("both", 3)):
            one = batch(layout, extra=extra)
            scored = references.model_logprobs(model, one.input_ids, one.attention_mask, one.loss_mask)
            found.append(scored[one.loss_mask.bool()])
        single = []
        for ids, real, marked in zip(alone.input_ids, alone.attention_mask, alone.loss_mask, strict=True):
            only = ids[real.bool()][None]
            logprobs = model(only).logits[0, :-1].log_softmax(dim=-1).gather(-1, only[0, 1:, None])[:, 0]
            single.append(logprobs[-int(marked.sum()) :])
        for one in found:
            torch.testing.assert_close(one.double(), torch.cat(single), rtol=1e-5, atol=1e-6)


def test_a_model_that_is_told_no_positions_feels_left_padding_only_if_they_are_absolute():
    for absolute in (True, False):
        one, model = batch("left"), PlantedModel(absolute=absolute)
        told = model(one.input_ids, one.attention_mask, (one.attention_mask.cumsum(dim=1) - 1).clamp(min=0))
        untold = model(one.input_ids, one.attention_mask)
        real = one.loss_mask.bool()
        assert torch.allclose(told.logits[real], untold.logits[real]) is not absolute


def test_one_step_makes_good_tokens_likelier_and_bad_ones_less():
    sign = observed("policy_loss", "one small step")["sign"]
    advantages = torch.randn(3, 5, generator=torch.Generator().manual_seed(12), dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0], [1, 1, 1, 1, 1]]).bool()
    assert torch.equal(sign, advantages[mask].sign())


def test_the_loss_of_a_batch_does_not_depend_on_padding_or_micro_batches():
    for role in ("token_mean", "sequence_mean", "constant_length"):
        whole = observed(role, "whole batch")
        for name in ("micro-batches", "unequal micro-batches", "NaN, inf and 1e4 under the mask"):
            same(observed(role, name)["value"], whole["value"])
            same(observed(role, name)["gradient"], whole["gradient"])
        same(observed(role, "wider padding")["value"], whole["value"])


def test_nothing_under_a_mask_enters_a_value_or_a_gradient():
    for case in CASES:
        if case.name == "NaN, inf and 1e4 under the mask" and case.role != "agrees":
            for part in case.observe(getattr(references, case.role)).values():
                assert part.isfinite().all(), case.role


def test_the_order_of_the_rows_of_a_group_does_not_matter():
    for role in ("grpo_advantages", "dr_grpo_advantages", "rloo_advantages"):
        rewards, order = torch.randn(8, dtype=torch.float64), torch.randperm(8)
        groups = torch.tensor([3, 3, 1, 3, 1, 1, 1, 3])
        of = getattr(references, role)
        same(of(rewards[order], groups[order]), of(rewards, groups)[order])


def test_differences_by_chance_are_of_two_distributions():
    d = chance(5e-3, 2000, 500, seed=1)
    assert abs(float(d.exp().mean()) - 1) < 1e-3
    assert abs(float(d.mean()) + 5e-3) < 1e-3


def test_what_is_planted_to_mislead_does():
    above, below = misleading(LIMIT / 10, 2 * LIMIT, 8 * LIMIT), misleading(10 * LIMIT, -LIMIT, LIMIT)
    assert above.numel() == below.numel() == 300
    assert float(-above.mean()) > 2 * LIMIT
    assert float(-below.mean()) < LIMIT
    assert float(opposite().mean()) == 0.0


def test_the_planted_temperature_moves_every_sampled_token():
    d = other_temperature(8, 200)
    assert (d != 0).all()
    assert abs(float(d.mean())) < 3 * float(d.std()) / 40


def test_a_mismatch_that_300_tokens_do_not_decide_is_unknown():
    rollout = torch.full((30, 10), -2.0, dtype=torch.float64)
    mask = torch.ones(30, 10)
    drawn = [chance(LIMIT, 30, 10, seed=seed) for seed in range(20)]
    said = [references.agrees(rollout, rollout + d, mask, LIMIT) for d in drawn]
    assert said.count(None) > 15
    assert references.agrees(rollout, rollout, torch.zeros(30, 10), LIMIT) is None
