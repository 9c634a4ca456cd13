"""slime's files, written as slime writes them: `_build_dump_payload` and `save_debug_rollout_data`, real torch.save."""

import numpy as np
import pytest
import torch

from onepolicy.dumps.contract import RecordedRollout, Refusal
from onepolicy.dumps.file import DumpFile
from onepolicy.errors import DumpError
from onepolicy.integrations.slime.dump import SLIME, SLIME_ROLLOUT
from onepolicy.records.tokens import TokenState, digest_of_ids

VALUE, MASKED, INVALID = TokenState.VALUE, TokenState.MASKED, TokenState.INVALID
PROMPT, RESPONSE = [5, 6, 7], [21, 22, 23, 24]


def train_sample(**changed):
    """One entry of `samples`, as the trainer's tensors give it."""
    sample = {
        "data_parallel_rank": 0,
        "sample_index": 40,
        "rollout_position": 0,
        "tokens": torch.tensor(PROMPT + RESPONSE),
        "response_lengths": 4,
        "total_lengths": 7,
        "loss_masks": torch.tensor([1, 1, 0, 1], dtype=torch.int),
        "rollout_log_probs": torch.tensor([-0.5, -1.5, 0.0, -2.5]),
        "log_probs": torch.tensor([-0.25, -1.25, -9.0, -2.0]),
        "advantages": torch.full((4,), 0.75),
        "rewards": 1.25,
        "truncated": 0,
        "rollout_ids": 40,
        "source_names": "math",
    }
    return {**sample, **changed}


def train_dump(path, samples, **changed):
    payload = {
        "format_version": 2,
        "rollout_id": 11,
        "rank": 0,
        "samples": samples,
        "dp_shards": [{"rank": 0, "data_parallel_rank": 0, "partition": list(range(len(samples)))}],
        "raw_reward": [float(10 + i) for i in range(len(samples))],
    }
    torch.save({**payload, **changed}, path)
    return DumpFile(path)


def rollout_sample(**changed):
    """`Sample.to_dict()`."""
    sample = {
        "group_index": 3,
        "index": 40,
        "rollout_id": None,
        "prompt": "2 + 2 =",
        "tokens": PROMPT + RESPONSE,
        "response": " four",
        "response_length": 4,
        "label": "4",
        "reward": 1.0,
        "loss_mask": [1, 1, 0, 1],
        "weight_versions": ["8"],
        "rollout_log_probs": [-0.5, -1.5, 0.0, -2.5],
        "remove_sample": False,
        "status": "completed",
        "metadata": {"difficulty": 2},
        "train_metadata": None,
        "spec_info": {"spec_accept_token_num": 0},
        "prefix_cache_info": {"cached_tokens": 0, "total_prompt_tokens": 3},
    }
    return {**sample, **changed}


def rollout_dump(path, samples, **changed):
    torch.save({"rollout_id": 11, "samples": samples, **changed}, path)
    return DumpFile(path)


def one(found):
    (row,) = found
    return row


def test_a_training_dump_gives_back_what_was_planted(tmp_path):
    file = train_dump(tmp_path / "11.pt", [train_sample()])
    assert SLIME.recognises(file)
    assert not SLIME_ROLLOUT.recognises(file)
    row = one(SLIME.rows(file))
    assert row.rollout.rollout_id == "11/0"
    assert row.rollout.token_ids.tolist() == PROMPT + RESPONSE
    assert row.rollout.prompt_id == digest_of_ids(np.array(PROMPT))
    assert row.rollout.sampled.tolist() == [False] * 3 + [True, True, False, True]
    assert row.rollout.loss_mask.tolist() == row.rollout.sampled.tolist()
    nan = float("nan")
    expected = {"rollout_logprobs": [-0.5, -1.5, nan, -2.5], "trainer_logprobs": [-0.25, -1.25, nan, -2.0]}
    for side, values in expected.items():
        column = getattr(row, side)
        np.testing.assert_array_equal(column.logprobs, np.float32([nan] * 3 + values))
        assert column.states.tolist() == [MASKED] * 3 + [VALUE, VALUE, MASKED, VALUE]
    assert (row.step, row.advantage, row.rollout.reward) == (11, 0.75, 10.0)
    assert row.rollout.tags == {"source": "math"}
    assert row.weight_version == ""


def test_the_raw_reward_is_found_by_the_place_in_the_rollout(tmp_path):
    samples = [train_sample(rollout_position=1), train_sample(rollout_position=0), train_sample(rollout_position=None)]
    rows = SLIME.rows(train_dump(tmp_path / "11.pt", samples))
    assert [row.rollout.reward for row in rows] == [11.0, 10.0, 1.25]


def test_a_rollout_without_training_logprobs_has_one_side(tmp_path):
    sample = train_sample()
    del sample["log_probs"]
    row = one(SLIME.rows(train_dump(tmp_path / "11.pt", [sample])))
    assert row.trainer_logprobs is None
    assert row.rollout_logprobs is not None


def test_values_that_are_no_logprobs_are_invalid(tmp_path):
    strange = torch.tensor([float("nan"), float("-inf"), -3.4028235e38, 0.5, -9999.0, 0.0])
    sample = train_sample(
        tokens=torch.arange(8),
        response_lengths=6,
        total_lengths=8,
        loss_masks=torch.ones(6),
        rollout_log_probs=strange,
        log_probs=torch.full((6,), -1.0),
        advantages=torch.zeros(6),
    )
    row = one(SLIME.rows(train_dump(tmp_path / "11.pt", [sample])))
    assert row.rollout_logprobs.states.tolist() == [MASKED] * 2 + [INVALID] * 5 + [VALUE]
    assert np.isnan(row.rollout_logprobs.logprobs[:7]).all()
    assert row.rollout_logprobs.logprobs[7] == 0


def test_advantages_that_differ_within_a_rollout_are_none(tmp_path):
    differing = train_sample(advantages=torch.tensor([0.5, 0.5, 9.0, 0.25]))
    same = train_sample(advantages=torch.tensor([0.5, 0.5, 9.0, 0.5]))
    rows = SLIME.rows(train_dump(tmp_path / "11.pt", [differing, same]))
    assert [row.advantage for row in rows] == [None, 0.5]


def test_bfloat16_values_arrive_exactly(tmp_path):
    values = torch.tensor([-0.1, -1.3, 0.0, -2.7]).bfloat16()
    row = one(SLIME.rows(train_dump(tmp_path / "11.pt", [train_sample(rollout_log_probs=values)])))
    np.testing.assert_array_equal(row.rollout_logprobs.logprobs[[3, 4, 6]], values[[0, 1, 3]].float().numpy())


@pytest.mark.parametrize(
    ("changed", "field", "words"),
    [
        ({"rollout_log_probs": torch.zeros(5)}, "rollout_log_probs", ["5 entries for 4 response tokens", "One more"]),
        ({"log_probs": torch.zeros(3)}, "log_probs", ["3 entries for 4 response tokens"]),
        ({"loss_masks": torch.ones(5)}, "loss_masks", ["5 entries for 4"]),
        ({"advantages": torch.ones(7)}, "advantages", ["7 entries for 4"]),
        ({"total_lengths": 8}, "tokens", ["7 entries for 8"]),
        ({"response_lengths": 9}, "response_lengths", ["9", "7 tokens"]),
        ({"response_lengths": None}, "response_lengths", ["nothing"]),
        ({"response_lengths": -1}, "response_lengths", ["-1"]),
        ({"tokens": torch.tensor([1, 2, 3, -4, 5, 6, 7])}, "tokens", ["-4"]),
        ({"tokens": torch.rand(7)}, "tokens", ["token ids"]),
        ({"tokens": None}, "tokens", ["nothing"]),
        ({"log_probs": "no numbers"}, "log_probs", ["'no numbers'"]),
        ({"log_probs": [[-1.0], [-1.0, -2.0]]}, "log_probs", ["list of 2"]),
        ({"loss_masks": torch.tensor([1, 1, float("nan"), 1])}, "loss_masks", ["1 entries are no numbers"]),
    ],
)
def test_a_row_that_contradicts_itself_is_refused_and_the_others_are_read(tmp_path, changed, field, words):
    file = train_dump(tmp_path / "11.pt", [train_sample(), train_sample(**changed), train_sample()])
    first, refused, last = SLIME.rows(file)
    assert isinstance(first, RecordedRollout)
    assert isinstance(last, RecordedRollout)
    assert isinstance(refused, Refusal)
    assert refused.where == f"{file.name}, sample 1"
    assert refused.field == field
    assert all(word in refused.why for word in words), refused.why


def test_a_sample_that_is_no_dict_is_refused(tmp_path):
    assert isinstance(one(SLIME.rows(train_dump(tmp_path / "11.pt", ["sample"]))), Refusal)
    assert isinstance(one(SLIME_ROLLOUT.rows(rollout_dump(tmp_path / "12.pt", ["sample"]))), Refusal)


def test_another_version_of_the_training_dump_is_not_guessed(tmp_path):
    file = train_dump(tmp_path / "11.pt", [train_sample()], format_version=3)
    with pytest.raises(DumpError, match=r"11\.pt: format_version 3"):
        list(SLIME.rows(file))


def test_a_rollout_dump_has_the_rollout_side_alone(tmp_path):
    file = rollout_dump(tmp_path / "11.pt", [rollout_sample()])
    assert SLIME_ROLLOUT.recognises(file)
    assert not SLIME.recognises(file)
    assert SLIME_ROLLOUT.trainer == "absent"
    row = one(SLIME_ROLLOUT.rows(file))
    assert row.rollout.token_ids.tolist() == PROMPT + RESPONSE
    assert row.rollout.sampled.tolist() == [False] * 3 + [True, True, False, True]
    assert row.rollout_logprobs.states.tolist() == [MASKED] * 3 + [VALUE, VALUE, MASKED, VALUE]
    assert row.rollout_logprobs.logprobs[[3, 4, 6]].tolist() == [-0.5, -1.5, -2.5]
    assert row.trainer_logprobs is None
    assert (row.step, row.weight_version, row.rollout.reward, row.rollout.group) == (11, "8", 1.0, "3")
    assert row.rollout.tags == {"status": "completed"}


def test_the_rollout_dump_of_miles_is_the_same_file(tmp_path):
    file = rollout_dump(tmp_path / "eval_11.pt", [rollout_sample()], metadata={})
    assert SLIME_ROLLOUT.recognises(file)
    assert one(SLIME_ROLLOUT.rows(file)).rollout.rollout_id == "eval_11/0"


def test_weight_versions_that_change_within_a_rollout_are_both_named(tmp_path):
    samples = [rollout_sample(weight_versions=["8", "8", "9"]), rollout_sample(weight_versions=[])]
    rows = SLIME_ROLLOUT.rows(rollout_dump(tmp_path / "11.pt", samples))
    assert [row.weight_version for row in rows] == ["8,9", ""]


def test_a_removed_sample_was_sampled_and_is_not_trained_on(tmp_path):
    sample = rollout_sample(remove_sample=True, loss_mask=None)
    row = one(SLIME_ROLLOUT.rows(rollout_dump(tmp_path / "11.pt", [sample])))
    assert row.rollout.sampled.tolist() == [False] * 3 + [True] * 4
    assert not row.rollout.loss_mask.any()


def test_a_reward_of_several_numbers_is_not_made_one(tmp_path):
    sample = rollout_sample(reward={"format": 1.0, "answer": 0.0})
    assert one(SLIME_ROLLOUT.rows(rollout_dump(tmp_path / "11.pt", [sample]))).rollout.reward is None


def test_a_sample_without_logprobs_is_refused_by_name(tmp_path):
    file = rollout_dump(tmp_path / "11.pt", [rollout_sample(rollout_log_probs=None, status="aborted")])
    refused = one(SLIME_ROLLOUT.rows(file))
    assert refused.field == "rollout_log_probs"
    assert "aborted" in refused.why


def test_one_logprob_too_many_is_refused_and_not_shifted(tmp_path):
    file = rollout_dump(tmp_path / "11.pt", [rollout_sample(rollout_log_probs=[-0.5, -1.5, 0.0, -2.5, -0.1])])
    refused = one(SLIME_ROLLOUT.rows(file))
    assert refused.field == "rollout_log_probs"
    assert "5 entries for 4 response tokens" in refused.why


def test_a_torch_file_of_something_else_is_not_recognised(tmp_path):
    torch.save({"model": torch.zeros(2)}, tmp_path / "model.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    (tmp_path / "text.pt").write_text("samples")
    for name in ("model.pt", "list.pt", "text.pt"):
        assert not SLIME.recognises(DumpFile(tmp_path / name))
        assert not SLIME_ROLLOUT.recognises(DumpFile(tmp_path / name))
