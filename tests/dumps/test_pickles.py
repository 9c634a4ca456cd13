"""Oracle: torch.load, pickle.loads and numpy, on files that they wrote. Planted: files that would run something."""

import codecs
import collections
import enum
import functools
import io
import os
import pathlib
import pickle
import struct
import subprocess
import sys
import types
import zipfile

import numpy as np
import pytest
import torch

from onepolicy.dumps import pickles
from onepolicy.dumps.file import DumpFile, Global, Opaque, StoredTensor
from onepolicy.dumps.torch_archive import unpickled
from onepolicy.errors import DumpError

DTYPES = [
    torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.uint16, torch.uint32, torch.uint64,
]  # fmt: skip


def saved(value, *, layout="zip", protocol=2):
    """Bytes as torch.save or pickle.dump write them."""
    if layout == "pickle":
        return pickle.dumps(value, protocol=protocol)
    stream = io.BytesIO()
    torch.save(value, stream, _use_new_zipfile_serialization=layout == "zip", pickle_protocol=protocol)
    return stream.getvalue()


def same(found, expected):
    """Whether the value that was read is the one that was written, tensors as numpy."""
    if isinstance(expected, torch.Tensor):
        wide = expected.detach().float() if expected.dtype is torch.bfloat16 else expected.detach()
        assert isinstance(found, StoredTensor)
        assert found.dtype == str(expected.dtype).removeprefix("torch.")
        assert found.array.shape == tuple(expected.shape)
        np.testing.assert_array_equal(found.array, wide.numpy())
        assert found.array.dtype == wide.numpy().dtype
    elif isinstance(expected, np.ndarray):
        assert type(found) is np.ndarray
        assert (found.dtype, found.shape) == (expected.dtype.newbyteorder("="), expected.shape)
        np.testing.assert_array_equal(found, expected)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key, value in expected.items():
            same(found[key], value)
    elif isinstance(expected, list | tuple):
        assert type(found) is type(expected)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    else:
        assert found == expected
    return True


@pytest.mark.parametrize("layout", ["zip", "legacy", "pickle"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_of_every_dtype_come_back(layout, dtype):
    value = (torch.arange(24).reshape(4, 6) % 7).to(dtype)
    assert same(unpickled(saved([value], layout=layout)), [value])


@pytest.mark.parametrize("layout", ["zip", "legacy", "pickle"])
def test_views_come_back_with_their_strides(layout):
    base = torch.arange(60, dtype=torch.float32).reshape(3, 4, 5)
    views = {
        "transposed": base.transpose(0, 2),
        "row": base[1],
        "column": base[:, :, 2],
        "skipping": base[:, ::2, 1::3],
        "broadcast": torch.arange(5.0).expand(7, 5),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
        "last": base[2, 3, 4:],
        "one row of many strides": base[2:3].transpose(0, 1),
    }
    assert same(unpickled(saved(views, layout=layout)), views)


@pytest.mark.parametrize("layout", ["zip", "legacy"])
def test_a_shared_storage_is_in_memory_once(layout):
    base = torch.arange(1000, dtype=torch.float32)
    found = unpickled(saved({"all": base, "part": base[10:20]}, layout=layout))
    assert np.shares_memory(found["all"].array, found["part"].array)


@pytest.mark.parametrize("layout", ["zip", "legacy", "pickle"])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_nested_plain_data_comes_back_at_every_protocol(layout, protocol):
    value = {
        "samples": [{"tokens": list(range(300)), "logprobs": [-0.5 * i for i in range(300)], "text": "介绍 \u20ac"}],
        "numbers": (0, 255, 256, 65535, 65536, -1, 2**31, -(2**31) - 1, 2**63, -(2**200), 1e308, float("inf")),
        "rest": (None, True, False, b"", b"bytes \xff", (), (1,), (1, 2), (1, 2, 3), [], {}, {1: 2, (1, "a"): 3}),
        "sets": [{1, 2}, frozenset({"a"})],
        "others": [complex(1, 2), bytearray(b"abc"), bytearray()],
        "long": "x" * 300,
        "tensor": torch.ones(3),
    }
    assert same(unpickled(saved(value, layout=layout, protocol=protocol)), value)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_numpy_arrays_come_back_at_every_protocol(protocol):
    grid = np.arange(24).reshape(2, 3, 4)
    objects = np.empty((2, 2), dtype=object)
    objects[:] = [["a", 1], [None, [1, 2]]]
    values = [
        *(grid.astype(kind) for kind in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u4", "c8", "?")),
        np.asfortranarray(grid), grid.transpose(1, 2, 0), grid[:, ::2], grid.astype(">f4"), np.array(3.5),
        np.empty((0, 3)),
        np.array(["a", "介绍"]), np.array([b"ab", b"c"]), objects, np.asfortranarray(objects),
    ]  # fmt: skip
    assert same(unpickled(pickle.dumps(values, protocol=protocol)), values)


@pytest.mark.parametrize("protocol", [2, 5])
def test_numpy_scalars_become_numbers(protocol):
    values = [np.float32(0.1), np.float64(2.5), np.int64(7), np.bool_(True), np.float16(0.5), np.str_("a")]
    found = unpickled(pickle.dumps(values, protocol=protocol))
    assert found == [value.item() for value in values]
    assert [type(value) for value in found] == [float, float, int, bool, float, str]


def test_a_numpy_file_comes_back(tmp_path):
    for value in (
        np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(2, 3)), np.array(["a", "bc"]),
        np.array(2.5), np.array([True, False]), np.empty((0, 3)), np.arange(3, dtype=">i2"),
    ):  # fmt: skip
        np.save(tmp_path / "x.npy", value)
        file = DumpFile(tmp_path / "x.npy")
        assert file.kind == "numpy"
        assert same(file.loaded(), value)


@pytest.mark.parametrize(
    "value", [np.array(["2020-01-01"], dtype="M8[D]"), np.zeros(2, dtype=[("a", "i4"), ("b", "f8")])]
)
def test_dates_and_records_are_refused(value):
    with pytest.raises(DumpError, match=r"none of numbers|records"):
        unpickled(pickle.dumps(value, protocol=4))


def test_names_that_say_nothing_of_the_values_stay_names():
    value = [
        torch.float32,
        torch.Size([2, 3]),
        torch.device("cpu"),
        torch.device("cuda", 1),
        torch.nn.Parameter(torch.ones(2)),
    ]
    found = unpickled(saved(value))
    assert found[:4] == [Global(name="torch.float32"), (2, 3), "cpu", "cuda:1"]
    assert same(found[4], torch.ones(2))


def test_dicts_of_other_kinds_become_dicts():
    ordered = collections.OrderedDict(a=1, b=torch.ones(2))
    counted = collections.defaultdict(list, x=[1], y=[2])
    assert same(unpickled(saved([ordered, counted])), [dict(ordered), dict(counted)])


@pytest.fixture
def frameworks(monkeypatch):
    """Classes with the names of those of frameworks."""

    def module(name, **members):
        found = types.ModuleType(name)
        for member in members.values():
            member.__module__ = name
            found.__dict__[member.__name__] = member
        monkeypatch.setitem(sys.modules, name, found)
        return found

    class Sample:
        pass

    class Status(enum.Enum):
        COMPLETED = "completed"

    class DataProto:
        def __getstate__(self):
            return saved({"responses": torch.arange(4)}), {"uid": np.array(["a"], dtype=object)}, {"step": 3}

    class TensorBatch(dict):
        pass

    Status.__qualname__ = "Sample.Status"
    Status.__module__ = "slime.utils.types"
    Sample.__qualname__ = "Sample"
    Sample.Status = Status
    DataProto.__qualname__, TensorBatch.__qualname__ = "DataProto", "TensorBatch"
    for parent in ("slime", "slime.utils", "verl", "skyrl_train"):
        module(parent)
    return types.SimpleNamespace(
        slime=module("slime.utils.types", Sample=Sample),
        verl=module("verl.protocol", DataProto=DataProto),
        skyrl=module("skyrl_train.training_batch", TensorBatch=TensorBatch),
    )


@pytest.mark.parametrize("layout", ["zip", "legacy", "pickle"])
@pytest.mark.parametrize("protocol", [2, 4])
def test_a_sample_of_slime_becomes_its_parts(frameworks, layout, protocol):
    sample = frameworks.slime.Sample()
    sample.tokens, sample.status = [1, 2], frameworks.slime.Sample.Status.COMPLETED
    found = unpickled(saved([sample], layout=layout, protocol=protocol))[0]
    assert isinstance(found, Opaque)
    assert (found.name, found.cls) == ("slime.utils.types.Sample", "Sample")
    assert found.state["tokens"] == [1, 2]
    status = found.state["status"]
    assert (status.name, status.args) == ("slime.utils.types.Sample.Status", ("completed",))


def test_the_torch_file_inside_a_data_proto_is_read(frameworks):
    found = unpickled(pickle.dumps(frameworks.verl.DataProto()))
    batch, others, meta = found.state
    assert same(batch, {"responses": torch.arange(4)})
    assert others["uid"].tolist() == ["a"]
    assert meta == {"step": 3}


def test_a_class_that_is_a_dict_keeps_its_entries(frameworks):
    batch = frameworks.skyrl.TensorBatch(sequences=torch.ones(2))
    batch.metadata = {"a": 1}
    found = unpickled(pickle.dumps(batch))
    assert same(found.items, {"sequences": torch.ones(2)})
    assert found.state == {"metadata": {"a": 1}}


def test_reading_loads_neither_torch_nor_a_framework(tmp_path):
    path = tmp_path / "x.pt"
    path.write_bytes(saved({"a": torch.ones(2)}))
    program = (
        "import sys; from onepolicy.dumps.file import DumpFile\n"
        "print(DumpFile(sys.argv[1]).loaded()['a'].array.tolist(), 'torch' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)
    assert ran.stdout == "[1.0, 1.0] False\n"


# what is refused


class Calls:
    """Pickles as a call of a function."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


def payloads(canary):
    command = f"touch {canary}"
    return {
        "posix.system": Calls(os.system, command),
        "builtins.eval": Calls(eval, f"open({str(canary)!r}, 'w')"),
        "builtins.exec": Calls(exec, f"open({str(canary)!r}, 'w')"),
        "builtins.open": Calls(open, str(canary), "w"),
        "builtins.getattr": Calls(getattr, "", "join"),
        "builtins.__import__": Calls(__import__, "os"),
        "functools.partial": Calls(functools.partial, os.system, command),
        "subprocess.Popen": Calls(subprocess.Popen, ["touch", str(canary)]),
        "torch.hub.load": Calls(torch.hub.load, "a/b", "c"),
        "torch.serialization.load": Calls(torch.load, str(canary)),
        "numpy.load": Calls(np.load, str(canary)),
        "pickle.loads": Calls(pickle.loads, b""),
        "codecs.open": Calls(codecs.open, str(canary), "w"),
        "pathlib": Calls(pathlib.Path, str(canary)),
    }


@pytest.mark.parametrize("layout", ["zip", "legacy", "pickle"])
@pytest.mark.parametrize("name", payloads("x"))
@pytest.mark.parametrize("protocol", [2, 4])
def test_a_planted_call_is_refused_by_name_and_has_not_run(tmp_path, layout, name, protocol):
    canary = tmp_path / "canary"
    suffix = {"zip": ".pt", "legacy": ".pt", "pickle": ".dp"}[layout]
    path = tmp_path / f"planted{suffix}"
    path.write_bytes(saved({"samples": [1, payloads(canary)[name]]}, layout=layout, protocol=protocol))
    with pytest.raises(DumpError) as refused:
        DumpFile(path).loaded()
    named = name.replace("torch.serialization.", "torch.").rpartition(".")[2]
    assert named in str(refused.value)
    assert str(path) in str(refused.value)
    assert "runs nothing" in str(refused.value)
    assert not canary.exists()


def short(text):
    return b"\x8c" + bytes([len(text)]) + text.encode()


def system(canary):
    return b"cposix\nsystem\n" + short(f"touch {canary}")


RAW = {
    "INST": lambda c: b"\x80\x02(" + short(f"touch {c}") + b"iposix\nsystem\n.",
    "OBJ": lambda c: b"\x80\x02(" + system(c) + b"o.",
    "REDUCE in a BUILD": lambda c: b"\x80\x02cverl.protocol\nDataProto\n)\x81" + system(c) + b"\x85Rb.",
    "stack global": lambda c: (
        b"\x80\x04" + short("posix") + short("system") + b"\x93" + short(f"touch {c}") + b"\x85R."
    ),
    "a path of names": lambda c: (
        b"\x80\x04" + short("verl.protocol") + short("DataProto.__init__.__globals__") + b"\x93."
    ),
    "names of a module": lambda c: b"\x80\x04" + short("torch") + short("os.system") + b"\x93.",
    "NEWOBJ": lambda c: b"\x80\x02csubprocess\nPopen\n" + short(f"touch {c}") + b"\x85\x81.",
    "NEWOBJ_EX": lambda c: b"\x80\x04csubprocess\nPopen\n)}\x92.",
    "getattr of a class": lambda c: (
        b"\x80\x02c__builtin__\ngetattr\ncverl.protocol\nDataProto\n" + short("mro") + b"\x86R."
    ),
    "a function as an object": lambda c: b"\x80\x02c_codecs\nencode\n)\x81.",
    "a class that nothing makes": lambda c: b"\x80\x02ctorch\nTensor\n)\x81.",
    "a state of a function": lambda c: b"\x80\x02c_codecs\nencode\n}b.",
    "a state with __setstate__": lambda c: (
        b"\x80\x02cverl.protocol\nDataProto\n}" + short("__setstate__") + system(c) + b"sb."
    ),
    "EXT1": lambda c: b"\x80\x02\x82\x01.",
    "EXT2": lambda c: b"\x80\x02\x83\x01\x00.",
    "EXT4": lambda c: b"\x80\x02\x84\x01\x00\x00\x00.",
    "PERSID": lambda c: b"\x80\x02Pname\n.",
    "persistent ids": lambda c: b"\x80\x02" + short("name") + b"Q.",
    "NEXT_BUFFER": lambda c: b"\x80\x05\x97.",
    "call of data": lambda c: b"\x80\x02]N\x85R.",
    "call without a tuple": lambda c: b"\x80\x02c_codecs\nencode\nNR.",
}


@pytest.mark.parametrize("name", RAW)
def test_a_planted_opcode_is_refused_and_has_not_run(tmp_path, name):
    canary, path = tmp_path / "canary", tmp_path / "x.pkl"
    path.write_bytes(RAW[name](canary))
    with pytest.raises(DumpError) as refused:
        DumpFile(path).loaded()
    if "system" in name or name in {"INST", "OBJ", "REDUCE in a BUILD", "stack global"}:
        assert "system" in str(refused.value)
    if name in {"EXT1", "EXT2", "EXT4", "PERSID", "NEXT_BUFFER"}:
        assert f"opcode {name} " in str(refused.value)
    assert not canary.exists()


def test_a_payload_inside_of_a_nested_torch_file_is_refused(tmp_path):
    canary = tmp_path / "canary"
    inner = saved(payloads(canary)["posix.system"])
    outer = b"\x80\x04cverl.protocol\nDataProto\n)\x81B" + struct.pack("<I", len(inner)) + inner + b"}}\x87b."
    loaded = b"\x80\x04ctorch.storage\n_load_from_bytes\nB" + struct.pack("<I", len(inner)) + inner + b"\x85R."
    for data in (outer, loaded):
        with pytest.raises(DumpError, match=r"posix\.system"):
            unpickled(data)
    assert not canary.exists()


def nested(wrap, levels, inside=b"N"):
    opening, closing = wrap
    return b"\x80\x02" + opening * levels + inside + closing * levels + b"."


BOMBS = {
    "deep lists": (nested((b"]", b"a"), 100_000, b"]"), "nested deeper"),
    "deep tuples": (nested((b"", b"\x85"), 100_000), "nested deeper"),
    "deep marks": (b"\x80\x02" + b"(" * 100_000 + b"t" * 100_000 + b".", "nested deeper"),
    "a tuple as a key": (b"\x80\x02}" + b"N" + b"\x85" * 100_000 + b"Ns.", "key of a dict"),
    "a list as a key": (b"\x80\x02}]Ns.", "key of a dict"),
    "a list in itself": (b"\x80\x02]q\x00h\x00a.", "holds itself"),
    "long bytes": (b"\x80\x02B\xff\xff\xff\xffabc.", "claims 4294967295 bytes"),
    "longer bytes": (b"\x80\x04\x8e" + b"\xff" * 8 + b"abc.", "claims 18446744073709551615 bytes"),
    "long text": (b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7fabc.", "claims"),
    "long bytearray": (b"\x80\x05\x96" + b"\xff" * 7 + b"\x00abc.", "claims"),
    "a negative number of bytes": (b"\x80\x02\x8b\xff\xff\xff\xffabc.", "claims -1 bytes"),
    "a long number": (b"\x80\x02\x8b\x00\x00\x01\x00" + b"\x01" * 65536 + b".", "whole number of 65536 bytes"),
    "keys with one hash": (
        b"\x80\x02}(" + b"".join(b"\x8a\x0a" + (i * ((1 << 61) - 1)).to_bytes(10, "little", signed=True) + b"N"
                                for i in range(1, 20_000)) + b"u.",
        "keys of dicts",
    ),
    "an object that is missing": (b"\x80\x02h\x05.", "refers back to object 5"),
    "an unfilled array": (
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R.", "no contents"
    ),
    "nothing": (b"\x80\x02.", "ends or breaks"),
    "no end": (b"\x80\x02]", "ends or breaks"),
    "no opcode": (b"\x80\x02\xff.", "0xff"),
    "a second pickle": (b"\x80\x02N.\x80\x02N.", "4 bytes follow the pickled object"),
    "protocol 0": (b"\x80\x00I1\n.", "protocol 0"),
    "text that is no UTF-8": (b"\x80\x02\x8c\x01\xff.", "not UTF-8"),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_ends_with_a_message(name):
    data, message = BOMBS[name]
    with pytest.raises(DumpError, match=message):
        unpickled(data)


@pytest.mark.parametrize(
    ("body", "message"),
    [(b"\x8f0", "makes more than"), (b"]0", "makes more than"), (b"\x94", "refers back to more than")],
)
def test_a_byte_that_makes_an_object_does_so_a_limited_number_of_times(monkeypatch, body, message):
    monkeypatch.setattr(pickles, "MAX_OBJECTS", 1000)
    assert unpickled(b"\x80\x04N" + body * 900 + b".") is None
    with pytest.raises(DumpError, match=message):
        unpickled(b"\x80\x04N" + body * 1001 + b".")


def test_the_highest_memo_index_costs_nothing():
    assert unpickled(b"\x80\x02]r\xff\xff\xff\xff0j\xff\xff\xff\xff.") == []


def tensor_pickle(offset, size, stride, count=6):
    """A data.pkl with one tensor over a storage of `count` float32."""

    class Key:
        pass

    stream = io.BytesIO()

    class Pickler(pickle.Pickler):
        def persistent_id(self, value):
            return ("storage", torch.FloatStorage, "0", "cpu", count) if isinstance(value, Key) else None

    call = Calls(torch._utils._rebuild_tensor_v2, Key(), offset, size, stride, False, collections.OrderedDict())
    Pickler(stream, protocol=2).dump(call)
    return stream.getvalue()


def archive(pickled, storage=b"\0" * 24, **records):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        file.writestr("any/data.pkl", pickled)
        file.writestr("any/data/0", storage)
        for name, data in records.items():
            file.writestr(f"any/{name}", data)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("offset", "size", "stride"),
    [
        (0, (7,), (1,)), (1, (6,), (1,)), (0, (2, 3), (4, 1)), (7, (0,), (1,)), (-1, (2,), (1,)), (0, (-2,), (1,)),
        (0, (2,), (-1,)), (5, (2,), (-5,)), (0, (2**62, 4), (2**62, 1)), (0, (2, 2), (2**63, 1)), (0, (2**70,), (0,)),
        (0, (2,), (1, 1)), (0, (1 << 30, 1 << 10), (0, 0)), (0, (True,), (1,)), (0, (2.0,), (1,)), (0, "ab", (1, 1)),
        (0, (1,) * 40, (1,) * 40), (2**65, (1,), (1,)), (0, (0, 2**62, 2**62), (1, 1, 1)),
    ],
)  # fmt: skip
def test_a_view_never_leaves_its_storage(offset, size, stride):
    with pytest.raises(DumpError):
        unpickled(archive(tensor_pickle(offset, size, stride)))


def test_a_view_inside_of_its_storage_is_read():
    values = np.arange(6, dtype="<f4")
    found = unpickled(archive(tensor_pickle(1, (2, 2), (3, 1)), values.tobytes()))
    assert found.array.tolist() == [[1, 2], [4, 5]]
    with pytest.raises(ValueError, match="read-only"):
        found.array[0, 0] = 1


def test_big_endian_storages_are_read():
    values = np.arange(6, dtype=">f4")
    found = unpickled(archive(tensor_pickle(0, (6,), (1,)), values.tobytes(), byteorder="big"))
    assert found.array.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("count", [5, 7, 2**40, -1])
def test_a_storage_of_another_size_than_the_file_has_is_refused(count):
    with pytest.raises(DumpError, match="storage"):
        unpickled(archive(tensor_pickle(0, (2,), (1,), count=count)))


def test_a_legacy_storage_that_claims_more_than_the_file_has_is_refused():
    data = saved(torch.arange(4.0), layout="legacy")
    for claimed in (2**60, -1, 5, 3):
        at = len(data) - 16 - 8
        with pytest.raises(DumpError, match="storage"):
            unpickled(data[:at] + struct.pack("<q", claimed) + data[at + 8 :])


def test_a_zip_bomb_is_refused():
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("any/data.pkl", b"\0" * 10_000_000)
    with pytest.raises(DumpError, match="packed"):
        unpickled(stream.getvalue())


def test_a_zip_without_a_pickle_is_no_torch_file(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as file:
        file.writestr("word/document.xml", b"<x/>")
    assert DumpFile(tmp_path / "x.pt").kind == "unknown"
    with pytest.raises(DumpError, match="is no pickle"):
        DumpFile(tmp_path / "x.pt").loaded()


@pytest.mark.parametrize("cut", [10, 100, 400, -1, -30])
@pytest.mark.parametrize("layout", ["zip", "legacy"])
def test_a_torch_file_that_is_cut_short_is_refused_with_its_name(tmp_path, cut, layout):
    path = tmp_path / "7.pt"
    path.write_bytes(saved({"a": torch.arange(100)}, layout=layout)[:cut])
    with pytest.raises(DumpError, match=r"7\.pt"):
        DumpFile(path).loaded()


def test_a_bool_that_is_neither_is_refused():
    data = saved(torch.tensor([True, False, True]))
    at = data.index(b"\x01\x00\x01")
    with pytest.raises(DumpError, match="bool"):
        unpickled(data[:at] + b"\x02" + data[at + 1 :])


def test_a_file_that_is_asked_for_again_and_again_ends_with_a_message():
    inner = saved(torch.ones(20_000), layout="legacy")
    call = b"h\x00h\x01\x85R0"
    data = b"\x80\x04ctorch.storage\n_load_from_bytes\nq\x00B" + struct.pack("<I", len(inner)) + inner + b"q\x01"
    with pytest.raises(DumpError, match="copies"):
        unpickled(data + call * 4000 + b"N.")


def test_bytes_that_are_copied_again_and_again_end_with_a_message():
    text = b"X" + struct.pack("<I", 1 << 20) + b"x" * (1 << 20) + b"q\x01"
    data = b"\x80\x02c_codecs\nencode\nq\x00" + text + b"X\x06\x00\x00\x00latin1q\x02" + b"h\x00h\x01h\x02\x86R" * 300
    with pytest.raises(DumpError, match="copies"):
        unpickled(data + b"N.")


def test_lists_that_double_ninety_times_are_refused_and_a_shared_prompt_is_not():
    value = [1]
    for _ in range(90):
        value = [value, value]
    with pytest.raises(DumpError, match="refers to them so often"):
        unpickled(pickle.dumps(value))
    prompt = list(range(1000))
    found = unpickled(pickle.dumps([{"prompt": prompt} for _ in range(64)]))
    assert found[0]["prompt"] is found[63]["prompt"]
