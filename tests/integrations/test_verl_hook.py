"""The hook on batches that have what it needs of verl's DataProto. verl itself: tests/real/test_verl_hook.py."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from onepolicy.errors import AlignmentError, UsageError
from onepolicy.integrations.verl.attach import attach
from onepolicy.integrations.verl.hook import VerlHook
from onepolicy.integrations.verl.signal_checks import SignalChecks
from onepolicy.judgement.limits import Limits
from onepolicy.monitor.halted import TrainingHalted

ROWS, SAMPLES, PROMPT, LONGEST, END = 12, 3, 4, 8, 2
EMPTY, TOOL, OUTLIER = 3, 4, 7
"""rows: without a response, with a tool's answer in it, and far off where a test says so"""
LOOSE = Limits(mean_kl=1e3, max_abs_d=1e3, worst_rollout_kl=0.5)


def batch_of(*, seed=0, noise=0.05, outliers=(), version=0):
    """Prompts padded on the left, responses on the right; junk under the padding that nothing may read."""
    rng = np.random.default_rng(seed)
    lengths = np.where(np.arange(ROWS) == EMPTY, 0, rng.integers(5, LONGEST + 1, ROWS))
    there = torch.arange(LONGEST) < torch.tensor(lengths)[:, None]
    prompt_there = torch.arange(PROMPT) >= torch.tensor(np.arange(ROWS) % 3)[:, None]
    responses = torch.tensor(rng.integers(10, 10**6, (ROWS, LONGEST)))
    for row in np.flatnonzero(lengths).tolist():
        responses[row, lengths[row] - 1] = END
    mask = there.long()
    mask[TOOL, 1:3] = 0
    trainer = torch.tensor(-rng.exponential(1.0, (ROWS, LONGEST)) - 1e-3, dtype=torch.float32)
    off = noise * rng.standard_normal((ROWS, LONGEST))
    off[list(outliers)] = 4.0
    rollout = (trainer - torch.tensor(off, dtype=torch.float32)).clamp(max=-1e-4)
    rollout = torch.where(mask == 1, rollout, 7.0)
    scores = torch.zeros(ROWS, LONGEST)
    scores[:, -1] = torch.tensor(rng.integers(0, 2, ROWS), dtype=torch.float32)
    groups = scores.sum(1).view(-1, SAMPLES)
    advantages = (groups - groups.mean(1, keepdim=True)).view(-1, 1) * mask
    prompts = torch.tensor(rng.integers(10, 99, (ROWS, PROMPT)))
    tensors = {
        "prompts": prompts, "responses": responses, "attention_mask": torch.cat([prompt_there, there], 1).long(),
        "response_mask": mask, "rollout_log_probs": rollout, "old_log_probs": trainer, "advantages": advantages,
        "token_level_scores": scores,
    }  # fmt: skip
    others = {
        "uid": np.array([f"p{row // SAMPLES}" for row in range(ROWS)], dtype=object),
        "min_global_steps": np.array([version] * (ROWS - 1) + [None], dtype=object),
    }
    return SimpleNamespace(batch=tensors, non_tensor_batch=others)


def steps_of(path):
    return [json.loads(line) for line in (path / "steps.jsonl").read_text().splitlines()]


def test_what_the_policy_sampled_is_compared_and_nothing_else(tmp_path):
    batch = batch_of()
    sampled = batch.batch["response_mask"] == 1
    d = (batch.batch["old_log_probs"] - batch.batch["rollout_log_probs"])[sampled].double()
    with VerlHook(tmp_path / "run", limits=LOOSE) as hook:
        hook.step(batch, 1)
    (record,) = steps_of(tmp_path / "run")
    assert (record["rollouts"], record["compared"], record["prompts"]) == (ROWS, int(sampled.sum()), ROWS // SAMPLES)
    assert record["empty_rollouts"] == 1
    assert record["metrics"]["mean_d"] == pytest.approx(d.mean().item())
    assert record["metrics"]["k3"] == pytest.approx((torch.expm1(d) - d).mean().item())


def test_the_numbers_of_a_step_come_with_the_next(tmp_path):
    with VerlHook(tmp_path / "run", limits=LOOSE, signal=SignalChecks(every=0)) as hook:
        logged = [hook.step(batch_of(seed=step), step) for step in (5, 6)]
    assert logged[0] == {}
    assert logged[1]["onepolicy/step"] == 5
    assert logged[1]["onepolicy/k3"] == pytest.approx(steps_of(tmp_path / "run")[0]["metrics"]["k3"])


def test_the_weights_of_the_engine_are_held_against_those_of_the_step_before(tmp_path):
    batch = batch_of(version=2)
    with VerlHook(tmp_path / "run", limits=LOOSE) as hook:
        hook.step(batch, 4)
    tokens = batch.batch["response_mask"].sum(1)
    lags = {cell["lag"]: cell["tokens"] for cell in steps_of(tmp_path / "run")[0]["by_lag"]}
    assert lags == {1: int(tokens[:-1].sum()), -1: int(tokens[-1])}


def test_tokens_that_rollout_correction_rejects_are_compared_if_the_hook_saw_them(tmp_path):
    batch = batch_of(outliers=[OUTLIER])
    sampled = int(batch.batch["response_mask"].sum())
    with VerlHook(tmp_path / "run", limits=LOOSE, dump=tmp_path / "dump") as hook:
        hook.scored(batch)
        batch.batch["response_mask"] = batch.batch["response_mask"].clone()
        batch.batch["response_mask"][OUTLIER] = 0
        hook.step(batch, 1)
    assert "onepolicy_sampled" not in batch.batch
    assert steps_of(tmp_path / "run")[0]["compared"] == sampled
    assert steps_of(tmp_path / "run")[0]["metrics"]["max_abs_d"] == pytest.approx(4, rel=1e-6)
    row = pq.read_table(tmp_path / "dump" / "step-000001-rank-0000.parquet").to_pylist()[OUTLIER]
    assert all(row["sampled"])
    assert not any(row["loss_mask"])


def test_an_outlier_loses_its_response_mask_and_no_other_rollout_does(tmp_path):
    batch = batch_of(outliers=[OUTLIER])
    before = batch.batch["response_mask"].clone()
    with VerlHook(tmp_path / "run", policy="mask", limits=LOOSE) as hook:
        hook.step(batch, 1)
    after = batch.batch["response_mask"]
    assert after.dtype == before.dtype
    assert not after[OUTLIER].any()
    others = [row for row in range(ROWS) if row != OUTLIER]
    assert torch.equal(after[others], before[others])
    assert steps_of(tmp_path / "run")[0]["masked_rollouts"] == 1


def test_where_all_are_outliers_advantages_are_0_and_it_is_said_once(tmp_path, caplog):
    everyone = [row for row in range(ROWS) if row != EMPTY]
    with VerlHook(tmp_path / "run", policy="mask", limits=LOOSE) as hook:
        for step in (1, 2):
            batch = batch_of(outliers=everyone)
            mask = batch.batch["response_mask"].clone()
            hook.step(batch, step)
            assert torch.equal(batch.batch["response_mask"], mask)
            assert not batch.batch["advantages"].any()
    assert len([record for record in caplog.records if "every rollout" in record.message]) == 1


def test_nothing_is_masked_unless_it_was_asked_for(tmp_path):
    batch = batch_of(outliers=[OUTLIER])
    before = {name: column.clone() for name, column in batch.batch.items()}
    with VerlHook(tmp_path / "run", limits=LOOSE) as hook:
        hook.scored(batch)
        hook.step(batch, 1)
    assert {name: torch.equal(batch.batch[name], column) for name, column in before.items()} == dict.fromkeys(
        before, True
    )


def test_halt_ends_the_training(tmp_path):
    hook = VerlHook(tmp_path / "run", policy="halt")
    batches = [batch_of(seed=step, noise=1.0) for step in range(40)]
    with pytest.raises(TrainingHalted, match="evidence"):
        list(map(hook.step, batches, range(40)))
    assert json.loads((tmp_path / "run" / "monitor.json").read_text())["status"] == "fail"


def test_the_dump_has_every_rollout_bit_for_bit(tmp_path):
    batch = batch_of(version=4)
    with VerlHook(tmp_path / "run", limits=LOOSE, dump=tmp_path / "dump") as hook:
        hook.step(batch, 5)
    rows = pq.read_table(tmp_path / "dump" / "step-000005-rank-0000.parquet").to_pylist()
    columns = batch.batch
    for i, row in enumerate(rows):
        there = columns["attention_mask"][i, PROMPT:] == 1
        assert row["prompt_ids"] == columns["prompts"][i][columns["attention_mask"][i, :PROMPT] == 1].tolist()
        assert row["completion_ids"] == columns["responses"][i][there].tolist()
        assert row["rollout_logprobs"] == columns["rollout_log_probs"][i][there].tolist()
        assert row["trainer_logprobs"] == columns["old_log_probs"][i][there].tolist()
        assert row["sampled"] == row["loss_mask"] == (columns["response_mask"][i] == 1)[there].tolist()
        assert row["reward"] == columns["token_level_scores"][i].sum().item()
        assert row["advantage"] == (columns["advantages"][i, 0].item() if there.any() else None)
        assert (row["prompt_id"], row["trainer_version"]) == (f"p{i // SAMPLES}", "4")
        assert row["weight_version"] == (None if i == ROWS - 1 else "4")


def test_advantages_that_differ_within_a_rollout_are_not_made_one(tmp_path):
    batch = batch_of()
    batch.batch["advantages"][5, 0] += 1
    with VerlHook(tmp_path / "run", limits=LOOSE, dump=tmp_path / "dump") as hook:
        hook.step(batch, 1)
    rows = pq.read_table(tmp_path / "dump" / "step-000001-rank-0000.parquet").to_pylist()
    assert [i for i, row in enumerate(rows) if row["advantage"] is None] == [EMPTY, 5]


def test_without_uid_and_versions_rollouts_are_known_by_their_prompts(tmp_path):
    batch = batch_of()
    batch.non_tensor_batch = {}
    batch.batch["prompts"][1], batch.batch["attention_mask"][1] = batch.batch["prompts"][4], 1
    batch.batch["attention_mask"][4] = 1
    with VerlHook(tmp_path / "run", limits=LOOSE, dump=tmp_path / "dump", signal=SignalChecks(every=0)) as hook:
        hook.step(batch, 1)
    rows = pq.read_table(tmp_path / "dump" / "step-000001-rank-0000.parquet").to_pylist()
    assert rows[1]["prompt_id"] == rows[4]["prompt_id"] != rows[0]["prompt_id"]
    assert [cell["lag"] for cell in steps_of(tmp_path / "run")[0]["by_lag"]] == [-1]


@pytest.mark.parametrize(
    ("absent", "says"),
    [
        ("rollout_log_probs", r"actor_rollout_ref\.rollout\.calculate_log_probs=True"),
        ("old_log_probs", "after verl has computed them"),
        ("attention_mask", "give the whole DataProto"),
        ("prompts", "give the whole DataProto"),
    ],
)
def test_an_absent_column_is_an_error_that_says_what_to_do(tmp_path, absent, says):
    batch = batch_of()
    del batch.batch[absent]
    with pytest.raises(UsageError, match=says), VerlHook(tmp_path / "run") as hook:
        hook.step(batch, 1)


def test_an_absent_response_mask_is_that_of_the_attention_as_verl_has_it(tmp_path):
    batch = batch_of()
    del batch.batch["response_mask"]
    batch.batch["rollout_log_probs"] = batch.batch["old_log_probs"] - 0.01
    with VerlHook(tmp_path / "run", limits=LOOSE) as hook:
        hook.scored(batch)
        hook.step(batch, 1)
    assert steps_of(tmp_path / "run")[0]["compared"] == int(batch.batch["attention_mask"][:, PROMPT:].sum())


def test_bypass_mode_is_refused_and_never_called_equal(tmp_path):
    batch = batch_of()
    batch.batch["old_log_probs"] = batch.batch["rollout_log_probs"]
    with pytest.raises(UsageError, match=r"unknown.*bypass_mode=False"), VerlHook(tmp_path / "run") as hook:
        hook.step(batch, 1)
    assert json.loads((tmp_path / "run" / "monitor.json").read_text())["status"] == "unknown"


def test_a_copy_of_the_rollout_s_logprobs_is_unknown_and_never_called_equal(tmp_path):
    hook = VerlHook(tmp_path / "run")
    for step in range(1, 12):
        batch = batch_of(seed=step, version=step - 1)
        batch.batch["old_log_probs"] = batch.batch["rollout_log_probs"].clone()
        hook.step(batch, step)
    hook.close()
    assert json.loads((tmp_path / "run" / "monitor.json").read_text())["status"] == "unknown"


def test_columns_of_another_width_are_refused_with_both_shapes(tmp_path):
    batch = batch_of()
    batch.batch["old_log_probs"] = batch.batch["old_log_probs"][:, 1:]
    with pytest.raises(AlignmentError, match=r"\[12, 7\].*\[12, 8\]"), VerlHook(tmp_path / "run") as hook:
        hook.step(batch, 1)
    batch = batch_of()
    batch.batch["attention_mask"] = batch.batch["attention_mask"][:, :-1]
    with pytest.raises(AlignmentError, match="has 11 columns"), VerlHook(tmp_path / "other") as hook:
        hook.step(batch, 1)


def test_nested_columns_are_refused_with_what_to_give(tmp_path):
    batch = batch_of()
    rows = [row[:3] for row in batch.batch["responses"]]
    batch.batch["responses"] = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    with pytest.raises(UsageError, match="padded DataProto"), VerlHook(tmp_path / "run") as hook:
        hook.step(batch, 1)


def test_a_nan_is_an_invalid_token_and_the_training_goes_on(tmp_path):
    batch = batch_of()
    batch.batch["old_log_probs"][0, 0] = torch.nan
    batch.batch["rollout_log_probs"] = batch.batch["rollout_log_probs"].to(torch.bfloat16)
    with VerlHook(tmp_path / "run", limits=LOOSE, dump=tmp_path / "dump") as hook:
        hook.step(batch, 1)
    assert steps_of(tmp_path / "run")[0]["invalid"] == 1


def test_a_failed_check_of_the_training_signal_is_counted_and_said_once(tmp_path, caplog):
    def faulty(step):
        batch = batch_of(seed=step)
        batch.batch["advantages"] = batch.batch["advantages"] + batch.batch["response_mask"]
        return batch

    with VerlHook(tmp_path / "run", limits=LOOSE, signal=SignalChecks(every=2)) as hook:
        numbers = [hook.step(faulty(step), step) for step in range(1, 5)]
    assert [found.get("onepolicy/signal/failed") for found in numbers] == [1, None, 1, None]
    said = [record.message for record in caplog.records if "training signal" in record.message]
    assert len(said) == 1
    assert "step 1: the training signal fails advantage_sums" in said[0]


def test_a_sound_batch_fails_no_check_of_the_training_signal(tmp_path):
    signal = SignalChecks(every=1, end_ids=[END])
    with VerlHook(tmp_path / "run", limits=LOOSE, signal=signal) as hook:
        assert hook.step(batch_of(), 1) == {"onepolicy/signal/failed": 0}


def test_an_end_token_that_the_loss_leaves_out_is_a_failed_check(tmp_path):
    batch = batch_of()
    batch.batch["response_mask"] *= batch.batch["responses"] != END
    signal = SignalChecks(every=1, end_ids=[END])
    with VerlHook(tmp_path / "run", limits=LOOSE, signal=signal) as hook:
        assert hook.step(batch, 1)["onepolicy/signal/failed"] >= 1


def test_a_batch_that_cannot_be_checked_is_said_and_the_training_goes_on(tmp_path, caplog):
    batch = batch_of()
    batch.batch["response_mask"] = batch.batch["response_mask"] * 2
    with VerlHook(tmp_path / "run", limits=LOOSE) as hook:
        assert hook.step(batch, 1) == {}
    assert any("cannot be checked" in record.message for record in caplog.records)


def test_a_dump_that_cannot_be_written_is_said_and_the_training_goes_on(tmp_path, caplog):
    (tmp_path / "dump").write_text("a file where a folder belongs")
    with VerlHook(tmp_path / "run", limits=LOOSE, dump=tmp_path / "dump") as hook:
        hook.step(batch_of(), 1)
    assert any("is not in the dump" in record.message for record in caplog.records)


def test_a_class_that_is_no_trainer_of_verl_is_refused_with_what_it_lacks(tmp_path):
    with pytest.raises(UsageError, match="it lacks fit, step, _compute_advantage"):
        attach(SimpleNamespace, tmp_path / "run")


def test_a_class_is_attached_to_once(tmp_path):
    class Trainer:
        def fit(self): ...
        def _compute_old_log_prob(self, batch): ...
        def _update_actor(self, batch): ...

    attach(Trainer, tmp_path / "run")
    with pytest.raises(UsageError, match="has a monitor already"):
        attach(Trainer, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_hook_is_imported_without_verl():
    assert not {"verl", "ray", "tensordict", "transfer_queue"} & set(sys.modules)
