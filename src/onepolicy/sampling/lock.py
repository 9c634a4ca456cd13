"""The lock of a protocol: what was agreed on, with its hash, so that a change is seen and can be undone."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import ValidationError, model_validator

from onepolicy.errors import UsageError
from onepolicy.records.files import write_text_atomically
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.strict import Strict
from onepolicy.records.yaml_file import read_text
from onepolicy.sampling.diff import Difference, differences

_HINT = "Write one with: onepolicy protocol lock {}"


class Lock(Strict):
    """A protocol that was agreed on. The same hash stands in every span that was sampled under it."""

    format_version: Literal[1] = 1
    hash: str
    """first 16 hex digits of the SHA-256 of the protocol"""
    source: str
    """where the protocol was read from"""
    protocol: SamplingProtocol

    @model_validator(mode="after")
    def _is_its_own(self) -> Self:
        if self.hash != self.protocol.hash:
            raise ValueError(f"the hash is {self.hash}, and that of its protocol {self.protocol.hash}: it was edited")
        return self


def lock_of(protocol: SamplingProtocol, *, source: str) -> Lock:
    """A lock of a protocol."""
    return Lock(hash=protocol.hash, source=source, protocol=protocol)


def write_lock(path: Path, lock: Lock) -> None:
    """Write the file whole or not at all, over one that is there."""
    write_text_atomically(path, lock.model_dump_json(indent=2) + "\n")


def read_lock(path: Path, *, source: str = "SOURCE") -> Lock:
    """The lock in a file. source: what it is, or would be, the lock of; as `protocol lock` takes it.

    Raises: UsageError if it cannot be read, is none, or was edited.
    """
    hint = _HINT.format(source)
    try:
        return Lock.model_validate_json(read_text(path, hint=hint))
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        why = first["msg"].removeprefix("Value error, ")
        raise UsageError(f"{path}: is no lock of a protocol ({where or 'hash'}: {why}). {hint}") from error


def moved(lock: Lock, now: SamplingProtocol) -> tuple[Difference, ...]:
    """The fields that moved since the lock was written: `a` as locked, `b` as now. A seed moves too."""
    return differences(lock.protocol, now)
