"""Rollouts of two weight versions are seen and kept apart."""

import json

import numpy as np
import pytest

from onepolicy.api import check
from onepolicy.judgement.limits import Limits
from onepolicy.numerics.buckets import MOST_TAG_VALUES, Buckets
from onepolicy.numerics.checks.one_weight_version import one_weight_version
from onepolicy.records.run import Run
from onepolicy.records.verdict import Status
from onepolicy.tokens.round_trip import TokenMeasurement
from onepolicy.workflow.judge import judged_in_order
from onepolicy.workflow.measure import _weight_versions


def of_versions(measured, rows, versions, **fields):
    named = {row["name"]: version for row, version in zip(rows, versions, strict=True) if version}
    return measured(rows, blocks=3, buckets=Buckets(version_of=named), **fields)


def test_a_run_without_versions_says_nothing(measured, many):
    assert one_weight_version(measured(many(5, scale=0.1))) == []


def test_one_version_passes_and_is_named(measured, many):
    (verdict,) = one_weight_version(of_versions(measured, many(5, scale=0.1), ["step-7"] * 5))
    assert (verdict.status, verdict.required, verdict.value) == (Status.PASS, True, 1)
    assert "'step-7'" in verdict.message
    assert "weight version" not in [
        t.axis for t in of_versions(measured, many(5, scale=0.1), ["a"] * 5).buckets.tables()
    ]


def test_two_versions_are_unknown_counted_and_kept_apart(measured, many):
    rows = many(10, scale=0.02) + [row | {"name": f"late-{i}"} for i, row in enumerate(many(6, scale=0.5, seed=1))]
    found = of_versions(measured, rows, ["step-1"] * 10 + ["step-2"] * 6)
    (verdict,) = one_weight_version(found)
    assert verdict.status is Status.UNKNOWN
    assert "2 weight versions: step-1 (10 rollouts, mean k3" in verdict.message
    assert "step-2 (6 rollouts, mean k3" in verdict.message
    (table,) = [t for t in found.buckets.tables() if t.axis == "weight version"]
    for bucket, part in zip(table.buckets, (rows[:10], rows[10:]), strict=True):
        d = np.concatenate([np.float32(r["q"]).astype(float) - np.float32(r["p"]) for r in part])
        assert bucket.tokens == len(d)
        assert bucket.mean_d == pytest.approx(d.mean())
        assert bucket.mean_abs_d == pytest.approx(np.abs(d).mean())
        assert bucket.mean_k3 == pytest.approx((np.exp(d) - 1 - d).mean())
        assert bucket.max_abs_d == pytest.approx(np.abs(d).max())


def test_a_call_during_which_the_version_changed_is_a_version_of_its_own(measured, many):
    (verdict,) = one_weight_version(of_versions(measured, many(4, scale=0.1), ["a", "a", "a to b", "b"]))
    assert verdict.value == 3
    assert "a to b (1 rollouts" in verdict.message


def test_rollouts_without_a_version_among_others_are_not_taken_for_one_of_theirs(measured, many):
    (verdict,) = one_weight_version(of_versions(measured, many(4, scale=0.1), ["a", "a", "", "a"]))
    assert verdict.status is Status.UNKNOWN
    assert "(none named) (1 rollouts" in verdict.message


def test_numbers_over_several_versions_decide_nothing(measured, many):
    rows = many(40, scale=0.9)
    alone = judged_in_order(TokenMeasurement(rollouts=40), of_versions(measured, rows, ["a"] * 40), Limits())
    mixed = judged_in_order(
        TokenMeasurement(rollouts=40), of_versions(measured, rows, ["a"] * 20 + ["b"] * 20), Limits()
    )
    assert Status.FAIL in {v.status for v in alone if v.required}
    numeric = [v for v in mixed if v.required and v.check not in ("same_ids", "same_text")]
    assert {v.status for v in numeric} == {Status.UNKNOWN}
    assert all(v.value is None for v in numeric if v.check != "one_weight_version")


def test_more_versions_than_a_table_shows_are_all_counted(measured, many):
    rows = many(MOST_TAG_VALUES + 20, scale=0.1, length=3)
    found = of_versions(measured, rows, [f"step-{i}" for i in range(len(rows))])
    (verdict,) = one_weight_version(found)
    assert verdict.value == len(rows)
    assert f"{len(rows) - 4} more" in verdict.message
    table = found.buckets.version_table()
    assert len(table.buckets) == MOST_TAG_VALUES + 1
    assert sum(bucket.tokens for bucket in table.buckets) == 3 * len(rows)


class _Spans:
    def __init__(self, *spans):
        self._spans = spans

    def spans(self):
        return iter(self._spans)


def test_turns_of_several_versions_are_named_in_order(tmp_path):
    check(rollout="fake:m", trainer="fake:m", run=tmp_path / "run", budget=300)
    one = next(Run.open(tmp_path / "run").spans())
    turns = [type(one)(rollout_id="r", start=0, end=1, weight_version=v) for v in ("a", "a", "b", "b", "a")]
    assert _weight_versions(_Spans(*turns)) == {"r": "a to b to a"}
    assert _weight_versions(Run.open(tmp_path / "run")) == {}
    assert "weight version" not in (tmp_path / "run" / "judgements" / "default" / "tables.json").read_text()
    verdicts = json.loads((tmp_path / "run" / "judgements" / "default" / "verdicts.json").read_text())["verdicts"]
    assert "one_weight_version" not in {verdict["check"] for verdict in verdicts}
