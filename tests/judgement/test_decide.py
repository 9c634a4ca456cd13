import itertools

import pytest

from onepolicy.judgement.decide import decide, sentence
from onepolicy.records.verdict import Status, Verdict

PASS, FAIL, UNKNOWN = Status.PASS, Status.FAIL, Status.UNKNOWN


def verdict(status, *, required=True, check="coverage", message="found."):
    return Verdict(check=check, status=status, required=required, message=message)


@pytest.mark.parametrize("statuses", [s for n in (1, 2, 3) for s in itertools.product(Status, repeat=n)])
def test_one_failure_fails_one_doubt_is_unknown_and_only_passes_pass(statuses):
    found = decide([verdict(status) for status in statuses])
    if FAIL in statuses:
        assert found is FAIL
    elif UNKNOWN in statuses:
        assert found is UNKNOWN
    else:
        assert found is PASS


@pytest.mark.parametrize("informative", Status)
@pytest.mark.parametrize("required", Status)
def test_an_informative_check_never_decides(informative, required):
    assert decide([verdict(informative, required=False), verdict(required)]) is required


def test_nothing_required_is_never_a_pass():
    assert decide([]) is UNKNOWN
    assert decide([verdict(PASS, required=False)]) is UNKNOWN


@pytest.mark.parametrize(("status", "exit_status"), [(PASS, 0), (FAIL, 1), (UNKNOWN, 3)])
def test_the_exit_status_follows_from_the_status(status, exit_status):
    assert status.exit_status == exit_status


def test_the_sentence_of_a_pass_is_the_mean():
    verdicts = [verdict(PASS), verdict(PASS, check="mean_kl", message="KL 1e-5."), verdict(PASS, check="max_abs_d")]
    assert sentence(verdicts) == "Pass: KL 1e-5."
    assert sentence(verdicts[::2]) == "Pass: found."


def test_the_sentence_names_the_first_check_that_decided_and_counts_the_others():
    informative = verdict(FAIL, required=False, message="shown only.")
    doubt, fault = verdict(UNKNOWN, message="in doubt."), verdict(FAIL, message="broken.")
    assert sentence([informative, doubt, fault, fault]) == "Fail: broken. (1 more below)"
    assert sentence([informative, verdict(PASS), doubt]) == "Unknown: in doubt."


def test_the_sentence_of_nothing_is_that_nothing_was_compared():
    assert sentence([]) == "Unknown: nothing was compared."


def test_a_kl_that_only_informs_is_not_the_headline_of_a_pass():
    verdicts = [
        Verdict(check="mean_kl", status=Status.FAIL, required=False, message="KL 0.04 ..., limit 0.0001."),
        Verdict(check="max_abs_d", status=Status.PASS, message="the largest |d| is 0.1 nats."),
    ]
    assert sentence(verdicts) == "Pass: the largest |d| is 0.1 nats."
