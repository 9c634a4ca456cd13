"""A diagnosis on a terminal and on the page."""

import io
import re
from html.parser import HTMLParser
from xml.etree import ElementTree as Xml

import pytest
from rich.console import Console

from onepolicy.records.finding import Diagnosis, Finding, Outcome
from onepolicy.report.console import show
from onepolicy.report.diagnosis import cause_rows, show_diagnosis, why_section
from onepolicy.report.diagnosis_chart import corrected_bars, corrected_chart
from onepolicy.report.html import html
from onepolicy.report.junit import junit

NASTY = "</script><img src=x onerror=\"document.title='pwned'\"><b>{{7*7}}[red]\x00\x1b[31m\u202egnp"
LONG = "transformers:/data/models/a-model-with-a-long-name?dtype=bfloat16&batch_size=8"

TEMPERATURE = Finding(
    cause="temperature",
    outcome=Outcome.CAUSE,
    label="temperature 0.80 on the rollout side",
    value=0.8012,
    value_error=0.0034,
    stability=0.001,
    tokens=900,
    gain=1.2345,
    gain_error=0.0456,
    explained=0.987,
    residual=1.13,
    mean_abs_d=0.034,
    experiment="16 rollouts read again with each of 9 values",
    remedy="score with the temperature 0.80 that the rollout side samples with",
)
PENALTY = TEMPERATURE.model_copy(
    update={"cause": "repetition penalty", "label": "repetition penalty 1.10", "value": 1.1, "residual": 1.4}
)
TOP_P = Finding(cause="top-p", outcome=Outcome.RULED_OUT, label="top-p 0.95", gain=-0.012, gain_error=0.001)
STALE = Finding(
    cause="stale weights",
    outcome=Outcome.UNTESTED,
    seen="weights of earlier steps are needed",
    command=f"onepolicy score RUN --engine '{LONG}' --name stale-weights",
)
PLACEHOLDER = Finding(
    cause="placeholder",
    outcome=Outcome.CAUSE,
    label="0.0 in place of a logprob",
    seen="41 of 900 tokens are exactly 0.0, r-1 [7] first",
    remedy="leave them out",
    experiment="none is needed: the data prove it",
)


def diagnosis(*findings, sentence="Cause: temperature 0.80 on the rollout side. Fix: it.", **changes):
    usual = {
        "run": "runs/one",
        "rollout_reading": "rollout",
        "trainer_reading": "trainer",
        "sentence": sentence,
        "tokens": 12_345,
        "prompts": 48,
        "mean_abs_d": 0.21,
        "noise": 0.03,
        "noise_source": "what bfloat16 does to a small model",
        "excess": 0.18,
        "excess_error": 0.004,
        "differs": True,
        "findings": findings,
    }
    return Diagnosis(**(usual | changes))


def shown(found, width=80):
    out = io.StringIO()
    show_diagnosis(found, Console(file=out, width=width, force_terminal=False))
    return out.getvalue()


def words(text):
    return " ".join(text.split())


def test_the_answer_stands_first_then_numbers_then_what_is_ruled_out_then_what_was_not_tested():
    text = shown(diagnosis(TEMPERATURE, TOP_P, STALE))
    assert text.startswith("Cause: temperature 0.80 on the rollout side.")
    places = [text.index(word) for word in ("parameter", "ruled out", "top-p (gain -0.012)", "not tested", "12,345")]
    assert places == sorted(places)


def test_a_row_has_the_gain_and_the_parameter_with_their_errors():
    assert cause_rows(diagnosis(TEMPERATURE)) == [
        ("temperature", "cause", "1.23 +- 0.05", "98.7%", "1.1x", "0.801 +- 0.003")
    ]
    line = next(line for line in shown(diagnosis(TEMPERATURE)).splitlines() if "98.7%" in line)
    assert line.split() == ["temperature", "cause", "1.23", "+-", "0.05", "98.7%", "1.1x", "0.801", "+-", "0.003"]


def test_a_cause_that_the_data_prove_has_no_numbers_and_says_what_was_seen():
    found = diagnosis(PLACEHOLDER)
    assert cause_rows(found) == [("placeholder", "cause", "-", "-", "-", "-")]
    assert "seen 41 of 900 tokens are exactly 0.0, r-1 [7] first" in words(shown(found))
    assert corrected_chart(found) is None


def test_what_was_not_tested_says_why_and_what_to_run_with_nothing_cut_off():
    text = shown(diagnosis(STALE, sentence="No cause found: mean |d| exceeds the noise."))
    assert "weights of earlier steps are needed" in text
    assert STALE.command.replace(" ", "") in text.partition("next")[2].replace(" ", "").replace("\n", "")


def test_what_the_sentence_says_is_not_said_again():
    found = diagnosis(TEMPERATURE, sentence=f"Cause: temperature. Fix: {TEMPERATURE.remedy}.")
    assert words(shown(found)).count("score with the temperature") == 1
    assert "fix" not in shown(found).split()


def test_each_of_several_causes_that_cannot_be_told_apart_has_its_own_fix():
    first, second = (one.model_copy(update={"outcome": Outcome.ONE_OF}) for one in (TEMPERATURE, PENALTY))
    text = shown(diagnosis(first, second, sentence="temperature or penalty: these cannot be told apart here."))
    assert text.count("one of") == 2
    assert text.split().count("fix") == 2


def test_tokens_that_a_correction_makes_impossible_are_told():
    found = diagnosis(TEMPERATURE.model_copy(update={"impossible": 0.0125}))
    assert "1.25% of the tokens could not have been sampled so" in words(shown(found))


@pytest.mark.parametrize("width", [80, 120])
def test_nothing_is_wider_than_the_terminal(width):
    long = TEMPERATURE.model_copy(update={"cause": "a cause with a name of many words", "gain_error": 1.5e-5})
    text = shown(diagnosis(long, TOP_P, STALE, notes=(f"{LONG}: cannot be opened " * 3,)), width)
    assert max(map(len, text.splitlines())) <= width
    assert "1.23 +- 2e-05" in text


def test_text_of_engines_is_shown_and_moves_no_cursor():
    hostile = TEMPERATURE.model_copy(update={"label": NASTY, "experiment": NASTY, "remedy": NASTY})
    found = diagnosis(hostile, STALE.model_copy(update={"seen": NASTY}), sentence=NASTY, notes=(NASTY,))
    text = shown(found)
    assert not re.search("[\x00\x1b\u202e]", text)
    assert "[red]" in text


def test_the_page_has_the_same_and_no_markup_of_others():
    hostile = TEMPERATURE.model_copy(update={"cause": NASTY, "label": NASTY, "remedy": NASTY})
    page = why_section(diagnosis(hostile, TOP_P, STALE, sentence=NASTY, notes=(NASTY,)))
    assert not re.search("[\x00\x1b\u202e]|<img|<script|<b>|49", page)
    for text in ("98.7%", "0.801 +- 0.003", "top-p (gain -0.012)", "weights of earlier steps are needed"):
        assert text in page


def test_the_bars_are_mean_d_over_the_noise_before_and_after():
    found = diagnosis(TEMPERATURE)
    assert corrected_bars(found) == [("as recorded", pytest.approx(7.0)), ("temperature", 1.13)]
    before, after = Xml.fromstring(corrected_chart(found)).findall("rect")
    assert float(after.get("width")) / float(before.get("width")) == pytest.approx(1.13 / 7.0, abs=0.01)


def test_a_correction_that_leaves_nothing_has_a_bar_too():
    drawn = Xml.fromstring(corrected_chart(diagnosis(TEMPERATURE.model_copy(update={"residual": 0.0}))))
    assert [float(bar.get("width")) > 0 for bar in drawn.findall("rect")] == [True, True]


def test_without_a_correction_there_is_nothing_to_draw():
    assert corrected_chart(diagnosis(TOP_P, STALE)) is None
    assert corrected_chart(diagnosis(TEMPERATURE, noise=0.0)) is None


class Headings(HTMLParser):
    """The headings of a page, in order; fails on a tag that closes nothing."""

    def __init__(self, text):
        super().__init__()
        self.open, self.found = [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        if tag not in {"meta", "link", "input", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "h2":
            self.found.append(data)


def test_the_report_says_why_directly_below_the_verdict(failed, tables):
    page = html(failed, tables(), diagnosis(TEMPERATURE, TOP_P, STALE))
    assert Headings(page).found[:2] == ["Why", "Why it matters"]
    assert page.index('aria-label="Verdict"') < page.index('aria-label="Why"')


def test_a_report_without_a_diagnosis_has_no_such_section(failed, tables):
    assert Headings(html(failed, tables())).found[0] == "Why it matters"


def test_the_console_and_junit_of_a_judgement_know_nothing_of_it(failed):
    out = io.StringIO()
    show(failed, Console(file=out, width=80))
    assert "ruled out" not in out.getvalue() + junit(failed)
