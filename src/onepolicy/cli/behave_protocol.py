"""`--a FILE` and `--b FILE` of `onepolicy behave`: a protocol that somebody wrote down, as its NAME=VALUE texts."""

from __future__ import annotations

import json
from collections.abc import Sequence

from onepolicy.errors import UsageError
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.workflow.behave_record import SAMPLES
from onepolicy.workflow.protocol import whole_protocol

COUNT = "samples_per_prompt"


def texts_and_samples(
    a: Sequence[str], b: Sequence[str], *, samples: int | None
) -> tuple[tuple[str, ...], tuple[str, ...], int]:
    """NAME=VALUE texts of both sides, and how many completions of each prompt: as asked, else as the sources say.

    A text without a sign is a source of a protocol; what is given as NAME=VALUE goes over it.
    Raises: UsageError if a source cannot be read, or the two sides say another number of completions.
    """
    found = {"--a": _source_in(a, "--a"), "--b": _source_in(b, "--b")}
    said = {one.samples_per_prompt for one in found.values() if one is not None and COUNT in one.changed}
    if samples is None and len(said) > 1:
        numbers = " and ".join(map(str, sorted(said)))
        raise UsageError(f"--a and --b have {numbers} {COUNT}; both sides are sampled alike. Give --samples.")
    return _over(a, found["--a"]), _over(b, found["--b"]), samples or next(iter(said), SAMPLES)


def _source_in(texts: Sequence[str], option: str) -> SamplingProtocol | None:
    sources = [text for text in texts if not _is_field(text)]
    if len(sources) > 1:
        raise UsageError(f"{option} names {' and '.join(sources)}: one side has one protocol. Give one of them.")
    if not sources:
        return None
    try:
        return whole_protocol(sources[0])
    except UsageError as error:
        raise UsageError(f"{option} {sources[0]!r} is not NAME=VALUE, and no protocol: {error}") from error


def _over(texts: Sequence[str], source: SamplingProtocol | None) -> tuple[str, ...]:
    given = tuple(text for text in texts if _is_field(text))
    if source is None:
        return given
    names = {text.partition("=")[0].strip() for text in given}
    values = source.model_dump(mode="json")
    own = (name for name in source.changed if name not in names and name != COUNT)
    return (*(f"{name}={json.dumps(values[name])}" for name in own), *given)


def _is_field(text: str) -> bool:
    """Whether it is NAME=VALUE; the spec of a server has a sign behind its question mark."""
    return "=" in text and ":" not in text.partition("=")[0]
