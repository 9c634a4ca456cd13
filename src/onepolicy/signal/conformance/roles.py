"""What a function may be put through the batches as: its name, and how it is called."""

from __future__ import annotations

import re
from dataclasses import dataclass

from onepolicy.signal.conformance import references
from onepolicy.signal.conformance.subject import Call


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A function that trainers have, in a signature of ours. Tensors are torch's; arguments are given by position."""

    signature: str
    gives: str

    @property
    def name(self) -> str:
        """What stands before the parenthesis."""
        return self.signature.partition("(")[0]

    @property
    def parameters(self) -> int:
        """How many it is given."""
        return re.sub(r"\[.*?\]", "", self.signature).count(",") + 1

    @property
    def reference(self) -> Call:
        """Our own function in this role."""
        found: Call = getattr(references, self.name)
        return found


_ALL = (
    Role(
        signature="token_logprobs(logits [B, T, V], token_ids [B, T], temperature)",
        gives="[B, T] logprob of each token under softmax(logits / temperature)",
    ),
    Role(
        signature="processed_logprobs(logits [B, T, V], token_ids [B, T], temperature, top_p)",
        gives="[B, T] the same among the tokens that top_p keeps",
    ),
    Role(
        signature="sequence_logprobs(logprobs [B, T], loss_mask [B, T])",
        gives="[B] logprob of each completion",
    ),
    Role(
        signature="completion_logprobs(logits [B, S, V], input_ids [B, S], attention_mask [B, S], lengths [B])",
        gives="[B, longest] of the last `lengths` real tokens of each row, from the left",
    ),
    Role(
        signature="model_logprobs(model, input_ids [B, S], attention_mask [B, S], loss_mask [B, S])",
        gives="[B, S] logprob of token i at entry i where the mask marks it. The model takes input_ids, attention_mask "
        "and position_ids, and gives an object with logits",
    ),
    Role(
        signature="completion_mask(token_ids [B, T], end_id, pad_id)",
        gives="[B, T] 1 on the sampled tokens, the end token with them",
    ),
    Role(signature="masked_mean(values [B, T], loss_mask [B, T])", gives="[] mean of the marked values"),
    Role(signature="whiten(values [B, T], loss_mask [B, T])", gives="[B, T] marked values at mean 0 and variance 1"),
    Role(
        signature="kl(logprobs [...], reference_logprobs [...])",
        gives="[...] for tokens of the policy: its mean is KL(policy || reference)",
    ),
    Role(
        signature="kl_loss(logprobs [...], reference_logprobs [...])",
        gives="[...] for tokens of the policy: its mean has the gradient of KL(policy || reference)",
    ),
    Role(
        signature="grpo_advantages(rewards [B], groups [B])",
        gives="[B] (reward - mean) / standard deviation of its group, n - 1; 0 where all are equal",
    ),
    Role(signature="dr_grpo_advantages(rewards [B], groups [B])", gives="[B] reward - mean of its group"),
    Role(signature="rloo_advantages(rewards [B], groups [B])", gives="[B] reward - mean of the others of its group"),
    Role(
        signature="gae(rewards [B, T], values [B, T], loss_mask [B, T], gamma, lam)",
        gives="[B, T] advantages and [B, T] returns",
    ),
    Role(
        signature="policy_loss(logprobs [B, T], old_logprobs [B, T], advantages [B, T], loss_mask [B, T])",
        gives="[] mean over marked tokens of PPO's clipped loss, to be minimised; clip range 0.8 to 1.2",
    ),
    Role(
        signature="dual_clip_loss(logprobs [B, T], old_logprobs [B, T], advantages [B, T], loss_mask [B, T])",
        gives="[] the same, the loss of a negative advantage A at most 3 |A|",
    ),
    Role(
        signature="token_mean(losses [B, T], loss_mask [B, T], counts)",
        gives="[] this micro-batch's summand of the mean over all tokens; counts has tokens, sequences, rows, parts, "
        "length of the whole batch",
    ),
    Role(
        signature="sequence_mean(losses [B, T], loss_mask [B, T], counts)",
        gives="[] likewise of the mean over completions of the mean over a completion's tokens",
    ),
    Role(
        signature="constant_length(losses [B, T], loss_mask [B, T], counts)",
        gives="[] likewise of the sum over tokens / (completions * counts.length)",
    ),
    Role(
        signature="overlong(lengths [B], limit, buffer)",
        gives="[B] 0 up to limit - buffer, linear down to -1 at the limit and beyond",
    ),
    Role(
        signature="agrees(rollout_logprobs [B, T], trainer_logprobs [B, T], loss_mask [B, T], limit)",
        gives="True, False, or None for unknown: whether the two sides are within limit nats per token of each other",
    ),
    Role(
        signature="is_systematic(d [rollouts, tokens])",
        gives="True, False, or None for unknown: whether trainer - rollout logprobs differ by more than chance",
    ),
)
ROLES = {role.name: role for role in _ALL}
