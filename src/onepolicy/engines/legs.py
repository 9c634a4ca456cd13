"""How an engine is read again under another condition, which must not change its logprobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

CACHED = "cached_tokens"
"""statistic of a reading: how many tokens before each one were taken from what an earlier call had computed"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LegChange:
    """One condition: options of a spec that differ from the plain ones."""

    options: Mapping[str, object]
    base: Mapping[str, object] = field(default_factory=dict)
    """options of the reading that it is held against; none: the plain reading"""
    cold_because: str = ""
    """of a leg about a cache: why the reading it is held against took nothing from one, where no count says so"""


def server_legs(*, concurrency: int, option: str = "concurrency") -> dict[str, LegChange | str]:
    """The legs of any server: one request at a time. Its own folder may add to them.

    option: that says how many are in flight.
    """
    started = "whoever starts the server decides that; start another one so and hold it against this: --against"
    alone = "requests are sent one at a time as it is"
    decided = ("padding", "chunked", "packed", "speculative", "train", "float32", "bfloat16", "float16", "head")
    return {
        "batch": LegChange(options={option: 1}) if concurrency > 1 else alone,
        "decode": "it decodes what it samples; see `sampled`",
        **dict.fromkeys(decided, started),
    }
