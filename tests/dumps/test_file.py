"""What a file is, its objects with their places, and which files a path leads to."""

import json
import math
import pickle

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from onepolicy.dumps import lines, row_groups
from onepolicy.dumps.file import DumpFile, expand, natural
from onepolicy.dumps.parquet_footer import ClaimedColumn, ClaimedGroup, claims
from onepolicy.errors import DumpError

CONTENT = {
    "jsonl": [
        b'{"a": 1}\n{"a": 2}\n',
        b'{"a": 1}',
        b'\n\n {"a": 1}\n',
        b'\xef\xbb\xbf{"a": 1}\n',
        b'{"a": [1,\n{"a": 2}\n',
    ],
    "json": [b'{\n  "a": 1\n}\n', b'[{"a": 1}]', b'[\n{"a": 1},\n{"a": 2}\n]', b'{"a": 1,\n "b": 2}'],
    "unknown": [b"", b"\n", b"text", b"\x00\x01", b"PK\x03\x04 something else", b"cos\nsystem\n."],
    "pickle": [pickle.dumps([1], protocol=2), pickle.dumps([1], protocol=5)],
}


def written(tmp_path, content, name="x"):
    path = tmp_path / name
    path.write_bytes(content)
    return DumpFile(path)


@pytest.mark.parametrize(("kind", "content"), [(kind, one) for kind, many in CONTENT.items() for one in many])
def test_the_kind_is_told_by_the_content(tmp_path, kind, content):
    assert written(tmp_path, content).kind == kind


def test_the_kinds_of_libraries_are_told_by_the_content(tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "zip")
    for protocol in (2, 5):
        old = {"_use_new_zipfile_serialization": False, "pickle_protocol": protocol}
        torch.save({"a": torch.ones(2)}, tmp_path / "legacy", **old)
        assert DumpFile(tmp_path / "legacy").kind == "torch"
    pq.write_table(pa.table({"a": [1]}), tmp_path / "parquet")
    with (tmp_path / "numpy").open("wb") as file:
        np.save(file, np.ones(2))
    found = {name: DumpFile(tmp_path / name).kind for name in ("zip", "legacy", "parquet", "numpy")}
    assert found == {"zip": "torch", "legacy": "torch", "parquet": "parquet", "numpy": "numpy"}


def test_every_line_comes_with_its_place(tmp_path):
    file = written(tmp_path, b'{"a": 1}\r\n\n  \n{"a": 2}\n{"a": 3}', "step_4.jsonl")
    assert list(file.objects()) == [
        (f"{tmp_path}/step_4.jsonl, line 1", {"a": 1}),
        (f"{tmp_path}/step_4.jsonl, line 4", {"a": 2}),
        (f"{tmp_path}/step_4.jsonl, line 5", {"a": 3}),
    ]


def test_lines_that_cross_the_chunks_of_reading_are_whole(tmp_path, monkeypatch):
    rows = [{"n": i, "text": "x" * (i * 7 % 41)} for i in range(300)]
    content = "\n".join(map(json.dumps, rows)).encode()
    for chunk in (1, 2, 3, 17, 64, 1000):
        monkeypatch.setattr(lines, "CHUNK", chunk)
        file = written(tmp_path, content)
        assert [found for _, found in file.objects()] == rows


def test_the_entries_of_an_array_come_with_their_places(tmp_path):
    file = written(tmp_path, b'[{"a": 1},\n {"a": NaN}]')
    places, found = zip(*file.objects(), strict=True)
    assert places == (f"{tmp_path}/x, entry 1", f"{tmp_path}/x, entry 2")
    assert math.isnan(found[1]["a"])
    assert list(written(tmp_path, b'{\n"a": 1}').objects()) == [(f"{tmp_path}/x", {"a": 1})]


def test_nan_and_infinity_are_read(tmp_path):
    file = written(tmp_path, b'{"a": [NaN, Infinity, -Infinity, 1]}\n{"a": "NaN"}\n')
    (_, first), (_, second) = file.objects()
    assert math.isnan(first["a"][0])
    assert first["a"][1:] == [math.inf, -math.inf, 1]
    assert second == {"a": "NaN"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1}\n[1]\n', "line 2: holds a list"),
        (b'{"a": 1}\n3\n', "line 2: holds a number"),
        (b'{"a": 1}\nnull\n', "line 2: holds null"),
        (b'{"a": 1}\n\n{"a": \n', "line 3: is not JSON .*still being written"),
        (b'{"a": 1}\n{"a": NaN, }\n', "line 2: is not JSON"),
        (b'{"a": 1}\n{"a": "\xff"}\n', "line 2: is not JSON"),
        (b'{"a": NaN, "b": "\\ud800"}\n', "line 1: is not JSON"),
        (b'[{"a": 1}, 2]', "entry 2: holds a number"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n", "line 1: is nested too deep"),
        (b'{"a": NaN, "b": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n", "line 1: is nested too deep"),
        (b"[" * 100_000 + b"]" * 100_000, "is nested too deep"),
    ],
)
def test_what_is_no_object_is_refused_with_its_place(tmp_path, content, message):
    with pytest.raises(DumpError, match=message):
        list(written(tmp_path, content, "x.jsonl").objects())


def test_a_line_of_millions_of_empty_lists_is_refused_before_they_are_made(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "LONG_LINE", 1000)
    monkeypatch.setattr(lines, "MAX_CONTAINERS", 500)
    with pytest.raises(DumpError, match="line 1: has 1001 lists and objects"):
        list(written(tmp_path, b'{"a":' + b"[" + b"[]," * 998 + b"[]]}\n").objects())


def test_first_is_the_first_object_and_none_of_other_kinds(tmp_path):
    assert written(tmp_path, b'\n{"a": 1}\n{"b": 2}\n').first() == {"a": 1}
    assert written(tmp_path, b"").first() is None
    assert written(tmp_path, pickle.dumps({})).first() is None


def test_a_method_of_another_kind_says_what_the_file_is(tmp_path):
    file = written(tmp_path, b"text")
    for method in (lambda: list(file.objects()), file.loaded, file.parquet):
        with pytest.raises(DumpError, match="content: unknown"):
            method()
    assert file.schema() is None


def test_parquet_comes_in_batches_of_bounded_size(tmp_path):
    table = pa.table({"ids": [[i] * 1000 for i in range(9000)], "n": list(range(9000))})
    pq.write_table(table, tmp_path / "x")
    file = DumpFile(tmp_path / "x")
    assert file.schema() == table.schema
    found = list(file.batches())
    assert [n for batch in found for n in batch["n"].to_pylist()] == list(range(9000))
    assert max(len(batch["ids"].flatten()) for batch in found) <= row_groups.BATCH_VALUES
    (only,) = file.batches(["n"])
    assert only.schema.names == ["n"]
    file.drop()


def test_a_damaged_parquet_is_refused_with_its_name(tmp_path):
    pq.write_table(pa.table({"n": list(range(1000))}), tmp_path / "x.parquet")
    content = (tmp_path / "x.parquet").read_bytes()
    with pytest.raises(DumpError, match=r"x\.parquet: is a damaged Parquet"):
        written(tmp_path, content[:-20], "x.parquet").parquet()


@pytest.mark.parametrize(
    ("rows", "values", "message"),
    [(10, 10**10, "claims values of"), (-1, 5, "negative"), (5, -1, "negative"), (1, 1 << 27, "in 1 rows")],
)
def test_a_parquet_that_claims_more_than_it_can_hold_is_refused(rows, values, message):
    size = 2 * MIB if values > 10**9 else 1 << 30
    group = ClaimedGroup(rows, (ClaimedColumn("ids.list.element", values, 4),))
    with pytest.raises(DumpError, match=message):
        row_groups.check_group(group, where="x", size=size)


MIB = 1 << 20


def test_the_claims_of_a_parquet_are_those_that_pyarrow_sees(tmp_path):
    table = pa.table({"ids": [[1, 2], [], None, [3]], "text": ["a", None, "b", "c"], "s": [{"x": 1.5, "y": True}] * 4})
    pq.write_table(pa.concat_tables([table] * 200), tmp_path / "x", row_group_size=30)
    with (tmp_path / "x").open("rb") as file:
        found = claims(file)
    metadata = pq.read_metadata(tmp_path / "x")
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    assert [group.rows for group in found] == [group.num_rows for group in groups]
    for ours, theirs in zip(found, groups, strict=True):
        columns = [theirs.column(i) for i in range(theirs.num_columns)]
        assert [(c.path, c.values) for c in ours.columns] == [(c.path_in_schema, c.num_values) for c in columns]


def test_a_real_parquet_that_is_a_bomb_is_refused(tmp_path):
    column = pa.array(np.zeros(40_000_000, dtype=np.int64))
    pq.write_table(pa.table({"n": column}), tmp_path / "x", compression="zstd", row_group_size=40_000_000)
    assert (tmp_path / "x").stat().st_size < 640_000
    with pytest.raises(DumpError, match="claims values of"):
        DumpFile(tmp_path / "x").parquet()


def test_a_long_string_that_stands_in_every_row_is_not_in_memory_a_thousand_times(tmp_path):
    text = pa.DictionaryArray.from_arrays(pa.array(np.zeros(3000, dtype=np.int32)), pa.array(["x" * MIB]))
    table = pa.table({"text": text, "n": range(3000)})
    pq.write_table(table, tmp_path / "x", compression="zstd", store_schema=False)
    assert (tmp_path / "x").stat().st_size < MIB
    file = DumpFile(tmp_path / "x")
    assert next(file.batches()).nbytes < row_groups.BATCH_BYTES + 2 * MIB
    assert len(next(file.batches(["n"]))) == 3000
    file.drop()


def test_position_is_heard_of_parquet_and_of_pickles(tmp_path):
    pq.write_table(pa.table({"n": range(100)}), tmp_path / "x", row_group_size=25)
    (tmp_path / "y").write_bytes(pickle.dumps([1] * 100))
    for name, ask in (("x", lambda file: list(file.batches())), ("y", DumpFile.loaded)):
        heard = []
        file = DumpFile(tmp_path / name, position=heard.append)
        ask(file)
        assert heard == sorted(heard)
        assert heard[-1] == file.size
        file.drop()


# which files


def test_numbers_in_names_are_ordered_as_numbers():
    names = ["step10/rank_1", "step2/rank_10", "step2/rank_9", "a", "step2"]
    assert sorted(names, key=natural) == ["a", "step2", "step2/rank_9", "step2/rank_10", "step10/rank_1"]


def a_run(top):
    for step in (10, 2, 1):
        for rank in (0, 1):
            path = top / f"step_{step}" / f"rank_{rank}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text('{"a": 1}\n')
        (top / f"step_{step}" / "STABLE").touch()
    for name in (".hidden", "step_1/.rank_0.jsonl.swp", "step_1/rank_2.jsonl.tmp", ".git/config", "step_2/x.jsonl~"):
        (top / name).parent.mkdir(exist_ok=True)
        (top / name).write_text("x")


LABELS = [f"step_{step}/rank_{rank}" for step in (1, 2, 10) for rank in (0, 1)]


def test_a_folder_gives_its_files_in_order_without_the_hidden_and_unfinished(tmp_path):
    a_run(tmp_path)
    files = expand([tmp_path])
    assert [file.label for file in files] == LABELS
    assert all(file.beside("STABLE") for file in files)


def test_a_glob_gives_files_and_folders(tmp_path):
    a_run(tmp_path)
    assert [file.label for file in expand([tmp_path / "step_*"])] == LABELS
    assert [file.label for file in expand([tmp_path / "step_1*" / "*_0.jsonl"])] == ["step_1/rank_0", "step_10/rank_0"]


def test_a_url_of_a_folder_and_of_a_glob_gives_its_files():
    memory = fsspec.filesystem("memory")
    for step in (10, 2):
        memory.pipe(f"/file-test/step_{step}/rank_0.jsonl", b'{"a": 1}\n')
        memory.pipe(f"/file-test/step_{step}/STABLE", b"")
    for url in (
        "memory://file-test",
        "memory://file-test/",
        "memory://file-test/step_*",
        "memory://file-test/*/rank_*",
    ):
        files = expand([url])
        assert [file.label for file in files] == ["step_2/rank_0", "step_10/rank_0"], url
        assert [file.first() for file in files] == [{"a": 1}] * 2


def test_a_file_is_named_by_its_stem_and_read_once(tmp_path):
    path = tmp_path / "train_data_step3.jsonl.gz"
    path.write_text('{"a": 1}\n')
    assert [file.label for file in expand([path, tmp_path, path])] == ["train_data_step3"]


def test_labels_are_unique(tmp_path):
    for name in ("a/1.jsonl", "b/1.jsonl", "b/1.parquet", "a/2.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    found = [file.label for file in expand([tmp_path / "a", tmp_path / "b"])]
    assert len(set(found)) == 4
    assert found[1] == "2"


@pytest.mark.parametrize("path", ["nowhere", "nowhere/*.jsonl", "memory://nowhere", "memory://nowhere/*", "."])
def test_a_path_that_leads_to_nothing_is_refused(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".hidden").touch()
    with pytest.raises(DumpError, match="no such file, or no file in it"):
        expand([path])
