"""The names that a pickle of a recording may ask for, and what stands in for each. Nothing else is ever looked up.

A name of numpy or torch is rebuilt by our own function; a class of a framework becomes an `Opaque`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from onepolicy.dumps import arrays, tensors
from onepolicy.dumps.arrays import PendingArray
from onepolicy.dumps.pickles import Machine
from onepolicy.dumps.stored import Global, Opaque, StoredTensor
from onepolicy.dumps.tensordicts import consolidated
from onepolicy.dumps.tensors import STORAGES, TORCH_DTYPES, Storage
from onepolicy.errors import DumpError

_SAMPLES = ("slime.utils.types.Sample", "miles.utils.types.Sample", "vime.utils.types.Sample")
_SKYRL = ("skyrl_train.training_batch", "skyrl.backends.skyrl_train.training_batch", "skyrl.train.training_batch")

CLASSES = frozenset(
    {
        "verl.protocol.DataProto",
        "verl.DataProto",
        "tensordict.TensorDict",
        "tensordict.tensordict.TensorDict",
        "tensordict._td.TensorDict",
        "tensordict._lazy.LazyStackedTensorDict",
        "tensordict.tensorclass.NonTensorData",
        "tensordict.tensorclass.NonTensorStack",
        "torch.nested._internal.nested_tensor.NestedTensor",
        "torch._dynamo.decorators._DimRange",
        *(f"{module}.{name}" for module in _SKYRL for name in ("TensorBatch", "TrainingInputBatch", "TensorList")),
        *(f"{sample}{part}" for sample in _SAMPLES for part in ("", ".SpecInfo", ".PrefixCacheInfo")),
    }
)
"""classes of frameworks that hold data; they become `Opaque`"""
ENUMS = frozenset({f"{sample}.Status" for sample in _SAMPLES})
"""a member becomes an `Opaque` with its value in `args`"""
INERT = frozenset(
    {
        *(f"torch.{name}" for name in TORCH_DTYPES),
        *STORAGES,
        "torch.Tensor",
        "torch.nn.parameter.Parameter",
        "torch.storage.TypedStorage",
        "torch.nested._internal.nested_tensor._rebuild_njt",
        "numpy.ndarray",
        *(f"builtins.{name}" for name in ("int", "float", "str", "bool", "list", "dict", "tuple")),
    }
)
"""names that a file mentions and that nothing calls"""
RENAMED = {"__builtin__": "builtins", "copy_reg": "copyreg", "numpy.core": "numpy._core"}
"""modules of Python 2 and of numpy 1"""


def full_name(module: str, name: str) -> str:
    """One name for what older versions called otherwise: numpy.core.multiarray.scalar -> numpy._core..."""
    for old, new in RENAMED.items():
        if module == old or module.startswith(f"{old}."):
            module = new + module[len(old) :]
    return f"{module}.{name}"


class Table:
    """Answers a `Machine`. `nested` reads bytes that are a torch file of their own."""

    def __init__(self, nested: Callable[[bytes], object]) -> None:
        self.nested = nested

    def find(self, module: str, name: str) -> Global:
        """The name, if it is in the table. Raises: DumpError for any other."""
        found = full_name(module, name)
        if found not in FUNCTIONS and found not in CLASSES and found not in ENUMS and found not in INERT:
            raise _not_in_table(found)
        return Global(name=found)

    def call(self, machine: Machine, found: object, args: object) -> object:
        """What stands in for a call. Raises: DumpError if nothing of the table is called, or with odd arguments."""
        if not isinstance(found, Global) or type(args) is not tuple:
            raise DumpError(f"the pickle calls {type(found).__name__}, which is no function")
        if found.name in CLASSES or found.name in ENUMS:
            return Opaque(name=found.name, args=args)
        machine.budget.spend(sum(map(_cost, args)))
        if found.name not in FUNCTIONS:
            raise DumpError(f"the pickle calls `{found.name}`, which is only mentioned in recordings. {CONVERT}")
        try:
            return FUNCTIONS[found.name](self, machine, *args)
        except TypeError as error:
            raise DumpError(f"`{found.name}` with {len(args)} arguments, which it does not take") from error

    def make(self, found: object, args: object, named: object) -> Opaque:
        """An empty stand-in for an object of a class of the table."""
        if not isinstance(found, Global) or found.name not in CLASSES:
            name = found.name if isinstance(found, Global) else type(found).__name__
            raise DumpError(f"the pickle makes an object of `{name}`, which is no class of a recording. {CONVERT}")
        if type(args) is not tuple or type(named) is not dict or named:
            raise DumpError(f"the pickle makes an object of `{found.name}` with arguments of an unknown kind")
        return Opaque(name=found.name, args=args)

    def fill(self, machine: Machine, found: object, state: object) -> None:
        """Gives a stand-in its state, an array its contents."""
        if type(found) is PendingArray:
            machine.budget.spend(sum(map(_cost, state)) if type(state) is tuple else 0)
            machine.replace(found, arrays.array_of(state))
        elif type(found) is Opaque and found.state is None:
            found.state = self._data_proto(state) if found.cls == "DataProto" else state
        elif not (
            type(found) is dict and type(state) is dict
        ):  # an OrderedDict may have attributes, beside its entries
            raise DumpError(f"the pickle fills {type(found).__name__}, which has no state")

    def entries(self, found: object) -> dict[Any, Any] | None:
        """Entries of an object whose class is a dict."""
        if type(found) is not Opaque or found.name not in CLASSES:
            return None
        if found.items is None:
            found.items = {}
        return found.items

    def _data_proto(self, state: object) -> object:
        """verl keeps its tensors as the bytes of a torch file: (bytes, non_tensor_batch, meta_info)."""
        if type(state) is tuple and len(state) == 3 and type(state[0]) is bytes:
            return (self.nested(state[0]), *state[1:])
        return state


def _cost(argument: object) -> int:
    """Bytes that a function of the table may copy of an argument."""
    if type(argument) is StoredTensor:
        return int(argument.array.nbytes)
    if type(argument) in {list, tuple}:
        return 8 * len(argument)  # type: ignore[arg-type]
    return len(argument) if type(argument) in {bytes, bytearray, str} else 0  # type: ignore[arg-type]


CONVERT = "Convert it where it was made: torch.save or pickle.dump of dicts, lists, numbers and tensors."


def _not_in_table(name: str) -> DumpError:
    return DumpError(f"the file asks for `{name[:200]}`, and reading a recording runs nothing of it. {CONVERT}")


Function = Callable[..., object]
"""(table, machine, *arguments in the file)"""


def _tensor_v2(table: Table, machine: Machine, *args: object) -> object:
    """(storage, offset, size, stride, requires_grad, hooks, metadata)"""
    storage, offset, size, stride = _some(args, 4)
    return tensors.tensor_of(_storage(storage), offset=offset, size=size, stride=stride)


def _tensor_v3(table: Table, machine: Machine, *args: object) -> object:
    """(storage, offset, size, stride, requires_grad, hooks, dtype, metadata)"""
    storage, offset, size, stride, _, _, dtype = _some(args, 7)
    return tensors.tensor_of(_storage(storage), offset=offset, size=size, stride=stride, dtype=_torch_dtype(dtype))


def _some(args: tuple[object, ...], count: int) -> tuple[object, ...]:
    """The first arguments; those behind say nothing of the values."""
    if len(args) < count:
        raise DumpError(f"a tensor from {len(args)} arguments")
    return args[:count]


def _from_type(table: Table, machine: Machine, function: object, kind: object, args: object, state: object) -> object:
    """A tensor with attributes; a nested one keeps its parts."""
    if isinstance(function, Global) and function.name.endswith("._rebuild_njt") and type(args) is tuple:
        return Opaque(name="torch.nested._internal.nested_tensor.NestedTensor", args=args)
    if not isinstance(function, Global) or function.name not in _TENSORS:
        raise DumpError("a tensor that is rebuilt by something else than torch's own function")
    return table.call(machine, function, args)


def _parameter(table: Table, machine: Machine, data: object, *rest: object) -> object:
    return data


def _tensor_from_numpy(table: Table, machine: Machine, data: object, dtype: object, *rest: object) -> object:
    if not hasattr(data, "dtype") or isinstance(data, StoredTensor):
        raise DumpError("a tensor from something that is no array")
    return StoredTensor(array=data, dtype=_torch_dtype(dtype))  # type: ignore[arg-type]


def _load_from_bytes(table: Table, machine: Machine, data: object) -> object:
    if type(data) is not bytes:
        raise DumpError("a storage that is not kept as bytes")
    return table.nested(data)


def _storage(found: object) -> Storage:
    if not isinstance(found, Storage):
        raise DumpError(f"a tensor whose storage is {type(found).__name__}")
    return found


def _torch_dtype(found: object) -> str:
    if not isinstance(found, Global) or found.name.removeprefix("torch.") not in TORCH_DTYPES:
        raise DumpError("a tensor of an unknown dtype")
    return found.name.removeprefix("torch.")


def _size(table: Table, machine: Machine, sizes: object) -> object:
    if type(sizes) not in {tuple, list}:
        raise DumpError("a torch.Size of something that is no tuple")
    return tuple(sizes)  # type: ignore[arg-type]


def _device(table: Table, machine: Machine, kind: object, index: object = None) -> object:
    return str(kind) if index is None else f"{kind}:{index}"


def _tensordict(table: Table, machine: Machine, kind: object, state: object) -> object:
    found = table.make(kind, (), {})
    found.state = state
    return found


def _consolidated(table: Table, machine: Machine, metadata: object, storage: object) -> object:
    return consolidated(metadata, storage)


def _reconstruct(table: Table, machine: Machine, kind: object, shape: object, code: object) -> object:
    if not isinstance(kind, Global) or kind.name != "numpy.ndarray":
        raise DumpError("an array of a class that is not numpy's")
    return PendingArray()


def _dtype(table: Table, machine: Machine, code: object, *rest: object) -> object:
    return Opaque(name="numpy.dtype", args=(code,))


def _scalar(table: Table, machine: Machine, dtype: object, data: object) -> object:
    return arrays.scalar_of(dtype, data)


def _frombuffer(table: Table, machine: Machine, *args: object) -> object:
    return arrays.array_from_buffer(*args)


def _ordered(table: Table, machine: Machine, pairs: object = ()) -> object:
    found: dict[Any, Any] = {}
    if type(pairs) not in {tuple, list}:
        raise DumpError("an OrderedDict of something that is no list of pairs")
    for pair in pairs:  # type: ignore[attr-defined]
        if type(pair) not in {tuple, list} or len(pair) != 2:
            raise DumpError("an OrderedDict of something that is no list of pairs")
        machine.check_key(pair[0])
        found[pair[0]] = pair[1]
    return found


def _defaultdict(table: Table, machine: Machine, factory: object = None) -> object:
    return {}


def _set(table: Table, machine: Machine, members: object = ()) -> set[Any]:
    if type(members) not in {tuple, list}:
        raise DumpError("a set of something that is no list")
    for member in members:  # type: ignore[attr-defined]
        machine.check_key(member)
    return set(members)  # type: ignore[call-overload,no-any-return]


def _frozenset(table: Table, machine: Machine, members: object = ()) -> object:
    return frozenset(_set(table, machine, members))


def _complex(table: Table, machine: Machine, real: object, imaginary: object) -> object:
    if type(real) is not float or type(imaginary) is not float:
        raise DumpError("a complex number of something that is no number")
    return complex(real, imaginary)


def _no_bytes(table: Table, machine: Machine) -> bytes:
    """Protocol 2 keeps b"" as bytes()."""
    return b""


def _bytearray(table: Table, machine: Machine, data: object = b"", encoding: object = None) -> object:
    return bytearray(data) if type(data) is bytes else bytearray(_encode(table, machine, data, encoding))


def _encode(table: Table, machine: Machine, text: object, encoding: object) -> bytes:
    """Bytes as protocol 2 keeps them: their characters in latin1."""
    if type(text) is not str or type(encoding) is not str or encoding not in {"latin1", "latin-1"}:
        raise DumpError("bytes that are not kept as latin1")
    try:
        return text.encode("latin1")
    except UnicodeEncodeError as error:
        raise DumpError("bytes with a character beyond latin1") from error


def _getattr(table: Table, machine: Machine, found: object, name: object) -> object:
    """A class inside a class, and a member of an enumeration by its name, as protocol 2 and Python 3.11 keep them."""
    if isinstance(found, Global) and type(name) is str and found.name in ENUMS and name.isidentifier():
        return Opaque(name=found.name, state={"_name_": name})
    if isinstance(found, Global) and type(name) is str and f"{found.name}.{name}" in CLASSES | ENUMS:
        return Global(name=f"{found.name}.{name}")
    raise _not_in_table("builtins.getattr")


FUNCTIONS: Mapping[str, Function] = {
    "torch._utils._rebuild_tensor_v2": _tensor_v2,
    "torch._utils._rebuild_tensor_v3": _tensor_v3,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_device_tensor_from_numpy": _tensor_from_numpy,
    "torch._tensor._rebuild_from_type_v2": _from_type,
    "torch.storage._load_from_bytes": _load_from_bytes,
    "torch.Size": _size,
    "torch.device": _device,
    "tensordict._reductions._make_td": _tensordict,
    "tensordict._reductions._rebuild_tensordict_files_consolidated": _consolidated,
    **{f"{module}._rebuild_tensor_batch": _tensordict for module in _SKYRL},
    "numpy._core.multiarray._reconstruct": _reconstruct,
    "numpy._core.multiarray.scalar": _scalar,
    "numpy._core.numeric._frombuffer": _frombuffer,
    "numpy.dtype": _dtype,
    "collections.OrderedDict": _ordered,
    "collections.defaultdict": _defaultdict,
    "builtins.set": _set,
    "builtins.frozenset": _frozenset,
    "builtins.complex": _complex,
    "builtins.bytes": _no_bytes,
    "builtins.bytearray": _bytearray,
    "builtins.getattr": _getattr,
    "_codecs.encode": _encode,
}
_TENSORS = frozenset(name for name in FUNCTIONS if name.startswith("torch._utils."))
