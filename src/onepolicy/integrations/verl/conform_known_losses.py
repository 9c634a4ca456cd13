"""The same of verl's GAE, losses and the penalty of long completions."""

from __future__ import annotations

from onepolicy.signal.conformance import references, variants
from onepolicy.signal.conformance.subject import Difference

_JUNK = ("NaN, inf and 1e4 under the mask",)
_GAE = ("compute_gae_advantage_return",)
_MEANS = "agg_loss seq-mean-token-mean"
_SET, _UNSET = (f"agg_loss seq-mean-token-sum-norm, loss_scale_factor {how}" for how in ("set", "unset"))
_MULTIPLIES = (
    "A product by the mask where token-mean selects: finite values under the mask do not enter, NaN and inf make the "
    "loss NaN. verl's engines put 0 there, so it takes a custom loss to meet it."
)
_MULTIPLIES_EXAMPLE = """
import torch
from verl.trainer.ppo.core_algos import agg_loss
losses, mask = torch.tensor([[1.0, torch.nan]]), torch.tensor([[1, 0]])
print([agg_loss(losses, mask, mode).item() for mode in ("token-mean", "{mode}")])
"""
_ROWS = (
    "verl's trainers give agg_loss the size of the mini-batch, which counts completions without a trained token too, "
    "as rollouts that were rejected. They make the step of the others smaller. Without global_batch_size, agg_loss "
    "counts those with a token."
)
_ROWS_EXAMPLE = """
import torch
from verl.trainer.ppo.core_algos import agg_loss
losses, mask = torch.ones(2, 3), torch.tensor([[1, 1, 1], [0, 0, 0]])
print([round(agg_loss(losses, mask, "{mode}", global_batch_size=size).item(), 3) for size in (2, None)])
"""

LOSSES = (
    Difference(
        name="advantages are whitened",
        labels=_GAE,
        role="gae",
        like=variants.whitened_gae,
        why="compute_gae_advantage_return returns advantages at mean 0 and variance 1 over the batch it is given, and "
        "returns that are not whitened. The scale of the reward does not reach the loss, and an advantage depends on "
        "what else is in the batch.",
        example="""
import torch
from verl.trainer.ppo.core_algos import compute_gae_advantage_return
rewards, values = torch.tensor([[0.0, 8.0], [0.0, 2.0]]), torch.zeros(2, 2)
advantages, returns = compute_gae_advantage_return(rewards, values, torch.ones(2, 2), 1.0, 1.0)
print([round(x, 2) for x in advantages[:, 0].tolist()], returns[:, 0].tolist())
""",
        prints="[0.87, -0.87] [8.0, 2.0]",
    ),
    Difference(
        name="values under the mask are multiplied",
        labels=_GAE,
        role="gae",
        cases=_JUNK,
        like=variants.multiplied_gae,
        why="Values under the mask are multiplied by 0, not selected away: finite ones do not enter, NaN or inf in one "
        "padded position make every advantage of the batch NaN, through the whitening.",
        example="""
import torch
from verl.trainer.ppo.core_algos import compute_gae_advantage_return
rewards, mask = torch.tensor([[1.0, 0.0], [0.5, 1.0]]), torch.tensor([[1, 0], [1, 1]])
for junk in (1e4, torch.nan):
    values = torch.tensor([[0.0, junk], [0.0, 0.0]])
    print(compute_gae_advantage_return(rewards, values, mask, 1.0, 1.0)[0][mask.bool()].isnan().all().item())
""",
        prints="False\nTrue",
    ),
    Difference(
        name="the dual clip is on",
        labels=("compute_policy_loss_vanilla",),
        role="policy_loss",
        like=references.dual_clip_loss,
        why="clip_ratio_c is 3 by default: the loss of a negative advantage A is at most 3 |A|, and has no gradient "
        "beyond a ratio of 3. PPO as published has no such bound. A large clip_ratio_c gives PPO's loss.",
        example="""
import torch
from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla
from verl.workers.config import ActorConfig
old, new, one = torch.tensor([[0.0]]), torch.tensor([[2.0]]), torch.ones(1, 1)
for bound in (3.0, 100.0):
    config = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, clip_ratio_c=bound)
    print(round(compute_policy_loss_vanilla(old, new, -one, one, config=config)[0].item(), 2))
""",
        prints="3.0\n7.39",
    ),
    Difference(
        name="completions without tokens count",
        labels=(_MEANS,),
        role="sequence_mean",
        like=variants.summed_over_rows(),
        why=_ROWS,
        example=_ROWS_EXAMPLE.format(mode="seq-mean-token-mean"),
        prints="[0.5, 1.0]",
    ),
    Difference(
        name="completions without tokens count",
        labels=(_SET,),
        role="constant_length",
        like=variants.summed_over_rows(length="constant"),
        why=_ROWS,
        example=_ROWS_EXAMPLE.format(mode="seq-mean-token-sum-norm"),
        prints="[0.5, 1.0]",
    ),
    Difference(
        name="losses under the mask are multiplied",
        labels=(_MEANS,),
        role="sequence_mean",
        cases=_JUNK,
        like=variants.summed_over_rows(selects=False),
        why=_MULTIPLIES,
        example=_MULTIPLIES_EXAMPLE.format(mode="seq-mean-token-mean"),
        prints="[1.0, nan]",
    ),
    Difference(
        name="losses under the mask are multiplied",
        labels=(_SET,),
        role="constant_length",
        cases=_JUNK,
        like=variants.summed_over_rows(length="constant", selects=False),
        why=_MULTIPLIES,
        example=_MULTIPLIES_EXAMPLE.format(mode="seq-mean-token-sum-norm"),
        prints="[1.0, nan]",
    ),
    *(
        Difference(
            name="divided by the width of the batch",
            labels=(_UNSET,),
            role="constant_length",
            cases=cases,
            like=variants.summed_over_rows(length="width", selects=selects),
            why="Without loss_scale_factor, seq-mean-token-sum-norm divides by the number of columns. It is a constant "
            "only if every batch is padded to one width; else the learning rate depends on the longest completion. Set "
            "actor.loss_scale_factor to the longest completion that is allowed.",
            example="""
import torch
from verl.trainer.ppo.core_algos import agg_loss
for width in (4, 8):
    mask = torch.arange(width)[None] < 3
    print(agg_loss(torch.ones(1, width), mask, "seq-mean-token-sum-norm").item())
""",
            prints="0.75\n0.375",
        )
        for cases, selects in (((), True), (_JUNK, False))
    ),
    Difference(
        name="no end to the penalty",
        labels=("DAPORewardManager",),
        role="overlong",
        like=variants.unclamped_overlong,
        why="Beyond max_resp_len the penalty goes on growing. It is never reached if max_resp_len is the longest "
        "response that is sampled; where the engine may sample more, one completion dominates its group.",
        example="""
import torch
from onepolicy.integrations.verl.conform import dapo_overlong  # runs a DAPORewardManager
print([round(x, 2) for x in dapo_overlong(torch.tensor([20, 28]), 20, 5).tolist()])
""",
        prints="[-1.0, -2.6]",
    ),
)
