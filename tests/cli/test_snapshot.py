"""`onepolicy snapshot`."""

import json

import pytest

SMALL = ("--budget", 3000)


@pytest.fixture
def shot(cli, tmp_path):
    def make(name: str, engine: str = "fake:m"):
        ended = cli("snapshot", "take", "--engine", engine, *SMALL, "--output", tmp_path / name)
        assert (ended.status, ended.out) == (0, "")
        assert ended.err.endswith("sequences\n")
        return tmp_path / name

    return make


def test_the_same_checkpoint_ends_with_0_and_another_one_with_1(cli, shot):
    first, again, other = shot("first"), shot("again"), shot("other", "fake:m?seed=1")
    assert cli("snapshot", "compare", first, again).status == 0
    ended = cli("snapshot", "compare", first, other)
    assert ended.status == 1
    assert ended.out.startswith("Fail: look first at configuration")
    assert "report in its judgements" not in ended.out
    assert not (first / "judgements").exists()


def test_the_json_is_the_judgement_with_what_made_both_first(cli, shot):
    ended = cli("snapshot", "compare", shot("first"), shot("noisy", "fake:m?noise=0.01"), "--json", "--mean-kl", 0.01)
    verdicts = json.loads(ended.out)["verdicts"]
    assert ended.status == 0
    assert [v["check"] for v in verdicts[:4]] == ["versions", "configuration", "tokenizer", "weights"]
    assert verdicts[-1]["check"] == "kept_lists"


def test_a_live_engine_is_compared_and_kept_where_it_is_told(cli, shot, tmp_path):
    first = shot("first")
    keep = ("--keep", tmp_path / "serving")
    assert cli("snapshot", "compare", first, "--engine", "fake:m?noise=0.5", *keep).status == 1
    assert cli("snapshot", "compare", first, tmp_path / "serving").status == 1
    assert "Keep it in another folder" in cli("snapshot", "compare", first, "--engine", "fake:m", *keep).err
    assert cli("judge", first).status == 2, "a snapshot has one reading; a second one makes it a run to judge"
    assert cli("score", first, "--engine", "fake:m").status == 0
    assert cli("judge", first).status == 0


def test_what_cannot_be_done_ends_with_2(cli, shot, tmp_path):
    first = shot("first")
    for arguments, message in (
        (("compare", first), "name what to compare with"),
        (("compare", first, first, "--engine", "fake:m"), "Give one, not both"),
        (("compare", first, first, "--keep", tmp_path / "x"), "Leave it out"),
        (("compare", first, first), "compared with itself"),
        (("compare", first, tmp_path / "nothing"), "manifest.json"),
        (("take", "--engine", "fake:m", *SMALL, "--output", first), "a run is already there"),
        (("take", "--engine", "fak:m", "--output", tmp_path / "x"), "there is no engine 'fak'"),
        (("take", "--output", tmp_path / "x"), "Missing option '--engine'"),
        (("take", "--engine", "fake:m", "--like", first, *SMALL, "--output", tmp_path / "x"), "--budget chooses"),
        (
            ("take", "--engine", "fake:m", "--like", first, "--suite", "fixed-quick", "--output", tmp_path / "x"),
            "--suite chooses",
        ),
    ):
        ended = cli("snapshot", *arguments)
        assert (ended.status, ended.out) == (2, "")
        assert message in ended.err
    assert cli("snapshot", "take", "--engine", "fake:m", *SMALL, "--output", first, "--resume").status == 0


@pytest.mark.parametrize("command", [("snapshot",), ("snapshot", "take"), ("snapshot", "compare"), ("audit",)])
def test_the_help_fits_80_columns(cli, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    ended = cli(*command, "--help")
    assert ended.status == 0
    assert max(map(len, ended.out.splitlines())) <= 80


def test_one_that_lost_sequences_is_told_how_to_go_on_and_goes_on(cli, shot):
    first, whole = shot("first"), shot("whole")
    for part in (first / "rollouts").glob("*.parquet"):
        part.unlink()
    for arguments in (("snapshot", "compare", first, whole), ("score", first, "--engine", "fake:m")):
        ended = cli(*arguments)
        said = " ".join(ended.err.split())
        assert ended.status == 2
        assert f"Finish with: onepolicy snapshot take ... --output {first} --resume." in said
        assert "onepolicy record" not in said
    assert cli("snapshot", "take", "--engine", "fake:m", *SMALL, "--output", first, "--resume").status == 0
    assert cli("snapshot", "compare", first, whole).status == 0
