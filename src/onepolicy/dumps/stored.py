"""What a pickle holds, as values that run nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredTensor:
    """A torch tensor of a file, read without torch. Its array cannot be written to."""

    array: npt.NDArray[Any]
    """its values; those of bfloat16 as float32, which holds them exactly"""
    dtype: str
    """as torch names it: float32, bfloat16, int64"""

    @property
    def shape(self) -> tuple[int, ...]:
        """As torch's."""
        return tuple(self.array.shape)

    def __len__(self) -> int:
        return len(self.array)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self.array, dtype=dtype) if copy else np.asarray(self.array, dtype=dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Global:
    """The name of a class or function in a file; nothing of that name is looked up."""

    name: str
    """module and name: collections.OrderedDict"""


@dataclass(slots=True, kw_only=True, eq=False)
class Opaque:
    """An object of a class that is known by its shape alone; a reader takes what it needs from its parts."""

    name: str
    """module and class, as the file has it: verl.protocol.DataProto"""
    args: tuple[Any, ...] = ()
    """what its constructor would have been called with; of a member of an enumeration its value"""
    state: Any = None
    """what it would have been filled with: in most files a dict of its attributes"""
    items: dict[Any, Any] | None = None
    """its entries, if its class is a dict"""

    @property
    def cls(self) -> str:
        """The last part of its name: DataProto."""
        return self.name.rpartition(".")[2]

    def parts(self) -> Iterator[Any]:
        """Everything that it holds."""
        yield from self.args
        yield self.state
        yield self.items
