"""What one step of a real GRPOTrainer does to a tiny model if one rollout of sixteen is far off; a process of its own.

    PYTHONPATH=.peers .venv/bin/python tests/real/grpo_masking.py TOKENIZER FOLDER

Writes FOLDER/found.json. For each way that TRL scores, and with and without a KL penalty: the largest difference of a
weight after the step over the largest change of a weight. It is that of the monitor's mask against TRL with the
advantage of the rollout set to 0 by hand (without a penalty), against the mask with other tokens in it, and against no
mask.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1", TOKENIZERS_PARALLELISM="false")

import torch
from datasets import Dataset
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from trl import GRPOConfig, GRPOTrainer

from onepolicy.integrations.trl.hook import attach
from onepolicy.judgement.limits import Limits

ROLLOUTS, GENERATIONS, LENGTH, OUTLIER = 16, 4, 6, 5
LOOSE = Limits(mean_kl=1e3, max_abs_d=1e3, worst_rollout_kl=0.5)


class WithoutTheOutlier(GRPOTrainer):
    """Sets the advantage by hand."""

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        there = inputs["completion_ids"][:, 0] != first_id(OUTLIER)
        return super().compute_loss(model, {**inputs, "advantages": inputs["advantages"] * there}, *args, **kwargs)


class Transport:
    """There is one model: nothing has to be sent."""

    def sync_weights(self) -> None: ...


def main() -> None:
    tokenizer, folder = AutoTokenizer.from_pretrained(sys.argv[1]), Path(sys.argv[2])
    save_reference(tokenizer, folder / "model")
    lines = []
    for before_loss in (True, False):
        for beta in (0.0, 0.5):

            def after(name: str, kind: type = GRPOTrainer, **options: Any) -> torch.Tensor:
                path = folder / f"{before_loss}-{beta}-{name}"  # noqa: B023 - called inside of this turn
                return weights_after(tokenizer, path, kind, before_loss=before_loss, beta=beta, **options)  # noqa: B023

            masked = after("mask", policy="mask")
            change = (masked - weights(fresh(folder / "model"))).abs().max()
            found = {"other tokens": after("other", policy="mask", text=77), "no mask": after("warn", policy="warn")}
            if beta == 0.0:
                found["by hand"] = after("hand", WithoutTheOutlier)
            relative = {name: ((masked - other).abs().max() / change).item() for name, other in found.items()}
            lines.append({"before_loss": before_loss, "beta": beta, "change": change.item(), **relative})
    (folder / "found.json").write_text(json.dumps(lines))


def weights_after(
    tokenizer: Any, path: Path, kind: type, *, before_loss: bool, beta: float, policy: Any = None, text: int = 0
) -> torch.Tensor:
    config = GRPOConfig(
        output_dir=str(path / "trl"), max_steps=1, per_device_train_batch_size=ROLLOUTS // 2,
        gradient_accumulation_steps=2, num_generations=GENERATIONS, max_completion_length=LENGTH, learning_rate=0.1,
        lr_scheduler_type="constant", optim="sgd", max_grad_norm=0.0, beta=beta, save_strategy="no", report_to=[],
        disable_tqdm=True, use_cpu=True, bf16=False, gradient_checkpointing=False, seed=7,
        vllm_importance_sampling_mode="token_truncate",
    )  # fmt: skip
    trainer = kind(
        model=fresh(path.parent / "model"),
        reward_funcs=lambda completions, **_: [float(i * i % 7) for i in range(len(completions))],
        args=config,
        train_dataset=Dataset.from_list([{"prompt": f"Count to {i}"} for i in range(ROLLOUTS)]),
        processing_class=tokenizer,
        rollout_func=lambda prompts, trainer: rollouts(prompts, trainer, tokenizer, text),
    )
    if before_loss:
        trainer.use_vllm, trainer.vllm_generation, trainer._last_loaded_step = True, Transport(), 0
    if policy is not None:
        attach(trainer, path / "monitor", policy=policy, limits=LOOSE)
    trainer.train()
    if policy is not None:
        record = json.loads((path / "monitor" / "steps.jsonl").read_text())
        assert (record["rollouts"], record["masked_rollouts"]) == (ROLLOUTS, int(policy == "mask")), record
    return weights(trainer.model)


def save_reference(tokenizer: Any, folder: Path) -> None:
    """The reference policy, which TRL loads by the path that the model came from."""
    torch.manual_seed(1)
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), num_key_value_heads=2, **size)).save_pretrained(folder)


def fresh(reference: Path) -> LlamaForCausalLM:
    """A model that is not the reference, far from a flat distribution, always the same."""
    model = LlamaForCausalLM.from_pretrained(reference, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0)
    return model


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def first_id(rollout: int) -> int:
    return 1000 + rollout


def rollouts(prompts: list[str], trainer: GRPOTrainer, tokenizer: Any, text: int) -> dict[str, Any]:
    """Tokens that are made up, with the model's own logprobs of them, but for one rollout that is 3 nats off."""
    ids = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    made = [[first_id(i), *range(2000 + 10 * i, 2000 + 10 * i + LENGTH - 1)] for i in range(len(prompts))]
    made[OUTLIER][1:] = [token + text for token in made[OUTLIER][1:]]
    given = [logprobs(trainer.model, p, c) for p, c in zip(ids, made, strict=True)]
    given[OUTLIER] = [value - 3.0 for value in given[OUTLIER]]
    return {"prompt_ids": ids, "completion_ids": made, "logprobs": given}


def logprobs(model: Any, prompt: list[int], completion: list[int]) -> list[float]:
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.tensor(completion)[:, None])[:, 0].tolist()


if __name__ == "__main__":
    main()
