import pytest

from onepolicy.errors import UsageError
from onepolicy.judgement.limits import Limits, MetricLimit
from onepolicy.numerics.checks.metric_limits import metric_limits
from onepolicy.records.protocol import Meaning
from onepolicy.records.verdict import Status


def held(measured, **limits: MetricLimit):
    return metric_limits(measured, Limits(metrics=limits))


def test_a_metric_is_held_from_above_or_from_below(rollout, measured):
    pair = measured([rollout([-1.0, -1.0], [-1.0, -1.5])])
    for limit, status in (
        (MetricLimit(at_most=0.25), Status.PASS),
        (MetricLimit(at_most=0.24), Status.FAIL),
        (MetricLimit(at_least=0.25), Status.PASS),
        (MetricLimit(at_least=0.26), Status.FAIL),
    ):
        (verdict,) = held(pair, mean_abs_d=limit)
        assert (verdict.check, verdict.status, verdict.value) == ("metrics.mean_abs_d", status, 0.25)


def test_a_metric_without_a_value_is_unknown(rollout, measured):
    (verdict,) = held(measured([rollout([-1.0], [-1.0])]), top1_agreement=MetricLimit(at_least=0.5))
    assert (verdict.status, verdict.value) == (Status.UNKNOWN, None)


def test_differing_meanings_make_it_unknown(rollout, measured):
    pair = measured([rollout([-1.0], [-1.0])], rollout_meaning=Meaning(temperature=0.7))
    (verdict,) = held(pair, mean_abs_d=MetricLimit(at_most=1.0))
    assert verdict.status is Status.UNKNOWN


def test_a_limit_may_only_inform(rollout, measured):
    (verdict,) = held(measured([rollout([-1.0], [-2.0])]), k3=MetricLimit(at_most=0.0, required=False))
    assert (verdict.status, verdict.required) == (Status.FAIL, False)


def test_a_name_that_is_no_metric_is_an_error_that_lists_them(rollout, measured):
    with pytest.raises(UsageError, match=r"'k4', which there is not\. Metrics: mean_d"):
        held(measured([rollout([-1.0], [-1.0])]), k4=MetricLimit(at_most=1.0))


@pytest.mark.parametrize(("tokens", "status"), [(299, Status.UNKNOWN), (300, Status.PASS)])
def test_a_percentile_of_fewer_tokens_than_show_one_beyond_it_is_unknown(many, measured, tokens, status):
    pair = measured(many(tokens, scale=0.0, length=1))
    (verdict,) = held(pair, abs_d_p99=MetricLimit(at_most=0.1))
    assert verdict.status is status
    assert status is Status.PASS or "299 tokens say nothing of it, 300 may" in verdict.message
