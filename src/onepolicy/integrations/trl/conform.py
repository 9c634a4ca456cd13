"""TRL's own functions and its trainers' own lines, in the roles of `onepolicy conform`."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from onepolicy.errors import EngineError
from onepolicy.integrations.trl.conform_known import ABSENT, DIFFERENCES, EXPLAINED
from onepolicy.signal.conformance.subject import Function, Subject

if TYPE_CHECKING:
    from onepolicy.integrations.trl.conform_trainer import PlantedTrainer
    from onepolicy.signal.conformance.counts import BatchCounts
    from onepolicy.signal.conformance.model import PlantedModel


def subject() -> Subject:
    """TRL as it is installed. Raises: EngineError if it is not."""
    try:
        import trl  # noqa: F401, PLC0415 - five seconds, and only this needs it

        from onepolicy.integrations.trl.conform_trainer import grpo, rloo  # noqa: PLC0415

        trainer, of_rloo = grpo(), rloo()
    except ImportError as error:
        raise EngineError(
            f"onepolicy conform trl needs the package {(error.name or 'trl').partition('.')[0]!r}, which is not "
            f"installed here ({error}). Install it with: pip install trl=={EXPLAINED}"
        ) from error
    return Subject(
        name="trl",
        version=version("trl"),
        explained=EXPLAINED,
        functions=[
            *_scoring(trainer),
            *_kl(trainer),
            *_advantages(trainer, of_rloo),
            *_losses(trainer),
            *_aggregations(trainer),
            _overlong(),
        ],
        differences=DIFFERENCES,
        absent=ABSENT,
    )


def _scoring(planted: PlantedTrainer) -> list[Function]:
    from trl.trainer.grpo_trainer import GRPOTrainer  # noqa: PLC0415
    from trl.trainer.utils import add_fused_lm_head, selective_log_softmax  # noqa: PLC0415

    def model_logprobs(model: PlantedModel, input_ids: Tensor, attention_mask: Tensor, loss_mask: Tensor) -> Tensor:
        shown = _AsTransformers(model)
        add_fused_lm_head(shown, outputs=("log_probs", "entropy"))
        kept = input_ids.shape[1] - int(loss_mask.any(dim=0).nonzero()[0])
        found = GRPOTrainer._get_per_token_logps_and_entropies(planted.trainer, shown, input_ids, attention_mask, kept)
        return nn.functional.pad(found[0], (input_ids.shape[1] - kept, 0))

    def completion_mask(token_ids: Tensor, end_id: int, _: int) -> Tensor:
        lengths = torch.tensor([len(row) for row in planted.sampled(token_ids, end_id=end_id)])
        return torch.arange(token_ids.shape[1]) < lengths[:, None]

    return [
        Function(role="token_logprobs", label="selective_log_softmax", call=selective_log_softmax),
        Function(role="model_logprobs", label="GRPOTrainer._get_per_token_logps_and_entropies", call=model_logprobs),
        Function(role="completion_mask", label="GRPOTrainer._generate_single_turn", call=completion_mask),
    ]


class _AsTransformers(nn.Module):
    """The planted model with what TRL's fused head reads of a model of Transformers."""

    def __init__(self, model: PlantedModel) -> None:
        super().__init__()
        self.planted = model
        self.config = SimpleNamespace(get_text_config=SimpleNamespace)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None
    ) -> Any:
        """Logits. [B, S] -> [B, S, V]."""
        return self.planted(input_ids, attention_mask, position_ids)

    def base_model(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None, **_: Any
    ) -> Any:
        """Hidden states. [B, S] -> [B, S, width]."""
        return SimpleNamespace(last_hidden_state=self.planted.hidden(input_ids, attention_mask, position_ids))

    def get_output_embeddings(self) -> nn.Linear:
        """The head."""
        return self.planted.head


def _kl(planted: PlantedTrainer) -> list[Function]:
    def of(*, is_corrected: bool) -> Callable[[Tensor, Tensor], Tensor]:
        def one(logprob: Tensor, reference: Tensor) -> Any:
            """Of one token: beta 1, no advantage, and the loss is its KL."""
            at = logprob.view(1, 1)
            planted.configure(loss_type="dapo", beta=1.0, use_bias_correction_kl=is_corrected)
            mask, advantages = torch.ones(1, 1, dtype=torch.long), torch.zeros_like(at)
            return planted.loss(at, mask=mask, advantages=advantages, ref_per_token_logps=reference.view(1, 1))

        return lambda logprobs, reference: torch.stack(
            [one(*pair) for pair in zip(logprobs, reference, strict=True)]
        ).view(logprobs.shape)

    plain, corrected = of(is_corrected=False), of(is_corrected=True)
    return [
        Function(role="kl", label="GRPOTrainer._compute_loss, beta", call=plain),
        Function(role="kl_loss", label="GRPOTrainer._compute_loss, beta", call=plain),
        Function(role="kl_loss", label="GRPOTrainer._compute_loss, beta, use_bias_correction_kl=True", call=corrected),
    ]


def _advantages(planted: PlantedTrainer, of_rloo: PlantedTrainer) -> list[Function]:
    def scaled(scale: str) -> Callable[[Tensor, Tensor], Any]:
        def call(rewards: Tensor, groups: Tensor) -> Any:
            planted.configure(loss_type="dapo")
            planted.trainer.scale_rewards = scale
            return planted.advantages(rewards, groups)

        return call

    return [
        Function(role="grpo_advantages", label='GRPOTrainer, scale_rewards="group"', call=scaled("group")),
        Function(role="dr_grpo_advantages", label='GRPOTrainer, scale_rewards="none"', call=scaled("none")),
        Function(role="rloo_advantages", label="RLOOTrainer", call=of_rloo.advantages),
    ]


def _losses(planted: PlantedTrainer) -> list[Function]:
    def clipped(delta: float | None) -> Callable[[Tensor, Tensor, Tensor, Tensor], Any]:
        def call(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, loss_mask: Tensor) -> Any:
            planted.configure(loss_type="dapo", delta=delta)
            return planted.loss(logprobs, mask=loss_mask, advantages=advantages, old=old_logprobs)

        return call

    return [
        Function(role="policy_loss", label='GRPOTrainer._compute_loss, loss_type="dapo"', call=clipped(None)),
        Function(
            role="dual_clip_loss", label='GRPOTrainer._compute_loss, loss_type="dapo", delta=3', call=clipped(3.0)
        ),
    ]


def _aggregations(planted: PlantedTrainer) -> list[Function]:
    def of(loss_type: str) -> Callable[[Tensor, Tensor, BatchCounts], Any]:
        def call(losses: Tensor, loss_mask: Tensor, counts: BatchCounts) -> Any:
            """On policy the loss of a token is minus its advantage."""
            if len(losses) * counts.parts != counts.rows:
                raise NotImplementedError("TRL's micro-batches are of one size: per_device_train_batch_size")
            planted.configure(loss_type=loss_type, parts=counts.parts, max_completion_length=counts.length)
            return planted.loss(
                torch.zeros_like(losses), mask=loss_mask, advantages=-losses,
                num_items_in_batch=torch.tensor(counts.tokens),
            )  # fmt: skip

        return call

    named = (("token_mean", "dapo"), ("token_mean", "bnpo"), ("sequence_mean", "grpo"), ("constant_length", "dr_grpo"))
    return [
        Function(role=role, label=f'GRPOTrainer._compute_loss, loss_type="{kind}"', call=of(kind))
        for role, kind in named
    ]


def _overlong() -> Function:
    from trl.rewards import get_soft_overlong_punishment  # noqa: PLC0415

    def overlong(lengths: Tensor, limit: int, buffer: int) -> Tensor:
        punish = get_soft_overlong_punishment(limit, buffer)
        return torch.tensor(punish([[0] * length for length in lengths.tolist()]), dtype=torch.float64)

    return Function(role="overlong", label="get_soft_overlong_punishment", call=overlong)
