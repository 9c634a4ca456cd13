"""JUnit: a failure for what failed, an error for what is unknown, nothing that XML cannot hold."""

from xml.etree import ElementTree as Xml

from onepolicy.report.junit import junit


def test_each_check_is_a_case_with_its_own_outcome(failed):
    suite = Xml.fromstring(junit(failed)).find("testsuite")
    cases = {case.get("name"): [child.tag for child in case] for case in suite.iter("testcase")}
    assert cases == {
        "same_ids": ["system-out"],
        "coverage": ["error"],
        "mean_kl": ["failure"],
        "round_trip": ["skipped"],
    }
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["4", "1", "1", "1"]


def test_control_characters_and_markup_come_back_as_text(failed):
    failure = Xml.fromstring(junit(failed)).find(".//failure")
    assert "</script><img src=x" in failure.get("message")
    assert r"\x00\x1b[31m\u202egnp\ud800" in failure.get("message")
    assert failure.text == "r-1 [7]: here"


def test_a_pass_has_no_failures(passed):
    suite = Xml.fromstring(junit(passed)).find("testsuite")
    assert (suite.get("failures"), suite.get("errors"), suite.get("skipped")) == ("0", "0", "0")
