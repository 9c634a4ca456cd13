"""`onepolicy symptoms`."""

import json

from onepolicy.diagnosis.symptoms import symptoms


def test_a_symptom_is_answered_with_its_cause_and_a_command(cli):
    ended = cli("symptoms", "reward rises, eval falls")
    assert ended.status == 0
    assert ended.out.splitlines()[0].strip().split(maxsplit=1) == ["seen", "reward rises, eval falls"]
    assert "onepolicy protocol diff RUN vllm:eval-request.json" in ended.out


def test_words_need_no_quotes(cli):
    assert cli("symptoms", "entropy", "collapses").out == cli("symptoms", "entropy collapses").out


def test_without_words_all_are_shown_and_every_command_stands_in_one_line_of_80_columns(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    ended = cli("symptoms")
    lines = ended.out.splitlines()
    assert ended.status == 0
    assert max(map(len, lines)) <= 80
    assert [row.run for row in symptoms() if not any(line.endswith(row.run) for line in map(str.rstrip, lines))] == []


def test_words_that_no_symptom_has_end_with_3_and_say_so(cli):
    ended = cli("symptoms", "pizza\x1b[2J")
    assert (ended.status, ended.out) == (3, "")
    assert "no symptom has these words: pizza\\x1b[2J" in ended.err


def test_json_is_the_rows(cli):
    rows = json.loads(cli("symptoms", "--json").out)
    assert [row["sees"] for row in rows] == [row.sees for row in symptoms()]
    assert set(rows[0]) == {"sees", "usually", "run", "also"}
    assert json.loads(cli("symptoms", "--json", "pizza").out) == []
