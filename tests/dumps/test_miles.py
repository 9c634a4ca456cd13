"""miles' training data, written as miles writes it: one file a rank, sliced for context parallelism, real torch.save.

The slices are cut by a walk over the positions of the padded sequence, which shares no formula with the reader.
"""

import numpy as np
import pytest
import torch

from onepolicy.dumps.contract import RecordedRollout, Refusal
from onepolicy.dumps.file import DumpFile
from onepolicy.errors import DumpError
from onepolicy.integrations.miles.dump import MILES
from onepolicy.records.tokens import TokenState, digest_of_ids

SLICED = ("rollout_log_probs", "log_probs", "advantages")


def planted(prompt, response, *, index, seed=0):
    """One sample: whole columns, as the ranks hold them together."""
    rng = np.random.default_rng(seed + index)
    return {
        "sample_indices": index,
        "tokens": rng.integers(0, 1000, prompt + response).tolist(),
        "response_lengths": response,
        "total_lengths": prompt + response,
        "loss_masks": rng.integers(0, 2, response).tolist(),
        "rollout_log_probs": -rng.exponential(1.0, response).astype(np.float32),
        "log_probs": -rng.exponential(1.0, response).astype(np.float32),
        "advantages": np.full(response, 0.5, dtype=np.float32),
        "rewards": float(index),
        "weight_versions": [str(index % 3)],
        "truncated": index % 2,
    }


def kept(values, sample, *, rank, ranks, padded):
    """What a rank keeps of a column: position prompt + i - 1, which predicts entry i, lies in one of its chunks."""
    chunk = -(-padded // (2 * ranks))
    prompt = sample["total_lengths"] - sample["response_lengths"]
    mine = {rank, 2 * ranks - 1 - rank}
    return [values[i] for i in range(len(values)) if (prompt + i - 1) // chunk in mine]


def write(folder, samples, *, rank=0, cp_rank=0, cp_size=1, qkv_format="thd", without=(), name=None, **changed):
    """`save_debug_train_data_for_rank`."""
    longest = 8 * -(-max(sample["total_lengths"] for sample in samples) // 8)
    columns = {key: [sample[key] for sample in samples] for key in samples[0] if key not in without}
    columns["tokens"] = [torch.tensor(ids) for ids in columns["tokens"]]
    columns["loss_masks"] = [torch.tensor(mask, dtype=torch.int) for mask in columns["loss_masks"]]
    if qkv_format == "bshd":
        columns["max_seq_lens"] = [longest] * len(samples)
    for key in set(SLICED) - set(without):
        padded = [longest if qkv_format == "bshd" else sample["total_lengths"] for sample in samples]
        columns[key] = [
            torch.tensor(kept(sample[key], sample, rank=cp_rank, ranks=cp_size, padded=width))
            if cp_size > 1
            else torch.tensor(sample[key])
            for sample, width in zip(samples, padded, strict=True)
        ]
    columns["raw_reward"] = [0.0] * 64
    dump = {"rollout_id": 7, "rank": rank, "rollout_data": columns, "cp_rank": cp_rank, "cp_size": cp_size}
    path = folder / (name or f"7_{rank}.pt")
    torch.save({**dump, "qkv_format": qkv_format, **changed}, path)
    return DumpFile(path)


def check(row, sample):
    """The rollout is the planted one, bit for bit."""
    assert isinstance(row, RecordedRollout), row
    assert row.rollout.token_ids.tolist() == sample["tokens"]
    prompt = sample["total_lengths"] - sample["response_lengths"]
    assert row.rollout.prompt_id == digest_of_ids(np.array(sample["tokens"][:prompt]))
    compared = [False] * prompt + [bool(entry) for entry in sample["loss_masks"]]
    assert row.rollout.sampled.tolist() == row.rollout.loss_mask.tolist() == compared
    for column, name in ((row.rollout_logprobs, "rollout_log_probs"), (row.trainer_logprobs, "log_probs")):
        values = np.concatenate([np.full(prompt, np.nan, np.float32), sample[name]])
        np.testing.assert_array_equal(column.logprobs, np.where(compared, values, np.float32(np.nan)))
        assert column.states.tolist() == np.where(compared, TokenState.VALUE, TokenState.MASKED).tolist()
    assert row.rollout.reward == sample["rewards"]
    assert row.weight_version == sample["weight_versions"][0]
    assert row.advantage == (0.5 if any(sample["loss_masks"]) else None)
    assert row.rollout.tags == ({"status": "truncated"} if sample["truncated"] else {})
    assert row.step == 7


SAMPLES = [planted(5, 9, index=0), planted(1, 30, index=1), planted(17, 2, index=2), planted(3, 1, index=3)]


def test_one_rank_gives_back_what_was_planted(tmp_path):
    file = write(tmp_path, SAMPLES)
    assert MILES.recognises(file)
    for number, (row, sample) in enumerate(zip(MILES.rows(file), SAMPLES, strict=True)):
        check(row, sample)
        assert row.rollout.rollout_id == f"7_0/{number}"


@pytest.mark.parametrize("qkv_format", ["thd", "bshd"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_context_parallel_slices_are_put_together(tmp_path, ranks, qkv_format):
    files = [
        write(tmp_path, SAMPLES, rank=rank, cp_rank=rank, cp_size=ranks, qkv_format=qkv_format) for rank in range(ranks)
    ]
    for row, sample in zip(MILES.together(files[::-1]), SAMPLES, strict=True):
        check(row, sample)


def test_slices_of_a_prompt_without_a_token_before_the_response_are_refused(tmp_path):
    """The first token of all has no logprob: there is no position that predicts it."""
    files = [write(tmp_path, [planted(0, 6, index=0)], rank=rank, cp_rank=rank, cp_size=2) for rank in range(2)]
    (refused,) = MILES.together(files)
    assert isinstance(refused, Refusal)


def test_data_tensor_and_pipeline_ranks_are_each_read_once(tmp_path):
    first, second = SAMPLES[:2], SAMPLES[2:]
    files = [
        write(tmp_path, first, rank=0, without=("log_probs",)),  # before the last pipeline stage
        write(tmp_path, first, rank=1),
        write(tmp_path, first, rank=2),  # tensor parallel copy
        write(tmp_path, second, rank=3),
        write(tmp_path, second, rank=4),
    ]
    rows = list(MILES.together(files))
    for row, sample in zip(rows, SAMPLES, strict=True):
        check(row, sample)
    assert [row.rollout.rollout_id for row in rows] == ["7_0/0", "7_0/1", "7_3/0", "7_3/1"]


def test_a_missing_shard_refuses_its_rows_by_rank(tmp_path):
    files = [write(tmp_path, SAMPLES[:2], rank=rank, cp_rank=rank, cp_size=4) for rank in (0, 1, 3)]
    rows = list(MILES.together(files))
    assert len(rows) == 2
    for row in rows:
        assert isinstance(row, Refusal)
        assert row.field == "rollout_log_probs"
        assert "context-parallel rank 2 of 4 is missing; found: rank 0, 1, 3" in row.why


def test_one_file_of_a_context_parallel_group_is_refused_too(tmp_path):
    (row, *_) = MILES.rows(write(tmp_path, SAMPLES, rank=1, cp_rank=1, cp_size=2))
    assert isinstance(row, Refusal)
    assert "context-parallel rank 0 of 2 is missing" in row.why


def test_a_shard_that_does_not_say_its_place_is_refused(tmp_path):
    files = [write(tmp_path, SAMPLES[:1], rank=r, cp_rank=r, cp_size=2) for r in range(2)]
    for rank, file in enumerate(files):
        dump = torch.load(file.location, weights_only=False)
        del dump["cp_rank"], dump["cp_size"]
        torch.save(dump, tmp_path / f"8_{rank}.pt")
    (row,) = MILES.together([DumpFile(tmp_path / f"8_{rank}.pt") for rank in range(2)])
    assert isinstance(row, Refusal)
    assert "entries for 9 response tokens" in row.why


@pytest.mark.parametrize("more", [1, -1])
def test_a_slice_that_is_one_off_is_refused_and_not_shifted(tmp_path, more):
    files = [write(tmp_path, SAMPLES[1:2], rank=rank, cp_rank=rank, cp_size=2) for rank in range(2)]
    dump = torch.load(files[1].location, weights_only=False)
    column = dump["rollout_data"]["log_probs"]
    column[0] = torch.cat([column[0], torch.zeros(1)]) if more == 1 else column[0][:-1]
    torch.save(dump, files[1].location)
    (row,) = MILES.together([DumpFile(file.location) for file in files])
    assert isinstance(row, Refusal)
    assert row.field == "log_probs"
    assert f"{len(column[0])} entries on context-parallel rank 1 of 2" in row.why


def test_a_column_that_is_one_off_is_refused_and_the_others_are_read(tmp_path):
    wrong = {**SAMPLES[1], "log_probs": np.append(SAMPLES[1]["log_probs"], np.float32(-1))}
    first, refused, last = MILES.rows(write(tmp_path, [SAMPLES[0], wrong, SAMPLES[2]]))
    check(first, SAMPLES[0])
    check(last, SAMPLES[2])
    assert (refused.field, refused.where) == ("log_probs", f"{tmp_path}/7_0.pt, sample 1")
    assert "31 entries for 30 response tokens" in refused.why


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"cp_size": 3}, "cp_size"),
        ({"cp_size": 0}, "cp_size"),
        ({"cp_rank": 2}, "cp_rank"),
        ({"cp_rank": None}, "cp_rank"),
        ({"qkv_format": "sbhd"}, "qkv_format"),
        ({"qkv_format": "bshd"}, "max_seq_lens"),
    ],
)
def test_ranks_that_contradict_each_other_are_refused(tmp_path, changed, field):
    second = {"rank": 1, "cp_rank": 1, "cp_size": 2}
    files = [write(tmp_path, SAMPLES[:1], rank=0, cp_size=2), write(tmp_path, SAMPLES[:1], **second)]
    dumps = [torch.load(file.location, weights_only=False) for file in files]
    for dump, file in zip(dumps if "qkv_format" in changed else dumps[1:], files[::-1], strict=False):
        torch.save({**dump, **changed}, file.location)
    (row, *_) = MILES.together([DumpFile(file.location) for file in files])
    assert isinstance(row, Refusal)
    assert row.field == field


def test_ranks_with_other_tokens_under_one_index_are_refused(tmp_path):
    other = {**SAMPLES[0], "tokens": [*SAMPLES[0]["tokens"][:-1], 999_999]}
    (row,) = MILES.together([write(tmp_path, SAMPLES[:1], rank=0), write(tmp_path, [other], rank=1)])
    assert row.field == "tokens"
    assert "7_1.pt" in row.why


def test_an_index_that_one_file_has_twice_is_two_samples(tmp_path):
    twice = [{**SAMPLES[0], "sample_indices": 5}, {**SAMPLES[1], "sample_indices": 5}]
    rows = MILES.together([write(tmp_path, twice, rank=rank) for rank in range(2)])
    assert [len(row.rollout.token_ids) for row in rows] == [14, 31]


def test_samples_without_an_index_are_read_of_one_rank_and_not_joined(tmp_path):
    files = [write(tmp_path, SAMPLES, rank=rank, without=("sample_indices",)) for rank in range(2)]
    for row, sample in zip(MILES.rows(files[0]), SAMPLES, strict=True):
        check(row, sample)
    with pytest.raises(DumpError, match=r"7_0\.pt, sample 0: sample_indices has no entry"):
        list(MILES.together(files))


def test_files_of_a_rollout_are_one_group(tmp_path):
    names = ["7_0.pt", "7_13.pt", "17_0.pt", "step.pt", "7_1.pt.zst"]
    groups = [MILES.group(DumpFile(tmp_path / name)) for name in names]
    assert groups[0] == groups[1] == groups[4] == str(tmp_path / "7")
    assert len(set(groups)) == 3
    assert MILES.group(DumpFile("s3://bucket/run/train_data/7_0.pt")) == "s3://bucket/run/train_data/7"


def test_files_of_two_rollouts_under_one_name_are_not_mixed(tmp_path):
    files = [write(tmp_path, SAMPLES, rank=0), write(tmp_path, SAMPLES, rank=1, rollout_id=8)]
    with pytest.raises(DumpError, match="rollouts 7, 8"):
        list(MILES.together(files))


def test_a_column_with_other_rows_ends_the_import(tmp_path):
    file = write(tmp_path, SAMPLES)
    dump = torch.load(file.location, weights_only=False)
    dump["rollout_data"]["log_probs"].pop()
    torch.save(dump, file.location)
    with pytest.raises(DumpError, match="log_probs: 3 entries for 4 samples"):
        list(MILES.rows(DumpFile(file.location)))


def test_a_rollout_file_is_not_recognised_as_training_data(tmp_path):
    torch.save({"rollout_id": 7, "samples": [], "metadata": {}}, tmp_path / "7.pt")
    assert not MILES.recognises(DumpFile(tmp_path / "7.pt"))
