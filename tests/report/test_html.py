"""The page as text: what it says, and that nothing of a model becomes markup."""

import re
from html.parser import HTMLParser

import pytest

from onepolicy.records.tables import Points, ReportData
from onepolicy.records.token_breaks import ShownBreak, ShownPiece
from onepolicy.records.verdict import Status
from onepolicy.report.html import charts, html, next_steps, side_by_side, style_of, tokens_of, why_it_matters

HOSTILE = "</script><img src=x onerror=\"document.title='pwned'\"><b>&amp;{{7*7}}"
VOID = {"meta", "link", "input", "br", "img"}


class Page(HTMLParser):
    """Elements, attributes and text; fails on a tag that closes nothing."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.words = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self):
        return " ".join("".join(self.words).split())


def test_the_verdict_its_sentence_and_the_reason_come_first(failed, tables):
    text = Page(html(failed, tables())).text
    places = [text.index(word) for word in ("✗ Fail", "KL of", "Why it matters", "What to do next", "Checks")]
    assert places == sorted(places)
    assert "Exit status 1" in text


def test_text_of_models_and_files_stays_text(failed, tables, rollout_shown):
    rollout = rollout_shown(HOSTILE, "\x1b[2J\u202e", "a\nb").model_copy(
        update={"before": HOSTILE, "rollout_id": HOSTILE}
    )
    text = html(failed, tables(rollout, commands=(HOSTILE,)))
    page = Page(text)
    assert not {"script", "img", "b", "iframe", "object"} & set(page.tags)
    assert not [a for a in page.attributes if a[1].startswith("on")]
    assert HOSTILE in page.text
    assert not re.search("[\x00\x1b\u202e\ud800]", text)


def test_the_page_asks_for_nothing_from_outside(failed, tables):
    page = Page(html(failed, tables()))
    for tag, name, value in page.attributes:
        assert name not in ("src", "srcset", "action", "data", "poster", "style"), tag
        if name in ("href", "xlink:href"):
            assert value == "data:,"
    policy = next(value for tag, name, value in page.attributes if tag == "meta" and value.startswith("default-src"))
    assert policy.startswith("default-src 'none'")
    assert "url(" not in html(failed, tables())
    assert "@import" not in html(failed, tables())


def test_without_text_only_ids_are_shown(failed, tables, rollout_shown):
    page = Page(html(failed, tables(rollout_shown(d=(0.1, 0.2), text=False))))
    assert "100 101" in page.text
    assert "tokens are shown as ids" in page.text


@pytest.mark.parametrize("which", ["failed", "passed", "unknown"])
def test_every_outcome_names_a_next_step_and_its_checks(which, request, tables):
    judgement = request.getfixturevalue(which)
    page = Page(html(judgement, tables()))
    for step in next_steps(judgement):
        assert step in page.text
    for verdict in judgement.verdicts:
        assert verdict.check in page.text


def test_the_steps_name_what_failed_before_what_is_unknown(failed):
    failing, unknown, _ = next_steps(failed)
    assert "mean_kl" in failing
    assert "round_trip" not in failing
    assert "coverage" in unknown


def test_the_reason_has_the_numbers_of_the_run(failed, passed, unknown, tables):
    ratio, clip = why_it_matters(failed, tables())
    assert "1 % or less" in ratio
    assert "65 %" in ratio
    assert "2 of 8 tokens (25 %)" in clip
    assert "would touch none" in why_it_matters(passed, tables(outside_clip=0))[1]
    assert len(why_it_matters(unknown, tables())) == 1


def test_numbers_about_two_different_things_are_no_reason(failed, tables):
    same_text = failed.verdicts[0].model_copy(update={"check": "same_text", "status": Status.FAIL})
    (said,) = why_it_matters(failed.model_copy(update={"verdicts": (same_text,)}), tables())
    assert "(same_text)" in said
    assert "means nothing" in said


def test_colour_says_the_sign_and_the_size():
    found = [style_of(d) for d in (0.0, 0.009, -0.01, 0.05, -0.3, 2.0)]
    assert found == ["", "", "l1", "h2", "l3", "h4"]


def test_a_token_carries_its_values_and_the_worst_can_be_reached(rollout_shown):
    tokens = tokens_of(rollout_shown("a", "b", "c", "d", "e", d=(0.0, -0.5, 0.1, 0.2, 0.01)))
    assert [t.text for t in tokens if t.reachable] == ["b", "c", "d"]
    assert tokens[1].label == "position 4, id 101\nrollout -2 (13.5 %)\ntrainer -2.5 (8.21 %)\nd -0.5"


def test_both_sides_stand_side_by_side(tables):
    data = tables()
    rows = {name: (left, right) for name, left, right in side_by_side(data.rollout, data.trainer)}
    assert rows["dtype"] == ("float32", "bfloat16")
    assert rows["python"] == ("3.11", "3.11")


def test_a_run_without_a_single_number_has_a_report_too(unknown, tables):
    empty = {"histogram": (), "points": Points(rollout=(), trainer=()), "worst": (), "buckets": ()}
    data = tables().model_copy(update=empty)
    assert "? Unknown" in Page(html(unknown, data)).text


def test_every_id_that_a_label_points_to_exists_once(failed, tables):
    attributes = Page(html(failed, tables())).attributes
    ids = [value for _, name, value in attributes if name == "id"]
    wanted = [i for _, name, value in attributes if name == "aria-labelledby" for i in value.split()]
    assert len(ids) == len(set(ids))
    assert set(wanted) <= set(ids)


def test_tables_come_back_from_their_json(tables, rollout_shown):
    data = tables(rollout_shown("a", d=(float("inf"),)))
    assert ReportData.model_validate_json(data.model_dump_json()) == data


def test_two_equal_sides_are_said_to_be_equal_and_not_drawn_as_if_they_differed(passed, tables):
    data = tables().model_copy(update={"histogram": (), "worst": (), "equal": 8})
    assert [chart.title for chart in charts(data)] == ["Rollout against trainer logprob"]
    assert "Nowhere: each of the 8 tokens" in Page(html(passed, data)).text


def broken(*texts, way="ids", rollout="r-1", **changes):
    pieces = tuple(
        ShownPiece(id=i if way == "ids" else None, text=t, bytes=t.encode().hex(" ")) for i, t in enumerate(texts)
    )
    usual = {
        "rollout": rollout,
        "way": way,
        "counts": "tokens" if way == "ids" else "characters",
        "position": 17,
        "cause": "another valid segmentation",
        "seen": "'the' is 2 tokens sampled and 1 encoded",
        "advice": "Train on the sampled ids.",
        "first": pieces,
        "second": pieces[:1],
        "shifted": 0.25,
    }
    return ShownBreak(**(usual | changes))


def test_tokens_that_do_not_come_back_are_shown_with_both_spellings_and_their_bytes(failed, tables):
    text = Page(html(failed, tables(token_breaks=(broken("th", "e"),)))).text
    assert "Tokens that do not come back" in text
    assert "r-1 at token 17 ids -> text -> ids" in text
    assert "another valid segmentation: 'the' is 2 tokens sampled and 1 encoded" in text
    assert "sampled th | e 74 68 | 65" in text
    assert "encoded th 74 68" in text


def test_a_text_that_does_not_come_back_counts_characters_and_nothing_is_said_to_be_nothing(failed, tables):
    one = broken("é", way="text", second=(), seen="")
    text = Page(html(failed, tables(token_breaks=(one,)))).text
    assert "r-1 at character 17 text -> ids -> text" in text
    assert "before é c3 a9 after (nothing)" in text


def test_without_a_break_there_is_no_such_section(failed, tables):
    assert "do not come back" not in Page(html(failed, tables())).text


def test_text_in_a_break_stays_text(failed, tables):
    one = broken(HOSTILE, "\x1b[2J\u202e", rollout=HOSTILE, cause=HOSTILE, seen=HOSTILE, advice=HOSTILE)
    text = html(failed, tables(token_breaks=(one,)))
    page = Page(text)
    assert not {"script", "img", "b"} & set(page.tags)
    assert page.text.count(HOSTILE) >= 5
    assert not re.search("[\x00\x1b\u202e\ud800]", text)
