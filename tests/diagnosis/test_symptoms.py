"""The table of symptoms, and how it is searched."""

import random
import runpy
import shlex
from itertools import pairwise
from pathlib import Path

import click
import pytest

from onepolicy.cli.app import app
from onepolicy.diagnosis.symptoms import Symptom, search, symptoms, words
from onepolicy.workflow.legs_table import LEGS

ROWS = symptoms()
SEEN = [row.sees for row in ROWS]
DOCS = Path(__file__).parents[2] / "docs"

ASKED = {
    "reward rises, eval falls": "reward rises, eval falls",
    "rewrd goes up but evaluation drops": "reward rises, eval falls",
    "KL spikes at step 200": "KL spikes at a single step",
    "clip fraction high at step 0": "clip fraction is high at step 0",
    "ratio != 1 with one update": "ratio != 1 with one update per batch",
    "entropy collapse": "entropy collapses",
    "completion longer than max_new_tokens": "completions are longer than the cap",
    "the model never stops": "EOS is never trained, the model does not learn to stop",
    "lengths drifting": "length drifts up over the training",
    "garbage output after updating weights": "gibberish after a weight sync",
    "prefix cache": "the first request is right and later ones are wrong",
    "MoE only": "wrong only for mixture-of-experts models (MoE only)",
    "long prompts only": "wrong only for long prompts",
    "after upgrade": "wrong after an upgrade",
    "only batch > 1": "wrong only with a batch size above 1",
    "only left pading": "wrong only with left padding",
    "DP ranks give same samples": "data-parallel ranks give the same samples",
    "multi-turn tool calls": "wrong only in later turns of a conversation",
    "-9999": "logprobs are 0.0, -9999 or one constant",
    "off by one": "logprobs match those of the token before or after",
    "lora": "wrong only with an adapter",
    "retokenisation drift": "same text, other token ids",
}


@pytest.mark.parametrize(("text", "row"), ASKED.items())
def test_a_symptom_in_a_persons_own_words_is_found_among_the_first_two(text, row):
    assert row in [found.sees for found in search(text)[:2]]


def test_a_row_is_found_first_by_what_it_says():
    assert [row.sees for row in ROWS if search(row.sees)[0] is not row] == []


def test_one_letter_typed_wrongly_in_each_longer_word_finds_the_same_row():
    typist = random.Random(3)
    lost = [row.sees for row in ROWS if row not in search(mistyped(row.sees, typist))[:3]]
    assert len(lost) <= 2, lost


def mistyped(text, typist):
    """Each word of 7 letters or more without one of its inner letters."""
    return " ".join(without(word, typist.randrange(2, 5)) if len(word) >= 7 else word for word in text.split())


def without(word, place):
    return word[:place] + word[place + 1 :]


def test_the_order_of_the_words_does_not_matter():
    assert search("falls eval rises reward") == search("reward rises, eval falls")


def test_no_word_gives_the_whole_table_and_a_foreign_word_nothing():
    assert search("") == search("the of and") == list(ROWS)
    assert search("pizza") == []


def test_a_rare_word_weighs_more_than_a_common_one():
    rows = [Symptom(sees=sees, usually="", run="") for sees in ("loss apple", "loss pear", "loss plum", "cherry other")]
    assert search("loss cherry", rows)[0].sees == "cherry other"


def test_a_word_of_the_cause_counts_less_than_one_of_the_symptom():
    rows = [Symptom(sees="other", usually="cherry", run=""), Symptom(sees="cherry", usually="other", run="")]
    assert [row.sees for row in search("cherry", rows)] == ["cherry"]


def test_endings_do_not_make_another_word():
    assert len(set(words("collapse collapses collapsed collapsing"))) == 1
    assert len(set(words("pad padding padded pads"))) == 1
    assert words("top_k top-k") == ["top", "k", "top", "k"]


def test_the_table_is_of_a_size_that_can_be_read_and_has_no_row_twice():
    assert 30 <= len(ROWS) <= 45
    assert len(set(SEEN)) == len(SEEN)


@pytest.mark.parametrize("row", ROWS, ids=SEEN)
def test_each_row_ends_in_a_command_that_the_command_line_takes(row):
    name, *arguments = shlex.split(row.run)
    assert name == "onepolicy"
    assert len(row.run) <= 70, "it would not stand in one line at 80 columns"
    parsed(app, "onepolicy", arguments)


def parsed(command, name, arguments, parent=None):
    """The parsed parameters of the command at the end; a click.UsageError for an option that is not there."""
    if isinstance(command, click.Group):
        # A command keeps the help option that it is first asked for.
        context = click.Context(command, info_name=name, parent=parent, **command.context_settings)
        inner = command.get_command(context, arguments[0])
        assert inner is not None, f"there is no command {name} {arguments[0]}"
        return parsed(inner, arguments[0], arguments[1:], context)
    return command.make_context(name, list(arguments), parent=parent).params


def test_a_command_that_is_not_there_is_seen():
    with pytest.raises(AssertionError, match="no command"):
        parsed(app, "onepolicy", ["jugde", "RUN"])
    with pytest.raises(click.UsageError, match="No such option"):
        parsed(app, "onepolicy", ["judge", "RUN", "--limit", "bf16"])


def test_the_legs_that_rows_name_are_legs():
    named = [leg for row in ROWS if row.run.startswith("onepolicy legs") for leg in legs_in(row.run)]
    assert named
    assert set(named) <= {leg.name for leg in LEGS}


def legs_in(run):
    arguments = shlex.split(run)
    return [after for before, after in pairwise(arguments) if before == "--leg"]


def test_the_page_is_up_to_date():
    page = runpy.run_path(str(DOCS / "generate.py"))["PAGES"]["symptoms.md"]
    assert (DOCS / "symptoms.md").read_text(encoding="utf-8") == page(), "run: make docs"
