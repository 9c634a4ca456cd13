"""Choices that any module may have made as well: they are no faults, and a module of one's own is told their names."""

from __future__ import annotations

from onepolicy.signal.conformance import variants
from onepolicy.signal.conformance.subject import Difference

_DEVIATION = """
import torch
rewards = torch.tensor([0.0, 1.0, 1.0, 1.0])
print([round((1.0 - rewards.mean()).item() / (rewards.std(correction=n).item() + epsilon), 4)
       for n, epsilon in {pairs}])
"""

GENERAL = (
    *(
        Difference(
            name=f"epsilon of {epsilon:g} in the deviation",
            role="grpo_advantages",
            like=variants.epsilon_in_deviation(epsilon),
            why="A constant beside the deviation, and no other guard: advantages are smaller the closer the rewards "
            "of a group are, and equal rewards whose mean is rounded are divided by it.",
            example=_DEVIATION.format(pairs="((1, 0.0), (1, 1e-2))"),
            prints="[0.5, 0.4902]",
        )
        for epsilon in (1e-4, 1e-6, 1e-8)
    ),
    *(
        Difference(
            name=f"deviation of n, epsilon of {epsilon:g}",
            role="grpo_advantages",
            like=variants.epsilon_in_deviation(epsilon, ddof=0),
            why="The squares are divided by n and not by n - 1, as the reference, TRL and verl do: all advantages of a "
            "group of n are larger by sqrt(n / (n - 1)).",
            example=_DEVIATION.format(pairs="((1, 0.0), (0, 0.0))"),
            prints="[0.5, 0.5774]",
        )
        for epsilon in (1e-4, 1e-6, 1e-8)
    ),
    Difference(
        name="k3 as a loss pulls in the other direction",
        role="kl_loss",
        like=variants.differentiated_k3,
        why="Differentiated as it is, k3 has the expected gradient of KL(reference || policy), which is that of "
        "KL(policy || reference) only near equality. `onepolicy.signal.kl.kl_loss` has the gradient of the latter.",
        example="""
import torch
from onepolicy.signal.kl import kl_loss, kl_value
z, r = torch.tensor([2.0, 0.0, -1.0], requires_grad=True), torch.tensor([1e-7, 0.5, 0.5]).log()
for of in (kl_value, kl_loss):
    l = z.log_softmax(-1)
    (gradient,) = torch.autograd.grad((l.exp().detach() * of(l, r)).sum(), z)
    print([round(x, 2) for x in gradient.tolist()])
""",
        prints="[0.84, -0.39, -0.46]\n[2.33, -1.67, -0.66]",
    ),
    Difference(
        name="advantages are whitened",
        role="gae",
        like=variants.whitened_gae,
        why="Advantages at mean 0 and variance 1 over the batch: the scale of the reward does not reach the loss, and "
        "an advantage depends on what else is in the batch.",
        example="""
import torch
from onepolicy.signal.masks import whitened
print([round(x, 2) for x in whitened(torch.tensor([[8.0, 2.0]]), torch.ones(1, 2))[0].tolist()])
""",
        prints="[0.71, -0.71]",
    ),
)
