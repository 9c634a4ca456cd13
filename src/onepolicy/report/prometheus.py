"""Numbers as Prometheus reads them from a file (the textfile collector of the node exporter)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from onepolicy.records.verdict import Status


def prometheus_text(numbers: Mapping[str, float], *, status: Status, time: datetime) -> str:
    """One gauge for each number, `onepolicy/k3` as `onepolicy_k3`; 1 for the status that there is; and when that was.

    Of a check that came to no number only the status and the time are there, so that no number of before stays.
    """
    gauges = [_gauge(name.replace("/", "_"), f"{name} of the last check", value) for name, value in numbers.items()]
    states = "".join(f'onepolicy_status{{status="{one.value}"}} {int(one is status)}\n' for one in Status)
    return "".join(
        [
            *gauges,
            "# HELP onepolicy_status 1 for the answer of the last check\n# TYPE onepolicy_status gauge\n",
            states,
            _gauge("onepolicy_check_time_seconds", "when the last check was, since 1970", time.timestamp()),
        ]
    )


def _gauge(name: str, what: str, value: float) -> str:
    return f"# HELP {name} {what}\n# TYPE {name} gauge\n{name} {_number(value)}\n"


def _number(value: float) -> str:
    """As the text format writes it: NaN, +Inf and -Inf have names of their own."""
    return {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}.get(repr(value), repr(value))
