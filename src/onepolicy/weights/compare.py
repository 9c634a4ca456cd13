"""What differs between two sets of weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from onepolicy.errors import DumpError, UsageError
from onepolicy.records.strict import Strict
from onepolicy.records.verdict import Status
from onepolicy.weights.digest import Rounded, TensorDigest, WeightsDigest, digest_tensors
from onepolicy.weights.dtypes import has_values, rounded, rounded_dtype, values_of
from onepolicy.weights.files import weights_in
from onepolicy.weights.tensor import StreamedTensor

Hashed = Callable[[int], object]


class TensorDifference(Strict):
    """One tensor that is not the same in both."""

    name: str
    a: str
    """dtype and shape"""
    b: str
    differing: int | None = None
    """values that differ; None unless the values of both are at hand and of one shape"""
    count: int
    """values in it"""
    largest: float | None = None
    """largest |a - b|"""
    relative_rms: float | None = None
    """root mean square of a - b over that of a: about 0.002 for bfloat16 against float32, 1.4 for unrelated weights"""


class WeightsComparison(Strict):
    """The answer."""

    a: str
    b: str
    rounded_to: Rounded | None = None
    status: Status
    sentence: str
    same: int
    """tensors with one digest in both"""
    differing: tuple[TensorDifference, ...] = ()
    """those with the largest difference first"""
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()

    @property
    def exit_status(self) -> int:
        """What the command ends with."""
        return self.status.exit_status


def compare_weights(
    a: str | Path, b: str | Path, *, rounded_to: Rounded | None = None, hashed: Hashed | None = None
) -> WeightsComparison:
    """Compare two folders or files of weights, or what `onepolicy weights digest --json` wrote of them elsewhere.

    Raises: UsageError, DumpError if one of them cannot be read.
    """
    sides = [_Side(str(path), rounded_to, hashed) for path in (a, b)]
    return compare_digests(
        sides[0].digest, sides[1].digest, values=(sides[0].tensors, sides[1].tensors), rounded_to=rounded_to
    )


def compare_digests(
    a: WeightsDigest,
    b: WeightsDigest,
    *,
    values: tuple[Mapping[str, StreamedTensor], Mapping[str, StreamedTensor]] = ({}, {}),
    rounded_to: Rounded | None = None,
) -> WeightsComparison:
    """Compare two digests; with the tensors that both are of, say by how much they differ.

    Raises: UsageError if they were rounded unlike.
    """
    if a.rounded_to != b.rounded_to:
        raise UsageError(
            f"{a.source} was digested in {a.rounded_to or 'its own dtype'} and {b.source} in "
            f"{b.rounded_to or 'its own dtype'}. Digest both with the same --as."
        )
    both = a.tensors.keys() & b.tensors.keys()
    other = [name for name in sorted(both) if a.tensors[name].digest != b.tensors[name].digest]
    found = [_difference(name, a.tensors[name], b.tensors[name], values, rounded_to) for name in other]
    only_a = tuple(sorted(a.tensors.keys() - both))
    only_b = tuple(sorted(b.tensors.keys() - both))
    status = Status.UNKNOWN if not both else Status.FAIL if other or only_a or only_b else Status.PASS
    return WeightsComparison(
        a=a.source,
        b=b.source,
        rounded_to=a.rounded_to,
        status=status,
        sentence=_sentence(a, b, found, (only_a, only_b)),
        same=len(both) - len(other),
        differing=tuple(sorted(found, key=_by_size)),
        only_a=only_a,
        only_b=only_b,
    )


class _Side:
    """A digest, and the tensors that it is of where they are at hand."""

    def __init__(self, path: str, rounded_to: Rounded | None, hashed: Hashed | None) -> None:
        self.tensors: dict[str, StreamedTensor] = {}
        if path.endswith(".json") and not path.endswith(".index.json"):
            self.digest = _stored_digest(Path(path))
            if rounded_to is not None and self.digest.rounded_to != rounded_to:
                raise UsageError(
                    f"{path}: is a digest of weights in {self.digest.rounded_to or 'their own dtype'}, which cannot be "
                    f"rounded any more. Write it with: onepolicy weights digest ... --as {rounded_to} --json"
                )
        else:
            self.tensors = weights_in(Path(path))
            self.digest = digest_tensors(self.tensors.values(), source=path, rounded_to=rounded_to, hashed=hashed)


def _stored_digest(path: Path) -> WeightsDigest:
    if not path.is_file():
        raise UsageError(f"there is no file {path}. Give weights, or what `onepolicy weights digest --json` wrote.")
    try:
        return WeightsDigest.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise DumpError(f"{path}: is no digest of weights ({where}: {first['msg']}). Write it again.") from error


def _difference(
    name: str,
    a: TensorDigest,
    b: TensorDigest,
    values: tuple[Mapping[str, StreamedTensor], Mapping[str, StreamedTensor]],
    rounded_to: Rounded | None,
) -> TensorDifference:
    shown = [f"{one.dtype} [{', '.join(map(str, one.shape))}]" for one in (a, b)]
    held = [side.get(name) for side in values]
    count = int(np.prod(a.shape, dtype=np.int64))
    bare = TensorDifference(name=name, a=shown[0], b=shown[1], count=count)
    if held[0] is None or held[1] is None or a.shape != b.shape:
        return bare
    if not (has_values(held[0].dtype) and has_values(held[1].dtype)):
        return bare
    differing, largest, relative = _measured(held[0], held[1], rounded_to)
    return bare.model_copy(update={"differing": differing, "largest": largest, "relative_rms": relative})


def _measured(a: StreamedTensor, b: StreamedTensor, rounded_to: Rounded | None) -> tuple[int, float, float | None]:
    """Values that differ, largest |a - b|, relative root mean square; a NaN in one is a difference without size."""
    differing, largest, squares, own = 0, 0.0, 0.0, 0.0
    for left, right in zip(a.pieces(), b.pieces(), strict=True):
        p, q = (_float64(piece, one.dtype, rounded_to) for piece, one in ((left, a), (right, b)))
        with np.errstate(invalid="ignore", over="ignore"):
            away = np.abs(p - q)
        differing += int(np.count_nonzero((p != q) & ~(np.isnan(p) & np.isnan(q))))
        finite = np.isfinite(away)
        largest = max(largest, float(away[finite].max(initial=0.0)))
        squares += float(np.square(away[finite]).sum())
        own += float(np.square(p[np.isfinite(p)]).sum())
    return differing, largest, float(np.sqrt(squares / own)) if own else None


def _float64(piece: np.ndarray, dtype: str, rounded_to: Rounded | None) -> np.ndarray:
    wanted = rounded_dtype(dtype, rounded_to)
    return values_of(rounded(piece, dtype, wanted), wanted).astype(np.float64)


def _by_size(one: TensorDifference) -> tuple[float, str]:
    return (-one.relative_rms if one.relative_rms is not None else -np.inf, one.name)


def _sentence(
    a: WeightsDigest, b: WeightsDigest, found: list[TensorDifference], only: tuple[tuple[str, ...], tuple[str, ...]]
) -> str:
    same = len(a.tensors) - len(found) - len(only[0])
    if not found and not any(only):
        tied = " (the output layer is the embedding)" if a.tied or b.tied else ""
        return f"Pass: all {same:,} tensors have the same values{tied}; digest {a.short}."
    if not same and not found:
        return f"Unknown: no tensor has the same name in both, so nothing was compared. {_moved(a, b, only)}"
    parts = [f"{len(found):,} of {same + len(found):,} tensors differ"] if found else []
    parts += [f"{len(names):,} are only in {side.source}" for side, names in zip((a, b), only, strict=True) if names]
    return f"Fail: {', '.join(parts)}. {_hint(found) or _moved(a, b, only)}".rstrip()


def _hint(found: list[TensorDifference]) -> str:
    """What the kind of the differences says."""
    if found and all(one.a != one.b for one in found):
        return "They differ in dtype or shape; --as DTYPE rounds both sides before they are compared."
    sized = [one for one in found if one.relative_rms is not None]
    if not sized:
        return ""
    worst = max(sized, key=lambda one: one.relative_rms or 0.0)
    return f"Most in {worst.name}: largest difference {worst.largest:.3g}, {worst.relative_rms:.1%} of its own size."


def _moved(a: WeightsDigest, b: WeightsDigest, only: tuple[tuple[str, ...], tuple[str, ...]]) -> str:
    """Whether what is missing is there under another name."""
    if not all(only):
        return ""
    there = {b.tensors[name].digest for name in only[1]}
    moved = sum(a.tensors[name].digest in there for name in only[0])
    first = f"{only[0][0]} in {a.source}, {only[1][0]} in {b.source}"
    return f"{moved:,} of the {len(only[0]):,} are there under another name (first names: {first})."
