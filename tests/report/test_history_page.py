"""A history on the terminal and as a page: everything from a run is text."""

import io
import re
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

from onepolicy.records.past import Against, CheckMoved, GateAnswer, History, Moved, PastRun, SideMoved
from onepolicy.records.verdict import Status
from onepolicy.report.history_chart import history_chart
from onepolicy.report.history_console import show_answer, show_runs
from onepolicy.report.history_page import history_html

HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[31m\u202e{{7*7}}"
START = datetime(2026, 1, 1, tzinfo=UTC)


def row(i: int, status: Status = Status.PASS, **fields: object) -> PastRun:
    usual = {
        "time": START + timedelta(days=i),
        "run": f"runs/2026-{i}",
        "pair": "fixed, fixed-quick, vllm, transformers",
        "engines": "vllm 0.32.0 / transformers 5.1.0",
        "status": status,
        "sentence": f"{status.value.capitalize()}: {HOSTILE}",
        "kl": 1e-5 * (i + 1),
        "kl_limit": 1e-4,
    }
    return PastRun(**(usual | fields))


AGAINST = Against(
    run="runs/2026-3",
    green="runs/2026-0",
    changed=("versions: rollout engine version 0.32.0 -> 0.33.0", f"configuration: rollout option x {HOSTILE} -> 1"),
    rollouts=24,
    same_ids=24,
    tokens=1200,
    sides=(
        SideMoved(side="rollout", equal=3, mean_abs_change=0.1, max_abs_change=1.0),
        SideMoved(side="trainer", equal=1200, mean_abs_change=0.0, max_abs_change=0.0),
    ),
    moved=(Moved(quantity="mean_abs_d", then=0.01, now=0.11, difference=0.1, low=0.05, high=0.15),),
    checks=(CheckMoved(check="mean_kl", then=1e-5, now=0.01, then_status="pass", now_status="fail"),),
    sentence="Look first at versions: rollout engine version 0.32.0 -> 0.33.0.",
)


def history(*rows: PastRun, **fields: object) -> History:
    usual = {"location": "runs", "rows": rows, "status": rows[-1].status, "sentence": rows[-1].sentence}
    return History(**(usual | fields))


@pytest.fixture
def failed() -> History:
    rows = [
        row(0, kl_low=5e-6, kl_high=2e-5),
        row(1, kl=0.0),
        row(2, Status.UNKNOWN, pair="", kl=None, engines="", sentence=f"Unknown: {HOSTILE}"),
        row(3, Status.FAIL, kl=0.01, engines="vllm 0.33.0 / transformers 5.1.0", changed=AGAINST.changed),
    ]
    return history(*rows, against=AGAINST)


def shown(value, show=show_runs) -> str:
    out = io.StringIO()
    show(value, Console(file=out, width=80, force_terminal=False))
    return out.getvalue()


def test_the_terminal_shows_each_run_and_where_to_look_first_in_80_columns(failed):
    text = shown(failed)
    assert max(map(len, text.splitlines())) <= 80
    assert "2026-01-01 00:00  pass     1e-05    5e-06 to 2e-05       2026-0" in text
    assert "2026-3 against the last green run, 2026-0" in text
    assert "Look first at versions: rollout engine version 0.32.0 -> 0.33.0." in text
    assert "mean_kl: pass 1e-05 -> fail 0.01" in text
    assert text.count("vllm 0.32.0 / transformers 5.1.0") == 1, "engines are said where they change"
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_only_the_newest_rows_are_on_the_terminal():
    text = shown(history(*(row(i) for i in range(25)), why_not_against="there is none"))
    assert "5 earlier runs are not shown" in text
    assert "Not compared with a green run: there is none" in text


def test_the_page_has_no_markup_of_a_run_and_asks_for_nothing(failed):
    page = history_html(failed)
    assert "<img" not in page
    assert "<script" not in page
    assert "{{7*7}}" in page
    assert not re.search(r"(src|href)=\"(?!data:)", page)
    assert "default-src 'none'" in page
    assert "0.01" in page
    assert page.index("Look first at") < page.index("All runs, the newest first")


def test_a_page_of_one_run_and_of_none_with_a_number_is_drawn():
    assert "<svg" in history_html(history(row(0), why_not_against="it is the first"))
    nothing = history_html(history(row(0, Status.UNKNOWN, kl=None, kl_limit=None, time=None)))
    assert "time not known" in nothing


def test_each_status_has_a_shape_of_its_own():
    drawn = history_chart([row(0), row(1, Status.FAIL), row(2, Status.UNKNOWN), row(3, kl=None)])
    assert [drawn.count(kind) for kind in ('"good"', '"bad"', '"open"', '"missing"')] == [1, 1, 1, 1]
    assert "limit 0.0001" in drawn


def test_a_gates_answer_says_what_moved(failed):
    answer = GateAnswer(
        tool_version="0",
        time=START,
        config="c.yaml",
        allowed=False,
        status=Status.FAIL,
        exit_status=1,
        sentence="Fail: mean k3 is large.",
        run="runs/2026-3",
        against=AGAINST,
    )
    text = shown(answer, show_answer)
    assert text.startswith("Fail: mean k3 is large.")
    assert "Look first at versions" in text
    assert "+0.05 to +0.15" in text
