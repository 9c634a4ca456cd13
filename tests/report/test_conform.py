"""What is shown of a conformance run."""

import io

from rich.console import Console

from onepolicy.records.conform import Answer, Conformance, Explanation, Tried
from onepolicy.report.conform import conformance_markdown, headline, show_conformance

KNOWN = Explanation(role="kl", name="k2 is biased", why="It is.", example="\nprint(1)\n", prints="1")


def conformance(*tried, version="2.0", explained="1.0"):
    return Conformance(
        subject="frame", version=version, explained=explained, tried=tried, cases=(), explanations=(KNOWN,), seconds=1.0
    )


def one(case, answer, **options):
    return Tried(role="kl", function="penalty", case=case, answer=answer, **options)


def shown(found):
    console = Console(file=io.StringIO(), width=80)
    show_conformance(found, console)
    return " ".join(console.file.getvalue().split())


def test_another_version_than_the_explained_one_is_said():
    found = conformance(one("mean", Answer.AGREES))
    assert "written for frame 1.0, and 2.0 is installed" in shown(found)
    assert "is installed" not in shown(conformance(one("mean", Answer.AGREES), version="1.0"))
    assert "is installed" not in shown(conformance(one("mean", Answer.AGREES), explained=""))


def test_cases_with_one_answer_and_one_reason_share_a_row():
    found = conformance(
        one("mean", Answer.AGREES), one("far", Answer.DIFFERS, found="1, should be 2", explanation=KNOWN.name),
        one("near", Answer.DIFFERS, found="3, should be 4", explanation=KNOWN.name), one("same", Answer.AGREES),
    )  # fmt: skip
    rows = [line for line in conformance_markdown(found).splitlines() if line.startswith("| kl")]
    assert rows == [
        "| kl | penalty | mean; same | agrees |  |",
        "| kl | penalty | far; near | differs by design: k2 is biased | 1, should be 2 |",
    ]


def test_the_headline_and_the_exit_status_are_of_one_value():
    for tried, start, status in (
        ((one("a", Answer.WRONG), one("b", Answer.AGREES)), "Wrong: frame 2.0, 2 cases of 1 functions", 1),
        ((one("a", Answer.DIFFERS),), "Nothing wrong: frame 2.0", 0),
        ((one("a", Answer.NOT_TRIED),), "Nothing was tried: frame 2.0", 3),
        ((), "Nothing was tried: frame 2.0, 0 cases", 3),
    ):
        found = conformance(*tried)
        assert headline(found).startswith(start)
        assert found.exit_status == status


def test_what_a_function_raises_cannot_break_the_table():
    found = conformance(one("mean", Answer.WRONG, found="raised X: a | b \x1b[31m"))
    assert "a \\| b" in conformance_markdown(found)
    found = conformance(one("mean", Answer.NOT_TRIED, found="never\nagain"))
    assert "| not tried | never\\nagain |" in conformance_markdown(found)
    assert "\x1b" not in shown(found)
