"""The reader of NeMo-RL's step files, on files written as its logger writes them (`log_batched_dict_as_jsonl`)."""

import json
import math

import numpy as np
import pytest

from onepolicy.dumps.contract import RecordedRollout, Refusal
from onepolicy.dumps.file import DumpFile
from onepolicy.integrations.nemo_rl.dump import NEMO_RL
from onepolicy.records.tokens import TokenState

VALUE, MASKED, INVALID, ABSENT, *_ = TokenState
PAD = 0


class Sample:
    """What one sample of a step is, before it is padded."""

    def __init__(self, prompt, completion, *, tool=(), reward=1.0, advantage=0.5, in_loss=1.0, seed=0):
        rng = np.random.default_rng(seed)
        self.ids = [*prompt, *completion, *tool]
        self.mask = [0] * len(prompt) + [1] * len(completion) + [0] * len(tool)
        sizes = np.float32(rng.exponential(1, len(self.ids))).tolist()
        self.generation = [-x * m for x, m in zip(sizes, self.mask, strict=True)]
        self.prev = [0.0] + [-float(np.float32(x)) for x in rng.exponential(1, len(self.ids) - 1)]
        self.reward, self.advantage, self.in_loss = reward, advantage, in_loss


def batch_of(samples):
    """The batched dict that the algorithm hands to the logger."""
    longest = max(len(s.ids) for s in samples)

    def padded(lists, fill):
        return [[*one, *[fill] * (longest - len(one))] for one in lists]

    return {
        "content": [f"\n<|user|> é {i} \u2028" for i in range(len(samples))],
        "rewards": [s.reward for s in samples],
        "input_lengths": [len(s.ids) for s in samples],
        "token_ids": padded([s.ids for s in samples], PAD),
        "token_loss_mask": padded([s.mask for s in samples], 0),
        "sample_loss_mask": [s.in_loss for s in samples],
        "advantages": [[s.advantage] * longest for s in samples],
        "generation_logprobs": padded([s.generation for s in samples], 0.0),
        "prev_logprobs": padded([s.prev for s in samples], -0.25),
    }


def written(path, batch):
    """As the logger does: a slice of one sample for each of the first key's entries."""
    size = len(batch[next(iter(batch))])
    with path.open("w") as file:
        for i in range(size):
            sample = {key: value[i : i + 1] for key, value in batch.items()}
            file.write(json.dumps({**sample, "idx": i}, default=str) + "\n")
    return DumpFile(path, label="logs/train_data_step12")


def rows(file):
    assert NEMO_RL.recognises(file)
    return list(NEMO_RL.rows(file))


def planted():
    return [
        Sample([5, 6, 7], [8, 9], seed=1, reward=0.0, advantage=-1.25),
        Sample([5, 6, 7], [8, 10, 11, 12], tool=[90, 91], seed=2),
        Sample([1, 2], [3], seed=3, in_loss=0.0),
    ]


def test_what_was_planted_comes_back_cut_at_its_length(tmp_path):
    samples = planted()
    found = rows(written(tmp_path / "train_data_step12.jsonl", batch_of(samples)))
    assert len(found) == 3
    for i, (row, sample) in enumerate(zip(found, samples, strict=True)):
        assert isinstance(row, RecordedRollout)
        mask = np.array(sample.mask, dtype=bool)
        assert row.rollout.rollout_id == f"logs/train_data_step12/{i}"
        assert row.where.endswith(f"train_data_step12.jsonl, line {i + 1}")
        assert row.rollout.token_ids.tolist() == sample.ids
        assert row.rollout.sampled.tolist() == mask.tolist()
        assert row.rollout.loss_mask.tolist() == (mask & (sample.in_loss > 0)).tolist()
        assert (row.step, row.rollout.reward, row.advantage) == (12, sample.reward, sample.advantage)
        for column, values in ((row.rollout_logprobs, sample.generation), (row.trainer_logprobs, sample.prev)):
            assert column.logprobs[mask].tolist() == np.float32(values)[mask].tolist()
            assert np.isnan(column.logprobs[~mask]).all()
            assert column.states.tolist() == [VALUE if m else MASKED for m in sample.mask]


def test_samples_of_one_prompt_share_its_id(tmp_path):
    a, b, c = rows(written(tmp_path / "train_data_step12.jsonl", batch_of(planted())))
    assert a.rollout.prompt_id == b.rollout.prompt_id != c.rollout.prompt_id


def test_zero_is_a_value_where_a_token_was_generated(tmp_path):
    sample = Sample([5], [8, 9])
    sample.generation[1] = 0.0
    (row,) = rows(written(tmp_path / "a.jsonl", batch_of([sample])))
    assert row.rollout_logprobs.states.tolist() == [MASKED, VALUE, VALUE]
    assert row.rollout_logprobs.logprobs[1] == 0.0
    assert row.step is None


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, -9999.0, 0.5])
def test_what_is_no_logprob_is_invalid(tmp_path, number):
    sample = Sample([5], [8, 9])
    sample.generation[2] = number
    sample.prev[1] = number
    (row,) = rows(written(tmp_path / "a.jsonl", batch_of([sample])))
    assert row.rollout_logprobs.states.tolist() == [MASKED, VALUE, INVALID]
    assert row.trainer_logprobs.states.tolist() == [MASKED, INVALID, VALUE]
    assert np.isnan(row.rollout_logprobs.logprobs[2])


def test_logprobs_that_were_not_computed_are_no_side(tmp_path):
    first, second = planted()[:2]
    first.prev = [0.0] * len(first.prev)
    batch = batch_of([first, second])
    batch["prev_logprobs"][0] = [0.0] * len(batch["prev_logprobs"][0])
    a, b = rows(written(tmp_path / "a.jsonl", batch))
    assert a.trainer_logprobs is None
    assert a.rollout_logprobs is not None
    assert b.trainer_logprobs is not None


def test_the_first_entry_of_recomputed_logprobs_is_none_even_if_its_token_was_generated(tmp_path):
    (row,) = rows(written(tmp_path / "a.jsonl", batch_of([Sample([], [8, 9])])))
    assert row.trainer_logprobs.states.tolist() == [ABSENT, VALUE]


def test_under_dynamic_sampling_the_filtered_reward_counts_and_lines_without_a_sample_are_refused(tmp_path):
    samples = planted()[:1]
    batch = batch_of(samples)
    del batch["content"]
    batch = {"rewards": [9.0, 8.0], "filtered_rewards": [samples[0].reward], **batch}
    batch["rewards"] = [9.0, 8.0]
    found = rows(written(tmp_path / "train_data_step3.jsonl", batch))
    assert found[0].rollout.reward == samples[0].reward
    assert isinstance(found[1], Refusal)
    assert found[1].field == "token_ids"
    assert "dynamic sampling" in found[1].why


def test_advantages_that_differ_between_tokens_are_no_advantage_of_the_rollout(tmp_path):
    batch = batch_of([Sample([5], [8, 9])])
    batch["advantages"] = [[7.0, 0.5, 0.25]]
    assert rows(written(tmp_path / "a.jsonl", batch))[0].advantage is None
    batch["advantages"] = [[7.0, 0.5, 0.5]]
    assert rows(written(tmp_path / "b.jsonl", batch))[0].advantage == 0.5
    batch["advantages"] = [0.75]
    batch["advantages"] = [[0.75]]
    assert rows(written(tmp_path / "c.jsonl", batch))[0].advantage == 0.75


def test_lists_that_are_not_wrapped_keys_in_another_order_and_keys_that_nobody_knows_are_read(tmp_path):
    sample = Sample([5, 6], [8, 9])
    line = {key: value[0] for key, value in reversed(batch_of([sample]).items())}
    line |= {"agent_ref": [{"name": "math ✓"}], "unknown": {"deep": [1]}, "token_loss_mask": [False, False, True, True]}
    path = tmp_path / "train_data_step7.jsonl"
    path.write_text(json.dumps(line, ensure_ascii=False) + "\n\n")
    (row,) = rows(DumpFile(path))
    assert row.rollout.token_ids.tolist() == sample.ids
    assert row.rollout.tags == {"agent": "math ✓"}


def test_a_validation_file_is_known_and_each_of_its_lines_refused(tmp_path):
    batch = {"content": [[{"role": "user", "content": "é"}]] * 2, "rewards": [1.0, 0.0]}
    found = rows(written(tmp_path / "val_data_step5.jsonl", batch))
    assert [row.field for row in found] == ["token_ids", "token_ids"]
    assert found[1].where.endswith("line 2")


def change(name, value):
    return lambda line: line.update({name: value})


@pytest.mark.parametrize(
    ("spoil", "field", "why"),
    [
        (change("prev_logprobs", [[0.0, -1.0, -1.0]]), "prev_logprobs", "3 entries for 4 padded tokens"),
        (change("generation_logprobs", [[-1.0] * 5]), "generation_logprobs", "an EOS or a BOS"),
        (change("token_loss_mask", [[0, 1, 1]]), "token_loss_mask", "3 entries for 4"),
        (change("token_loss_mask", [[0, 1, 1, 1]]), "token_loss_mask", "1 at entry 3, and input_lengths is 3"),
        (change("token_loss_mask", [[0, 1, 2, 0]]), "token_loss_mask", "entry 2 is 2"),
        (change("input_lengths", [9]), "input_lengths", "is 9, and token_ids has 4"),
        (change("input_lengths", [2.5]), "input_lengths", "2.5"),
        (change("token_ids", [[5, -8, 9, 0]]), "token_ids", "entry 1 is -8"),
        (change("token_ids", [[5, 8.5, 9, 0]]), "token_ids", "entry 1 is 8.5"),
        (change("token_ids", [[5, True, 9, 0]]), "token_ids", "entry 1 is True"),
        (change("token_ids", [[5, "8", 9, 0]]), "token_ids", "entry 1 is '8'"),
        (change("token_ids", [[5, 2**31, 9, 0]]), "token_ids", "2147483648"),
        (change("token_ids", "text"), "token_ids", "'text'"),
        (change("token_ids", [[5], [6]]), "token_ids", "2 samples"),
        (change("prev_logprobs", [[0.0, "x", -1.0, 0.0]]), "prev_logprobs", "'x'"),
        (change("prev_logprobs", [[0.0, True, -1.0, 0.0]]), "prev_logprobs", "True"),
        (change("prev_logprobs", [[0.0, [1], -1.0, 0.0]]), "prev_logprobs", "a list of 1"),
        (change("rewards", ["good"]), "rewards", "'good'"),
        (change("sample_loss_mask", [None]), "sample_loss_mask", "no number"),
        (lambda line: line.pop("token_loss_mask"), "token_loss_mask", "not there"),
    ],
)
def test_a_line_that_contradicts_itself_is_refused_by_field_and_the_next_one_read(tmp_path, spoil, field, why):
    batch = batch_of([Sample([5], [8, 9])])
    for key in ("token_ids", "token_loss_mask", "generation_logprobs", "prev_logprobs", "advantages"):
        batch[key][0].append(0)
    line = {key: value[:1] for key, value in batch.items()}
    path = tmp_path / "train_data_step1.jsonl"
    good = json.dumps(line)
    spoil(line)
    path.write_text(good + "\n" + json.dumps(line) + "\n" + good + "\n")
    first, found, last = rows(DumpFile(path))
    assert isinstance(first, RecordedRollout)
    assert isinstance(last, RecordedRollout)
    assert isinstance(found, Refusal)
    assert (found.where, found.field) == (f"{path}, line 2", field)
    assert why in found.why
