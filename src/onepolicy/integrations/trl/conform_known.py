"""In which ways TRL's functions differ from the references, each with a few lines that show it. Of TRL 1.16.0."""

from __future__ import annotations

import torch

from onepolicy.signal.conformance import references, variants
from onepolicy.signal.conformance.subject import Difference

EXPLAINED = "1.16.0"
_NOWHERE = "TRL 1.16.0 has it in no function that can be called alone"
ABSENT = {
    "sequence_logprobs": _NOWHERE + ": RLOOTrainer sums inside its loss",
    "completion_logprobs": _NOWHERE + ": it scores with the model, see model_logprobs",
    "processed_logprobs": "TRL 1.16.0 scores under temperature only",
    "masked_mean": _NOWHERE,
    "whiten": _NOWHERE,
    "gae": "the trainers of TRL 1.16.0 outside trl.experimental have no value model",
}
_JUNK = ("NaN, inf and 1e4 under the mask",)
_LOSS = "GRPOTrainer._compute_loss"
_CLIPPED = (f'{_LOSS}, loss_type="dapo"', f'{_LOSS}, loss_type="dapo", delta=3')
_SETUP = """
import torch
from onepolicy.integrations.trl.conform_trainer import grpo
planted = grpo()  # a real GRPOTrainer; its own _compute_loss runs on these logprobs
"""
_MULTIPLIES = (
    "TRL multiplies by the mask where the reference selects: finite values under the mask do not enter, NaN and inf "
    "make the loss NaN. Its own scoring puts 0 at padding, so it takes an override to meet it."
)
_MULTIPLIES_EXAMPLE = (
    _SETUP
    + """
planted.configure(loss_type="{kind}")
logprobs, mask = torch.zeros(1, 2), torch.tensor([[1, 0]])
for junk in (5.0, torch.nan):
    print(planted.loss(logprobs, mask=mask, advantages=torch.tensor([[-1.0, junk]])).isnan().item())
"""
)
_ROWS = (
    "TRL divides by the number of rows, and a completion without a trained token is one, as mask_truncated_completions "
    "leaves them. They make the step of the others smaller."
)
_ROWS_EXAMPLE = (
    _SETUP
    + """
planted.configure(loss_type="{kind}", max_completion_length=3)
for marks in ([[1, 1, 1]], [[1, 1, 1], [0, 0, 0]]):
    mask = torch.tensor(marks)
    print(planted.loss(torch.zeros(mask.shape), mask=mask, advantages=-torch.ones(mask.shape)).item())
"""
)

DIFFERENCES = (
    Difference(
        name="no positions for padded prompts",
        labels=("GRPOTrainer._get_per_token_logps_and_entropies",),
        role="model_logprobs",
        like=variants.numbered_columns,
        why="TRL pads prompts on the left and gives the model no position_ids. A model of learned absolute positions "
        "(GPT-2) then numbers the padding too: the same completion is scored otherwise beside a longer prompt, and "
        "otherwise than it was sampled, as generate does give positions. Models of rotary or other relative positions "
        "(Llama, Qwen) are not affected: their row agrees.",
        example="""
from contextlib import nullcontext
from types import SimpleNamespace
import torch
from transformers import GPT2Config, GPT2LMHeadModel
from trl import GRPOTrainer
from trl.trainer.utils import add_fused_lm_head
torch.manual_seed(0)
size = {"vocab_size": 9, "n_embd": 8, "n_layer": 1, "n_head": 1, "bos_token_id": 1, "eos_token_id": 2}
model = GPT2LMHeadModel(GPT2Config(**size, initializer_range=0.5)).eval()
add_fused_lm_head(model)
trainer = SimpleNamespace(accelerator=SimpleNamespace(autocast=nullcontext))
score = GRPOTrainer._get_per_token_logps_and_entropies.__wrapped__
for ids in ([[1, 2, 3, 4]], [[0, 0, 1, 2, 3, 4]]):  # alone, and padded by 2
    ids = torch.tensor(ids)
    with torch.no_grad():
        logprobs = score(trainer, model, ids, (ids > 0).long(), 2)[0]
    print([round(x, 2) for x in logprobs[0].tolist()])
""",
        prints="[-2.77, -3.4]\n[-2.61, -2.17]",
        is_wrong=True,
    ),
    Difference(
        name="no padding id",
        labels=("GRPOTrainer._generate_single_turn",),
        role="completion_mask",
        like=variants.mask_without_padding_id,
        why="What generate returned is cut after the end token; a row that has none is taken whole. With TRL's own "
        "sampling such a row is as long as the batch is wide. A server or a rollout_func gives lists, which have no "
        "padding.",
        example=_SETUP
        + """
print(planted.sampled(torch.tensor([[6, 7, 0, 0], [4, 9, 0, 0]]), end_id=9))
""",
        prints="[[6, 7, 0, 0], [4, 9]]",
    ),
    Difference(
        name="k3 as a loss pulls in the other direction",
        labels=(f"{_LOSS}, beta",),
        role="kl_loss",
        like=variants.differentiated_k3,
        why="With beta, TRL differentiates k3 as it is: its expected gradient is that of KL(reference || policy). It "
        "pulls little on tokens that the reference finds unlikely, and hard on those that the policy has dropped. "
        "use_bias_correction_kl=True gives the gradient of KL(policy || reference).",
        example=_SETUP
        + """
z, r = torch.tensor([2.0, 0.0, -1.0], requires_grad=True), torch.tensor([1e-7, 0.5, 0.5]).log()
for corrects in (False, True):
    planted.configure(loss_type="dapo", beta=1.0, use_bias_correction_kl=corrects)
    l = z.log_softmax(-1)
    one = {"mask": torch.ones(1, 1, dtype=torch.long), "advantages": torch.zeros(1, 1)}
    kl = [planted.loss(a.view(1, 1), ref_per_token_logps=b.view(1, 1), **one) for a, b in zip(l, r)]
    (gradient,) = torch.autograd.grad((l.exp().detach() * torch.stack(kl)).sum(), z)
    print([round(x, 2) for x in gradient.tolist()])
""",
        prints="[0.84, -0.39, -0.46]\n[2.33, -1.67, -0.66]",
    ),
    Difference(
        name="epsilon of 1e-4 in the deviation",
        labels=('GRPOTrainer, scale_rewards="group"',),
        role="grpo_advantages",
        like=variants.epsilon_in_deviation(1e-4, dtype=torch.float32),
        why="It takes 0.02 % off the advantages of a group whose rewards have a deviation of 0.5, and half off those "
        "of one whose rewards have a deviation of 1e-4. A group of equal rewards gets 0, or 6e-4 where its mean is "
        "rounded.",
        example=_SETUP
        + """
for scale in (1.0, 1e-4):
    found = planted.advantages(scale * torch.tensor([0.0, 1.0]), torch.tensor([0, 0]))
    print(round(found.max().item(), 3))
""",
        prints="0.707\n0.293",
    ),
    *(
        Difference(
            name="values under the mask are multiplied",
            labels=(label,),
            role=role,
            cases=_JUNK,
            like=variants.multiplied_policy_loss(dual),
            why=_MULTIPLIES,
            example=_MULTIPLIES_EXAMPLE.format(kind="dapo"),
            prints="False\nTrue",
        )
        for role, label, dual in (
            ("policy_loss", _CLIPPED[0], None),
            ("dual_clip_loss", _CLIPPED[1], references.DUAL),
        )
    ),
    Difference(
        name="mean over micro-batches",
        labels=(f'{_LOSS}, loss_type="bnpo"',),
        role="token_mean",
        like=variants.mean_of_parts,
        why="bnpo divides by the tokens of a micro-batch and averages over micro-batches: a token weighs more beside "
        'few others, so the loss depends on per_device_train_batch_size. loss_type="dapo" does not.',
        example=_SETUP
        + """
for kind in ("bnpo", "dapo"):
    planted.configure(loss_type=kind, parts=2)
    parts = [torch.tensor([[1, 1, 1]]), torch.tensor([[1, 0, 0]])]
    losses = [torch.tensor([[1.0, 1.0, 1.0]]), torch.tensor([[5.0, 0.0, 0.0]])]
    found = [planted.loss(torch.zeros(1, 3), mask=mask, advantages=-loss, num_items_in_batch=torch.tensor(4))
             for mask, loss in zip(parts, losses)]
    print(kind, sum(found).item())
""",
        prints="bnpo 3.0\ndapo 2.0",
    ),
    *(
        Difference(
            name="losses under the mask are multiplied",
            labels=(f'{_LOSS}, loss_type="{kind}"',),
            role=role,
            cases=_JUNK,
            like=like,
            why=_MULTIPLIES,
            example=_MULTIPLIES_EXAMPLE.format(kind=kind),
            prints="False\nTrue",
        )
        for role, kind, like in (
            ("token_mean", "dapo", variants.multiplied_token_mean),
            ("token_mean", "bnpo", variants.multiplied_token_mean),
            ("sequence_mean", "grpo", variants.summed_over_rows(selects=False)),
            ("constant_length", "dr_grpo", variants.summed_over_rows(length="constant", selects=False)),
        )
    ),
    *(
        Difference(
            name="completions without tokens count",
            labels=(f'{_LOSS}, loss_type="{kind}"',),
            role=role,
            like=variants.summed_over_rows(length=length),
            why=_ROWS,
            example=_ROWS_EXAMPLE.format(kind=kind),
            prints="1.0\n0.5",
        )
        for role, kind, length in (("sequence_mean", "grpo", "tokens"), ("constant_length", "dr_grpo", "constant"))
    ),
)
