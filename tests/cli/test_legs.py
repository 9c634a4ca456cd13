"""`onepolicy legs`."""

import json

import pytest

from onepolicy.numerics.legs.ladder import Ladder

PLAIN = "fake:m?batch_size=4"
SMALL = ("--budget", 1500)


def one_line(text: str) -> str:
    return " ".join(text.split())


def test_the_ladder_fits_80_columns_and_names_the_leg_that_breaks_first(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    noisy = "fake:m?batch_size=4&batch_noise=1e-3"
    ended = cli("legs", noisy, *SMALL, "--limits", "bitwise", "--run", tmp_path / "run")
    assert ended.status == 1
    assert one_line(ended.out).startswith("Fail: the leg 'order' breaks (another order, so other neighbours)")
    assert max(map(len, ended.out.splitlines())) <= 80
    rows = {line.split()[0]: line.split() for line in ended.out.splitlines() if line}
    assert rows["repeat"][1:4] == ["0", "0", "100%"]
    assert rows["order"][-1] == "fail"
    assert "not possible here (this engine has no option for it): rows, padding, no-positions" in one_line(ended.out)


def test_the_json_is_the_ladder_that_the_run_keeps(cli, tmp_path):
    ended = cli("legs", PLAIN, *SMALL, "--run", tmp_path / "run", "--json")
    assert ended.status == 0
    kept = (tmp_path / "run" / "judgements" / "legs" / "legs.json").read_text()
    assert Ladder.model_validate_json(ended.out) == Ladder.model_validate_json(kept)


def test_the_markdown_is_a_row_for_each_rung(cli, tmp_path):
    ended = cli("legs", PLAIN, *SMALL, "--run", tmp_path / "run", "--markdown")
    rows = [line for line in ended.out.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == ["repeat", "order", "batch"]
    assert all(row.endswith("| 0 | 0 | 100% | pass |") for row in rows)


def test_another_engine_is_a_leg_by_its_name(cli, tmp_path):
    run = ("--run", tmp_path / "run")
    ended = cli("legs", PLAIN, *SMALL, *run, "--against", "trainer=fake:m?temperature=1.2", "--json")
    assert ended.status == 1
    assert [rung["name"] for rung in json.loads(ended.out)["rungs"]][-1] == "trainer"
    ended = cli("legs", PLAIN, *run, "--against", "fake:m?seed=0", "--against", "fake:m?offset=-1e-5", "--json")
    named = {rung["name"]: rung["status"] for rung in json.loads(ended.out)["rungs"]}
    assert (named["against"], named["against-2"]) == ("pass", "fail")


def test_a_leg_asked_for_that_is_not_possible_ends_with_3(cli, tmp_path):
    ended = cli("legs", PLAIN, *SMALL, "--run", tmp_path / "run", "--leg", "warm")
    assert ended.status == 3
    assert one_line(ended.out).startswith("Unknown: the leg 'warm' was asked for and is not possible here")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("fak:m",), "there is no engine 'fak'"),
        ((PLAIN, "--resume"), "--resume needs --run DIR"),
        ((PLAIN, "--leg", "nope"), "there is no leg 'nope'"),
        ((PLAIN, "--against", "x=fake:m", "--against", "x=fake:n"), "names the leg 'x' twice"),
        ((PLAIN, "--suite", "nope", "--run", "run"), "there is no suite 'nope'"),
        ((PLAIN, "--max-new-tokens", 0), "not in the range"),
        ((), "Missing argument 'SPEC'"),
    ],
)
def test_what_cannot_be_climbed_ends_with_2(cli, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    ended = cli("legs", *options)
    assert (ended.status, ended.out) == (2, "")
    assert "Traceback" not in ended.err
    assert message in ended.err


def test_the_judgement_of_a_ladder_can_be_shown_again(cli, tmp_path):
    run = tmp_path / "run"
    assert cli("legs", PLAIN, *SMALL, "--run", run).status == 0
    ended = cli("report", run, "--name", "legs")
    assert ended.status == 0
    assert "leg.order" in ended.out


def test_the_help_fits_80_columns(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    ended = cli("legs", "--help")
    assert ended.status == 0
    assert max(map(len, ended.out.splitlines())) <= 80
