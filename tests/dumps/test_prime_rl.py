"""The reader of prime-rl's token exports, on files written as its exporter writes them."""

import json
import math

import numpy as np
import pytest

from onepolicy.dumps.contract import RecordedRollout, Refusal
from onepolicy.dumps.file import DumpFile
from onepolicy.dumps.source import Part
from onepolicy.integrations.prime_rl.dump import PRIME_RL
from onepolicy.records.tokens import TokenState

VALUE, MASKED, INVALID, ABSENT, *_ = TokenState
VOCABULARY = 1000


def floats(values):
    """As the exporter writes float32: null for what is not finite."""
    return [float(np.float32(v)) if math.isfinite(v) else None for v in values]


def sequence(*, prompt=3, completion=4, seed=0, rank=0, step=5, index=0, **changes):
    """One line of an export: columns over the whole sequence, what the trainer derives from them included."""
    rng = np.random.default_rng(seed)
    mask = np.arange(prompt + completion) >= prompt
    inference = np.where(mask, -rng.exponential(1, len(mask)), 0.0).astype(np.float32)
    trainer = (-rng.exponential(1, len(mask))).astype(np.float32)
    trainer[0] = np.float32(math.log(1 / VOCABULARY))
    inference, trainer = changes.pop("inference", inference), changes.pop("trainer", trainer)
    with np.errstate(over="ignore", invalid="ignore"):
        ratio = trainer - inference
        kl = np.exp(ratio) - ratio - np.float32(1.0)
        delta, weight = np.exp(trainer) - np.exp(inference), np.exp(ratio)
    line = {
        "schema_version": 1,
        "step": step,
        "rank": rank,
        "micro_step": 0,
        "micro_sequence_idx": index,
        "export_sequence_idx": index,
        "env_name": "math ✓",
        "token_ids": rng.integers(0, VOCABULARY, len(mask)).tolist(),
        "position_ids": list(range(len(mask))),
        "loss_mask": mask.tolist(),
        "advantages": floats(np.where(mask, 0.75, 0.0)),
        "inference_logprobs": floats(inference),
        "trainer_logprobs": floats(trainer),
        "entropy": floats(rng.exponential(1, len(mask))),
        "mismatch_kl": floats(kl),
        "log_importance_ratio": floats(ratio),
        "importance_ratio": floats(weight),
        "prob_delta": floats(delta),
        "is_masked": [False] * len(mask),
        "is_masked_high": [False] * len(mask),
        "is_masked_low": [False] * len(mask),
        "rl_weights": [None] * len(mask),
        "ce_weights": [None] * len(mask),
        "ref_kl_weights": [None] * len(mask),
    }
    return line | changes


def exported(tmp_path, lines, *, step=5, rank=0, stable=True):
    folder = tmp_path / "token_exports" / f"step_{step}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"rank_{rank}.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n")
    if stable:
        (folder / "STABLE").touch()
    return DumpFile(path, label=f"step_{step}/rank_{rank}")


def rows(file):
    assert PRIME_RL.recognises(file)
    return list(PRIME_RL.rows(file))


def test_what_was_planted_comes_back_of_every_rank_and_step(tmp_path):
    for step in (5, 6):
        for rank in (0, 1):
            lines = [sequence(seed=10 * step + rank + i, rank=rank, step=step, index=i) for i in range(3)]
            found = rows(exported(tmp_path, lines, step=step, rank=rank))
            for i, (row, line) in enumerate(zip(found, lines, strict=True)):
                mask = np.array(line["loss_mask"])
                assert row.rollout.rollout_id == f"step_{step}/rank_{rank}/{i}"
                assert row.rollout.token_ids.tolist() == line["token_ids"]
                assert row.rollout.sampled.tolist() == row.rollout.loss_mask.tolist() == line["loss_mask"]
                assert (row.step, row.advantage, row.rollout.tags) == (step, 0.75, {"env_name": "math ✓"})
                for column, name in ((row.rollout_logprobs, "inference"), (row.trainer_logprobs, "trainer")):
                    given = np.float32(line[f"{name}_logprobs"])
                    assert column.logprobs[mask].tolist() == given[mask].tolist()
                    assert np.isnan(column.logprobs[~mask]).all()
                    assert column.states.tolist() == [VALUE if m else MASKED for m in mask]


def test_the_trainer_is_the_policy_being_trained():
    assert PRIME_RL.trainer == "current"


def test_null_is_a_number_that_was_not_finite(tmp_path):
    line = sequence()
    for name in ("trainer_logprobs", "mismatch_kl", "log_importance_ratio"):
        line[name][4] = None
    (row,) = rows(exported(tmp_path, [line]))
    assert row.trainer_logprobs.states.tolist() == [MASKED] * 3 + [VALUE, INVALID, VALUE, VALUE]
    assert np.isnan(row.trainer_logprobs.logprobs[4])


def test_zero_is_a_value_where_a_token_was_sampled(tmp_path):
    inference = np.float32([0, 0, 0, 0.0, -1, -1, -1])
    (row,) = rows(exported(tmp_path, [sequence(inference=inference)]))
    assert row.rollout_logprobs.states[3] == VALUE
    assert row.rollout_logprobs.logprobs[3] == 0.0


def test_a_sequence_whose_first_token_is_trained_has_no_logprob_there(tmp_path):
    (row,) = rows(exported(tmp_path, [sequence(prompt=0)]))
    assert row.trainer_logprobs.states.tolist() == [ABSENT, VALUE, VALUE, VALUE]
    assert row.rollout_logprobs.states.tolist() == [VALUE] * 4


def test_tokens_of_another_model_are_trained_on_and_not_sampled(tmp_path):
    line = sequence(
        rl_weights=[0.0] * 3 + [1.0, 0.0, 0.0, 1.0],
        ce_weights=[0.0] * 3 + [0.0, 1.0, 0.0, 0.0],
        ref_kl_weights=[0.0] * 3 + [0.0, 0.0, 1.0, 0.0],
    )
    (row,) = rows(exported(tmp_path, [line]))
    assert row.rollout.sampled.tolist() == [False] * 3 + [True, False, True, True]
    assert row.rollout.loss_mask.tolist() == line["loss_mask"]
    assert row.rollout_logprobs.states.tolist() == [MASKED] * 3 + [VALUE, MASKED, VALUE, VALUE]


def test_a_reference_stream_alone_takes_nothing_away(tmp_path):
    (row,) = rows(exported(tmp_path, [sequence(ref_kl_weights=[0.0] * 7)]))
    assert row.rollout.sampled.tolist() == row.rollout.loss_mask.tolist()


def test_a_sequence_of_another_models_tokens_alone_is_refused(tmp_path):
    nothing = [None] * 7
    line = sequence(rl_weights=[0.0] * 7, ce_weights=[1.0] * 7, mismatch_kl=nothing, log_importance_ratio=nothing)
    (found,) = rows(exported(tmp_path, [line]))
    assert isinstance(found, Refusal)
    assert found.field == "rl_weights"


def test_a_step_that_is_still_being_written_is_not_read(tmp_path):
    (found,) = rows(exported(tmp_path, [sequence(), sequence(seed=1)], stable=False))
    assert isinstance(found, Refusal)
    assert found.field == "STABLE"
    assert found.where.endswith("rank_0.jsonl")
    assert len(rows(exported(tmp_path, [sequence()], stable=True))) == 1


def test_a_step_that_is_still_being_written_is_refused_once_and_not_in_each_part_of_its_file(tmp_path):
    file = exported(tmp_path, [sequence(), sequence(seed=1)], stable=False)
    file.part = Part(start=0, end=10, lines_before=0)
    assert len(rows(file)) == 1
    file.part = Part(start=10, end=20, lines_before=1)
    assert rows(file) == []


def test_an_older_export_without_weight_streams_and_ratios_is_read(tmp_path):
    line = {k: v for k, v in reversed(sequence().items()) if not k.endswith("_weights")}
    del line["mismatch_kl"], line["log_importance_ratio"], line["advantages"]
    line["env_name"] = None
    (row,) = rows(exported(tmp_path, [line]))
    assert isinstance(row, RecordedRollout)
    assert (row.advantage, row.rollout.tags) == (None, {})


@pytest.mark.parametrize("name", ["log_importance_ratio", "mismatch_kl"])
def test_columns_that_do_not_give_what_the_trainer_derived_are_refused(tmp_path, name):
    line = sequence()
    line[name][5] += 0.01
    (found,) = rows(exported(tmp_path, [line]))
    assert isinstance(found, Refusal)
    assert found.field == name
    assert "entry 5" in found.why
    assert "1 of 7" in found.why


def test_columns_shifted_against_each_other_are_refused(tmp_path):
    line = sequence()
    line["trainer_logprobs"] = [*line["trainer_logprobs"][1:], 0.0]
    (found,) = rows(exported(tmp_path, [line]))
    assert isinstance(found, Refusal)
    assert found.field == "log_importance_ratio"


def test_rounding_of_large_and_extreme_ratios_is_no_contradiction(tmp_path):
    rng = np.random.default_rng(1)
    n = 20_000
    inference = (-rng.exponential(5, n)).astype(np.float32)
    trainer = (-rng.exponential(5, n)).astype(np.float32)
    inference[-2:], trainer[-2:] = [-200.0, -1e-7], [-1e-8, -200.0]  # exp overflows: null
    line = sequence(prompt=0, completion=n, inference=inference, trainer=trainer)
    assert line["mismatch_kl"][-2] is None
    (row,) = rows(exported(tmp_path, [line]))
    assert isinstance(row, RecordedRollout)


@pytest.mark.parametrize(
    ("changes", "field", "why"),
    [
        ({"schema_version": 2}, "schema_version", "is 2; this reads 1"),
        ({"token_ids": [1] * 6}, "loss_mask", "7 entries for 6 tokens"),
        ({"token_ids": [1, 2, 3, -1, 5, 6, 7]}, "token_ids", "entry 3 is -1"),
        ({"token_ids": None}, "token_ids", "nothing stands"),
        ({"loss_mask": [False] * 3 + [True, True, True, 2]}, "loss_mask", "entry 6 is 2"),
        ({"inference_logprobs": [-1.0] * 8}, "inference_logprobs", "8 entries for 7 tokens. One more"),
        ({"trainer_logprobs": [-1.0] * 5}, "trainer_logprobs", "5 entries for 7 tokens. Nothing"),
        ({"trainer_logprobs": [-1.0] * 6 + ["-1"]}, "trainer_logprobs", "'-1'"),
        ({"trainer_logprobs": [-1.0] * 6 + [False]}, "trainer_logprobs", "False"),
        ({"step": -1}, "step", "-1"),
        ({"step": "5"}, "step", "'5'"),
        ({"env_name": {}}, "env_name", "a dict of 0"),
    ],
)
def test_a_line_that_contradicts_itself_is_refused_by_field_and_the_next_one_read(tmp_path, changes, field, why):
    first, found, last = rows(exported(tmp_path, [sequence(), sequence() | changes, sequence()]))
    assert isinstance(first, RecordedRollout)
    assert isinstance(last, RecordedRollout)
    assert isinstance(found, Refusal)
    assert found.where.endswith("line 2")
    assert found.field == field
    assert why in found.why
