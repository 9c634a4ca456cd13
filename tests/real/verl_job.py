"""verl's own trainers on a CPU, through `fit`: real loop, batches, queue's columns and losses; workers that answer.

    python verl_job.py PEERS FOLDER SCENARIOS

SCENARIOS: JSON, name -> trainer (`queued` of trainer/ppo/v1, or `in_memory` of ray_trainer.py), config (dotted names of
verl's configuration -> values), options of `attach`, noise and outlier. FOLDER/NAME takes the monitor's run, the dump,
verl's own log, what was sampled, what the loss was given, and how it ended. Packages that verl imports at its top and
that this does not use are stood in for (verl_standins.py).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from omegaconf import OmegaConf
from verl_standins import KVBatchMeta, queue

# isort: split
from verl import DataProto
from verl.trainer.ppo import ray_trainer
from verl.trainer.ppo.v1 import trainer_sync
from verl.utils import tensordict_utils as tu

from onepolicy.errors import OnePolicyError
from onepolicy.integrations.verl.attach import attach
from onepolicy.monitor.halted import TrainingHalted

END, PROMPTS, SAMPLES, LONGEST = 2, 6, 4, 12
CONFIG = {
    "trainer.logger": ["file"], "trainer.val_before_train": False, "trainer.test_freq": -1, "trainer.save_freq": -1,
    "trainer.balance_batch": False, "trainer.total_epochs": 1, "trainer.n_gpus_per_node": 1,
    "algorithm.adv_estimator": "grpo", "actor_rollout_ref.rollout.n": SAMPLES,
    "actor_rollout_ref.rollout.calculate_log_probs": True, "actor_rollout_ref.actor.ppo_mini_batch_size": PROMPTS,
    "actor_rollout_ref.model.path": "a-model", "data.train_batch_size": PROMPTS,
}  # fmt: skip


class Rollouts:
    """What the engine sampled and what the trainer finds of the same tokens, anew in each step."""

    def __init__(self, *, noise, outlier):
        self.random, self.noise, self.outlier = np.random.default_rng(5), noise, outlier
        self.kept = []
        self.truth = {}
        """ids of a whole sequence -> the trainer's logprobs of its response"""

    def of_step(self, uids):
        self.rows = [self._row(place, uid) for place, uid in enumerate(uids)]
        self.kept.append(self.rows)
        return self.rows

    def _row(self, place, uid):
        rng = self.random
        length = 0 if place == 3 else int(rng.integers(3, LONGEST + 1))
        response = [*rng.integers(10, 90, max(length - 1, 0)).tolist(), END][:length]
        mask = np.ones(length, dtype=np.int64)
        if place % 5 == 0 and length > 5:
            mask[2:4] = 0  # a tool's answer
        prompt = [7, 100 + place // SAMPLES, *rng.integers(10, 90, 1 + place % 3).tolist(), place + 200]
        trainer = -rng.exponential(1.0, length)
        off = 3.0 if place == self.outlier else 0.0
        rollout = np.minimum(trainer + self.noise * rng.standard_normal(length) - off, -1e-4)
        row = {
            "uid": uid,
            "prompt": prompt,
            "response": response,
            "mask": mask.tolist(),
            "rollout": np.where(mask, rollout, 0.0).astype(np.float32).tolist(),
            "trainer": trainer.astype(np.float32).tolist(),
            "score": float(rng.integers(0, 2)),
        }
        self.truth[tuple(prompt + response)] = row["trainer"]
        return row

    def logprobs(self, ids):
        """[P + R] as verl's engine gives them: entry i of token i + 1."""
        found = torch.zeros(len(ids))
        response = torch.tensor(self.truth.get(tuple(ids.tolist()), [-5.0]))  # of a row that verl appended
        if len(response):
            found[len(ids) - len(response) - 1 : -1] = response
        return found

    def scores(self, row):
        found = torch.zeros(len(row["response"]))
        if len(found):
            found[-1] = row["score"]
        return found


def in_memory(config, rollouts, losses, steps):
    """`RayPPOTrainer` as its constructor and `init_workers` would leave it, with workers in this process."""

    class RayPPOTrainer(ray_trainer.RayPPOTrainer):
        """One for each scenario, as a class is attached to once."""

    def generate(batch):
        rows = rollouts.of_step(batch.non_tensor_batch["uid"].tolist())
        longest = max(len(row["prompt"]) for row in rows)

        def right(name, dtype):
            return torch.tensor([row[name] + [0] * (LONGEST - len(row[name])) for row in rows], dtype=dtype)

        prompts = torch.tensor([[0] * (longest - len(row["prompt"])) + row["prompt"] for row in rows])
        there = torch.tensor(
            [
                [0] * (longest - len(row["prompt"]))
                + [1] * (len(row["prompt"]) + len(row["response"]))
                + [0] * (LONGEST - len(row["response"]))
                for row in rows
            ]
        )
        responses = right("response", torch.int64)
        scores = torch.zeros(len(rows), LONGEST)
        for place, row in enumerate(rows):
            scores[place, len(row["response"]) - 1] = row["score"]
        tensors = {
            "prompts": prompts, "responses": responses, "attention_mask": there,
            "input_ids": torch.cat([prompts, responses], dim=1), "position_ids": (there.cumsum(1) - 1).clamp(min=0),
            "response_mask": right("mask", torch.int64), "rollout_log_probs": right("rollout", torch.float32),
            "rm_scores": scores,
        }  # fmt: skip
        versions = np.full(len(rows), trainer.global_steps - 1, dtype=object)
        made = DataProto.from_dict(tensors=tensors, meta_info={"timing": {}, "reward_extra_keys": []})
        made.non_tensor_batch["multi_modal_inputs"] = np.array([{} for _ in rows], dtype=object)
        made.non_tensor_batch["min_global_steps"] = versions
        return made

    def compute_log_prob(data):
        found = [rollouts.logprobs(ids) for ids in data["input_ids"].unbind()]
        nested = torch.nested.as_nested_tensor(found, layout=torch.jagged)
        return tu.get_tensordict({"log_probs": nested, "entropy": nested * 0}, {"metrics": {"mfu": 0.0}})

    def update_actor(data):
        names = ["response_mask", "advantages", "onepolicy_sampled"]
        losses.append({name: data[name].tolist() for name in names if name in data.keys()})  # noqa: SIM118
        return tu.get_tensordict({}, {"metrics": {"mfu": 0.0, "loss": 1.0}})

    trainer = RayPPOTrainer.__new__(RayPPOTrainer)
    nothing = SimpleNamespace(update_weights=lambda _: None, sleep_replicas=lambda: None)
    step = {"dummy": torch.zeros(PROMPTS, 1), "data_source": np.array(["a"] * PROMPTS, dtype=object)}
    vars(trainer).update(
        config=config, tokenizer=SimpleNamespace(eos_token_id=END), _dump_executor=SimpleNamespace(_shutdown=False),
        checkpoint_manager=nothing, train_dataloader=[step] * steps, train_dataset=None, total_training_steps=steps,
        async_rollout_manager=SimpleNamespace(generate_sequences=generate), use_rm=False, use_critic=False,
        use_reference_policy=False, resource_pool_manager=SimpleNamespace(get_n_gpus=lambda: 1),
        actor_rollout_wg=SimpleNamespace(compute_log_prob=compute_log_prob, update_actor=update_actor),
        _load_checkpoint=lambda: None, _shutdown_dump_executor=lambda: None, distillation_config=None,
    )  # fmt: skip
    return RayPPOTrainer, lambda: trainer.fit()  # noqa: PLW0108 - looked up once it is wrapped


def queued(config, rollouts, losses, steps):
    """`PPOTrainerSync` as `init` would leave it, with workers in this process."""

    class PPOTrainerSync(trainer_sync.PPOTrainerSync):
        """As above."""

    queue.rows, queue.tags = {}, {}

    def sample(*, global_steps, partition_id, batch_size):
        uids = [f"prompt-{global_steps}-{place // SAMPLES}" for place in range(PROMPTS * SAMPLES)]
        keys = [f"{uid}_{place % SAMPLES}_0" for place, uid in enumerate(uids)]
        tags = []
        for key, row in zip(keys, rollouts.of_step(uids), strict=True):
            length = len(row["prompt"]) + len(row["response"])
            tags.append({"seq_len": length, "min_global_steps": global_steps - 1, "max_global_steps": global_steps - 1})
            tensors = {name: torch.tensor(row[short]) for name, short in _COLUMNS.items()}
            tensors["responses"], tensors["response_mask"] = (
                tensors["responses"].long(),
                tensors["response_mask"].long(),
            )
            whole = torch.cat([tensors["prompts"], tensors["responses"]])
            queue.rows[key] = {
                **tensors, "input_ids": whole, "position_ids": torch.arange(length), "rm_scores": rollouts.scores(row),
                "loss_mask": tensors["response_mask"], "uid": row["uid"], "num_turns": 1,
            }  # fmt: skip
        queue.tags |= dict(zip(keys, tags, strict=True))
        return KVBatchMeta(keys=keys, tags=tags, partition_id=partition_id), {}

    def compute_log_prob(batch):
        for key in batch.keys:
            queue.rows[key]["log_probs"] = rollouts.logprobs(queue.rows[key]["input_ids"])
            queue.rows[key]["entropy"] = torch.zeros(len(queue.rows[key]["input_ids"]))
        return batch

    def update_actor(batch):
        names = ("response_mask", "advantages")
        losses.append({name: [queue.rows[key][name].tolist() for key in batch.keys] for name in names})
        losses[-1]["keys"] = list(batch.keys)
        return {"metrics": {"mfu": 0.0, "loss": [1.0]}}

    workers = SimpleNamespace(
        compute_log_prob=compute_log_prob, update_actor=update_actor, _dispatch_info={"actor": [0, 1, 2, 3, 4]}
    )
    trainer = PPOTrainerSync.__new__(PPOTrainerSync)
    nothing = SimpleNamespace(update_weights=lambda _: None, sleep_replicas=lambda: None)
    vars(trainer).update(
        config=config, tokenizer=SimpleNamespace(eos_token_id=END, pad_token_id=0), checkpoint_manager=nothing,
        replay_buffer=SimpleNamespace(sample=sample), use_critic=False, use_reference_policy=False, global_steps=0,
        steps_per_epoch=steps, total_training_steps=steps, parameter_sync_step=1, trainer_mode="sync",
        reward_loop_manager=SimpleNamespace(reward_loop_worker_handles=[]), actor_rollout_wg=workers,
        resource_pool_manager=SimpleNamespace(get_n_gpus=lambda: 1), _shutdown_dump_executor=lambda: None,
        _reissue_inflight_prompts=lambda: None, prepare_step=dict, distillation_config=None,
        _rollout_moe_lb_metrics_accumulator=None, _start_profiling=lambda: None, _stop_profiling=lambda: None,
    )  # fmt: skip
    return PPOTrainerSync, lambda: trainer.fit(agent_loop_manager=None)


_COLUMNS = {
    "prompts": "prompt", "responses": "response", "response_mask": "mask", "rollout_log_probs": "rollout",
}  # fmt: skip


def run(folder, peers, *, trainer, config=None, options=None, noise=0.05, outlier=None, steps=4):
    folder.mkdir()
    os.environ["VERL_FILE_LOGGER_PATH"] = str(folder / "log.jsonl")
    whole = OmegaConf.load(Path(peers, "verl/trainer/config/_generated_ppo_trainer.yaml"))
    OmegaConf.set_struct(whole, False)
    for name, value in {**CONFIG, **(config or {})}.items():
        OmegaConf.update(whole, name, value, force_add=True)
    rollouts, losses, ended = Rollouts(noise=noise, outlier=outlier), [], ""
    trainer_class, fit = {"queued": queued, "in_memory": in_memory}[trainer](whole, rollouts, losses, steps)
    attach(trainer_class, folder / "run", dump=folder / "dump", **(options or {}))
    try:
        fit()
    except (OnePolicyError, TrainingHalted) as error:
        ended = f"{type(error).__name__}: {error}"
    for name, value in {"given": rollouts.kept, "losses": losses, "ended": ended}.items():
        (folder / f"{name}.json").write_text(json.dumps(value))


def main():
    peers, folder, scenarios = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    for name, scenario in scenarios.items():
        run(folder / name, peers, **scenario)


if __name__ == "__main__":
    main()
