"""Whatever stands in whatever field of a dump, it ends in rows, refusals or a DumpError that names the file."""

import numpy as np
import pytest

from onepolicy.dumps.block import in_blocks
from onepolicy.dumps.stored import Global, Opaque, StoredTensor
from onepolicy.errors import DumpError
from onepolicy.integrations.miles.dump import MILES
from onepolicy.integrations.skyrl.dump import SKYRL
from onepolicy.integrations.slime.dump import SLIME, SLIME_ROLLOUT
from onepolicy.integrations.verl.dump import VERL


def tensor(values, dtype="int64"):
    return StoredTensor(array=np.asarray(values, dtype), dtype=dtype)


def floats(*shape):
    return tensor(np.full(shape, -0.5), "float32")


def slime():
    sample = {
        "rollout_position": 0,
        "tokens": tensor([5, 6, 7, 21, 22, 23, 24]),
        "response_lengths": 4,
        "total_lengths": 7,
        "loss_masks": tensor([1, 1, 0, 1]),
        "rollout_log_probs": floats(4),
        "log_probs": floats(4),
        "advantages": floats(4),
        "rewards": 1.0,
        "source_names": "math",
    }
    return {"format_version": 2, "rollout_id": 1, "samples": [sample, dict(sample)], "raw_reward": [1.0, 2.0]}


def slime_rollout():
    sample = {
        "group_index": 1,
        "tokens": [1, 2, 3, 4, 5, 6, 7],
        "response_length": 4,
        "reward": 1.0,
        "loss_mask": [1, 1, 0, 1],
        "weight_versions": ["8"],
        "rollout_log_probs": [-0.5] * 4,
        "remove_sample": False,
        "status": "completed",
    }
    return {"rollout_id": 1, "samples": [sample, dict(sample)]}


def miles(cp_size=1):
    columns = {
        "sample_indices": [0, 1],
        "tokens": [tensor([1, 2, 3, 4, 5, 6, 7])] * 2,
        "response_lengths": [4, 4],
        "total_lengths": [7, 7],
        "loss_masks": [tensor([1] * 4)] * 2,
        "rollout_log_probs": [floats(4)] * 2,
        "log_probs": [floats(4)] * 2,
        "advantages": [floats(4)] * 2,
        "rewards": [1.0, 2.0],
        "weight_versions": [["1"], ["2"]],
        "truncated": [0, 1],
        "max_seq_lens": [8, 8],
    }
    place = {"rank": 0, "cp_rank": 0, "cp_size": cp_size, "qkv_format": "thd"}
    return {"rollout_id": 1, "rollout_data": columns} | place


def verl(form="tensordict"):
    tensors = {
        "prompts": tensor([[0, 1, 2], [1, 2, 3]]),
        "responses": tensor([[1, 2], [3, 4]]),
        "attention_mask": tensor([[0, 1, 1, 1, 1], [1, 1, 1, 1, 0]]),
        "input_ids": tensor([[0, 1, 2, 1, 2], [1, 2, 3, 3, 4]]),
        "response_mask": tensor([[1, 1], [1, 0]]),
        "rollout_log_probs": floats(2, 2),
        "old_log_probs": floats(2, 2),
        "advantages": floats(2, 2),
        "rm_scores": floats(2, 2),
    }
    leaves = {
        name: (found.dtype, found.shape, np.frombuffer(found.array.tobytes(), np.uint8))
        for name, found in tensors.items()
    }
    dictionary = Opaque(name="tensordict._td.TensorDict", state={"_tensordict": tensors})
    others = {
        name: np.array(["a", "b"], dtype=object)
        for name in ("uid", "data_source", "min_global_steps", "max_global_steps")
    }
    batch = dictionary if form == "tensordict" else ((2,), None, leaves)
    return Opaque(name="verl.protocol.DataProto", state=(batch, others, {"global_steps": 1}))


def skyrl():
    def stored(values, dtype):
        array = np.asarray(values, dtype)
        return {"format": "numpy", "data": array.tobytes(), "shape": array.shape, "dtype": dtype}

    window = [[1, 1], [0, 1]]
    fields = {"sequences": stored([[0, 1, 2], [1, 2, 3]], "int64"), "response_mask": stored(window, "int64")}
    fields["attention_mask"] = stored([[0, 1, 1], [1, 1, 1]], "int64")
    for name in ("loss_mask", "rollout_logprobs", "action_log_probs", "advantages", "rewards"):
        fields[name] = stored(window, "float32")
    state = {"batch_dict": fields, "batch_size": 2, "device": None, "metadata": {"pad_size": 0}}
    return Opaque(name="skyrl.TrainingInputBatch", state=state)


ODD = [
    *(None, True, 0, -1, 1, 2, 2**63, 10**30, -(10**30), 1.5, float("nan"), float("inf"), "", "abc", "3", b"x"),
    *([], [None], [None] * 4, [1, "a"], ["a"] * 4, [[1], [1, 2]], [[1]] * 4, [[]], [{}], [2**64], [complex(1, 2)]),
    *({}, {"a": 1}, {1: 2}, (), (1, 2), {1, 2}, Opaque(name="x"), Global(name="y")),
    *(tensor(5), tensor([1]), tensor([[1, 2], [3, 4]]), tensor(np.zeros((4, 0))), floats(0), floats(2)),
    *(np.array("a"), np.array(["a", "b"]), np.array([None, 1], dtype=object), np.array(5), np.zeros((2, 2, 2))),
    *(np.array([1e300, -1e300]), np.array([2**63], dtype=np.uint64), np.array([1j])),
]
DUMPS = {
    "slime": (SLIME, "torch", slime()),
    "slime-rollout": (SLIME_ROLLOUT, "torch", slime_rollout()),
    "miles": (MILES, "torch", miles()),
    "miles, sliced": (MILES, "torch", miles(cp_size=2)),
    "verl": (VERL, "pickle", verl()),
    "verl, numpy": (VERL, "pickle", verl("numpy")),
    "skyrl": (SKYRL, "pickle", skyrl()),
}


class Held:
    """A file whose content is here."""

    name, location, label = "run/x_0.pt", "run/x_0.pt", "x"

    def __init__(self, kind, content):
        self.kind, self.content = kind, content

    def loaded(self):
        return self.content

    def beside(self, name):
        return False


def places(found, path=()):
    """Every place of a dump."""
    yield path
    if isinstance(found, dict):
        entries = found.items()
    elif isinstance(found, list | tuple):
        entries = enumerate(found)
    else:
        entries = [("state", found.state)] if isinstance(found, Opaque) else []
    for key, value in entries:
        yield from places(value, (*path, key))


def changed(found, path, value):
    """The dump with one place changed."""
    if not path:
        return value
    key, *rest = path
    if isinstance(found, Opaque):
        return Opaque(name=found.name, state=changed(found.state, rest, value))
    if isinstance(found, dict):
        return {**found, key: changed(found[key], rest, value)}
    return type(found)(changed(entry, rest, value) if i == key else entry for i, entry in enumerate(found))


def outcome(form, kind, content):
    """How many rows were used and refused; None if the file was not recognised; or the message that ends the import."""
    file = Held(kind, content)
    try:
        if not form.recognises(file):
            return None
        blocks = list(in_blocks(form.rows(file)))
    except DumpError as error:
        return str(error)
    assert all(refusal.where.startswith(file.name) and refusal.why for block in blocks for refusal in block.refused)
    return sum(len(block.rollouts.rollout_ids) for block in blocks), sum(len(block.refused) for block in blocks)


@pytest.mark.parametrize("name", DUMPS)
def test_an_odd_value_in_any_place_ends_in_rows_refusals_or_a_named_error(name):
    form, kind, content = DUMPS[name]
    plain = outcome(form, kind, content)
    assert plain == ((0, 2) if "sliced" in name else (2, 0))
    for place in places(content):
        for value in ODD:
            found = outcome(form, kind, changed(content, place, value))
            if isinstance(found, str):
                assert found.startswith(Held.name)
            elif found is not None and place[-1:] != ("samples",):
                assert sum(found) == 2, (place, value)
