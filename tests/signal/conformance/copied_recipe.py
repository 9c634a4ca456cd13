"""What public write-ups of the subject get wrong, as a trainer would have it in its code. `onepolicy conform` on this
file must flag all of it."""

import math

import torch


def sequence_logprobs(logprobs, loss_mask):
    """1. Padding is filled with -inf, and then everything is summed."""
    return logprobs.masked_fill(loss_mask == 0, -torch.inf).sum(dim=1)


def completion_logprobs(logits, input_ids, attention_mask, lengths):
    """2. The first `seq_len` scored positions, whatever side the batch is padded on."""
    scored = logits[:, :-1].log_softmax(dim=-1).gather(-1, input_ids[:, 1:, None])[..., 0]
    return scored[:, : int(lengths.max())]


def kl(logprobs, reference_logprobs):
    """3. "Positive when the new policy is less likely"."""
    return reference_logprobs - logprobs


def model_logprobs(model, input_ids, attention_mask, loss_mask):
    """4. "Left padding fixes it": no mask, no positions."""
    scored = model(input_ids).logits[:, :-1].log_softmax(dim=-1).gather(-1, input_ids[:, 1:, None])[..., 0]
    return torch.nn.functional.pad(scored, (1, 0))


def agrees(rollout_logprobs, trainer_logprobs, loss_mask, limit):
    """5. A mean near zero proves agreement. 6. The mean log ratio of however many tokens there are decides at 1e-4."""
    d = (trainer_logprobs - rollout_logprobs)[loss_mask.bool()]
    return bool(d.mean().abs() < limit)


def is_systematic(d):
    """7. The mean of d is not zero. 8. Or its sum grows linearly and not like a square root."""
    return mean_is_not_zero(d) or grows_linearly(d)


def mean_is_not_zero(d):
    return bool(d.mean().abs() > 3 * d.std() / math.sqrt(d.numel()))


def grows_linearly(d):
    sums = d.cumsum(dim=1).abs().mean(dim=0)
    quarter = len(sums) // 4
    return bool(torch.log(sums[-1] / sums[quarter - 1]) / math.log(4) > 0.75)


def processed_logprobs(logits, token_ids, temperature, top_p):
    """9. The server's top_p is copied into sampling, and the trainer scores over the whole vocabulary."""
    return (logits / temperature).log_softmax(dim=-1).gather(-1, token_ids[..., None])[..., 0]
