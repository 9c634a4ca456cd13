"""The oracles: the rule written out by hand with hashlib, and torch and safetensors as writers."""

import hashlib
import json
import struct
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from onepolicy.errors import DumpError, UsageError
from onepolicy.weights import digest_of
from onepolicy.weights.digest import digest_tensors
from onepolicy.weights.dtypes import rounded
from onepolicy.weights.files import weights_in

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.bool]


def some_weights(dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(0)
    return {
        "model.embed.weight": torch.randn(12, 4, generator=generator).to(dtype),
        "model.layers.0.q.weight": torch.randn(4, 4, generator=generator).to(dtype),
        "model.norm.weight": torch.ones(4, dtype=dtype),
        "scale": torch.tensor(0.5).to(dtype),
    }


def whole(path, **options) -> str:
    return digest_tensors(weights_in(path).values(), source=str(path), **options).whole


def by_hand(state) -> str:
    lines = ["onepolicy weights 1"]
    for name in sorted(state):
        tensor = state[name]
        head = f"{str(tensor.dtype).removeprefix('torch.')}[{','.join(map(str, tensor.shape))}]\n".encode()
        raw = bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())
        lines.append(f"{name} {hashlib.sha256(head + raw).hexdigest()}")
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


def sharded(folder, state, files):
    folder.mkdir()
    names = sorted(state, reverse=True)
    parts = {f"model-{n}.safetensors": names[n::files] for n in range(files)}
    for file, held in parts.items():
        save_file({name: state[name] for name in held}, folder / file)
    index = {"weight_map": {name: file for file, held in parts.items() for name in held}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_digest_is_the_rule_by_hand_whatever_the_layout(dtype, tmp_path):
    state = some_weights(dtype)
    save_file(state, tmp_path / "one.safetensors")
    torch.save(state, tmp_path / "old.bin")
    torch.save({"state_dict": dict(reversed(state.items())), "step": 3}, tmp_path / "trainer.pt")
    many = sharded(tmp_path / "many", state, 3)
    for path in (tmp_path / "one.safetensors", tmp_path / "old.bin", tmp_path / "trainer.pt", many):
        assert whole(path) == by_hand(state), path


def test_a_view_of_another_storage_has_the_digest_of_its_values(tmp_path):
    square = torch.arange(16.0).reshape(4, 4)
    torch.save({"w": square.T[1:]}, tmp_path / "view.pt")
    assert whole(tmp_path / "view.pt") == by_hand({"w": square.T[1:].clone()})


def test_pieces_do_not_change_the_digest(tmp_path, monkeypatch):
    save_file(some_weights(), tmp_path / "w.safetensors")
    before = whole(tmp_path / "w.safetensors")
    for module in ("tensor", "safetensors", "live"):
        monkeypatch.setattr(f"onepolicy.weights.{module}.PIECE", 3)
    assert whole(tmp_path / "w.safetensors") == before


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state["scale"].add_(2**-8),
        lambda state: state.update(scale=state["scale"].float()),
        lambda state: state.update(scale=state["scale"].reshape(1)),
        lambda state: state.update(other=state.pop("scale")),
        lambda state: state.pop("scale"),
        lambda state: state["model.layers.0.q.weight"].copy_(state["model.layers.0.q.weight"].T.clone()),
    ],
)
def test_value_dtype_shape_and_name_are_part_of_it(change, tmp_path):
    save_file(some_weights(), tmp_path / "a.safetensors")
    state = some_weights()
    change(state)
    save_file(state, tmp_path / "b.safetensors")
    assert whole(tmp_path / "a.safetensors") != whole(tmp_path / "b.safetensors")


def test_an_output_layer_that_is_the_embedding_is_no_part_of_it(tmp_path):
    state = some_weights()
    save_file(state, tmp_path / "tied.safetensors")
    head = {**state, "lm_head.weight": state["model.embed.weight"].clone()}
    save_file(head, tmp_path / "both.safetensors")
    save_file({**head, "lm_head.weight": head["lm_head.weight"] + 1}, tmp_path / "untied.safetensors")
    assert whole(tmp_path / "tied.safetensors") == whole(tmp_path / "both.safetensors")
    assert whole(tmp_path / "tied.safetensors") != whole(tmp_path / "untied.safetensors")
    both = digest_tensors(weights_in(tmp_path / "both.safetensors").values(), source="both")
    assert both.tied == {"lm_head.weight": "model.embed.weight"}


BITS = st.integers(min_value=0, max_value=2**32 - 1)


@pytest.mark.parametrize("wanted", [torch.bfloat16, torch.float16])
@given(st.lists(BITS, min_size=1, max_size=8))
def test_rounding_is_that_of_torch(wanted, bits):
    values = torch.from_numpy(np.array(bits, dtype=np.uint32).view(np.float32).copy())
    name = str(wanted).removeprefix("torch.")
    ours = rounded(values.numpy().view(np.uint8), "float32", name).view(np.uint16)
    theirs = values.to(wanted).view(torch.int16).numpy().view(np.uint16)
    is_nan = values.isnan().numpy()
    assert np.array_equal(ours[~is_nan], theirs[~is_nan])
    assert torch.from_numpy(ours.view(np.int16)).view(wanted).isnan().numpy()[is_nan].all()


def test_master_weights_are_the_served_ones_once_they_are_rounded(tmp_path):
    master = some_weights(torch.float64)
    served = {name: one.to(torch.bfloat16) for name, one in master.items()}
    save_file(master, tmp_path / "master.safetensors")
    save_file(served, tmp_path / "served.safetensors")
    assert whole(tmp_path / "master.safetensors", rounded_to="bfloat16") == by_hand(served)
    assert whole(tmp_path / "served.safetensors", rounded_to="bfloat16") == by_hand(served)
    assert whole(tmp_path / "master.safetensors") != by_hand(served)


def test_integers_are_not_rounded(tmp_path):
    save_file({"w": torch.arange(300)}, tmp_path / "w.safetensors")
    assert whole(tmp_path / "w.safetensors", rounded_to="bfloat16") == by_hand({"w": torch.arange(300)})


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(12, 4)
        self.q = torch.nn.Linear(4, 4)
        self.lm_head = torch.nn.Linear(4, 12, bias=False)
        self.lm_head.weight = self.embed.weight
        self.register_buffer("frequencies", torch.arange(2.0), persistent=False)
        self.register_buffer("steps", torch.tensor(3))


def test_a_module_has_the_digest_of_the_file_that_it_is_saved_to(tmp_path):
    torch.manual_seed(0)
    module = Tied()
    torch.save(module.state_dict(), tmp_path / "w.pt")
    found = digest_of(module)
    assert found.whole == whole(tmp_path / "w.pt")
    assert found.tied == {"lm_head.weight": "embed.weight"}
    assert list(found.tables) == ["frequencies"]
    assert "steps" in found.tensors


def test_a_table_that_changes_is_seen_and_the_weights_are_not_blamed():
    torch.manual_seed(0)
    module = Tied()
    before = digest_of(module)
    module.frequencies.mul_(2)
    after = digest_of(module)
    assert before.whole == after.whole
    assert before.tables != after.tables


def test_wrappers_of_a_module_are_not_part_of_its_names(tmp_path):
    torch.manual_seed(0)
    module = Tied()
    state = {f"module._orig_mod.{name}": one for name, one in module.state_dict().items()}
    torch.save(state, tmp_path / "wrapped.pt")
    assert whole(tmp_path / "wrapped.pt") == digest_of(module).whole


def test_weights_that_have_no_values_yet_are_refused():
    with torch.device("meta"):
        module = Tied()
    with pytest.raises(UsageError, match="is on the device meta"):
        digest_of(module)


def header(**entries) -> bytes:
    content = json.dumps(entries).encode()
    return struct.pack("<Q", len(content)) + content


GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "it has 0 bytes"),
        (struct.pack("<Q", 1 << 40), "its header would have"),
        (struct.pack("<Q", 4) + b"{{{{", "its header is not JSON"),
        (struct.pack("<Q", 2) + b"[]", "its header is no JSON object"),
        (header(w=GOOD), r"is said to lie at 0 to 8"),
        (header(w={**GOOD, "shape": [3]}) + bytes(8), r"has 12 bytes"),
        (header(w={**GOOD, "shape": [-2]}) + bytes(8), r"shape \[-2\]"),
        (header(w={**GOOD, "data_offsets": [8, 0]}) + bytes(8), "is said to lie at 8 to 0"),
        (header(w={**GOOD, "data_offsets": [0]}) + bytes(8), "data_offsets"),
        (header(w={**GOOD, "dtype": "F3"}) + bytes(8), "of the dtype 'F3'"),
        (header(w=3) + bytes(8), "has no dtype"),
    ],
)
def test_a_damaged_file_is_refused(content, found, tmp_path):
    path = tmp_path / "w.safetensors"
    path.write_bytes(content)
    with pytest.raises(DumpError, match=found):
        weights_in(path)


def test_what_holds_no_weights_is_refused(tmp_path):
    for path, found in [
        (tmp_path / "absent", "there is no file or folder"),
        (tmp_path, "has no weights; it holds nothing"),
    ]:
        with pytest.raises(UsageError, match=found):
            weights_in(path)
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(DumpError, match="holds no state dict"):
        weights_in(tmp_path / "list.pt")
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(UsageError, match="weights are read from"):
        weights_in(tmp_path / "model.gguf")


def test_a_shard_that_is_absent_or_outside_of_the_folder_is_refused(tmp_path):
    folder = sharded(tmp_path / "many", some_weights(), 2)
    (folder / "model-1.safetensors").unlink()
    with pytest.raises(DumpError, match=r"names model-1.safetensors, which is not there"):
        weights_in(folder)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": "../../w.safetensors"}}))
    with pytest.raises(DumpError, match="not in its own folder"):
        weights_in(folder)


def test_a_tensor_that_an_index_names_and_no_file_has_is_refused(tmp_path):
    folder = sharded(tmp_path / "many", some_weights(), 2)
    index = folder / "model.safetensors.index.json"
    named = json.loads(index.read_text())["weight_map"]
    index.write_text(json.dumps({"weight_map": named | {"model.lost.weight": next(iter(named.values()))}}))
    for path in (folder, index):
        with pytest.raises(
            DumpError, match=r"names 1 tensors that its files do not hold, the first is model.lost.weight"
        ):
            weights_in(path)


def test_safetensors_of_any_name_count_before_a_torch_file(tmp_path):
    save_file({"w": torch.ones(2)}, tmp_path / "part-1.safetensors")
    torch.save({"old": torch.ones(2)}, tmp_path / "pytorch_model.bin")
    assert set(weights_in(tmp_path)) == {"w"}


def test_a_tensor_that_is_there_twice_is_refused(tmp_path):
    for name in ("a", "b"):
        save_file({"w": torch.ones(2)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(DumpError, match="the tensor w is there twice"):
        weights_in(tmp_path)


MEASURED = """
import resource, sys
from pathlib import Path
from onepolicy.weights.digest import digest_tensors
from onepolicy.weights.files import weights_in
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = digest_tensors(weights_in(Path(sys.argv[1])).values(), source="large")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, "torch" in sys.modules)
"""


def test_a_large_file_is_read_in_little_memory_and_without_torch(tmp_path):
    size = 256 << 20
    path = tmp_path / "large.safetensors"
    with path.open("wb") as file:
        file.write(header(w={"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}))
        file.truncate(file.tell() + size)
    done = subprocess.run([sys.executable, "-c", MEASURED, path], capture_output=True, text=True, check=True)
    more, has_torch = done.stdout.split()
    assert int(more) < 48 << 10, "kilobytes, of the 262,144 that the tensor has"
    assert has_torch == "False"
