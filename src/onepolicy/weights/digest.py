"""The digest of weights: per tensor, and whole.

A tensor's digest is the SHA-256 of its dtype and shape, `bfloat16[576,192]` and a newline, and of its values in C
order, little-endian. The whole digest is the SHA-256 of a line that names the version of this rule and of one line for
each tensor, `NAME DIGEST`, by the order of their names. Nothing of files, shards, ranks or the order of saving enters.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from pydantic import Field

from onepolicy.errors import UsageError
from onepolicy.records.strict import Strict
from onepolicy.weights.dtypes import rounded, rounded_dtype
from onepolicy.weights.tensor import StreamedTensor

Rounded = Literal["float32", "bfloat16", "float16"]
_RULE = "onepolicy weights 1"
_HEADS = ("lm_head.weight", "output.weight", "embed_out.weight")
"""names of the output layer that may be the input embedding itself"""
_THREADS = 8
"""hashing and reading leave Python's lock alone; more than this gain nothing where the disk is the limit"""


class TensorDigest(Strict):
    """One tensor."""

    dtype: str
    shape: tuple[int, ...]
    digest: str
    """SHA-256, in hex"""


class WeightsDigest(Strict):
    """All weights of a model."""

    format_version: Literal[1] = 1
    source: str
    """what was read, as the user named it"""
    whole: str
    """SHA-256, in hex"""
    rounded_to: Rounded | None = None
    """what floating weights were rounded to before hashing; None: nothing"""
    count: int
    """values in all tensors, those of a tied output layer once"""
    tensors: dict[str, TensorDigest]
    tied: dict[str, str] = Field(default_factory=dict)
    """output layer -> the embedding whose values it has; no part of the whole digest, as some files leave it out"""
    tables: dict[str, TensorDigest] = Field(default_factory=dict)
    """buffers of a live module that no file holds, such as rotary frequencies; no part of the whole digest"""

    @property
    def short(self) -> str:
        """The first 16 hex digits, as a reading carries them."""
        return self.whole[:16]


def digest_tensor(
    tensor: StreamedTensor, *, rounded_to: Rounded | None = None, hashed: Callable[[int], object] | None = None
) -> TensorDigest:
    """The digest of one tensor; `hashed` is told the bytes that are done. Raises: UsageError as `rounded_dtype`."""
    dtype = rounded_dtype(tensor.dtype, rounded_to)
    sha = hashlib.sha256(f"{dtype}[{','.join(map(str, tensor.shape))}]\n".encode())
    for piece in tensor.pieces():
        sha.update(rounded(piece, tensor.dtype, dtype).data)
        if hashed is not None:
            hashed(len(piece))
    return TensorDigest(dtype=dtype, shape=tensor.shape, digest=sha.hexdigest())


def digest_tensors(
    tensors: Iterable[StreamedTensor],
    *,
    source: str,
    rounded_to: Rounded | None = None,
    hashed: Callable[[int], object] | None = None,
) -> WeightsDigest:
    """The digest of tensors that lie in files, several at a time. Raises: UsageError if there is none."""
    found = list(tensors)
    with ThreadPoolExecutor(max_workers=min(_THREADS, os.cpu_count() or 1)) as pool:
        digests = list(pool.map(lambda one: digest_tensor(one, rounded_to=rounded_to, hashed=hashed), found))
    return gathered({one.name: digest for one, digest in zip(found, digests, strict=True)}, source, rounded_to)


def gathered(
    tensors: Mapping[str, TensorDigest],
    source: str,
    rounded_to: Rounded | None = None,
    *,
    tables: Mapping[str, TensorDigest] | None = None,
) -> WeightsDigest:
    """The whole of the tensors' digests. Raises: UsageError if there are none."""
    if not tensors:
        raise UsageError(f"{source}: holds no weights, so there is nothing to digest.")
    tied = _tied(tensors)
    own = {name: tensors[name] for name in sorted(tensors) if name not in tied}
    lines = [_RULE, *(f"{name} {one.digest}" for name, one in own.items())]
    return WeightsDigest(
        source=source,
        whole=hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest(),
        rounded_to=rounded_to,
        count=sum(math.prod(one.shape) for one in own.values()),
        tensors=own,
        tied=tied,
        tables=dict(tables or {}),
    )


def _tied(tensors: Mapping[str, TensorDigest]) -> dict[str, str]:
    """Output layers whose digest is that of another tensor, which is then the embedding."""
    heads = [name for name in tensors if name in _HEADS or name.endswith(f".{_HEADS[0]}")]
    found = {}
    for head in heads:
        same = [name for name, one in tensors.items() if one.digest == tensors[head].digest and name not in heads]
        if same:
            found[head] = min(same)
    return found
