"""Real TRL trainings on the CPU, each with one fault of its reference policy or with none; a process of its own.

    PYTHONPATH=.peers .venv/bin/python tests/real/grpo_reference_job.py FOLDER [NAME ...]

The models are tiny and random, the tokenizer has one token a letter, and TRL samples by itself. What the guard says of
each training is in FOLDER/NAME/reference.json; FOLDER/ended.json has the error that ended each, and the digest of the
policy's weights at the end.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1", TOKENIZERS_PARALLELISM="false")

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from trl.trainer import grpo_trainer

from onepolicy.integrations.transformers import tiny
from onepolicy.integrations.trl.reference import guard_reference
from onepolicy.weights.live import digest_of

STEPS = 3
SETTINGS: dict[str, Any] = {
    "max_steps": STEPS, "per_device_train_batch_size": 4, "learning_rate": 1e-2, "lr_scheduler_type": "constant",
    "beta": 0.1, "save_strategy": "no", "report_to": [], "disable_tqdm": True, "use_cpu": True, "bf16": False,
    "logging_steps": 1, "seed": 7,
}  # fmt: skip
SAMPLING: dict[str, Any] = {"num_generations": 2, "max_completion_length": 6, "temperature": 0.9}
LORA: dict[str, Any] = {"r": 2, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"}
PROMPTS = [{"prompt": f"Count to {number}:"} for number in range(16)]
PAIRS = [{"prompt": f"Count to {number}:", "chosen": " 1 2", "rejected": " no"} for number in range(16)]


class Jobs:
    """One method for each training; its name is the training's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.policies: dict[str, str] = {}
        """name -> digest at the end"""
        self.llama, self.gpt2 = folder / "llama", folder / "gpt2"
        tiny.llama(self.llama)
        tiny.gpt2(self.gpt2, dropout=0.1)

    def sound(self) -> None:
        self.trained("sound", self.grpo(self.loaded(self.llama)), expected=self.llama)

    def sound_without_a_guard(self) -> None:
        trainer = self.grpo(self.loaded(self.llama))
        trainer.train()
        self.policies["sound_without_a_guard"] = digest_of(trainer.model).whole

    def sound_bf16(self) -> None:
        lora = LoraConfig(**LORA)
        self.trained("sound_bf16", self.grpo(self.loaded(self.llama), peft_config=lora, bf16=True))

    def sound_adapter(self) -> None:
        trainer = self.grpo(self.loaded(self.llama), peft_config=LoraConfig(**LORA, lora_dropout=0.1))
        self.trained("sound_adapter", trainer, expected=self.llama)

    def sound_trained_adapter(self) -> None:
        """TRL keeps a copy of the adapter that the policy starts from, under the name "ref"."""
        self.trained("sound_trained_adapter", self.grpo(self.with_trained_adapter()))

    def sound_rloo(self) -> None:
        self.trained("sound_rloo", self.grpo(self.loaded(self.llama), kind=RLOOTrainer, config=RLOOConfig))

    def sound_dpo(self) -> None:
        trainer = DPOTrainer(
            model=self.loaded(self.llama),
            ref_model=self.loaded(self.llama),
            args=DPOConfig(output_dir=str(self.folder / "trl"), **SETTINGS),
            train_dataset=Dataset.from_list(PAIRS),
            processing_class=AutoTokenizer.from_pretrained(self.llama),
        )
        self.trained("sound_dpo", trainer)

    def the_policy_itself(self) -> None:
        trainer = self.grpo(self.loaded(self.llama))
        trainer.ref_model = trainer.model
        self.trained("the_policy_itself", trainer)

    def in_the_optimizer(self) -> None:
        trainer = self.grpo(self.loaded(self.llama))
        both = [*trainer.model.parameters(), *trainer.ref_model.parameters()]
        trainer.optimizer = torch.optim.AdamW(both, lr=1e-2)
        self.trained("in_the_optimizer", trainer)

    def train_mode(self) -> None:
        trainer = self.grpo(self.loaded(self.gpt2), disable_dropout=False)
        trainer.ref_model.train()
        self.trained("train_mode", trainer)

    def train_mode_of_the_base(self) -> None:
        """What TRL does by itself with a base that has dropout: the reference's pass is one of the policy's model."""
        lora = LoraConfig(**{**LORA, "target_modules": ["c_attn"]}, fan_in_fan_out=True)
        self.trained("train_mode_of_the_base", self.grpo(self.loaded(self.gpt2), peft_config=lora))

    def adapter_on(self) -> None:
        trainer = self.grpo(self.loaded(self.llama), peft_config=LoraConfig(**LORA))
        kept, grpo_trainer.use_adapter = grpo_trainer.use_adapter, lambda model, adapter_name: nullcontext()
        try:
            self.trained("adapter_on", trainer)
        finally:
            grpo_trainer.use_adapter = kept

    def base_of_a_trained_adapter(self) -> None:
        trainer = self.grpo(self.with_trained_adapter())
        trainer.accelerator.unwrap_model(trainer.model).delete_adapter("ref")
        self.trained("base_of_a_trained_adapter", trainer)

    def another_checkpoint(self) -> None:
        """The policy was changed after it was loaded; TRL loads its reference from the folder."""
        policy = self.loaded(self.llama)
        with torch.no_grad():
            policy.lm_head.weight.mul_(1.3)
        self.trained("another_checkpoint", self.grpo(policy))

    def another_folder(self) -> None:
        trainer = self.grpo(self.loaded(self.llama))
        self.trained("another_folder", trainer, expected=tiny.moved(self.llama, self.folder / "moved", size=0.01))

    def halted(self) -> None:
        trainer = self.grpo(self.loaded(self.gpt2), disable_dropout=False)
        trainer.ref_model.train()
        self.trained("halted", trainer, policy="halt")

    def no_penalty(self) -> None:
        self.trained("no_penalty", self.grpo(self.loaded(self.llama), beta=0.0))

    def synchronised(self) -> None:
        self.trained("synchronised", self.grpo(self.loaded(self.llama), sync_ref_model=True))

    def loaded(self, path: Path) -> Any:
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)

    def with_trained_adapter(self) -> Any:
        torch.manual_seed(3)
        return get_peft_model(self.loaded(self.llama), LoraConfig(**LORA, init_lora_weights=False))

    def grpo(
        self,
        model: Any,
        *,
        kind: type = GRPOTrainer,
        config: type = GRPOConfig,
        peft_config: Any = None,
        **options: Any,
    ) -> Any:
        return kind(
            model=model,
            reward_funcs=lambda completions, **_: [float(len(set(text))) for text in completions],
            args=config(output_dir=str(self.folder / "trl"), **{**SETTINGS, **SAMPLING, **options}),
            train_dataset=Dataset.from_list(PROMPTS),
            processing_class=AutoTokenizer.from_pretrained(self.llama),
            peft_config=peft_config,
        )

    def trained(self, name: str, trainer: Any, **options: Any) -> None:
        guard_reference(trainer, self.folder / name, every=2, **options)
        trainer.train()
        self.policies[name] = digest_of(trainer.model).whole


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    jobs = Jobs(folder)
    errors = {name: ended(getattr(jobs, name)) for name in sys.argv[2:] or NAMES}
    found = {name: {"error": error, "policy": jobs.policies.get(name)} for name, error in errors.items()}
    (folder / "ended.json").write_text(json.dumps(found))


def ended(job: Callable[[], None]) -> str:
    """The error that ended a training, "" for none."""
    try:
        job()
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {error}"
    return ""


OWN = {"loaded", "with_trained_adapter", "grpo", "trained"}
NAMES = [name for name in vars(Jobs) if name not in OWN and not name.startswith("__")]

if __name__ == "__main__":
    main()
