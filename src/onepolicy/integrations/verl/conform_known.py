"""In which ways verl's functions differ from the references, each with a few lines that show it. Of verl 0.9.1."""

from __future__ import annotations

from onepolicy.integrations.verl.conform_known_losses import LOSSES
from onepolicy.signal.conformance import variants
from onepolicy.signal.conformance.subject import Difference

EXPLAINED = "0.9.1"
ABSENT = {
    "model_logprobs": "verl scores in an engine that needs a process group and a parallel layout",
    "processed_logprobs": "verl 0.9.1 divides the logits by the temperature and knows no top_p when it scores",
}
_GRPO = ("grpo", "grpo_vectorized")
_RAW = tuple(f"{name}, norm_adv_by_std_in_grpo=False" for name in _GRPO)
_ONE = (
    "With a mean of 0 and a deviation of 1 for a group of one, its completion is trained by its reward as it is: "
    "plain REINFORCE among compared completions. It happens where filters leave one rollout of a prompt, and with "
    "rollout.n=1."
)

DIFFERENCES = (
    Difference(
        name="no padding id",
        labels=("get_response_mask",),
        role="completion_mask",
        like=variants.mask_without_padding_id,
        why="get_response_mask looks for the end token and knows no padding id: a row that has no end token is marked "
        "to its end. verl calls it in hf_rollout only, where such a row is as long as the batch is wide; do not use it "
        "for completions that a stop string ended.",
        example="""
import torch
from verl.utils.torch_functional import get_response_mask
print(get_response_mask(torch.tensor([[6, 7, 0, 0], [4, 9, 0, 0]]), eos_token=9).tolist())
""",
        prints="[[1, 1, 1, 1], [1, 1, 0, 0]]",
    ),
    Difference(
        name="the mean of nothing is 0",
        labels=("masked_mean",),
        role="masked_mean",
        like=variants.nothing_is_zero,
        why="1e-8 beside the count makes the mean of no token 0. A metric of an empty batch then looks like a "
        "measured 0.",
        example="""
import torch
from verl.utils.torch_functional import masked_mean
print(masked_mean(torch.ones(3), torch.zeros(3)).item())
""",
        prints="0.0",
    ),
    Difference(
        name="refuses one token",
        labels=("masked_whiten",),
        role="whiten",
        cases=("one token",),
        like=lambda *_: _refuse(),
        why="One value has no variance, and verl says so with a ValueError rather than returning 0. A batch with one "
        "token left stops.",
        example="""
import torch
from verl.utils.torch_functional import masked_whiten
try:
    masked_whiten(torch.ones(1, 2), torch.tensor([[1, 0]]))
except ValueError as error:
    print(error)
""",
        prints="The sum of the mask is one, which can cause a division by zero.",
    ),
    Difference(
        name="k2 is biased",
        labels=("kl_penalty k2",),
        role="kl",
        like=variants.biased_kl,
        why="(log ratio)^2 / 2 is no unbiased estimate of the KL; near equality it is close. Its gradient is the right "
        "one, so as a loss it is fine.",
        example="""
import torch
from verl.trainer.ppo.core_algos import kl_penalty
p, r = torch.tensor([0.8, 0.1, 0.1]), torch.tensor([0.1, 0.1, 0.8])
print([round((p * kl_penalty(p.log(), r.log(), kind)).sum().item(), 3) for kind in ("k1", "k2", "k3")])
""",
        prints="[1.456, 1.946, 1.456]",
    ),
    Difference(
        name="k3 is clamped at 10",
        labels=("kl_penalty k3",),
        role="kl",
        like=variants.clamped_k3,
        why="The log ratio is cut to 20 nats and k3 to 10, for stability. A token that the reference finds 2.6 nats "
        "more likely or 11 nats less likely meets the bound; beyond it, a collapse is reported smaller than it is.",
        example="""
import torch
from verl.trainer.ppo.core_algos import kl_penalty
l, r = torch.tensor([-9.0, -0.1]), torch.tensor([-1.0, -14.1])
for k3 in (kl_penalty(l, r, "k3"), torch.expm1(r - l) - (r - l)):
    print([round(x, 2) for x in k3.tolist()])
""",
        prints="[10.0, 10.0]\n[2971.96, 13.0]",
    ),
    Difference(
        name="k1 as a loss trains nothing",
        labels=("kl_penalty k1",),
        role="kl_loss",
        like=variants.differentiated_k1,
        why="The expected gradient of the log ratio of sampled tokens is 0: kl_loss_type=k1 adds noise and no pull. "
        "verl says so in a comment; take k2, or k3+, whose gradient is that of k2.",
        example="""
import torch
from verl.trainer.ppo.core_algos import kl_penalty
z, r = torch.tensor([1.0, 0.0, -1.0], requires_grad=True), torch.tensor([0.2, 0.3, 0.5]).log()
l = z.log_softmax(-1)
(l.exp().detach() * kl_penalty(l, r, "k1")).sum().backward()
print(bool(z.grad.abs().max() < 1e-6))
""",
        prints="True",
    ),
    Difference(
        name="k3 as a loss pulls in the other direction",
        labels=("kl_penalty k3",),
        role="kl_loss",
        like=variants.clamped_k3,
        why="Differentiated as it is, k3 has the expected gradient of KL(reference || policy), and none for tokens "
        "whose k3 is clamped at 10: where the policy has left the reference furthest, nothing pulls it back. "
        "kl_loss_type=low_var_kl and k3 do this; k3+ has the gradient of KL(policy || reference).",
        example="""
import torch
from verl.trainer.ppo.core_algos import kl_penalty
z, r = torch.tensor([2.0, 0.0, -1.0], requires_grad=True), torch.tensor([1e-7, 0.5, 0.5]).log()
for kind in ("k3", "k3+"):
    l = z.log_softmax(-1)
    (gradient,) = torch.autograd.grad((l.exp().detach() * kl_penalty(l, r, kind)).sum(), z)
    print(kind, [round(x, 2) for x in gradient.tolist()])
""",
        prints="k3 [0.71, -0.29, -0.42]\nk3+ [2.33, -1.67, -0.66]",
    ),
    Difference(
        name="a group of equal rewards is trained on",
        labels=_GRPO,
        role="grpo_advantages",
        cases=("constant rewards",),
        like=variants.epsilon_in_deviation(1e-6),
        why="The mean of equal float32 rewards is off by a rounding, and the only guard is 1e-6 beside the deviation: "
        "seven rewards of 0.7 get an advantage of 0.06 each, all of one sign. Rewards of 0 and 1 have an exact mean "
        "and are not affected; a shaped or averaged reward is.",
        example="""
import numpy as np, torch
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
rewards = torch.full((7, 1), 0.7)
print(round(compute_grpo_outcome_advantage(rewards, torch.ones(7, 1), np.array(["a"] * 7))[0].abs().max().item(), 3))
""",
        prints="0.056",
        is_wrong=True,
    ),
    Difference(
        name="epsilon of 1e-6 in the deviation",
        labels=_GRPO,
        role="grpo_advantages",
        cases=("close rewards",),
        like=variants.epsilon_in_deviation(1e-6),
        why="It takes 1 % off the advantages of a group whose rewards are about 1e-4, and nothing that counts off "
        "others.",
        example="""
import numpy as np, torch
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
rewards = torch.tensor([[0.0], [1e-4]], dtype=torch.float64)
print(round(compute_grpo_outcome_advantage(rewards, torch.ones(2, 1), np.array(["a", "a"]))[0].max().item(), 4))
""",
        prints="0.6972",
    ),
    *(
        Difference(
            name="a group of one keeps its reward",
            labels=labels,
            role=role,
            like=variants.keeps_reward_of_one(role),
            why=_ONE,
            example=f"""
import numpy as np, torch
from verl.trainer.ppo.core_algos import {function} as of
print(round(of(torch.tensor([[0.7]]), torch.ones(1, 1), np.array(["a"]))[0].item(), 3))
""",
            prints="0.7",
        )
        for role, labels, function in (
            ("grpo_advantages", _GRPO, "compute_grpo_outcome_advantage"),
            ("dr_grpo_advantages", _RAW, "compute_grpo_vectorized_outcome_advantage"),
            ("rloo_advantages", ("rloo",), "compute_rloo_outcome_advantage"),
        )
    ),
    *LOSSES,
)


def _refuse() -> None:
    raise ValueError("The sum of the mask is one, which can cause a division by zero.")
