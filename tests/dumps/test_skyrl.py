"""SkyRL's pickles. The stand-ins for its classes pickle as SkyRL's do, of today and before it had `__reduce__`."""

import io
import pickle
import sys
from types import ModuleType

import numpy as np
import pytest
import torch

from onepolicy.dumps.contract import RecordedRollout, Refusal
from onepolicy.dumps.file import DumpFile
from onepolicy.errors import DumpError
from onepolicy.integrations.skyrl.dump import SKYRL
from onepolicy.records.tokens import TokenState, digest_of_ids

NAME = "global_step_17_training_input.pkl"
MODULE = "skyrl.backends.skyrl_train.training_batch"
RESPONSE = ("response_mask", "loss_mask", "rollout_logprobs", "action_log_probs", "advantages")
LAYOUTS = ("left", "both")
"""the whole row padded on its left, as since March 2026; the prompt on its left and the response on its right"""


def rollouts(seed=5):
    """Rollouts without padding; an observation lies in the middle of some."""
    rng = np.random.default_rng(seed)
    for number, (prompt, response) in enumerate([(4, 6), (1, 3), (6, 1), (2, 9)]):
        loss = np.ones(response, dtype=np.float32)
        loss[2:4] = 0 if number % 2 else 1
        yield {
            "prompt": rng.integers(0, 4, prompt),
            "response": rng.integers(0, 4, response),
            "response_mask": np.ones(response, dtype=np.int64),
            "loss_mask": loss,
            "rollout_logprobs": np.float32(-rng.exponential(1.0, response)) * loss,
            "action_log_probs": np.float32(-rng.exponential(1.0, response)),
            "advantages": np.full(response, number - 1.5, dtype=np.float32),
        }


def padded(rows, *, layout="left", pad=0):
    """The tensors of a batch, put together position by position."""
    p, r = max(len(row["prompt"]) for row in rows), max(len(row["response"]) for row in rows)
    total = max(len(row["prompt"]) + len(row["response"]) for row in rows) if layout == "left" else p + r
    batch = {"sequences": np.full((len(rows), total), pad), "attention_mask": np.zeros((len(rows), total), np.int64)}
    batch |= {name: np.zeros((len(rows), r), rows[0][name].dtype) for name in RESPONSE if name in rows[0]}
    for number, row in enumerate(rows):
        ids = [*row["prompt"], *row["response"]]
        end = total if layout == "left" else p + len(row["response"])
        batch["sequences"][number, end - len(ids) : end] = ids
        batch["attention_mask"][number, end - len(ids) : end] = 1
        for name in RESPONSE:
            if name in row:
                last = r - (total - end)
                batch[name][number, last - len(row[name]) : last] = row[name]
    return {name: torch.tensor(array) for name, array in batch.items()}


def serialized(tensor):
    """`_serialize_tensor`."""
    if tensor is None:
        return None
    try:
        array = tensor.numpy()
    except TypeError:
        buffer = io.BytesIO()
        torch.save(tensor, buffer)
        return {"format": "torch", "data": buffer.getvalue()}
    return {"format": "numpy", "data": array.tobytes(), "shape": array.shape, "dtype": str(array.dtype)}


@pytest.fixture
def save(tmp_path, monkeypatch):
    """Writes a TrainingInputBatch as `TensorBatch.save` does, and opens the file."""

    class TrainingInputBatch(dict):
        metadata = None

        def __getstate__(self):
            fields = {name: serialized(tensor) for name, tensor in self.items()}
            size = len(next(iter(self.values())))
            return {
                "batch_dict": fields,
                "batch_size": size,
                "device": torch.device("cpu"),
                "metadata": self.metadata,
            }

    class Reduced(TrainingInputBatch):
        def __reduce__(self):
            return rebuild, (TrainingInputBatch, self.__getstate__())

    def rebuild(cls, state):
        raise AssertionError("nothing of a file is called")

    rebuild.__name__ = "_rebuild_tensor_batch"
    module = ModuleType(MODULE)
    for found in (TrainingInputBatch, rebuild):
        found.__module__, found.__qualname__ = MODULE, found.__name__
        setattr(module, found.__name__, found)
    for end in (5, 3, 2, 1):
        monkeypatch.setitem(sys.modules, ".".join(MODULE.split(".")[:end]), ModuleType("skyrl"))
    monkeypatch.setitem(sys.modules, MODULE, module)

    def write(tensors, *, metadata=None, old=False, name=NAME):
        batch = (TrainingInputBatch if old else Reduced)(tensors)
        batch.metadata = {"response_length": 9, "pad_size": 0} | (metadata or {})
        with (tmp_path / name).open("wb") as file:
            pickle.dump(batch, file)
        return DumpFile(tmp_path / name)

    return write


def check(row, plan):
    """Ids, masks, both columns and the advantage are the planted ones, bit for bit."""
    assert isinstance(row, RecordedRollout), row
    p = len(plan["prompt"])
    compared = np.concatenate([np.zeros(p, bool), plan["loss_mask"] == 1])
    assert row.rollout.token_ids.tolist() == [*plan["prompt"], *plan["response"]]
    assert row.rollout.sampled.tolist() == row.rollout.loss_mask.tolist() == compared.tolist()
    assert row.rollout.prompt_id == digest_of_ids(plan["prompt"])
    for column, name in ((row.rollout_logprobs, "rollout_logprobs"), (row.trainer_logprobs, "action_log_probs")):
        values = np.concatenate([np.zeros(p, np.float32), plan[name]])
        np.testing.assert_array_equal(column.logprobs, np.where(compared, values, np.float32(np.nan)))
        assert column.states.tolist() == np.where(compared, TokenState.VALUE, TokenState.MASKED).tolist()
    assert row.advantage == plan["advantages"][0]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("old", [False, True], ids=["reduced", "a dict with a state"])
def test_a_batch_gives_back_what_was_planted(save, layout, old):
    rows = list(rollouts())
    file = save(padded(rows, layout=layout) | {"base_action_log_probs": None}, old=old)
    assert SKYRL.recognises(file)
    found = list(SKYRL.rows(file))
    assert len(found) == len(rows)
    for row, plan in zip(found, rows, strict=True):
        check(row, plan)
    assert {row.step for row in found} == {17}
    assert [row.rollout.rollout_id for row in found] == [f"{file.label}/{i}" for i in range(4)]
    assert [row.rollout.reward for row in found] == [None] * 4


@pytest.mark.parametrize("layout", LAYOUTS)
def test_padding_is_what_the_masks_say_whatever_the_pad_id(save, layout):
    rows = list(rollouts())
    for row, plan in zip(SKYRL.rows(save(padded(rows, layout=layout, pad=3))), rows, strict=True):
        check(row, plan)


def test_rows_that_only_fill_the_batch_up_are_no_rows(save):
    rows = list(rollouts())
    tensors = padded(rows)
    filled = {name: torch.cat([tensor, tensor[[0, 0]]]) for name, tensor in tensors.items()}
    filled["loss_mask"][4:] = 0
    found = list(SKYRL.rows(save(filled, metadata={"pad_size": 2})))
    assert len(found) == 4
    check(found[3], rows[3])


@pytest.mark.parametrize("size", [2, 4, 9])
def test_filling_that_is_trained_on_is_not_believed(save, size):
    with pytest.raises(DumpError, match=f"{size} of 4 rows only fill"):
        list(SKYRL.rows(save(padded(list(rollouts())), metadata={"pad_size": size})))


def test_a_batch_without_a_policy_forward_has_one_side(save):
    found = list(SKYRL.rows(save(padded(list(rollouts())) | {"action_log_probs": None})))
    assert all(row.trainer_logprobs is None and row.rollout_logprobs is not None for row in found)


def test_rewards_are_summed_where_they_are_kept(save):
    tensors = padded(list(rollouts()))
    tensors["rewards"] = torch.zeros(4, 9)
    tensors["rewards"][:, -1] = torch.tensor([1.0, 0.0, 0.5, 2.0])
    assert [row.rollout.reward for row in SKYRL.rows(save(tensors))] == [1.0, 0.0, 0.5, 2.0]


def test_bfloat16_logprobs_arrive_exactly(save):
    rows = list(rollouts())
    tensors = padded(rows)
    tensors["action_log_probs"] = tensors["action_log_probs"].bfloat16()
    row = next(iter(SKYRL.rows(save(tensors))))
    planted = torch.tensor(rows[0]["action_log_probs"]).bfloat16().float().numpy()
    np.testing.assert_array_equal(row.trainer_logprobs.logprobs[4:], planted)


def test_the_floor_of_the_engine_and_other_strange_values_are_invalid(save):
    tensors = padded(list(rollouts()))
    strange = torch.tensor([-9999.0, float("nan"), float("-inf"), -3.4e38, 0.5, 0.0])
    tensors["rollout_logprobs"][0, 3:] = strange
    row = next(iter(SKYRL.rows(save(tensors))))
    invalid, masked, value = TokenState.INVALID, TokenState.MASKED, TokenState.VALUE
    assert row.rollout_logprobs.states.tolist() == [masked] * 4 + [invalid] * 5 + [value]
    assert np.isnan(row.rollout_logprobs.logprobs[:9]).all()


def test_a_row_without_a_trained_token_has_nothing_to_compare(save):
    tensors = padded(list(rollouts()))
    tensors["loss_mask"][1] = 0
    row = list(SKYRL.rows(save(tensors)))[1]
    assert not row.rollout.compared.any()


@pytest.mark.parametrize(
    ("name", "by", "words"),
    [
        ("rollout_logprobs", 1, ["10 entries for 9", "One more"]),
        ("action_log_probs", -1, ["8 entries for 9", "One fewer"]),
        ("loss_mask", 1, ["10 entries for 9"]),
        ("attention_mask", 1, ["12 entries for 11"]),
    ],
)
def test_a_column_of_another_width_refuses_every_row_and_shifts_none(save, name, by, words):
    tensors = padded(list(rollouts()))
    tensors[name] = torch.nn.functional.pad(tensors[name], (0, by))
    found = list(SKYRL.rows(save(tensors)))
    assert len(found) == 4
    for number, row in enumerate(found):
        assert isinstance(row, Refusal)
        assert row.field == name
        assert row.where.endswith(f"{NAME}, row {number}")
        assert all(word in row.why for word in words), row.why


def test_a_row_whose_masks_contradict_each_other_is_refused_and_the_others_are_read(save):
    rows = list(rollouts())
    tensors = padded(rows)
    tensors["loss_mask"][0] = torch.roll(tensors["loss_mask"][0], -1)
    tensors["loss_mask"][0, 2] = 1  # before the response of 6
    tensors["attention_mask"][1, 8] = 0  # a gap
    tensors["response_mask"][2] = torch.tensor([0] * 7 + [1, 0])  # shifted by one
    found = list(SKYRL.rows(save(tensors)))
    check(found[3], rows[3])
    assert [row.field for row in found[:3]] == ["loss_mask", "attention_mask", "response_mask"]
    assert "marks 1 positions outside the response of 6 tokens" in found[0].why
    assert "leaves out 1 positions" in found[1].why
    assert "not the last ones" in found[2].why


def test_a_response_in_the_padding_is_refused(save):
    tensors = padded(list(rollouts()), layout="both")
    tensors["response_mask"] = torch.roll(tensors["response_mask"], 1, dims=1)
    first, *_ = SKYRL.rows(save(tensors))
    assert first.field == "response_mask"
    assert "marks 1 positions that attention_mask says are padding" in first.why


@pytest.mark.parametrize("missing", ["attention_mask", "response_mask"])
def test_a_batch_without_its_masks_is_not_guessed(save, missing):
    tensors = padded(list(rollouts()))
    del tensors[missing]
    with pytest.raises(DumpError, match=f"{NAME}: it has no {missing}"):
        list(SKYRL.rows(save(tensors)))


@pytest.mark.parametrize("damage", [{"dtype": "O"}, {"shape": (4, 10)}, {"data": b"123"}, {"dtype": 5}])
def test_a_tensor_that_is_damaged_is_named(save, damage, monkeypatch):
    tensors = padded(list(rollouts()))
    monkeypatch.setitem(globals(), "serialized", lambda tensor, plain=serialized: plain(tensor) | damage)
    with pytest.raises(DumpError, match=f"{NAME}: sequences is no tensor as SkyRL saves one"):
        list(SKYRL.rows(save(tensors)))


def test_the_step_is_not_made_up(save):
    file = save(padded(list(rollouts())), name="batch.pkl")
    assert {row.step for row in SKYRL.rows(file)} == {None}


def test_other_pickles_are_not_recognised(tmp_path):
    (tmp_path / NAME).write_bytes(pickle.dumps({"batch_dict": {"sequences": [1]}}))
    assert not SKYRL.recognises(DumpFile(tmp_path / NAME))
