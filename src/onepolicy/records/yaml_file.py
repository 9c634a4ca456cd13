"""YAML that a person wrote -> a mapping, or an error that says what is wrong and where. Nothing is dropped silently.

What is written here is read back as it was.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from onepolicy.errors import UsageError
from onepolicy.records.json_text import number_in

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
        """Without YAML 1.1's own ideas of a number: 1:30 would be 90, 1_0 ten, and 010 eight."""
        text = self.construct_scalar(node)
        if set(":_") & set(str(text)) or _OCTAL.fullmatch(str(text)):
            line = node.start_mark.line + 1
            raise UsageError(
                f"{text!r} in line {line} is a number to YAML 1.1, and another one than it looks. Quote it."
            )
        return super().construct_yaml_int(node)

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        """Without a number so small that it would be 0: a temperature of 1e-999 is not greedy."""
        found = super().construct_yaml_float(node)
        return number_in(str(self.construct_scalar(node))) if found == 0.0 else found


_OCTAL = re.compile(r"[-+]?0\d+")
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)


class Dumper(yaml.SafeDumper):
    """Quotes what the loader would read as something else; a text with a line break stays in one line."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """Plain where that is one line, else with escapes."""
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=None if _BARE.fullmatch(text) else '"')


_BARE = re.compile(r"[^\x00-\x1f\x7f-\xa0\u2028\u2029\ufeff]+")
Dumper.add_representer(str, Dumper.represent_text)
for _kind in (_Loader, Dumper):  # 1e-3 is text to YAML 1.1, which wants 1.0e-3; to YAML 1.2 and to people, a number
    _kind.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"^[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$"),
        list("-+.0123456789"),
    )


def in_one_line(value: object) -> str:
    """A value as it stands after a key, or in a list."""
    text = yaml.dump([value], Dumper=Dumper, default_flow_style=True, width=10**9, allow_unicode=True, sort_keys=False)
    return str(text).strip()[1:-1]


def read_text(path: Path, *, hint: str) -> str:
    """The text of a file, without a byte order mark. hint: what to give instead.

    Raises: UsageError that does not name the file.
    """
    try:
        return path.read_bytes().decode("utf-8-sig")
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
