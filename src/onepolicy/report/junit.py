"""A judgement as JUnit XML: one test case for each check."""

from __future__ import annotations

from xml.etree import ElementTree as Xml

from onepolicy.records.verdict import Judgement, Status, Verdict
from onepolicy.visible import visible

_OUTCOMES = {Status.FAIL: "failure", Status.UNKNOWN: "error"}


def junit(judgement: Judgement) -> str:
    """The text of a JUnit file. A failed check is a failure, an unknown one an error, a note is skipped."""
    outcomes = [outcome(verdict) for verdict in judgement.verdicts]
    suite = Xml.Element(
        "testsuite",
        name="onepolicy",
        tests=str(len(outcomes)),
        failures=str(outcomes.count("failure")),
        errors=str(outcomes.count("error")),
        skipped=str(outcomes.count("skipped")),
    )
    properties = Xml.SubElement(suite, "properties")
    for name in ("run", "rollout_reading", "trainer_reading", "sentence"):
        Xml.SubElement(properties, "property", name=name, value=visible(getattr(judgement, name)))
    suite.extend(one_case(verdict) for verdict in judgement.verdicts)
    root = Xml.Element("testsuites")
    root.append(suite)
    Xml.indent(root)
    return Xml.tostring(root, encoding="unicode", xml_declaration=False) + "\n"


def outcome(verdict: Verdict) -> str:
    """failure, error or skipped; empty for a pass."""
    if verdict.status is Status.PASS:
        return ""
    return _OUTCOMES[verdict.status] if verdict.required else "skipped"


def one_case(verdict: Verdict) -> Xml.Element:
    """One check. Control characters, which XML cannot hold, are written as escapes."""
    case = Xml.Element("testcase", classname="onepolicy", name=visible(verdict.check))
    message = visible(verdict.message)
    name = outcome(verdict)
    if not name:
        Xml.SubElement(case, "system-out").text = message
        return case
    found = Xml.SubElement(case, name, message=message)
    if name != "skipped":
        found.set("type", verdict.status.value)
        found.text = "\n".join(visible(line) for line in _places(verdict))
    return case


def _places(verdict: Verdict) -> list[str]:
    return [f"{e.rollout_id}{'' if e.position is None else f' [{e.position}]'}: {e.note}" for e in verdict.evidence]
