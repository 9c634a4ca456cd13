"""The timeline on a terminal and as a page."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from onepolicy.judgement.limits import Limits
from onepolicy.records.step import Alarm, LagCell, StepEvent
from onepolicy.report.step_chart import MOST_POINTS, letter
from onepolicy.report.step_table import stretches
from onepolicy.report.timeline import show_timeline, timeline_html
from onepolicy.workflow.timeline import of_records
from steps import Scene, simulated

LIMITS = Limits(mean_kl=4e-3)
HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[31m\u202e{{7*7}}"
PLANTED = Scene(steps=200, stale_from=120, stale_to=140, jump_at=160)


@pytest.fixture(scope="module")
def planted():
    return of_records("runs/one", list(simulated(PLANTED, 1)), limits=LIMITS)


def shown(timeline):
    out = io.StringIO()
    show_timeline(timeline, Console(file=out, width=80, force_terminal=False))
    return out.getvalue()


def test_the_terminal_shows_the_answer_the_line_and_both_names_in_80_columns(planted):
    text = shown(planted)
    assert max(map(len, text.splitlines())) <= 80
    assert text.startswith("Fail: step 12")
    assert "a weights not sent: steps 12" in text
    assert "b another level: from step 160 on:" in text
    line = next(line for line in text.splitlines() if "█" in line)
    marks = text.splitlines()[text.splitlines().index(line) + 1]
    assert (marks.index("a"), marks.index("b")) == pytest.approx((122 / 4, 160 / 4), abs=1)


def test_an_alarm_that_a_check_shows_is_not_shown_twice(planted):
    text = " ".join(shown(planted).split())
    stale = next(alarm for alarm in planted.alarms if alarm.kind == "stale")
    assert text.count(stale.message[:60]) == 2  # the answer and the check


def test_a_quiet_run_has_no_letters_and_passes():
    text = shown(of_records("x", list(simulated(Scene(steps=70), 1)), limits=LIMITS))
    assert text.startswith("Pass: ")
    assert "other alarms" not in text


def test_no_step_at_all_is_shown():
    nothing = of_records("x", [], limits=LIMITS)
    assert shown(nothing).startswith("Unknown: there is no step")
    assert "No step in x." in timeline_html(nothing)


def test_stale_tokens_are_a_series_of_their_own():
    records = [
        r.model_copy(
            update={
                "by_lag": (
                    *(c.model_copy(update={"lag": 0}) for c in r.by_lag),
                    LagCell(lag=1, tokens=500, mean_d=0, mean_abs_d=0, mean_k3=2e-3),
                    LagCell(lag=5, tokens=100, mean_d=0, mean_abs_d=0, mean_k3=9e-3),
                )
            }
        )
        for r in simulated(Scene(steps=40), 1)
    ]
    timeline = of_records("x", records, limits=LIMITS)
    [only] = stretches(records, 1)
    assert only.stale == 40 * 600
    assert only.stale_k3[0] == pytest.approx(2e-3)
    assert only.stale_k3[2] == pytest.approx(9e-3)
    assert only.newest_lag == 0
    page = timeline_html(timeline)
    assert 'class="lag0"' in page
    assert 'class="lag2"' in page
    assert page.count('class="lag1"') == 0
    assert "stale by 1 step<" in page
    assert "0.009" in shown(timeline)


def test_the_page_has_the_chart_the_names_and_every_number_of_the_checks(planted):
    page = timeline_html(planted)
    assert "a weights not sent, step 12" in page
    assert "b another level, step 160" in page
    assert "limit 0.004" in page
    for verdict in planted.verdicts:
        assert f"<code>{verdict.check}</code>" in page
    assert page.count('class="during"') == 1


def test_the_page_asks_for_nothing_and_runs_nothing(planted):
    page = timeline_html(planted)
    assert "<script" not in page
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert "default-src 'none'" in page


def test_what_others_wrote_is_text_and_never_markup(planted):
    event = StepEvent(kind="level", first=5, message=HOSTILE)
    hostile = planted.model_copy(
        update={
            "path": HOSTILE,
            "notes": (HOSTILE,),
            "events": (event,),
            "alarms": (Alarm(step=5, kind="monitor", message=HOSTILE, evidence=HOSTILE),),
            "sentence": f"Fail: {HOSTILE}",
        }
    )
    page, text = timeline_html(hostile), shown(hostile)
    assert "<img" not in page
    for raw in ("\x1b", "\u202e"):
        assert raw not in page
        assert raw not in text


def test_a_long_run_is_drawn_in_a_few_points_and_a_gap_is_a_gap():
    records = list(simulated(Scene(steps=1000, prompts=2, advantages=False), 0))
    page = timeline_html(of_records("x", records, limits=LIMITS))
    own = re.search(r'<path class="own" d="(M[^"]{50,})"', page)[1]
    assert own.count("M") == 1
    assert own.count("L") + 1 <= MOST_POINTS
    without = [
        r if not 400 <= r.step < 600 else r.model_copy(update={"by_lag": (), "by_confidence": ()}) for r in records
    ]
    page = timeline_html(of_records("x", without, limits=LIMITS))
    for style in ("own", "band"):
        assert re.search(rf'<path class="{style}" d="(M[^"]{{50,}})"', page)[1].count("M") == 2


def test_letters_go_on_after_z():
    assert [letter(i) for i in (0, 25, 26, 27, 52)] == ["a", "z", "aa", "ab", "ba"]


def test_stretches_hold_every_step_and_token():
    records = list(simulated(replace(PLANTED, steps=33), 0))
    found = stretches(records, 10)
    assert len(found) <= 10
    assert (found[0].first, found[-1].last) == (1, 33)
    assert sum(s.tokens for s in found) == sum(r.valid for r in records)
