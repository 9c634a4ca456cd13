from collections import Counter

import pytest

from onepolicy.records.rollout import Span
from onepolicy.records.verdict import Status
from onepolicy.sampling.checks.one_protocol import one_protocol, several_protocols


def spans(*hashes):
    return [Span(rollout_id=f"r/{i}", start=3, end=9, protocol_hash=name) for i, name in enumerate(hashes)]


@pytest.mark.parametrize("hashes", [(), ("", ""), ("a", "a", "")])
def test_calls_of_the_runs_protocol_or_of_none_that_is_named_are_no_finding(hashes):
    assert several_protocols(spans(*hashes), of_run="a") == []


def test_a_pass_says_under_which_protocol_and_calls_that_name_none_only_inform():
    passed = one_protocol({"a": 3}, of_run="a")
    assert (passed.status, passed.message) == (Status.PASS, "all calls were sampled under the protocol a.")
    nothing = one_protocol({}, of_run="a")
    assert (nothing.status, nothing.required) == (Status.UNKNOWN, False)


def test_calls_of_two_protocols_are_unknown_with_the_number_of_each():
    (verdict,) = several_protocols(spans("b", "a", "b", ""), of_run="a")
    assert (verdict.check, verdict.status, verdict.required) == ("one_protocol", Status.UNKNOWN, True)
    assert (verdict.value, verdict.limit) == (2, 1)
    assert "2 protocols: b (2 calls), a (1 calls); the run says a." in verdict.message


def test_calls_that_were_all_sampled_under_another_protocol_than_the_runs_are_unknown():
    (verdict,) = several_protocols(spans("b", "b"), of_run="a")
    assert (verdict.status, verdict.value) == (Status.UNKNOWN, 1)
    assert "under b (2 calls), and the run says a" in verdict.message


def test_of_many_protocols_the_first_are_named_and_the_others_counted():
    verdict = one_protocol(Counter("aabbccddefg"), of_run="a")
    assert "d (2 calls), 3 more;" in verdict.message
