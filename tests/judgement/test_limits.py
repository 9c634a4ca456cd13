import math

import pytest
from pydantic import ValidationError

from onepolicy.judgement.limits import Limits


def test_the_defaults_stay():
    assert {name: getattr(Limits(), name) for name in Limits.numbers()} == {
        "mean_kl": 1e-4,
        "max_abs_d": 0.5,
        "worst_rollout_kl": 1e-2,
        "outlier_rate": 0.25,
        "coverage": 0.99,
        "rollout_coverage": 0.95,
    }


@pytest.mark.parametrize("name", Limits.numbers())
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_a_limit_that_everything_or_nothing_would_pass_is_refused(name, value):
    with pytest.raises(ValidationError, match=name):
        Limits(**{name: value})


def test_coverage_is_a_share_and_an_unknown_limit_is_refused():
    with pytest.raises(ValidationError, match="coverage"):
        Limits(coverage=1.01)
    with pytest.raises(ValidationError, match="mean_k1"):
        Limits(mean_k1=1e-4)
