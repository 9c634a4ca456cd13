"""What is put through the planted batches: functions, and in which known ways they differ from the references."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Call = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One function of a subject, in the signature of its role."""

    role: str
    label: str
    """what the subject calls it, with the options that it is called with"""
    call: Call
    """raises NotImplementedError, with the reason, for a batch that the framework never makes"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A known way in which functions differ. It explains a case only if they do exactly what `like` does in it."""

    name: str
    labels: tuple[str, ...] = ()
    """of the functions it is known of; none: of any function that takes what `like` takes"""
    role: str
    cases: tuple[str, ...] = ()
    """that it may explain; none: all of the role"""
    like: Call
    """the reference with this difference"""
    why: str
    """what it does and what that means to a training run"""
    example: str
    """a few lines of Python that show it, and print what they show"""
    prints: str = ""
    """what the example prints"""
    is_wrong: bool = False
    """it is a fault: explained, and still wrong"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A framework, or a module."""

    name: str
    version: str = ""
    explained: str = ""
    """the version that `differences` and `absent` speak of"""
    functions: Sequence[Function]
    differences: Sequence[Difference] = ()
    absent: Mapping[str, str] = field(default_factory=dict)
    """role -> why the subject has no function for it"""
