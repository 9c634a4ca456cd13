"""The rollouts must come from one policy: one version of the weights."""

from __future__ import annotations

from onepolicy.numerics.measurement import Measurement
from onepolicy.records.tables import Bucket
from onepolicy.records.verdict import Status, Verdict

_SHOWN = 4


def one_weight_version(measured: Measurement) -> list[Verdict]:
    """Unknown if the rollouts come from more than one weight version. Nothing where the engine names none.

    Then no number speaks of a policy; the table by weight version keeps them apart.
    """
    versions = measured.buckets.versions
    if not versions:
        return []
    if len(versions) == 1:
        message = f"all rollouts come from the weight version {next(iter(versions))!r}."
        return [_verdict(Status.PASS, measured, message)]
    table = {bucket.name: bucket for bucket in measured.buckets.version_table().buckets}
    named = [_named(version, count, table.get(version)) for version, count in versions.items()]
    more = [f"{len(named) - _SHOWN} more"] if len(named) > _SHOWN else []
    message = (
        f"the rollouts come from {len(versions)} weight versions: {', '.join([*named[:_SHOWN], *more])}. A number over "
        "all of them is of no policy. Record again while the weights stay, or judge runs of one version each."
    )
    return [_verdict(Status.UNKNOWN, measured, message)]


def _verdict(status: Status, measured: Measurement, message: str) -> Verdict:
    return Verdict(
        check="one_weight_version",
        status=status,
        quantity="weight_versions",
        value=len(measured.buckets.versions),
        limit=1,
        unit="versions",
        message=message,
    )


def _named(version: str, count: int, bucket: Bucket | None) -> str:
    numbers = "" if bucket is None else f", mean k3 {bucket.mean_k3:.2g}"
    return f"{version} ({count}{' rollouts' if numbers else ''}{numbers})"
