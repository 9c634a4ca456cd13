"""What the monitor costs in a TRL GRPO step.

    PYTHONPATH=.peers python -W ignore benchmarks/monitor_overhead.py            # a few minutes

A real GRPOTrainer trains the packaged model on two cores. Its rollouts are made up, with the model's own logprobs and
some noise, and TRL scores them in the loss alone. So the step is about the shortest there is: one forward pass in place
of sampling, one of the loss, the backward pass, the optimizer. A step that samples takes longer. What is counted is the
time inside of the hook, with the monitor's `update` and `step` in it, over the time from one step's end to the next.
Must hold: at most 0.5 % in the median step. The dump, which has to be asked for, is shown beside it: it writes a file
and waits for the disk. Exit status 1 if it does not hold.
"""

from __future__ import annotations

import functools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

os.environ.update(HF_HUB_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1", TOKENIZERS_PARALLELISM="false")

import numpy as np
import torch

from onepolicy.engines.models import packaged_gguf
from onepolicy.integrations.transformers.convert import converted
from onepolicy.integrations.trl.hook import Hook, attach

CORES, STEPS, WARMUP = 2, 8, 2
PROMPTS, GENERATIONS, LENGTH = 4, 4, 16
LIMIT = 0.005
OURS = ("generated", "scored", "step_ended", "add_numbers")
"""the methods of the hook that do something; none of them calls TRL"""


class Step(NamedTuple):
    """One step, in seconds."""

    whole: float
    ours: float


def main() -> int:
    torch.set_num_threads(CORES)
    model = Path(converted(packaged_gguf("smollm2"), name="smollm2", dtype=torch.bfloat16))
    with tempfile.TemporaryDirectory() as folder:
        share = shown("monitor", measured(model, Path(folder) / "plain", dump=False))
        shown("monitor and dump", measured(model, Path(folder) / "dumped", dump=True))
    print(f"limit: {LIMIT:.1%}")
    return 0 if share <= LIMIT else 1


def shown(name: str, steps: list[Step]) -> float:
    """The median share, printed with what it is of."""
    shares = [step.ours / step.whole for step in steps]
    median = statistics.median(shares)
    ours, whole = (statistics.median(column) for column in zip(*((s.ours, s.whole) for s in steps), strict=True))
    print(
        f"{name}: {median:.2%} of a step (largest {max(shares):.2%}); {ours * 1e3:.1f} ms of {whole:.2f} s; "
        f"{PROMPTS * GENERATIONS} rollouts of {LENGTH} tokens",
        flush=True,
    )
    return median


def measured(model: Path, folder: Path, *, dump: bool) -> list[Step]:
    """The steps of a training after the first ones."""
    trainer = trainer_of(model, folder)
    spent: list[float] = [0.0]
    ends: list[tuple[float, float]] = []
    kept = {name: getattr(Hook, name) for name in OURS}
    try:
        for name, method in kept.items():
            setattr(Hook, name, timed(method, spent))
        attach(trainer, folder / "monitor", limits="bf16", dump=folder / "dump" if dump else None)
        trainer.log = noting_ends(trainer.log, ends, spent)
        trainer.train()
    finally:
        for name, method in kept.items():
            setattr(Hook, name, method)
    return [Step(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(ends[WARMUP:STEPS])]


def noting_ends(log: Callable[..., None], ends: list[tuple[float, float]], spent: list[float]) -> Callable[..., None]:
    """The trainer's `log`, which it calls at the end of each step."""

    def logged(*args: Any, **kwargs: Any) -> None:
        log(*args, **kwargs)
        ends.append((now(), spent[0]))

    return logged


def timed(method: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        began = now()
        try:
            return method(*args, **kwargs)
        finally:
            spent[0] += now() - began

    return call


def trainer_of(model: Path, folder: Path, *, steps: int = STEPS, beta: float = 0.0) -> Any:
    trl, transformers = import_module("trl"), import_module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    config = trl.GRPOConfig(
        output_dir=str(folder / "trl"),
        max_steps=steps,
        per_device_train_batch_size=PROMPTS * GENERATIONS,
        num_generations=GENERATIONS,
        max_completion_length=LENGTH,
        learning_rate=1e-6,
        beta=beta,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
    )
    prompts = [{"prompt": f"Tell me a story about the number {i}, and about what it is good for."} for i in range(64)]
    return trl.GRPOTrainer(
        model=transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        reward_funcs=lambda completions, **_: [float(len(text) % 7) for text in completions],
        args=config,
        train_dataset=import_module("datasets").Dataset.from_list(prompts),
        processing_class=tokenizer,
        rollout_func=functools.partial(made_up, tokenizer=tokenizer, random=np.random.default_rng(5)),
    )


def made_up(prompts: list[str], trainer: Any, *, tokenizer: Any, random: np.random.Generator) -> dict[str, Any]:
    """Completions of random tokens, and their logprobs as an engine in bfloat16 would give them."""
    ids = [tokenizer(prompt)["input_ids"][:12] for prompt in prompts]
    completions = random.integers(100, 40_000, (len(prompts), LENGTH))
    with torch.no_grad():
        inputs = torch.tensor([[*prompt, *completion] for prompt, completion in zip(ids, completions, strict=True)])
        logits = trainer.model(input_ids=inputs).logits[:, -LENGTH - 1 : -1]
        own = logits.log_softmax(-1).gather(2, inputs[:, -LENGTH:, None])[..., 0].numpy()
    noisy = np.minimum(own + random.normal(0, 0.03, own.shape), 0.0)
    return {"prompt_ids": ids, "completion_ids": completions.tolist(), "logprobs": noisy.tolist()}


now = time.perf_counter

if __name__ == "__main__":
    sys.exit(main())
