"""Lengths of time on the command line: 90s, 10m, 24h, 7d."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import click

_LONGEST = timedelta(days=36_500)
"""before which there is a date, and for which a process can sleep"""
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.2
    """A whole or decimal number with a unit; above 0."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """The length of time, or click's error."""
        if isinstance(value, timedelta):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", str(value))
        try:
            found = timedelta(**{_UNITS[match[2]]: float(match[1])}) if match else timedelta()
        except OverflowError:
            found = timedelta.max
        if not found:
            self.fail(f"{value!r} is no length of time. Write a number and s, m, h or d, such as 10m.", param, ctx)
        if found > _LONGEST:
            self.fail(f"{value!r} is longer than {_LONGEST.days} days. Write a shorter time, such as 7d.", param, ctx)
        return found
