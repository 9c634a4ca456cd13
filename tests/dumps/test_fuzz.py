"""Thousands of damaged files: each ends with a DumpError, or is read; nothing else is raised and nothing runs on."""

import collections
import gzip
import io
import json
import pickle
import random
import struct
import sys
import types

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from onepolicy.dumps.file import DumpFile, Opaque, StoredTensor
from onepolicy.errors import DumpError

SIZES = [0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 62, (1 << 63) - 1, (1 << 64) - 1]


def rollouts():
    return [
        {
            "tokens": list(range(i, i + 9)),
            "logprobs": [-0.25 * j for j in range(9)],
            "text": f"介绍 {i}",
            "reward": None,
        }
        for i in range(6)
    ]


def tensors():
    base = torch.arange(48, dtype=torch.float32).reshape(6, 8)
    return {
        "samples": [{"tokens": torch.arange(5), "logprobs": base[i, :5], "mask": base[i] > 9} for i in range(3)],
        "half": base.bfloat16().T, "double": base.double()[::2, 1::3], "meta": collections.OrderedDict(step=3),
    }  # fmt: skip


def arrays():
    objects = np.array(["a", [1, 2], None], dtype=object)
    return [
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.ones((2, 3), "f4")),
        objects,
        np.array(["ab"]),
        np.float32(2),
    ]


def torch_bytes(value, *, zipped=True):
    stream = io.BytesIO()
    torch.save(value, stream, _use_new_zipfile_serialization=zipped)
    return stream.getvalue()


class Named:
    """Pickles as a call of a function that is not installed."""

    def __init__(self, module, name, *args):
        found = sys.modules.setdefault(module, types.ModuleType(module))
        function = types.FunctionType((lambda *args: None).__code__, {}, name)
        function.__module__ = module
        function.__qualname__ = name
        setattr(found, name, function)
        self.call = function, args

    def __reduce__(self):
        return self.call


def tensordict_bytes(monkeypatch):
    for module in ("tensordict", "tensordict._reductions"):
        monkeypatch.setitem(sys.modules, module, types.ModuleType(module))
    leaves = {"a": ("torch.int64", [2, 3], 0, 48, 0), "b": ("torch.bfloat16", [2, 3], 48, 64, 4)}
    own = {"batch_size": [2], "device": None, "names": [None], "is_locked": False}
    metadata = {"cls": "TensorDict", "non_tensors": {}, "leaves": leaves, "cls_metadata": own}
    storage = torch.arange(64, dtype=torch.uint8)
    name = "_rebuild_tensordict_files_consolidated"
    return torch_bytes(Named("tensordict._reductions", name, metadata, storage))


def jsonl():
    return "".join(json.dumps(row) + "\n" for row in [*rollouts(), {"a": float("nan")}]).encode()


def parquet_bytes():
    stream = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rollouts() * 5), stream, row_group_size=10)
    return stream.getvalue()


def npy():
    stream = io.BytesIO()
    np.save(stream, np.arange(30.0).reshape(5, 6))
    return stream.getvalue()


SEEDS = {
    "jsonl": (jsonl, 800),
    "json": (lambda: json.dumps(rollouts(), indent=1).encode(), 600),
    "gzip": (lambda: gzip.compress(jsonl()), 800),
    "zstd": (lambda: pa.compress(jsonl(), codec="zstd", asbytes=True), 800),
    "pickle 2": (lambda: pickle.dumps([rollouts(), arrays(), tensors()], protocol=2), 1000),
    "pickle 4": (lambda: pickle.dumps([rollouts(), arrays(), {1, 2}, frozenset("a"), b"x", 2**70], protocol=4), 1000),
    "pickle 5": (lambda: pickle.dumps([arrays(), bytearray(b"x"), rollouts()], protocol=5), 1000),
    "torch": (lambda: torch_bytes(tensors()), 800),
    "torch legacy": (lambda: torch_bytes(tensors(), zipped=False), 800),
    "numpy": (npy, 600),
    "parquet": (parquet_bytes, 300),
}


def flipped(data, chance):
    for _ in range(chance.choice([1, 1, 1, 2, 8])):
        at = chance.randrange(len(data))
        data[at] ^= 1 << chance.randrange(8)


def cut(data, chance):
    del data[chance.randrange(len(data)) :]


def spliced(data, chance):
    start, length, to = chance.randrange(len(data)), chance.choice([1, 2, 8, 40, 200]), chance.randrange(len(data))
    piece = data[start : start + length]
    if chance.random() < 0.5:
        del data[start : start + length]
    data[to:to] = piece


def resized(data, chance):
    """A number of the file becomes one of the sizes that overflow somewhere."""
    size = chance.choice(SIZES)
    form = chance.choice(["<B", "<H", "<I", "<Q", ">I", ">Q"])
    piece = struct.pack(form, size & ((1 << 8 * struct.calcsize(form)) - 1))
    at = chance.randrange(len(data))
    data[at : at + len(piece)] = piece


def overwritten(data, chance):
    at = chance.randrange(len(data))
    data[at : at + 1] = bytes([chance.randrange(256)])


def damaged(valid, chance):
    data = bytearray(valid)
    for _ in range(chance.choice([1, 1, 2, 4])):
        if data:
            chance.choice([flipped, cut, spliced, resized, overwritten, overwritten])(data, chance)
    return bytes(data)


def touch(root):
    """Looks at every value, so that a view outside of its memory shows."""
    stack = [root]
    while stack:
        found = stack.pop()
        if isinstance(found, StoredTensor):
            found = found.array
        if isinstance(found, np.ndarray):
            stack.extend(found.tolist() if found.dtype.hasobject else [])
            if found.dtype.kind in "biufc":
                found.sum()
        elif isinstance(found, Opaque):
            stack.extend(found.parts())
        elif isinstance(found, dict):
            stack.extend([*found.keys(), *found.values()])
        elif isinstance(found, list | tuple | set | frozenset):
            stack.extend(found)


def read(path):
    """Everything that a reader could ask of a file."""
    file = DumpFile(path)
    kind = file.kind
    touch(file.first())
    if kind in {"json", "jsonl"}:
        touch([found for _, found in file.objects()])
    elif kind == "parquet":
        file.schema()
        for batch in file.batches():
            batch.to_pylist()
    elif kind != "unknown":
        touch(file.loaded())
    file.drop()
    return kind


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # sums of damaged numbers overflow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_damaged_file_is_read_or_refused(tmp_path, seed):
    make, count = SEEDS[seed]
    valid = make()
    path = tmp_path / "x"
    path.write_bytes(valid)
    assert read(path) != "unknown"
    survive(valid, path, random.Random(seed), count)


def survive(valid, path, chance, count):
    outcomes = collections.Counter()
    for _ in range(count):
        path.write_bytes(damaged(valid, chance))
        outcomes[read_or_refused(path)] += 1
    assert outcomes["refused"] > 0
    assert not [outcome for outcome in outcomes if "without its name" in outcome]


def read_or_refused(path):
    try:
        return read(path)
    except DumpError as refused:
        return "refused" if str(path) in str(refused) else f"refused without its name: {refused}"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_damaged_tensordict_is_read_or_refused(tmp_path, monkeypatch):
    valid = tensordict_bytes(monkeypatch)
    path = tmp_path / "x"
    path.write_bytes(valid)
    found = DumpFile(path).loaded()
    assert found.cls == "TensorDict"
    raw = np.arange(64, dtype=np.uint8)
    assert found.state["_batch_size"] == [2]
    np.testing.assert_array_equal(found.state["_tensordict"]["a"], raw[:48].view("i8").reshape(2, 3))
    half = torch.from_numpy(raw[48:60].copy()).view(torch.bfloat16).float().reshape(2, 3)
    np.testing.assert_array_equal(found.state["_tensordict"]["b"], half.numpy())
    survive(valid, path, random.Random(5), 800)


OPCODES = [bytes([code]) for code in range(256)]


def test_random_opcodes_are_read_or_refused(tmp_path):
    """Pickles that no pickler writes: opcodes in any order, with the operands of others."""
    chance = random.Random(11)
    pieces = [
        *OPCODES, b"cnumpy\ndtype\n", b"cnumpy\nndarray\n", b"c_codecs\nencode\n",
        b"cnumpy.core.multiarray\n_reconstruct\n",
        b"ctorch._utils\n_rebuild_tensor_v2\n", b"ctorch.storage\n_load_from_bytes\n", b"cverl.protocol\nDataProto\n",
        b"cnumpy.core.multiarray\nscalar\n", b"ccollections\nOrderedDict\n", b"c__builtin__\nset\n", b"\x8c\x02f8",
        b"\x8c\x01<", b"C\x01b", b"K\x00\x85", b"R", b"b", b"\x85",
        b"(K\x03\x8c\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00t",
    ]  # fmt: skip
    path = tmp_path / "x"
    for _ in range(1500):
        body = b"".join(chance.choice(pieces) for _ in range(chance.randrange(1, 40)))
        path.write_bytes(b"\x80\x04" + body + b".")
        read_or_refused(path)
