from datetime import date

import pytest

from onepolicy.errors import UsageError
from onepolicy.judgement.decide import decide
from onepolicy.judgement.limits import Limits, Waiver
from onepolicy.judgement.waive import applied
from onepolicy.records.verdict import Status, Verdict

TODAY = date(2026, 11, 29)
PASSES = Verdict(check="mean_kl", status=Status.PASS, message="fine.")
FAILS = Verdict(check="max_abs_d", status=Status.FAIL, message="far off.")


def waived(until: date, check: str = "max_abs_d") -> Limits:
    return Limits(waivers=(Waiver(check=check, reason="kernel bug 12", until=until),))


@pytest.mark.parametrize("until", [TODAY, date(2027, 1, 1)])
def test_a_waived_check_is_shown_with_its_reason_and_does_not_decide(until):
    verdicts = applied([PASSES, FAILS], waived(until), today=TODAY)
    assert decide(verdicts) is Status.PASS
    assert verdicts[1].status is Status.FAIL
    assert f"Waived until {until}: kernel bug 12." in verdicts[1].message


def test_a_waiver_that_has_ended_no_longer_holds():
    verdicts = applied([PASSES, FAILS], waived(date(2026, 11, 28)), today=TODAY)
    assert decide(verdicts) is Status.FAIL
    assert "Its waiver ended on 2026-11-28." in verdicts[1].message


@pytest.mark.parametrize("check", ["mean_kl", "max_abs_d"])
def test_a_waiver_that_nothing_needs_is_an_error(check):
    passing = [PASSES, FAILS.model_copy(update={"status": Status.PASS})]
    with pytest.raises(UsageError, match="is not needed"):
        applied(passing, waived(TODAY, check), today=TODAY)


def test_an_informative_check_does_not_decide():
    verdicts = applied([PASSES, FAILS], Limits(informative=("max_abs_d",)), today=TODAY)
    assert decide(verdicts) is Status.PASS


@pytest.mark.parametrize("limits", [Limits(informative=("max_d",)), waived(TODAY, "max_d")])
def test_a_name_that_is_no_check_is_an_error_that_lists_them(limits):
    with pytest.raises(UsageError, match=r"'max_d', which there is not\. Checks: max_abs_d, mean_kl"):
        applied([PASSES, FAILS], limits, today=TODAY)


def test_informative_everything_is_unknown_and_never_a_pass():
    verdicts = applied([PASSES, FAILS], Limits(informative=("mean_kl", "max_abs_d")), today=TODAY)
    assert decide(verdicts) is Status.UNKNOWN


def test_what_the_numbers_rest_on_cannot_be_made_informative():
    verdicts = [Verdict(check=name, status=Status.PASS, message="") for name in ("same_ids", "mean_kl")]
    with pytest.raises(UsageError, match="'same_ids' informative; without it no number means anything"):
        applied(verdicts, Limits(informative=("same_ids",)), today=date(2026, 1, 1))
