import pytest

from onepolicy.numerics.precision import precision_alone
from onepolicy.records.protocol import Meaning
from onepolicy.records.verdict import Status


@pytest.fixture
def of_scale(rollout, measured):
    return lambda d, **fields: measured([rollout([-2.0] * 4, [-2.0 + d] * 4)], **fields)


def verdict(pair, alone):
    return precision_alone(pair, alone, alone, dtype="bfloat16", other_dtype="float32")


def test_precision_accounts_for_a_mismatch_of_its_own_size(of_scale):
    found = verdict(of_scale(0.011), of_scale(0.01))
    assert (found.status, found.required) == (Status.PASS, False)
    assert "precision alone accounts for it: the trainer in float32 against itself in bfloat16" in found.message


def test_precision_does_not_account_for_a_mismatch_of_twice_its_size(of_scale):
    found = verdict(of_scale(0.02), of_scale(0.01))
    assert (found.status, found.required) == (Status.FAIL, False)
    assert found.value == pytest.approx(0.01**2 / 2, rel=0.01)
    assert "does not account for it" in found.message


def test_nothing_to_hold_against_is_unknown(of_scale, measured):
    meaning = Meaning(temperature=0.7)
    for alone in (measured([]), of_scale(0.01, trainer_meaning=meaning)):
        assert verdict(of_scale(0.01), alone).status is Status.UNKNOWN
    assert verdict(measured([]), of_scale(0.01)).status is Status.UNKNOWN
