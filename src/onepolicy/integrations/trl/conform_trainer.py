"""A real GRPOTrainer or RLOOTrainer on a model of a few weights, whose logprobs and rewards are planted.

No hub and no file: the tokenizer is made in memory, and nothing is trained or saved.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

WORDS = 30
END, PAD = WORDS, WORDS + 1


_SIZE: dict[str, Any] = {
    "vocab_size": WORDS + 2,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "bos_token_id": None,
    "eos_token_id": END,
    "pad_token_id": PAD,
}
_ARGUMENTS: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "num_generations": 2,
    "beta": 0.0,
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "disable_tqdm": True,
    "save_strategy": "no",
    "report_to": [],
}


class PlantedTrainer:
    """Gives a trainer's own lines what they read, and hands back what they compute."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.rewards: Sequence[float] = ()

    def configure(self, *, loss_type: str, beta: float = 0.0, parts: int = 1, **arguments: Any) -> None:
        """How `_compute_loss` computes from now on; what is not given is as in no other call before.

        parts: micro-batches of a step. arguments: `delta`, `use_bias_correction_kl`, `max_completion_length`.
        """
        trainer = self.trainer
        trainer.loss_type, trainer.beta = loss_type, beta
        trainer.current_gradient_accumulation_steps = trainer.args.steps_per_generation = parts
        trainer.max_completion_length = arguments.get("max_completion_length", 1)
        trainer.args.delta = arguments.get("delta")
        trainer.args.use_bias_correction_kl = arguments.get("use_bias_correction_kl", False)

    def loss(
        self, logprobs: Tensor, *, mask: Tensor, advantages: Tensor, old: Tensor | None = None, **options: Any
    ) -> Any:
        """What `_compute_loss` gives. Options: fields of the batch (`ref_per_token_logps`, `num_items_in_batch`)."""
        ids = torch.zeros(logprobs.shape, dtype=torch.long)
        batch = {
            "prompt_ids": ids[:, :1],
            "prompt_mask": torch.ones_like(ids[:, :1]),
            "completion_ids": ids,
            "completion_mask": mask,
            "advantages": advantages,
            "old_per_token_logps": old,
            "num_items_in_batch": mask.sum(),
            **options,
        }
        zeros = torch.zeros_like(logprobs).detach()
        self.trainer._get_per_token_logps_and_entropies = lambda *_, **__: (logprobs, zeros, None)
        return self.trainer._compute_loss(self.trainer.model, batch)

    def advantages(self, rewards: Tensor, groups: Tensor) -> Any:
        """What `_generate_and_score_completions` gives for these rewards. Raises: NotImplementedError; see there."""
        size = len(groups) // len(torch.unique(groups))
        if size < 2 or not torch.equal(groups, groups.view(-1, size)[:, 0].repeat_interleave(size)):
            raise NotImplementedError(
                "TRL groups by place: its sampler puts num_generations completions of a prompt side by side"
            )
        self.rewards = rewards.tolist()
        self.trainer.num_generations = size
        completions = torch.tensor([[1, END]]).expand(len(rewards), 2)
        self.trainer.model.generate = lambda input_ids, **_: torch.cat([input_ids, completions], dim=1)
        return self.trainer._generate_and_score_completions([{"prompt": "w1"}] * len(rewards))["advantages"]

    def sampled(self, token_ids: Tensor, *, end_id: int) -> list[list[int]]:
        """What `_generate_single_turn` makes of the ids that the model's `generate` gives."""
        trainer = self.trainer
        trainer.eos_token_ids = [end_id]
        trainer.model.generate = lambda input_ids, **_: torch.cat([input_ids, token_ids], dim=1)
        completions, _ = trainer._generate_single_turn([[1]] * len(token_ids), None, {}, 1)
        found: list[list[int]] = completions
        return found


def grpo() -> PlantedTrainer:
    """A GRPOTrainer."""
    from trl import GRPOConfig, GRPOTrainer  # noqa: PLC0415 - seconds, and only these need them

    return _planted(GRPOTrainer, GRPOConfig)


def rloo() -> PlantedTrainer:
    """An RLOOTrainer without the KL in its reward."""
    from trl import RLOOConfig, RLOOTrainer  # noqa: PLC0415

    return _planted(RLOOTrainer, RLOOConfig)


def _planted(kind: Any, config: Any) -> PlantedTrainer:
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415

    planted = PlantedTrainer(None)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        planted.trainer = kind(
            model=LlamaForCausalLM(LlamaConfig(**_SIZE)),
            reward_funcs=lambda completions, **_: list(planted.rewards),
            args=config(output_dir=folder, **_ARGUMENTS),
            train_dataset=import_module("datasets").Dataset.from_list([{"prompt": "w1"}] * 4),
            processing_class=_tokenizer(),
        )
    planted.trainer.model.train()
    return planted


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: PLC0415
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    vocabulary = {f"w{i}": i for i in range(WORDS)} | {"<end>": END, "<pad>": PAD}
    special: dict[str, Any] = {"eos_token": "<end>", "pad_token": "<pad>"}
    words = Tokenizer(models.WordLevel(vocabulary, "w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    made: Any = PreTrainedTokenizerFast
    return made(tokenizer_object=words, **special)
