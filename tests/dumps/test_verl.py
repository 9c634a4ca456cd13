"""verl's files. Its stand-ins pickle as verl 0.9.1 and tensordict do; in the full tests verl itself writes."""

import ast
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from onepolicy.dumps.contract import RecordedRollout, Refusal
from onepolicy.dumps.file import DumpFile
from onepolicy.errors import DumpError
from onepolicy.integrations.verl.dump import VERL
from onepolicy.integrations.verl.text import VERL_JSONL, VERL_MSPROBE
from onepolicy.records.tokens import TokenState, digest_of_ids

PEERS = Path(__file__).parents[2] / ".peers"
needs_verl = pytest.mark.skipif(not PEERS.exists(), reason="verl is not in .peers: run make bench once")
FORMS = ("consolidated", "plain", "numpy")
COLUMNS = ("response_mask", "rollout_log_probs", "old_log_probs", "advantages", "token_level_scores")


def rollouts(seed=3):
    """Rollouts without padding. Ids of 0 are tokens like others; a tool's answer lies in the middle of some."""
    rng = np.random.default_rng(seed)
    for number, (prompt, response) in enumerate([(4, 6), (1, 3), (6, 1), (2, 9)]):
        mask = np.ones(response, dtype=np.int64)
        mask[2:4] = 0 if number % 2 else 1
        scores = np.zeros(response, dtype=np.float32)
        scores[-1] = number
        yield {
            "prompt": rng.integers(0, 4, prompt),
            "response": rng.integers(0, 4, response),
            "response_mask": mask,
            "rollout_log_probs": np.float32(-rng.exponential(1.0, response)) * mask.astype(np.float32),
            "old_log_probs": np.float32(-rng.exponential(1.0, response)),
            "advantages": np.full(response, number - 1.5, dtype=np.float32) * mask.astype(np.float32),
            "token_level_scores": scores,
            "uid": f"prompt-{number // 2}",
        }


def padded(rows, *, pad=0):
    """The tensors of a batch: prompts padded on the left, responses on the right."""
    p, r = max(len(row["prompt"]) for row in rows), max(len(row["response"]) for row in rows)

    def side(name, *, left, width):
        full = np.full((len(rows), width), pad if name in {"prompt", "response"} else 0, dtype=rows[0][name].dtype)
        for line, row in zip(full, rows, strict=True):
            n = len(row[name])
            line[width - n :] = row[name] if left else line[width - n :]
            line[:n] = line[:n] if left else row[name]
        return full

    prompts, responses = side("prompt", left=True, width=p), side("response", left=False, width=r)
    attention = [[0] * (p - len(row["prompt"])) + [1] * len([*row["prompt"], *row["response"]]) for row in rows]
    attention = np.array([line + [0] * (p + r - len(line)) for line in attention])
    tensors = {"prompts": prompts, "responses": responses, "attention_mask": attention}
    tensors["input_ids"] = np.concatenate([prompts, responses], axis=1)
    return tensors | {name: side(name, left=False, width=r) for name in COLUMNS if name in rows[0]}


def non_tensors(rows):
    return {
        "uid": np.array([row["uid"] for row in rows], dtype=object),
        "data_source": np.array(["gsm8k"] * len(rows), dtype=object),
        "min_global_steps": np.array([5, 5, None, 4], dtype=object)[: len(rows)],
        "max_global_steps": np.array([5, 6, None, 4], dtype=object)[: len(rows)],
        "__num_turns__": np.array([1] * len(rows), dtype=np.int32),
    }


class Consolidated:
    """A consolidated TensorDict: `_rebuild_tensordict_files_consolidated` of a table and one tensor of bytes."""

    def __init__(self, tensors, rebuild):
        self.rebuild = rebuild
        self.leaves, self.storage, at = {}, b"", 0
        for name, tensor in tensors.items():
            raw = tensor.contiguous().view(torch.uint8).numpy().tobytes()
            pad = -len(raw) % 8
            self.leaves[name] = (str(tensor.dtype), list(tensor.shape), at, at + len(raw) + pad, pad)
            self.storage += raw + bytes(pad)
            at += len(raw) + pad

    def __reduce__(self):
        own = {"device": None, "names": [None], "batch_size": [4], "is_locked": False}
        table = {"cls": "TensorDict", "non_tensors": {}, "leaves": self.leaves, "cls_metadata": own}
        return self.rebuild, (table, torch.frombuffer(bytearray(self.storage), dtype=torch.uint8))


@pytest.fixture
def save(tmp_path, monkeypatch):
    """Writes a DataProto as `save_to_disk` does, and opens the file."""

    def rebuild(metadata, storage):
        raise AssertionError("nothing of a file is called")

    class TensorDict:
        def __init__(self, tensors):
            self._tensordict = tensors

    class DataProto:
        def __init__(self, tensors, others, meta, form):
            self.parts = tensors, others, meta
            self.form = form

        def __getstate__(self):
            tensors, others, meta = self.parts
            if self.form == "numpy":
                leaves = {name: triple(tensor) for name, tensor in tensors.items()}
                return ((4,), None, leaves), others, meta
            stored = Consolidated(tensors, rebuild) if self.form == "consolidated" else TensorDict(tensors)
            path = tmp_path / "inner.pt"
            torch.save(stored, path)
            return path.read_bytes(), others, meta

    def triple(tensor):
        data = tensor.flatten().contiguous().view(torch.uint8).numpy()
        return str(tensor.dtype).removeprefix("torch."), tensor.shape, data

    known = {"verl.protocol": DataProto, "tensordict._td": TensorDict, "tensordict._reductions": rebuild}
    known["tensordict._reductions"].__name__ = "_rebuild_tensordict_files_consolidated"
    for module, found in known.items():
        found.__module__, found.__qualname__ = module, found.__name__
        stand_in = ModuleType(module)
        setattr(stand_in, found.__name__, found)
        monkeypatch.setitem(sys.modules, module.partition(".")[0], ModuleType(module.partition(".")[0]))
        monkeypatch.setitem(sys.modules, module, stand_in)

    def write(tensors, others=None, meta=None, *, form="consolidated", path="batch.dp"):
        tensors = {name: torch.as_tensor(array) for name, array in tensors.items()}
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            pickle.dump(DataProto(tensors, others or {}, meta or {}, form), file)
        return DumpFile(target)

    return write


def check(found, rows):
    """Ids, masks, both columns, rewards and advantages are the planted ones, bit for bit."""
    for number, (row, plan) in enumerate(zip(found, rows, strict=True)):
        assert isinstance(row, RecordedRollout), row
        p = len(plan["prompt"])
        compared = np.concatenate([np.zeros(p, bool), plan["response_mask"] == 1])
        assert row.rollout.token_ids.tolist() == [*plan["prompt"], *plan["response"]]
        assert row.rollout.sampled.tolist() == row.rollout.loss_mask.tolist() == compared.tolist()
        for column, name in ((row.rollout_logprobs, "rollout_log_probs"), (row.trainer_logprobs, "old_log_probs")):
            values = np.concatenate([np.zeros(p, np.float32), plan[name]])
            np.testing.assert_array_equal(column.logprobs, np.where(compared, values, np.float32(np.nan)))
            assert column.states.tolist() == np.where(compared, TokenState.VALUE, TokenState.MASKED).tolist()
        assert row.rollout.prompt_id == plan["uid"]
        assert row.rollout.reward == number
        assert row.advantage == number - 1.5


@pytest.mark.parametrize("form", FORMS)
def test_a_batch_gives_back_what_was_planted(save, form):
    rows = list(rollouts())
    file = save(padded(rows), non_tensors(rows), {"global_steps": 7}, form=form)
    assert VERL.recognises(file)
    found = list(VERL.rows(file))
    check(found, rows)
    assert [row.rollout.rollout_id for row in found] == [f"batch/{i}" for i in range(4)]
    assert [row.weight_version for row in found] == ["5", "5,6", "", "4"]
    assert {row.step for row in found} == {7}
    assert all(row.rollout.tags == {"data_source": "gsm8k"} for row in found)


@pytest.mark.parametrize("pad", [0, 2, 151_643])
def test_padding_is_what_the_mask_says_whatever_the_pad_id(save, pad):
    rows = list(rollouts())
    check(VERL.rows(save(padded(rows, pad=pad), non_tensors(rows))), rows)


def test_a_batch_before_the_trainer_scored_has_one_side(save):
    rows = list(rollouts())
    tensors = padded(rows)
    del tensors["old_log_probs"], tensors["advantages"], tensors["token_level_scores"]
    tensors["rm_scores"] = padded(rows)["token_level_scores"]
    found = list(VERL.rows(save(tensors)))
    assert all(row.trainer_logprobs is None and row.rollout_logprobs is not None for row in found)
    assert [row.rollout.reward for row in found] == [0, 1, 2, 3]
    assert [row.advantage for row in found] == [None] * 4
    assert [row.rollout.prompt_id for row in found] == [digest_of_ids(row["prompt"]) for row in rows]


def test_without_a_response_mask_the_response_is_what_the_attention_mask_says(save):
    tensors = padded(list(rollouts()))
    del tensors["response_mask"]
    found = list(VERL.rows(save(tensors)))
    assert [int(row.rollout.sampled.sum()) for row in found] == [6, 3, 1, 9]


def test_bfloat16_logprobs_arrive_exactly(save):
    rows = list(rollouts())
    tensors = padded(rows)
    tensors["old_log_probs"] = torch.tensor(tensors["old_log_probs"]).bfloat16()
    for form in FORMS:
        row = next(iter(VERL.rows(save(tensors, form=form))))
        planted = torch.tensor(rows[0]["old_log_probs"]).bfloat16().float().numpy()
        np.testing.assert_array_equal(row.trainer_logprobs.logprobs[4:], planted)


@pytest.mark.parametrize(
    ("path", "meta", "beside", "step"),
    [
        ("9/gen_batch.dp", {"global_steps": 8}, {"global_steps": 7}, 8),
        ("9/gen_batch.dp", {}, {"global_steps": 7}, 7),
        ("9/gen_batch.dp", {}, None, 9),
        ("last/gen_batch.dp", {}, None, None),
    ],
)
def test_the_step_is_that_of_the_batch_or_lies_beside_it(save, tmp_path, path, meta, beside, step):
    file = save(padded(list(rollouts())), None, meta, path=path)
    if beside:
        (tmp_path / path).with_name("meta.json").write_text(json.dumps(beside))
    assert {row.step for row in VERL.rows(file)} == {step}


def test_values_that_are_no_logprobs_are_invalid(save):
    tensors = padded(list(rollouts()))
    tensors["rollout_log_probs"][3, :6] = [np.nan, -np.inf, 0.0, 0.0, -9999.0, 0.25]
    row = list(VERL.rows(save(tensors)))[3]
    invalid, masked, value = TokenState.INVALID, TokenState.MASKED, TokenState.VALUE
    planted = [invalid] * 2 + [masked] * 2 + [invalid] * 2 + [value] * 3
    assert row.rollout_logprobs.states.tolist() == [masked] * 2 + planted


def widened(name, by):
    def change(tensors):
        column = tensors[name]
        tensors[name] = np.pad(column, [(0, 0), (0, by)]) if by > 0 else column[:, :by]

    return change


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        (widened("rollout_log_probs", 1), "rollout_log_probs", ["10 entries for 9", "One more"]),
        (widened("old_log_probs", -1), "old_log_probs", ["8 entries for 9", "One fewer"]),
        (widened("response_mask", 6), "response_mask", ["15 entries for 9"]),
        (widened("attention_mask", 1), "attention_mask", ["16 entries for 15"]),
    ],
)
def test_a_column_of_another_width_refuses_every_row_and_shifts_none(save, change, field, words):
    tensors = padded(list(rollouts()))
    change(tensors)
    found = list(VERL.rows(save(tensors)))
    assert len(found) == 4
    for number, row in enumerate(found):
        assert isinstance(row, Refusal)
        assert row.field == field
        assert row.where.endswith(f"batch.dp, row {number}")
        assert all(word in row.why for word in words), row.why


def test_a_row_whose_masks_contradict_each_other_is_refused_and_the_others_are_read(save):
    rows = list(rollouts())
    tensors = padded(rows)
    tensors["response_mask"][0] = np.roll(tensors["response_mask"][0], 1)  # shifted by one, into the padding
    tensors["attention_mask"][2, 4] = 0  # a gap in the prompt
    tensors["input_ids"][3, 5] += 1
    found = list(VERL.rows(save(tensors, non_tensors(rows))))
    assert isinstance(found.pop(1), RecordedRollout)
    refused = found
    assert [row.field for row in refused] == ["response_mask", "attention_mask", "input_ids"]
    assert "marks 1 positions outside the response of 6 tokens" in refused[0].why
    assert "leaves out 1 positions" in refused[1].why
    assert "1 tokens, the first at position 5" in refused[2].why


@pytest.mark.parametrize("missing", ["prompts", "responses", "attention_mask"])
def test_a_batch_without_its_masks_or_ids_is_not_guessed(save, missing):
    tensors = padded(list(rollouts()))
    del tensors[missing]
    with pytest.raises(DumpError, match=rf"batch\.dp: it has no {missing}"):
        list(VERL.rows(save(tensors)))


def test_a_batch_without_tensors_says_so(save):
    with pytest.raises(DumpError, match="its batch has no tensors"):
        list(VERL.rows(save({}, form="plain")))


def test_columns_with_other_rows_end_the_import(save):
    rows = list(rollouts())
    with pytest.raises(DumpError, match="uid has 3 entries for 4 rows"):
        list(VERL.rows(save(padded(rows), non_tensors(rows) | {"uid": np.array(["a", "b", "c"], dtype=object)})))
    tensors = padded(rows)
    tensors["old_log_probs"] = tensors["old_log_probs"][:3]
    with pytest.raises(DumpError, match=r"old_log_probs has the shape \[3, 9\]"):
        list(VERL.rows(save(tensors)))


def test_other_pickles_are_not_recognised(tmp_path):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"prompts": [1]}))
    (tmp_path / "b.jsonl").write_text('{"prompts": [1]}\n')
    assert not VERL.recognises(DumpFile(tmp_path / "a.pkl"))
    assert not VERL.recognises(DumpFile(tmp_path / "b.jsonl"))


def jsonl(path, **changed):
    entry = {"input": "2 + 2 =", "output": " four", "gts": "4", "score": 1.0, "step": 3, "acc": True}
    path.write_text(f"{json.dumps(entry | changed)}\n" * 2)
    return DumpFile(path)


def test_the_text_of_verl_is_recognised_and_says_what_it_is_good_for(tmp_path):
    file = jsonl(tmp_path / "3.jsonl")
    assert VERL_JSONL.recognises(file)
    with pytest.raises(DumpError, match=r"3\.jsonl: .*no token ids and no logprobs.*tokens roundtrip.*save_to_disk"):
        list(VERL_JSONL.rows(file))


def test_rows_with_ids_are_not_taken_for_the_text_of_verl(tmp_path):
    assert not VERL_JSONL.recognises(jsonl(tmp_path / "3.jsonl", token_ids=[1, 2]))


def test_differences_without_a_sign_are_recognised_and_refused(tmp_path):
    np.save(tmp_path / "prob_diff_step_10.npy", np.zeros((2, 3), np.float32))
    np.save(tmp_path / "values.npy", np.zeros((2, 3), np.float32))
    file = DumpFile(tmp_path / "prob_diff_step_10.npy")
    assert VERL_MSPROBE.recognises(file)
    assert not VERL_MSPROBE.recognises(DumpFile(tmp_path / "values.npy"))
    with pytest.raises(DumpError, match="without its sign"):
        list(VERL_MSPROBE.rows(file))


@pytest.mark.full
@needs_verl
def test_the_lines_of_verl_that_write_its_text(tmp_path):
    """`_write_generations` of verl's trainer, from its source: importing the trainer needs more than verl."""
    source = (PEERS / "verl/trainer/ppo/ray_trainer.py").read_text()
    (function,) = [node for node in ast.walk(ast.parse(source)) if getattr(node, "name", "") == "_write_generations"]
    names = {"os": os, "json": json}
    function.decorator_list = []
    exec(compile(ast.Module([function], []), "ray_trainer.py", "exec"), names)
    names["_write_generations"](["2 + 2 ="], [" four"], ["4"], [1.0], {"acc": [True]}, tmp_path, 3)
    assert VERL_JSONL.recognises(DumpFile(tmp_path / "3.jsonl"))


VERL_WRITES = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np, torch
from omegaconf import OmegaConf
from verl.protocol import DataProto
from verl.utils.skip.rollout_skip import RolloutSkip

tensors = {name: torch.from_numpy(array) for name, array in np.load(sys.argv[2]).items()}
others = dict(np.load(sys.argv[3], allow_pickle=True))
batch = DataProto.from_dict(tensors=tensors, non_tensors=others, meta_info={"metrics": [{"tool_calls": 0.5}]})
skip = RolloutSkip.__new__(RolloutSkip)
skip.dump_dir, skip.exp_name, skip.project_name = sys.argv[4], "e", "p"
skip.gbs, skip.n, skip.prompt_length, skip.response_length = 4, 2, 6, 9
skip.prepare_data(3, batch)
skip.prepare_data(12, batch)
"""


@pytest.mark.real
@needs_verl
@pytest.mark.parametrize("method", ["", "numpy"])
def test_what_verl_itself_writes_is_read(tmp_path, method):
    rows = list(rollouts())
    np.savez(tmp_path / "tensors.npz", **padded(rows))
    np.savez(tmp_path / "others.npz", **non_tensors(rows))
    command = [sys.executable, "-W", "ignore", "-c", VERL_WRITES, str(PEERS)]
    arguments = [str(tmp_path / name) for name in ("tensors.npz", "others.npz", "dump")]
    environment = os.environ | {"VERL_DATAPROTO_SERIALIZATION_METHOD": method}
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, check=False, timeout=600, env=environment
    )
    assert done.returncode == 0, done.stderr
    files = sorted((tmp_path / "dump").rglob("gen_batch.dp"))
    assert len(files) == 2, done.stdout
    for file in map(DumpFile, files):
        assert VERL.recognises(file)
        found = list(VERL.rows(file))
        check(found, rows)
        assert {str(row.step) for row in found} == {Path(file.location).parent.name}
        assert [row.weight_version for row in found] == ["5", "5,6", "", "4"]
