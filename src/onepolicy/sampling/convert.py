"""What a framework's own configuration says, as a protocol, and a protocol as a framework's configuration.

Each framework has two functions in `integrations/NAME/protocol.py`, named in `PROTOCOLS` of `integrations/__init__.py`:
`read_protocol(source: Mapping | object) -> ReadProtocol` and `write_protocol(protocol) -> Written`. Neither imports the
framework, touches the network or a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from onepolicy.records.protocol import SamplingProtocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something that did not make it over."""

    field: str
    """as the side that has it names it"""
    value: str
    """as it stands there"""
    why: str
    """one sentence: why it is left out, and what holds instead"""
    matters: bool = False
    """whether it is used and may change what is drawn or said; a reader's unknown names do"""
    is_unused: bool = False
    """whether it is a field of a protocol at its default, which leaves nothing to say"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadProtocol:
    """A framework's configuration as a protocol."""

    protocol: SamplingProtocol
    sources: Mapping[str, str] = field(default_factory=dict)
    """field of the protocol -> where its value is from: "generation_config.json", "vLLM's default", "the request" """
    ignored: tuple[Note, ...] = ()
    """fields of the framework that a protocol does not have"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A protocol as a framework's configuration."""

    content: dict[str, Any] | list[str]
    """a mapping for a file or a request, or command line flags"""
    hash: str
    """of the protocol"""
    lost: tuple[Note, ...] = ()
    """fields of the protocol that the framework does not have, and that do not change what is drawn; what matters
    first"""


class Reader(Protocol):
    """`read_protocol` of a framework."""

    def __call__(self, source: Mapping[str, Any] | object, /) -> ReadProtocol:
        """The protocol in a parsed file or a framework's object. Raises: UsageError for a value that is none."""


class Writer(Protocol):
    """`write_protocol` of a framework."""

    def __call__(self, protocol: SamplingProtocol, /) -> Written:
        """The framework's configuration. Raises: UsageError if it cannot say something that changes what is drawn."""
