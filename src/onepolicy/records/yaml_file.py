"""YAML that a person wrote -> a mapping, or an error that says what is wrong and where. Nothing is dropped silently."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from onepolicy.errors import UsageError

_NO_YAML = (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError)
"""what PyYAML raises for text that is none, or for values such as 2026-13-01, `!!bool maybe` and `!!timestamp x`"""


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice; YAML would drop the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [(key.tag, key.value) for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        twice = next((value for i, (tag, value) in enumerate(keys) if (tag, value) in keys[:i]), None)
        if twice is not None:
            line = node.start_mark.line + 1
            raise UsageError(f"the key {twice!r} stands twice in the mapping that begins in line {line}.")
        return super().construct_mapping(node, deep=deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Without YAML 1.1's own ideas of a number: 1:30 would be 90, and 1_0 ten."""
        text = self.construct_scalar(node)
        if set(":_") & set(str(text)):
            line = node.start_mark.line + 1
            raise UsageError(
                f"{text!r} in line {line} is a number to YAML 1.1, and another one than it looks. Quote it."
            )
        return super().construct_yaml_int(node)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def read_text(path: Path, *, hint: str) -> str:
    """The text of a file. hint: what to give instead. Raises: UsageError that does not name the file."""
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"is not UTF-8 (byte {error.start}). {hint}") from error
    except FileNotFoundError as error:
        raise UsageError(f"there is no such file. {hint}") from error
    except OSError as error:
        raise UsageError(f"cannot be read ({error.strerror}). {hint}") from error


def mapping_in(text: str, *, what: str) -> dict[str, Any]:
    """The mapping that a YAML text holds; empty for an empty one. what: what is expected, to be named in the error.

    Raises: UsageError that does not name the file.
    """
    try:
        found = _Loader(text).get_single_data()
    except _NO_YAML as error:
        raise UsageError(f"is no YAML ({_reason(error)}).") from error
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise UsageError(f"{what}; this is {type(found).__name__}.")
    return found


def _reason(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{error.problem}, line {error.problem_mark.line + 1}"
    return str(error).strip().partition("\n")[0]
