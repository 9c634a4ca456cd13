"""The monitor's numbers for a Prometheus server, as an option: trainers that log get them from `Monitor.step`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from onepolicy.errors import MissingExtraError, UsageError
from onepolicy.monitor.monitor import Monitor


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter:
    """A server of numbers in a thread of its own, until `close`."""

    port: int
    _server: Any

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


def exporter(monitor: Monitor, port: int = 9464, *, address: str = "127.0.0.1") -> Exporter:
    """Serve the numbers of the last step that was looked at, under `/metrics`; port 0 takes a free one.

    `onepolicy/k3` is the gauge `onepolicy_k3`, and `onepolicy_status` is 1 for the status that the training has.
    Raises: MissingExtraError without the package `prometheus_client`; UsageError if the port is taken.
    """
    try:
        client: Any = import_module("prometheus_client")
        core: Any = import_module("prometheus_client.core")
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            package="prometheus_client", extra="prometheus", needed_for="the monitor's exporter"
        ) from error
    registry = client.CollectorRegistry()
    registry.register(_Numbers(monitor, core.GaugeMetricFamily))
    try:
        server, _ = client.start_http_server(port, addr=address, registry=registry)
    except OSError as error:
        raise UsageError(f"{address}:{port}: cannot be listened on ({error.strerror}). Give another port.") from error
    return Exporter(port=server.server_port, _server=server)


class _Numbers:
    """What a collector is to the package: asked at every scrape."""

    def __init__(self, monitor: Monitor, gauge: Any) -> None:
        self._monitor, self._gauge = monitor, gauge

    def collect(self) -> Iterator[Any]:
        for name, value in self._monitor.numbers.items():
            yield self._gauge(name.replace("/", "_"), f"{name} of the last step", value=value)
        status = self._gauge("onepolicy_status", "1 for the status that the training has", labels=["status"])
        status.add_metric([self._monitor.status.value], 1.0)
        yield status
