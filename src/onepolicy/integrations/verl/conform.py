"""verl's own functions, in the roles of `onepolicy conform`."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from onepolicy.errors import EngineError
from onepolicy.integrations.verl.conform_known import ABSENT, DIFFERENCES, EXPLAINED
from onepolicy.signal.conformance.subject import Function, Subject

if TYPE_CHECKING:
    from onepolicy.signal.conformance.counts import BatchCounts

RAW = "norm_adv_by_std_in_grpo=False"


def subject() -> Subject:
    """verl as it is installed. Raises: EngineError if it is not."""
    try:
        import verl  # noqa: PLC0415 - three seconds, and only this needs it
        from verl.trainer.ppo import core_algos  # noqa: PLC0415
        from verl.utils import torch_functional  # noqa: PLC0415
    except ImportError as error:
        raise EngineError(
            f"onepolicy conform verl needs the package {(error.name or 'verl').partition('.')[0]!r}, which is not "
            f"installed here ({error}). Install it with: pip install verl=={EXPLAINED}"
        ) from error
    functions = [*_scoring(torch_functional), *_kl(core_algos), *_advantages(core_algos), *_losses(core_algos)]
    return Subject(
        name="verl",
        version=str(verl.__version__).strip(),
        explained=EXPLAINED,
        functions=[*functions, Function(role="overlong", label="DAPORewardManager", call=dapo_overlong)],
        differences=DIFFERENCES,
        absent=ABSENT,
    )


def _scoring(torch_functional: Any) -> list[Function]:
    own = torch_functional

    def token_logprobs(logits: Tensor, token_ids: Tensor, temperature: float) -> Any:
        return own.logprobs_from_logits(logits / temperature, token_ids)

    def completion_logprobs(logits: Tensor, input_ids: Tensor, attention_mask: Tensor, lengths: Tensor) -> Any:
        width = int(lengths.max())
        if not torch.equal(attention_mask[:, -width:], (torch.arange(width) < lengths[:, None]).long()):
            raise NotImplementedError("it is made for prompts padded on the left and completions on the right")
        return own.log_probs_from_logits_response(input_ids, logits, width)

    def completion_mask(token_ids: Tensor, end_id: int, _: int) -> Any:
        return own.get_response_mask(token_ids, end_id)

    return [
        Function(role="token_logprobs", label="logprobs_from_logits, of logits / temperature", call=token_logprobs),
        Function(
            role="sequence_logprobs", label="masked_sum", call=lambda values, mask: own.masked_sum(values, mask, -1)
        ),
        Function(role="completion_logprobs", label="log_probs_from_logits_response", call=completion_logprobs),
        Function(role="completion_mask", label="get_response_mask", call=completion_mask),
        Function(role="masked_mean", label="masked_mean", call=own.masked_mean),
        Function(role="whiten", label="masked_whiten", call=own.masked_whiten),
    ]


def _kl(core_algos: Any) -> list[Function]:
    def of(kind: str) -> Callable[[Tensor, Tensor], Any]:
        return lambda logprobs, reference: core_algos.kl_penalty(logprobs, reference, kind)

    value = [Function(role="kl", label=f"kl_penalty {kind}", call=of(kind)) for kind in ("k1", "k2", "k3")]
    return value + [
        Function(role="kl_loss", label=f"kl_penalty {kind}", call=of(kind)) for kind in ("k1", "k2", "k3", "k3+")
    ]


def _advantages(core_algos: Any) -> list[Function]:
    def of(function: Callable[..., Any], **options: Any) -> Callable[[Tensor, Tensor], Any]:
        def call(rewards: Tensor, groups: Tensor) -> Any:
            one = torch.ones(len(rewards), 1, dtype=rewards.dtype)
            return function(rewards[:, None].clone(), one, groups.numpy(), **options)[0][:, 0]

        return call

    def gae(rewards: Tensor, values: Tensor, loss_mask: Tensor, gamma: float, lam: float) -> Any:
        return core_algos.compute_gae_advantage_return(rewards, values, loss_mask, gamma, lam)

    grpo, vectorized = core_algos.compute_grpo_outcome_advantage, core_algos.compute_grpo_vectorized_outcome_advantage
    rloo, rloo_vectorized = (
        core_algos.compute_rloo_outcome_advantage,
        core_algos.compute_rloo_vectorized_outcome_advantage,
    )
    return [
        Function(role="grpo_advantages", label="grpo", call=of(grpo)),
        Function(role="grpo_advantages", label="grpo_vectorized", call=of(vectorized)),
        Function(role="dr_grpo_advantages", label=f"grpo, {RAW}", call=of(grpo, norm_adv_by_std_in_grpo=False)),
        Function(
            role="dr_grpo_advantages",
            label=f"grpo_vectorized, {RAW}",
            call=of(vectorized, norm_adv_by_std_in_grpo=False),
        ),
        Function(role="rloo_advantages", label="rloo", call=of(rloo)),
        Function(role="rloo_advantages", label="rloo_vectorized", call=of(rloo_vectorized)),
        Function(role="gae", label="compute_gae_advantage_return", call=gae),
    ]


def _losses(core_algos: Any) -> list[Function]:
    from verl.workers.config import ActorConfig  # noqa: PLC0415

    def clipped(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, loss_mask: Tensor) -> Any:
        config = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1)
        return core_algos.compute_policy_loss_vanilla(old_logprobs, logprobs, advantages, loss_mask, config=config)[0]

    def aggregated(mode: str, *, tells: bool = True) -> Callable[[Tensor, Tensor, BatchCounts], Any]:
        def call(losses: Tensor, loss_mask: Tensor, counts: BatchCounts) -> Any:
            # As verl's trainers fill them in: the batch size counts every completion, with or without tokens.
            options = {"batch_num_tokens": counts.tokens, "global_batch_size": counts.rows}
            if tells:
                options["loss_scale_factor"] = counts.length
            return core_algos.agg_loss(losses, loss_mask, mode, **options)

        return call

    constant = "seq-mean-token-sum-norm"
    return [
        Function(role="policy_loss", label="compute_policy_loss_vanilla", call=clipped),
        Function(role="dual_clip_loss", label="compute_policy_loss_vanilla", call=clipped),
        Function(role="token_mean", label="agg_loss token-mean", call=aggregated("token-mean")),
        Function(role="sequence_mean", label="agg_loss seq-mean-token-mean", call=aggregated("seq-mean-token-mean")),
        Function(
            role="constant_length", label=f"agg_loss {constant}, loss_scale_factor set", call=aggregated(constant)
        ),
        Function(
            role="constant_length",
            label=f"agg_loss {constant}, loss_scale_factor unset",
            call=aggregated(constant, tells=False),
        ),
    ]


def dapo_overlong(lengths: Tensor, limit: int, buffer: int) -> Any:
    """What a DAPORewardManager adds for completions of these lengths that score 0. [B] -> [B]."""
    from verl import DataProto  # noqa: PLC0415
    from verl.workers.reward_manager.dapo import DAPORewardManager  # noqa: PLC0415

    manager = DAPORewardManager(
        tokenizer=SimpleNamespace(decode=lambda *_, **__: "", eos_token="<end>"),  # noqa: S106 - no secret
        num_examine=0,
        compute_score=lambda **_: 0.0,
        max_resp_len=limit,
        overlong_buffer_cfg=SimpleNamespace(enable=True, len=buffer, penalty_factor=1.0, log=False),
    )
    one = torch.ones(len(lengths), 1, dtype=torch.long)
    real = (torch.arange(int(lengths.max())) < lengths[:, None]).long()
    tensors = {"prompts": one, "responses": real, "attention_mask": torch.cat([one, real], dim=1)}
    named = {"reward_model": [{"ground_truth": ""}] * len(lengths), "data_source": ["planted"] * len(lengths)}
    return manager(DataProto.from_dict(tensors=tensors, non_tensors=named)).sum(dim=1)
