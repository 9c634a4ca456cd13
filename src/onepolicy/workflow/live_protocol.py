"""The protocol of a running server: `vllm:http://127.0.0.1:8000?request=request.json&completions=4`."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from onepolicy.engines.spec import EngineSpec, parse_spec
from onepolicy.errors import EngineError, UsageError
from onepolicy.integrations import ENGINES, MEASURED_LIVE, check_spec, live_protocol_of
from onepolicy.records.json_text import json_in
from onepolicy.records.yaml_file import read_text
from onepolicy.workflow.progress import Progress, Silent

if TYPE_CHECKING:
    from onepolicy.sampling.measured.effective import Effective

REQUEST = "request"
"""the option that names a file with fields of a request; the server is asked what it does with these"""
COMPLETIONS = "completions"
"""the option that says how many completions of each text are drawn where values are measured"""
STEPS = 11
"""parts of a measurement of which it is told"""
_CONNECT = 5.0
"""seconds in which a server that is there, or a port that is closed, answers"""


def is_live(source: str) -> bool:
    """Whether a source is the spec of a running server."""
    engine, _, target = source.partition(":")
    return engine in ENGINES and target.startswith(("http://", "https://"))


def live_protocol(source: str, progress: Progress | None = None) -> Effective:
    """What the server samples with for a request that leaves fields out: said by it, or measured.

    source: the spec of an engine behind a URL; its option `request` names a JSON file with fields that are sent, and
    `completions` says how many are drawn of each text where values are measured.
    Raises: UsageError for a spec or a request that cannot be; EngineError.
    """
    spec = parse_spec(source)
    ask = live_protocol_of(spec.engine)
    request = _request(spec)
    told = progress or Silent()
    more = _drawn(spec)
    own = (REQUEST, COMPLETIONS) if more else (REQUEST,)
    server = replace(spec, options={name: value for name, value in spec.options.items() if name not in own})
    check_spec(server)
    _refuse_closed(server)
    told.start(f"asking {spec.engine} at {spec.target}", STEPS, "steps")
    left = STEPS

    def done(_: str) -> None:
        nonlocal left
        left -= 1
        told.advance(1)

    found: Effective = ask(server, request, done=done, **more)
    told.advance(left)
    return found


def _refuse_closed(spec: EngineSpec) -> None:
    """Raise EngineError if nothing listens there: a connection that is refused is not tried for half a minute.

    Whatever else may be wrong is left to the requests, which say it better.
    """
    try:
        url = urlsplit(spec.target)
        address = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
        socket.create_connection(address, timeout=_CONNECT).close()
    except ConnectionRefusedError as error:
        raise EngineError(
            f"{spec.target}: the connection is refused. Is the server up, and is it this port?"
        ) from error
    except (OSError, ValueError):
        return


def _drawn(spec: EngineSpec) -> dict[str, int]:
    """How many completions to draw, where it is given and something is measured."""
    given = spec.options.get(COMPLETIONS)
    if given is None or spec.engine not in MEASURED_LIVE:
        return {}
    if not given.isdecimal() or int(given) < 1:
        raise UsageError(f"{spec}: completions={given!r} is no number of completions. Give 1 or more; 8 if not given.")
    return {"per_text": int(given)}


def _request(spec: EngineSpec) -> dict[str, Any]:
    path = spec.options.get(REQUEST)
    if path is None:
        return {}
    try:
        found = json_in(read_text(Path(path), hint="Give the fields of a request as a JSON file."))
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    if not isinstance(found, dict):
        raise UsageError(f"{path}: the fields of a request are a JSON object; this is {type(found).__name__}.")
    return found
