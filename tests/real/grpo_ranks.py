"""A real GRPOTrainer on several ranks, with a tiny model; under torchrun.

    PYTHONPATH=.peers torchrun --nproc_per_node 2 tests/real/grpo_ranks.py TOKENIZER FOLDER before_loss|in_loss LIMITS

Each step has three prompts of eight rollouts; those of the second prompt are on two ranks. What TRL logs is in
FOLDER/log.json.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from grpo_masking import LENGTH, Transport, fresh, logprobs, save_reference
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from onepolicy.integrations.trl.hook import attach

RANK = int(os.environ["RANK"])
STEPS, GENERATIONS, EACH, MICRO_BATCHES = 4, 8, 4, 3


def main() -> None:
    tokenizer, folder = AutoTokenizer.from_pretrained(sys.argv[1]), Path(sys.argv[2])
    save_reference(tokenizer, folder / f"model-{RANK}")
    trainer = GRPOTrainer(
        model=fresh(folder / f"model-{RANK}"),
        reward_funcs=lambda completions, **_: [float(i * i % 7) for i in range(len(completions))],
        args=GRPOConfig(
            output_dir=str(folder / "trl"), max_steps=STEPS, per_device_train_batch_size=EACH,
            gradient_accumulation_steps=MICRO_BATCHES, num_generations=GENERATIONS, max_completion_length=LENGTH,
            learning_rate=1e-4, beta=0.0, logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True,
            use_cpu=True, bf16=False, gradient_checkpointing=False, seed=7,
        ),
        train_dataset=Dataset.from_list([{"prompt": f"Count to {i}"} for i in range(16)]),
        processing_class=tokenizer,
        rollout_func=lambda prompts, trainer: rollouts(prompts, trainer, tokenizer),
    )  # fmt: skip
    if sys.argv[3] == "before_loss":
        trainer.use_vllm, trainer.vllm_generation, trainer._last_loaded_step = True, Transport(), 0
    attach(trainer, folder / "monitor", policy="halt", limits=sys.argv[4], dump=folder / "dump")
    try:
        trainer.train()
    finally:
        if RANK == 0:
            (folder / "log.json").write_text(json.dumps(trainer.state.log_history))
        torch.distributed.destroy_process_group()  # else gloo's threads may abort the interpreter as it ends


def rollouts(prompts: list[str], trainer: GRPOTrainer, tokenizer: Any) -> dict[str, Any]:
    """Tokens that are made up, and their logprobs with a little noise."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    ids = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    made = torch.randint(1000, 40_000, (len(prompts), LENGTH)).tolist()
    own = torch.tensor([logprobs(model, p, c) for p, c in zip(ids, made, strict=True)])
    given = (own + 0.03 * torch.randn(own.shape)).clamp(max=0.0)
    return {"prompt_ids": ids, "completion_ids": made, "logprobs": given.tolist()}


if __name__ == "__main__":
    main()
