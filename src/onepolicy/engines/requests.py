"""What a request to a server is made of: its URL, its key and its body, each checked before anything is sent."""

from __future__ import annotations

import math
import os
from typing import Any

import httpx
import orjson

from onepolicy.errors import UsageError

Json = dict[str, Any]


def checked_url(url: str) -> str:
    """The URL without a trailing slash. Raises: UsageError if it is none, or carries a password, as a run keeps it."""
    try:
        parts = httpx.URL(url)
    except (httpx.InvalidURL, ValueError) as error:
        raise UsageError(f"{url!r} is no URL ({error}). Write it as http://host:port.") from error
    if parts.scheme not in ("http", "https") or not parts.host:
        raise UsageError(f"{url!r} is no URL. Write it as http://host:port.")
    if parts.port is not None and not 0 < parts.port < 1 << 16:
        raise UsageError(f"{url!r}: there is no port {parts.port}. Write it as http://host:port.")
    if parts.userinfo:
        raise UsageError(
            f"the URL of {parts.host} carries a user or a password, and a run keeps its specs. Put the key into an "
            "environment variable and name that with ?key_env=NAME."
        )
    if parts.query or parts.fragment:
        raise UsageError(f"{url!r}: give the URL of the server alone, without '?' or '#'.")
    return url.rstrip("/")


def written(body: Json) -> bytes:
    """The JSON text of a body, in which ids may be an array. Raises: ValueError for a number that JSON has not."""
    _check_finite(body)
    return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)


def _check_finite(value: object) -> None:
    """Raise ValueError for NaN and infinities, which orjson would write as null. An array here is one of ids."""
    match value:
        case dict():
            for each in value.values():
                _check_finite(each)
        case list() | tuple():
            for each in value:
                _check_finite(each)
        case float() if not math.isfinite(value):
            raise ValueError(f"{value} is no number of JSON")


def is_url(target: str) -> bool:
    """Whether a spec's target is a server and no file."""
    return target.startswith(("http://", "https://"))


def authorisation(key: str) -> dict[str, str]:
    """The header that carries a key; none without one."""
    return {"authorization": f"Bearer {key}"} if key else {}


def key_of(key_env: str) -> str:
    """The key in an environment variable; empty without a name. Raises: UsageError if none can be sent."""
    if not key_env:
        return ""
    key = os.environ.get(key_env, "").strip()
    if not key:
        raise UsageError(f"the environment variable {key_env!r} (key_env) is not set.")
    if not (key.isascii() and key.isprintable()):
        raise UsageError(
            f"the environment variable {key_env!r} (key_env) holds a character that no key has, such as the end of a "
            "line. Set it to the key alone."
        )
    return key
