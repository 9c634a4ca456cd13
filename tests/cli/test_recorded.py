"""`onepolicy import` and `compare`, as they are typed."""

import gzip
import json
import pickle

import pytest
from plain_recording import planted, without, write


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_compare_says_what_was_read_and_decides(cli, tmp_path):
    write(tmp_path / "a.jsonl", planted(40))
    done = cli("compare", "a.jsonl", "--outlier-rate", "0.5")
    assert done.status == 0, done.err
    assert done.out.startswith("Pass: KL")
    assert "columns, 1 file: 40 rows read, 40 used, 0 refused" in done.err
    assert max(map(len, done.out.splitlines())) <= 80


def test_compare_fails_with_status_1_and_gives_json(cli, tmp_path):
    write(tmp_path / "a.jsonl", planted(40, spread=0.1))
    done = cli("compare", "a.jsonl", "--json")
    assert done.status == 1
    assert json.loads(done.out)["counts"]["rows_read"] == 40


def test_compare_puts_two_files_together_and_leaves_nothing(cli, tmp_path):
    rows = list(planted(40))
    write(tmp_path / "a.jsonl", without(rows, "trainer_logprobs"))
    write(tmp_path / "b.jsonl", without(rows, "rollout_logprobs"))
    done = cli("compare", "a.jsonl", "b.jsonl", "--outlier-rate", "0.5")
    assert done.status == 0, done.out + done.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "b.jsonl"]


def test_a_packed_file_a_folder_and_a_glob_are_read(cli, tmp_path):
    (tmp_path / "d").mkdir()
    for step in range(2):
        text = "".join(json.dumps({**row, "step": step}) + "\n" for row in planted(20, seed=step))
        (tmp_path / "d" / f"step{step}.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    for path in ("d", "d/*.gz"):
        done = cli("compare", path, "--outlier-rate", "0.5")
        assert done.status == 0, done.out + done.err
        assert "2 files: 40 rows read" in done.err


def test_an_imported_run_is_judged_and_reported(cli, tmp_path):
    write(tmp_path / "a.jsonl", planted(40))
    done = cli("import", "a.jsonl", "--run", "run", "--tokenizer", "smollm2")
    assert done.status == 0, done.err
    assert "run: 40 rollouts. Judge them: onepolicy judge run" in done.err
    done = cli("judge", "run", "--outlier-rate", "0.5")
    assert done.out.startswith("Pass"), done.out + done.err
    html = (tmp_path / "run" / "judgements" / "default" / "report.html").read_text()
    assert "onepolicy check" not in html


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.jsonl", b"", "is empty"),
        ("a.jsonl", b"{", "JSON"),
        ("a.jsonl", b"hello\n", "format"),
        ("a.pkl", pickle.dumps(print), "print"),
        ("a.parquet", b"PAR1nothingPAR1", "Parquet"),
    ],
)
def test_what_cannot_be_read_ends_with_2_and_a_message(cli, tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    for command in (["compare", name], ["import", name, "--run", "run"]):
        done = cli(*command)
        assert done.status == 2
        assert "Traceback" not in done.err
        assert name in done.err
        assert says in done.err
    assert not (tmp_path / "run").exists()


def test_a_run_in_place_of_files_is_told_how_to_be_judged(cli, tmp_path):
    write(tmp_path / "a.jsonl", planted(8))
    assert cli("import", "a.jsonl", "--run", "run").status == 0
    done = cli("compare", "run")
    assert done.status == 2
    assert "onepolicy judge run" in done.err


@pytest.mark.parametrize("columns", ["x", "x=", "=y", "nothing=y"])
def test_columns_that_are_not_ours_are_refused(cli, tmp_path, columns):
    write(tmp_path / "a.jsonl", planted(8))
    done = cli("compare", "a.jsonl", "--columns", columns)
    assert (done.status, "Traceback" in done.err) == (2, False)


def test_a_temperature_out_of_range_is_refused(cli, tmp_path):
    write(tmp_path / "a.jsonl", planted(8))
    done = cli("compare", "a.jsonl", "--temperature", "-1")
    assert (done.status, "Traceback" in done.err) == (2, False)
    assert "temperature" in done.err
