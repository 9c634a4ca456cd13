"""Packing is seen from the content, progress in stored bytes, and what is damaged or a bomb ends with a message."""

import gzip

import fsspec
import pyarrow as pa
import pytest

from onepolicy.dumps import lines
from onepolicy.dumps.file import DumpFile
from onepolicy.errors import DumpError

TEXT = b"".join(b'{"row": %d}\n' % i for i in range(5000))
MIB = 1 << 20


def zstd(data):
    return pa.compress(data, codec="zstd", asbytes=True)


PACK = {"plain": bytes, "gzip": gzip.compress, "zstd": zstd}


@pytest.mark.parametrize("packing", PACK)
def test_packing_is_seen_from_the_content_and_not_from_the_name(tmp_path, packing):
    path = tmp_path / "rows.txt"
    path.write_bytes(PACK[packing](TEXT))
    file = DumpFile(path)
    assert file.kind == "jsonl"
    assert [found["row"] for _, found in file.objects()] == list(range(5000))


def test_a_gzip_of_several_members_is_read_to_its_end(tmp_path):
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}\n') + gzip.compress(b'{"a": 2}\n'))
    assert [found["a"] for _, found in DumpFile(path).objects()] == [1, 2]


@pytest.mark.parametrize("packing", PACK)
def test_position_counts_the_stored_bytes(tmp_path, packing):
    path = tmp_path / "rows"
    path.write_bytes(PACK[packing](TEXT))
    heard = []
    file = DumpFile(path, position=heard.append)
    file.first()
    assert heard == []
    assert len(list(file.objects())) == 5000
    assert heard == sorted(heard)
    assert heard[-1] == file.size == path.stat().st_size


@pytest.mark.parametrize("packing", ["gzip", "zstd"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_packed_data_that_is_cut_short_is_refused_with_its_name(tmp_path, packing, share):
    import random  # noqa: PLC0415

    random.seed(1)
    data = PACK[packing](b"".join(b'{"row": %d}\n' % random.getrandbits(60) for _ in range(20000)))
    path = tmp_path / "rows.jsonl"
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(DumpError, match=r"rows\.jsonl: its .* damaged or cut short"):
        list(DumpFile(path).objects())


@pytest.mark.parametrize("packing", ["gzip", "zstd"])
def test_a_compression_bomb_ends_with_a_message(tmp_path, packing):
    path = tmp_path / "bomb"
    start = b'{"a": "' + b" " * (MIB - 7)
    path.write_bytes(PACK[packing](start) + PACK[packing](b" " * MIB) * 400)
    with pytest.raises(DumpError, match="unpack to more than"):
        list(DumpFile(path).objects())


def test_a_packed_pickle_is_unpacked_under_the_same_limit(tmp_path):
    path = tmp_path / "bomb"
    path.write_bytes(zstd(b"\x80\x04" + b"N0" * (MIB // 2)) + zstd(b"N0" * (MIB // 2)) * 400)
    with pytest.raises(DumpError, match="unpack to more than"):
        DumpFile(path).loaded()


def test_a_long_line_ends_with_a_message(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "MAX_LINE", 6 * MIB)
    (tmp_path / "x").write_bytes(b'{"a": "' + b"x" * 20 * MIB)
    with pytest.raises(DumpError, match="line 1: is longer than"):
        list(DumpFile(tmp_path / "x").objects())


def test_files_of_a_url_are_read_and_their_neighbours_seen():
    memory = fsspec.filesystem("memory")
    memory.pipe("/source-test/step_1/rank_0.jsonl", TEXT)
    memory.pipe("/source-test/step_1/STABLE", b"")
    file = DumpFile("memory://source-test/step_1/rank_0.jsonl")
    assert file.kind == "jsonl"
    assert file.size == len(TEXT)
    assert len(list(file.objects())) == 5000
    assert file.beside("STABLE")
    assert not file.beside("OTHER")


def test_a_packed_pickle_of_a_url_is_loaded():
    import pickle  # noqa: PLC0415

    fsspec.filesystem("memory").pipe("/source-test/a.pkl.gz", gzip.compress(pickle.dumps({"a": [1]})))
    assert DumpFile("memory://source-test/a.pkl.gz").loaded() == {"a": [1]}


@pytest.mark.parametrize("location", ["/nowhere/x.jsonl", "memory://nowhere/x.jsonl", "nothing-known://x/y"])
def test_what_cannot_be_opened_is_named(location):
    with pytest.raises(DumpError, match=location):
        _ = DumpFile(location).kind


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(DumpError, match="cannot be read"):
        _ = DumpFile(tmp_path).kind
