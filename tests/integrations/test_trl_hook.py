"""The hook on a trainer that has what it needs of TRL's and nothing else. TRL itself: tests/real/test_trl.py."""

import json
import logging
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from onepolicy.errors import UsageError
from onepolicy.integrations.trl.hook import attach
from onepolicy.judgement.limits import Limits
from onepolicy.monitor.halted import TrainingHalted

PROMPTS, GENERATIONS, LENGTH, PAD = 6, 4, 5, 0
ROLLOUTS = PROMPTS * GENERATIONS
LOOSE = Limits(mean_kl=1e3, max_abs_d=1e3, worst_rollout_kl=0.5)
OUTLIER = 7
"""the rollout whose logprobs are far off where a test plants one"""


class Trainer:
    """Trains one number for each token of each rollout, which is its logprob, so that a gradient says whose it is.

    before_loss: whether the trainer's logprobs are there when the batch is generated, as with TRL's correction.
    """

    def __init__(self, *, before_loss, noise=0.01, outlier=None, slices=1, passes=1, beta=0.0, entropy=0.0):
        self.accelerator = SimpleNamespace(process_index=0, num_processes=1)
        self.args = SimpleNamespace(temperature=1.0, top_p=1.0)
        self.model = torch.nn.Embedding(1 + ROLLOUTS * LENGTH, 1)
        self.model.config = SimpleNamespace(_name_or_path="a-model")
        torch.nn.init.uniform_(self.model.weight, -3, -1)
        self.processing_class = SimpleNamespace(pad_token_id=PAD)
        self.state = SimpleNamespace(global_step=0)
        self.num_generations, self.use_vllm, self.rollout_func = GENERATIONS, False, lambda *_: None
        self.reward_func_names, self.reward_weights = ["short", "kind"], torch.tensor([1.0, 0.5])
        self._logs = {"rewards": defaultdict(list)}
        self.before_loss, self.noise, self.outlier = before_loss, noise, outlier
        self.slices, self.passes, self.beta, self.entropy = slices, passes, beta, entropy
        self.callbacks, self.written, self.made = [], [], []
        self.random = np.random.default_rng(3)
        self.leave_out, self.fields = (), {}

    def add_callback(self, callback):
        self.callbacks.append(callback)

    def _get_per_token_logps_and_entropies(self, model, ids):
        logprobs = model(ids)[..., 0]
        return logprobs, -logprobs, None

    def _generate_and_score_completions(self, inputs):
        lengths = [LENGTH - i % 3 for i in range(ROLLOUTS)]
        mask = (torch.arange(LENGTH) < torch.tensor(lengths)[:, None]).int()
        ids = (1 + torch.arange(ROLLOUTS * LENGTH).view(ROLLOUTS, LENGTH)) * mask
        with torch.no_grad():
            scored, _, _ = self._get_per_token_logps_and_entropies(self.model, ids)
        off = torch.tensor(self.random.normal(0, self.noise, (ROLLOUTS, LENGTH)), dtype=torch.float32)
        if self.outlier is not None:
            off[self.outlier] = 3.0
        prompts = torch.tensor([[PAD, 900 + i // GENERATIONS, 7] for i in range(ROLLOUTS)])
        batch = {
            "prompt_ids": prompts,
            "prompt_mask": (prompts != PAD).int(),
            "completion_ids": ids,
            "completion_mask": mask,
            "advantages": torch.tensor(self.random.normal(0, 1, ROLLOUTS), dtype=torch.float32),
            "num_items_in_batch": mask.sum(),
            "sampling_per_token_logps": (scored - off) * mask,
            "ref_per_token_logps": (scored + 0.3) * mask,
        }
        for row in self.leave_out:
            batch["completion_mask"][row] = 0
        if self.before_loss:
            batch["old_per_token_logps"] = scored
        for name, column in zip(self.reward_func_names, (0.25, 1.0), strict=True):
            self._logs["rewards"][name].extend([column * i for i in range(ROLLOUTS)])
        for name, values in self.fields.items():
            for example, value in zip(inputs, values, strict=True):
                example[name] = value
        self.made.append(dict(batch))
        return batch

    def compute_loss(self, model, inputs, num_items_in_batch=None):
        logprobs, entropies, _ = self._get_per_token_logps_and_entropies(model, inputs["completion_ids"])
        old = inputs.get("old_per_token_logps", logprobs.detach())
        loss = -torch.exp(logprobs - old) * inputs["advantages"][:, None]
        away = inputs["ref_per_token_logps"] - logprobs
        loss = loss + self.beta * (away.exp() - away - 1) - self.entropy * entropies
        return (loss * inputs["completion_mask"]).sum() / inputs["num_items_in_batch"]

    def log(self, logs, start_time=None):
        self.written.append(dict(logs))

    def step(self):
        """One optimizer step on one generation batch, which is shuffled and split as TRL does it; its gradient."""
        self.model.zero_grad()
        batch = self._generate_and_score_completions([{} for _ in range(ROLLOUTS)])
        order = torch.randperm(ROLLOUTS)
        batch = {name: column[order] if column.ndim else column for name, column in batch.items()}
        rows = torch.arange(ROLLOUTS).chunk(self.slices)
        parts = [{name: c[part] if c.ndim else c for name, c in batch.items()} for part in rows]
        for _ in range(self.passes):
            for part in parts:
                self.compute_loss(self.model, part, num_items_in_batch=None).backward()
        self.state.global_step += 1
        self.tell("on_step_end")
        self.log({"loss": 1.0}, 0.0)
        return self.model.weight.grad[1:].view(ROLLOUTS, LENGTH).clone()

    def tell(self, event):
        for callback in self.callbacks:
            getattr(callback, event)(self.args, self.state, None)


def steps_of(path):
    return [json.loads(line) for line in (path / "steps.jsonl").read_text().splitlines()]


def trained(trainer, path, steps, **options):
    """The monitor of some steps, closed as TRL closes it, and their gradients."""
    torch.manual_seed(11)
    monitor = attach(trainer, path, **options)
    gradients = [trainer.step() for _ in range(steps)]
    trainer.tell("on_train_end")
    return monitor, gradients


def differences(batch, scored):
    mask = batch["completion_mask"].numpy() != 0
    return (scored - batch["sampling_per_token_logps"].numpy().astype(np.float64))[mask]


@pytest.fixture(params=[True, False], ids=["scored before the loss", "scored in the loss"])
def before_loss(request):
    return request.param


@pytest.mark.parametrize(("slices", "passes"), [(1, 1), (3, 1), (3, 2)])
def test_every_rollout_is_compared_once_wherever_its_logprobs_come_from(tmp_path, before_loss, slices, passes):
    trainer = Trainer(before_loss=before_loss, slices=slices, passes=passes)
    trained(trainer, tmp_path / "run", 3, limits=LOOSE)
    scored = trainer.model.weight.detach()[trainer.made[0]["completion_ids"]][..., 0].numpy()
    for record, batch in zip(steps_of(tmp_path / "run"), trainer.made, strict=True):
        d = differences(batch, scored)
        assert (record["rollouts"], record["compared"], record["prompts"]) == (ROLLOUTS, len(d), PROMPTS)
        assert record["metrics"]["mean_abs_d"] == pytest.approx(np.abs(d).mean(), rel=1e-5)
        assert record["metrics"]["max_abs_d"] == pytest.approx(np.abs(d).max(), rel=1e-5)
    assert [record["step"] for record in steps_of(tmp_path / "run")] == [1, 2, 3]


def test_a_rollout_that_is_masked_gets_no_gradient_and_no_other_rollout_notices(tmp_path, before_loss):
    settings = {"before_loss": before_loss, "slices": 2, "passes": 2, "beta": 0.1, "entropy": 0.01}
    gradients = {}
    for policy in ("warn", "mask"):
        trainer = Trainer(outlier=OUTLIER, **settings)
        with torch.no_grad():
            trainer.model.weight.copy_(torch.linspace(-3, -1, len(trainer.model.weight))[:, None])
        _, (gradients[policy], _) = trained(trainer, tmp_path / policy, 2, limits=LOOSE, policy=policy)
    others = [row for row in range(ROLLOUTS) if row != OUTLIER]
    assert gradients["warn"][OUTLIER, 0] != 0
    assert (gradients["mask"][OUTLIER] == 0).all()
    assert torch.equal(gradients["mask"][others], gradients["warn"][others])
    assert (gradients["mask"][others, 0] != 0).all()
    assert [record["masked_rollouts"] for record in steps_of(tmp_path / "mask")] == [1, 1]


def test_the_loss_of_a_masked_rollout_is_not_in_the_loss_that_is_logged(tmp_path, before_loss):
    trainer = Trainer(before_loss=before_loss, outlier=OUTLIER)
    attach(trainer, tmp_path / "run", policy="mask", limits=LOOSE)
    batch = trainer._generate_and_score_completions([{} for _ in range(ROLLOUTS)])
    loss = trainer.compute_loss(trainer.model, batch)
    kept = batch["completion_mask"] * (torch.arange(ROLLOUTS) != OUTLIER)[:, None]
    expected = -(batch["advantages"][:, None] * kept).sum() / batch["num_items_in_batch"]
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_numbers_go_into_the_trainers_own_log_once(tmp_path, before_loss):
    trainer = Trainer(before_loss=before_loss)
    trained(trainer, tmp_path / "run", 3, limits=LOOSE)
    records = steps_of(tmp_path / "run")
    assert [logs.get("onepolicy/step") for logs in trainer.written] == [None, 1.0, 2.0]
    assert trainer.written[2]["onepolicy/k3"] == pytest.approx(records[1]["metrics"]["k3"])
    assert all(logs["loss"] == 1.0 for logs in trainer.written)


def test_what_is_logged_less_often_than_every_step_is_the_mean_over_the_steps(tmp_path):
    trainer = Trainer(before_loss=True)
    log, trainer.log = trainer.log, lambda *_: None
    monitor = attach(trainer, tmp_path / "run", limits=LOOSE)
    trainer_log, trainer.log = trainer.log, log
    for _ in range(4):
        trainer.step()
    logs = {}
    trainer_log(logs)
    assert logs["onepolicy/step"] == 2.0
    monitor.close()


def test_an_evaluation_is_not_compared_and_does_not_log(tmp_path, before_loss):
    trainer = Trainer(before_loss=before_loss)
    attach(trainer, tmp_path / "run", limits=LOOSE, dump=tmp_path / "dump")
    trainer.step()
    trainer.step()
    trainer.model.eval()
    batch = trainer._generate_and_score_completions([{} for _ in range(ROLLOUTS)])
    trainer.compute_loss(trainer.model, batch)
    trainer.log({"eval_loss": 1.0})
    trainer.model.train()
    trainer.tell("on_train_end")
    assert trainer.written[-1] == {"eval_loss": 1.0}
    assert [record["rollouts"] for record in steps_of(tmp_path / "run")] == [ROLLOUTS, ROLLOUTS]


def test_an_optimizer_step_on_rollouts_of_an_earlier_one_is_no_step_of_the_monitor(tmp_path):
    trainer = Trainer(before_loss=True)
    attach(trainer, tmp_path / "run", limits=LOOSE)
    trainer.step()
    trainer.state.global_step += 1
    trainer.tell("on_step_end")
    trainer.step()
    trainer.tell("on_train_end")
    assert [(record["step"], record["rollouts"]) for record in steps_of(tmp_path / "run")] == [
        (1, ROLLOUTS),
        (3, ROLLOUTS),
    ]


def test_halt_ends_the_training_with_status_1_and_the_path_of_the_evidence(tmp_path):
    trainer = Trainer(before_loss=True, noise=1.0)
    attach(trainer, tmp_path / "run", policy="halt", limits="bf16")
    with pytest.raises(TrainingHalted, match="evidence") as ended:
        list(map(Trainer.step, [trainer] * 20))
    assert str(tmp_path / "run") in str(ended.value)
    assert trainer.state.global_step < 20
    assert json.loads((tmp_path / "run" / "monitor.json").read_text())["status"] == "fail"


def versions(path):
    return [{cell["lag"]: cell["tokens"] for cell in record["by_lag"]} for record in steps_of(path)]


def test_the_version_of_the_rollouts_is_not_known_unless_somebody_says_it(tmp_path, before_loss):
    trainer = Trainer(before_loss=before_loss)
    trained(trainer, tmp_path / "run", 2, limits=LOOSE)
    assert [list(lags) for lags in versions(tmp_path / "run")] == [[-1], [-1]]


def test_the_server_is_asked_for_its_version_after_each_generation(tmp_path, before_loss):
    trainer = Trainer(before_loss=before_loss)
    trained(trainer, tmp_path / "run", 3, limits=LOOSE, weight_version=lambda: 0)
    assert [list(lags) for lags in versions(tmp_path / "run")] == [[0], [1], [2]]


def test_a_rollout_func_says_the_version_of_each_rollout(tmp_path, before_loss):
    trainer = Trainer(before_loss=before_loss, slices=3)
    trainer.state.global_step = 4
    trainer.fields = {"weight_version": [4 if i % 2 else 3 for i in range(ROLLOUTS - 1)] + [None]}
    trained(trainer, tmp_path / "run", 1, limits=LOOSE)
    tokens = trainer.made[0]["completion_mask"].sum(dim=1)
    assert versions(tmp_path / "run")[0] == {0: tokens[1:-1:2].sum(), 1: tokens[::2].sum(), -1: tokens[-1]}


def test_what_trl_says_it_sent_counts_where_it_does_the_sending(tmp_path):
    trainer = Trainer(before_loss=True)
    trainer.use_vllm, trainer.vllm_mode, trainer._last_loaded_step = True, "server", 0
    trained(trainer, tmp_path / "run", 2, limits=LOOSE)
    assert [list(lags) for lags in versions(tmp_path / "run")] == [[0], [1]]


def test_a_version_that_cannot_be_asked_for_is_unknown_and_said_once(tmp_path, caplog):
    def gone():
        raise ConnectionError("nobody there")

    trainer = Trainer(before_loss=True)
    with caplog.at_level(logging.WARNING, logger="onepolicy.monitor"):
        trained(trainer, tmp_path / "run", 3, limits=LOOSE, weight_version=gone)
    assert [list(lags) for lags in versions(tmp_path / "run")] == [[-1]] * 3
    assert [record.message for record in caplog.records if "nobody there" in record.message] == [
        "the weight version is not known, as asking for it failed: nobody there"
    ]


def test_a_version_that_is_no_number_is_refused(tmp_path):
    trainer = Trainer(before_loss=True)
    attach(trainer, tmp_path / "run", weight_version=lambda: "step-3")
    with pytest.raises(UsageError, match="'step-3', which is no whole number"):
        trainer.step()


def test_the_dump_has_every_rollout_bit_for_bit(tmp_path, before_loss):
    trainer = Trainer(before_loss=before_loss, slices=2, passes=2)
    trained(trainer, tmp_path / "run", 2, limits=LOOSE, dump=tmp_path / "dump", weight_version=lambda: 0)
    assert sorted(path.name for path in (tmp_path / "dump").iterdir()) == [
        "step-000001-rank-0000.parquet",
        "step-000002-rank-0000.parquet",
    ]
    rows = pq.read_table(tmp_path / "dump" / "step-000002-rank-0000.parquet").to_pylist()
    made = trainer.made[1]
    by_first_token = {int(ids[0]): i for i, ids in enumerate(made["completion_ids"])}
    assert sorted(by_first_token[row["completion_ids"][0]] for row in rows) == list(range(ROLLOUTS))
    assert len({row["rollout_id"] for row in rows}) == ROLLOUTS
    assert len({row["prompt_id"] for row in rows}) == PROMPTS
    for row in rows:
        i = by_first_token[row["completion_ids"][0]]
        length = int(made["completion_mask"][i].sum())
        assert row["prompt_ids"] == [900 + i // GENERATIONS, 7]
        assert row["completion_ids"] == made["completion_ids"][i, :length].tolist()
        assert row["rollout_logprobs"] == made["sampling_per_token_logps"][i, :length].tolist()
        assert row["trainer_logprobs"] == trainer.model.weight[made["completion_ids"][i, :length], 0].tolist()
        assert row["sampled"] == row["loss_mask"] == [True] * length
        assert row["advantage"] == made["advantages"][i].item()
        assert row["reward"] == 0.25 * i + 0.5 * i
        assert (row["step"], row["weight_version"], row["trainer_version"]) == (2, "0", "1")


def test_the_dump_says_which_rollouts_were_left_out_of_the_loss(tmp_path, before_loss):
    trainer = Trainer(before_loss=before_loss, outlier=OUTLIER)
    trainer.leave_out = (5,)  # as TRL does with a truncated completion if it is told to
    trained(trainer, tmp_path / "run", 1, limits=LOOSE, dump=tmp_path / "dump", policy="mask")
    rows = pq.read_table(tmp_path / "dump" / "step-000001-rank-0000.parquet").to_pylist()
    by_number = {(row["completion_ids"][0] - 1) // LENGTH: row for row in rows}
    assert by_number[OUTLIER]["sampled"] == [True] * (LENGTH - OUTLIER % 3)
    assert by_number[OUTLIER]["loss_mask"] == [False] * (LENGTH - OUTLIER % 3)
    assert by_number[5]["sampled"] == by_number[5]["loss_mask"] == [False] * (LENGTH - 5 % 3)
    assert by_number[4]["loss_mask"] == [True] * (LENGTH - 4 % 3)


def test_a_dump_that_cannot_be_written_is_said_once_and_the_training_goes_on(tmp_path, caplog):
    (tmp_path / "dump").write_text("a file where the folder should be")
    trainer = Trainer(before_loss=True)
    with caplog.at_level(logging.WARNING, logger="onepolicy.monitor"):
        monitor, gradients = trained(trainer, tmp_path / "run", 4, limits=LOOSE, dump=tmp_path / "dump")
    said = [record.message for record in caplog.records if "dump" in record.message]
    assert len(said) == 1
    assert said[0].startswith("step 1 is not in the dump: ")
    assert len(gradients) == 4
    assert len(steps_of(monitor.path)) == 4


def test_a_trainer_that_samples_by_itself_has_nothing_to_compare(tmp_path):
    trainer = Trainer(before_loss=True)
    trainer.rollout_func = None
    with pytest.raises(UsageError, match=r"no second engine.*use_vllm=True.*rollout_func"):
        attach(trainer, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_rollout_func_without_logprobs_is_refused_at_the_first_step(tmp_path):
    trainer = Trainer(before_loss=True)
    generate = trainer._generate_and_score_completions
    trainer._generate_and_score_completions = lambda inputs: {
        name: column for name, column in generate(inputs).items() if name != "sampling_per_token_logps"
    }
    attach(trainer, tmp_path / "run")
    with pytest.raises(UsageError, match=r'nothing to compare: let `rollout_func` return "logprobs"'):
        trainer.step()


def test_another_version_of_trl_is_named_with_what_it_lacks(tmp_path):
    trainer = SimpleNamespace(compute_loss=print, log=print, add_callback=print, args=None, model=None, state=None)
    with pytest.raises(
        UsageError, match=r"SimpleNamespace of TRL .* has no _generate_and_score_completions\(\), .*1\.16"
    ):
        attach(trainer, tmp_path / "run")


def test_a_second_monitor_on_one_trainer_is_refused(tmp_path):
    trainer = Trainer(before_loss=True)
    attach(trainer, tmp_path / "one")
    with pytest.raises(UsageError, match="has a monitor already"):
        attach(trainer, tmp_path / "two")
