"""A real TRL GRPO run on the CPU whose `rollout_func` samples from a vLLM server; a process of its own.

    PYTHONPATH=.peers .venv/bin/python tests/real/grpo_job.py MODEL URL FOLDER '{"steps": 5, "sync": "none"}'

`sync`: "reload" writes the trainer's weights into MODEL and lets the server read them again before each generation;
"broken" does nothing, and TRL believes that the server has the new weights; with "none" TRL has no transport, makes no
correction, and scores the rollouts in the loss alone. What the trainer logs is in FOLDER/log.json, however it ends.
"""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1", TOKENIZERS_PARALLELISM="false")

import httpx
import torch
from datasets import Dataset
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from onepolicy.integrations.trl.hook import attach
from onepolicy.judgement.limits import Limits

TOPICS = (
    "a river", "an old bridge", "the winter", "bread", "a lighthouse", "two friends", "the moon", "a long journey",
    "an empty house", "music", "a garden", "the first day of school", "a storm at sea", "a lost letter", "the market",
    "a mountain village",
)  # fmt: skip


@dataclass(kw_only=True)
class Settings:
    """What a test chooses."""

    steps: int
    sync: str = "reload"
    policy: str = "warn"
    limits: str | dict[str, Any] = "bf16"
    prompts: int = 4
    """per step"""
    generations: int = 4
    tokens: int = 16
    learning_rate: float = 1e-6
    micro_batches: int = 1
    """gradient accumulation"""
    asks_server: bool = False
    """which weights it has; else TRL's word counts"""
    autocast: bool = True
    """bfloat16 in the forward pass, so that it sees the weights as the server gets them"""
    dump: bool = False
    extra: dict[str, Any] = field(default_factory=dict)


def main() -> None:
    model, url, folder = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    settings = Settings(**json.loads(sys.argv[4]))
    torch.set_num_threads(2)
    trainer = trainer_of(model, url, folder, settings)
    attach(
        trainer,
        folder / "monitor",
        policy=settings.policy,
        limits=Limits(**settings.limits) if isinstance(settings.limits, dict) else settings.limits,
        dump=folder / "dump" if settings.dump else None,
        weight_version=(lambda: served_version(url)) if settings.asks_server else None,
    )
    try:
        trainer.train()
    finally:
        (folder / "log.json").write_text(json.dumps(trainer.state.log_history))


def trainer_of(model: Path, url: str, folder: Path, settings: Settings) -> GRPOTrainer:
    tokenizer = AutoTokenizer.from_pretrained(model)
    rollouts = settings.prompts * settings.generations
    config = GRPOConfig(
        output_dir=str(folder / "trl"),
        max_steps=settings.steps,
        per_device_train_batch_size=rollouts // settings.micro_batches,
        gradient_accumulation_steps=settings.micro_batches,
        num_generations=settings.generations,
        max_completion_length=settings.tokens,
        temperature=1.0,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant",
        beta=0.0,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        bf16=settings.autocast,
        gradient_checkpointing=False,
        seed=7,
        **settings.extra,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        reward_funcs=early_letters,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": f"Write one sentence about {topic}:"} for topic in TOPICS]),
        processing_class=tokenizer,
        rollout_func=Sampler(url, tokenizer, settings.tokens),
    )
    if settings.sync != "none":
        # TRL's own client needs a server that `trl vllm-serve` starts. What it does before each generation is one
        # call of `sync_weights`; this one does the same over the routes that every vLLM in developer mode has.
        trainer.use_vllm = True
        trainer.vllm_generation = Transport(trainer, model, url, settings.sync)
        trainer._last_loaded_step = 0
    return trainer


def early_letters(completions: list[str], **_: Any) -> list[float]:
    """Rewards text that is easy to move towards: the share of its letters that come early in the alphabet."""
    letters = [[c for c in text.lower() if c.isalpha()] for text in completions]
    return [sum(c <= "h" for c in text) / max(len(text), 1) for text in letters]


class Sampler:
    """Asks the server for one completion of each prompt, with a seed of its own."""

    def __init__(self, url: str, tokenizer: Any, tokens: int) -> None:
        self.url, self.tokenizer, self.tokens, self.asked = url, tokenizer, tokens, 0

    def __call__(self, prompts: list[str], _: GRPOTrainer) -> dict[str, Any]:
        ids = [self.tokenizer(prompt)["input_ids"] for prompt in prompts]
        with ThreadPoolExecutor(len(ids)) as pool:
            choices = list(pool.map(self.sample, ids, range(self.asked, self.asked + len(ids))))
        self.asked += len(ids)
        return {
            "prompt_ids": ids,
            "completion_ids": [choice["token_ids"] for choice in choices],
            "logprobs": [choice["logprobs"]["token_logprobs"] for choice in choices],
        }

    def sample(self, ids: list[int], seed: int) -> dict[str, Any]:
        body = {
            "model": "smollm2", "prompt": ids, "max_tokens": self.tokens, "temperature": 1.0, "logprobs": 0,
            "return_token_ids": True, "seed": seed,
        }  # fmt: skip
        answer = httpx.post(f"{self.url}/v1/completions", json=body, timeout=120, trust_env=False).raise_for_status()
        return answer.json()["choices"][0]


class Transport:
    """Brings the trainer's weights to the server, or says so and does not."""

    def __init__(self, trainer: GRPOTrainer, model: Path, url: str, sync: str) -> None:
        self.trainer, self.model, self.url, self.sync = trainer, model, url, sync

    def sync_weights(self) -> None:
        if self.sync != "reload":
            return
        weights = self.model / "model.safetensors"
        state = self.trainer.accelerator.unwrap_model(self.trainer.model).state_dict()
        unique = {name: tensor.to(torch.bfloat16) for name, tensor in state.items() if name != "lm_head.weight"}
        save_file(unique, weights.with_suffix(".new"), metadata={"format": "pt"})
        weights.with_suffix(".new").replace(weights)
        self.post("collective_rpc", {"method": "reload_weights"})
        self.post("reset_prefix_cache", {})  # else prompts that come again keep the keys and values of older weights
        self.post("update_weight_version", {"new_version": str(self.trainer.state.global_step)})

    def post(self, route: str, body: dict[str, str]) -> None:
        httpx.post(f"{self.url}/{route}", json=body, timeout=120, trust_env=False).raise_for_status()


def served_version(url: str) -> int:
    said = httpx.get(f"{url}/weight_info", timeout=10, trust_env=False).raise_for_status().json()["weight_version"]
    return 0 if said == "default" else int(said)


if __name__ == "__main__":
    main()
