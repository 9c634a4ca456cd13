"""The text that Prometheus reads, by the parser of its own client."""

import math
from datetime import UTC, datetime

import pytest

from onepolicy.records.verdict import Status
from onepolicy.report.prometheus import prometheus_text

TIME = datetime(2026, 1, 1, tzinfo=UTC)


def parsed(text: str) -> dict[tuple[str, tuple], float]:
    parser = pytest.importorskip("prometheus_client.parser")
    families = parser.text_string_to_metric_families(text)
    return {(s.name, tuple(s.labels.values())): s.value for family in families for s in family.samples}


def test_names_and_numbers_come_back():
    numbers = {"onepolicy/k3": 1.5e-5, "onepolicy/max_abs_d": math.inf, "onepolicy/correlation": math.nan}
    found = parsed(prometheus_text(numbers, status=Status.FAIL, time=TIME))
    assert found["onepolicy_k3", ()] == 1.5e-5
    assert found["onepolicy_max_abs_d", ()] == math.inf
    assert math.isnan(found["onepolicy_correlation", ()])
    assert [found["onepolicy_status", (name,)] for name in ("pass", "fail", "unknown")] == [0, 1, 0]
    assert found["onepolicy_check_time_seconds", ()] == TIME.timestamp()


def test_a_check_without_a_number_leaves_none_of_before():
    found = parsed(prometheus_text({}, status=Status.UNKNOWN, time=TIME))
    assert {name for name, _ in found} == {"onepolicy_status", "onepolicy_check_time_seconds"}
