"""Reads what torch.save writes, plain pickles and .npy, without torch.

The zip layout (since torch 1.6): PREFIX/data.pkl, PREFIX/data/KEY for each storage, PREFIX/byteorder; nothing is
packed. The old layout: four pickles (magic number, protocol, sizes of the machine, the object), a pickled list of the
keys of the storages, and for each a count of 8 bytes and its values. Source: torch/serialization.py.
"""

from __future__ import annotations

import re
import struct
from typing import Any

from onepolicy.dumps.arrays import numpy_file
from onepolicy.dumps.names import Table
from onepolicy.dumps.nesting import check_nesting
from onepolicy.dumps.packed import Records
from onepolicy.dumps.pickles import Budget, Bytes, Machine
from onepolicy.dumps.tensors import TORCH_DTYPES, Storage, storage_dtype
from onepolicy.errors import DumpError

LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
LEGACY_START = re.compile(rb"\x80[\x02-\x05](\x95.{8})?\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19\.", re.DOTALL)
"""a pickle of this number, at any protocol"""
ZIP_START = b"PK\x03\x04"
NUMPY_START = b"\x93NUMPY"
NESTED_COST = 1000
"""bytes that count for a file inside of a file, beside its own"""
MAX_NESTED = 4
"""torch files inside of torch files; verl has one level, a plain pickle of a tensordict another"""


def unpickled(data: Bytes) -> Any:
    """The object of a pickle or torch file. Raises: DumpError without the file's name."""
    found = numpy_file(data) if data[:6] == NUMPY_START else _unpickled(data, Budget(stored=len(data)), 0)
    check_nesting(found)
    return found


def _unpickled(data: Bytes, budget: Budget, depth: int) -> Any:
    if depth > MAX_NESTED:
        raise DumpError(f"torch files inside of one another, {depth} levels deep")
    budget.spend(len(data) + NESTED_COST if depth else 0)
    table = Table(lambda inner: _unpickled(inner, budget, depth + 1))
    if data[:4] == ZIP_START:
        return _from_zip(data, table, budget)
    if LEGACY_START.match(data):
        return _from_legacy(data, table, budget)
    return _only(Machine(data, names=table, budget=budget))


def _only(machine: Machine) -> Any:
    """The object of a pickle that is all there is. Raises: DumpError if something comes behind it."""
    found = machine.run()
    if machine.at != len(machine.data):
        raise DumpError(
            f"{len(machine.data) - machine.at} bytes follow the pickled object, which ends at byte {machine.at}. A "
            "file with several is not read: save one list of them"
        )
    return found


def _from_zip(data: Bytes, table: Table, budget: Budget) -> Any:
    records = Records(data)
    (pickle,) = [name for name in records.names if name.endswith("/data.pkl") or name == "data.pkl"][:1] or [""]
    if not pickle:
        raise DumpError("a zip without a data.pkl, so none that torch.save wrote")
    prefix = pickle.removesuffix("data.pkl")
    big = f"{prefix}byteorder" in records.names and bytes(records.of(f"{prefix}byteorder")).strip() == b"big"
    storages: dict[str, Storage] = {}

    def persistent(key: object) -> Storage:
        dtype, name, count = _identity(key)
        if name not in storages:
            stored = records.of(f"{prefix}data/{name}")
            _check_size(dtype, count, len(stored))
            storages[name] = Storage(dtype, stored, big_endian=big)
        return _same(storages[name], dtype)

    return _only(Machine(records.of(pickle), names=table, budget=budget, persistent=persistent))


def _from_legacy(data: Bytes, table: Table, budget: Budget) -> Any:
    """The values come behind the object that needs them, so it is read twice, first without them."""
    storages: dict[str, Storage] = {}
    counts: dict[str, int] = {}

    def persistent(key: object) -> Storage:
        dtype, name, counts_of = _identity(key)
        counts[name] = counts_of
        return _same(storages.setdefault(name, Storage(dtype, None)), dtype)

    machine = Machine(data, names=table, budget=budget, persistent=persistent)
    magic, version, machine_sizes = (machine.run(machine.at) for _ in range(3))
    if type(version) is not int or (magic, version) != (LEGACY_MAGIC, 1001) or type(machine_sizes) is not dict:
        raise DumpError("a torch file of an unknown old layout")
    at = machine.at
    machine.run(at)
    keys = machine.run(machine.at)
    _read_storages(data, machine.at, keys, storages, big=machine_sizes.get("little_endian") is False)
    for name, storage in storages.items():
        if storage.data is None:
            raise DumpError(f"the values of the storage {name[:40]} are not in the file")
        _check_size(storage.dtype, counts[name], len(storage.data))
    return machine.run(at)


def _read_storages(data: Any, at: int, keys: object, storages: dict[str, Storage], *, big: bool) -> None:
    if type(keys) is not list or not all(type(key) is str for key in keys):
        raise DumpError("a torch file whose list of storages is no list of names")
    view = memoryview(data)
    for key in keys:
        if key not in storages or at + 8 > len(view):
            raise DumpError(f"the storages of the torch file end at byte {len(view)}, before {key[:40]!r}")
        (count,) = struct.unpack_from("<q", view, at)
        size = count * _width(storages[key].dtype)
        at += 8
        if count < 0 or at + size > len(view):
            raise DumpError(f"a storage of {count} values at byte {at} of a file that ends at byte {len(view)}")
        storages[key] = Storage(storages[key].dtype, view[at : at + size], big_endian=big)
        at += size


def _identity(key: Any) -> tuple[str, str, int]:
    """dtype, name and count of values of a storage, from ("storage", class, name, device, count)."""
    if (
        type(key) is not tuple
        or len(key) not in {5, 6}
        or key[0] != "storage"
        or (len(key) == 6 and key[5] is not None)
    ):
        kind = key[0] if type(key) is tuple and key and type(key[0]) is str else type(key).__name__
        raise DumpError(f"the pickle refers to `{kind[:40]}` outside of it, where torch has storages")
    if type(key[2]) is not str or type(key[4]) is not int or key[4] < 0:
        raise DumpError("a storage without a name and a count")
    return storage_dtype(key[1]), key[2], key[4]


def _same(storage: Storage, dtype: str) -> Storage:
    if storage.dtype != dtype:
        raise DumpError(f"one storage is asked for as {storage.dtype} and as {dtype}")
    return storage


def _width(dtype: str) -> int:
    return int(TORCH_DTYPES[dtype].lstrip("fuic"))


def _check_size(dtype: str, count: int, stored: int) -> None:
    if count * _width(dtype) != stored:
        raise DumpError(f"a storage of {count} values of {dtype} has {stored} bytes in the file")
