"""A file of lines in parts: together they are the file, each ends where a line does, and knows the lines before it."""

import io

import numpy as np
import pytest

from onepolicy.dumps import parts
from onepolicy.dumps.file import DumpFile
from onepolicy.dumps.parts import parts_of
from onepolicy.dumps.source import Part
from onepolicy.errors import DumpError


def contents():
    rng = np.random.default_rng(0)
    for longest in (3, 40, 900):
        yield b"\n".join(b"x" * int(n) for n in rng.integers(0, longest, 200))
    yield from (b"", b"\n", b"\n\n\n", b"no end", b"x" * 5000 + b"\n", b"x" * 5000 + b"\ny\n", b"a\r\nb\r\n" * 300)


@pytest.mark.parametrize("scan", [1, 7, 64, 4096])
@pytest.mark.parametrize("least", [1, 50, 1000])
def test_the_parts_are_the_file_and_know_their_lines(monkeypatch, scan, least):
    monkeypatch.setattr(parts, "SCAN", scan)
    for content in contents():
        found = list(parts_of(io.BytesIO(content), "x", least))
        assert b"".join(content[part.start : part.end] for part in found) == content
        for part in found:
            assert part.end > part.start
            assert part.lines_before == content[: part.start].count(b"\n")
            assert part.start == 0 or content[part.start - 1 : part.start] == b"\n"
        assert all(part.end - part.start >= min(least, 1) for part in found)


def test_a_part_is_read_with_the_numbers_that_its_lines_have_in_the_file(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\n\n{"a": 2}\r\n{"a": 3}')
    file = DumpFile(path)
    whole = list(file.numbered_objects())
    assert [(row, found["a"]) for row, _, found in whole] == [(0, 1), (2, 2), (3, 3)]
    file.part = Part(start=13, end=path.stat().st_size, lines_before=2)
    assert list(file.numbered_objects()) == whole[1:]
    assert file.first() == {"a": 1}
    assert file.is_begun
    file.part = Part(start=0, end=13, lines_before=0)
    assert list(file.numbered_objects()) == whole[:1]
    assert not file.is_begun


def test_the_place_in_the_file_is_told_while_a_part_is_read(tmp_path):
    path, told = tmp_path / "a.jsonl", []
    path.write_bytes(b'{"a": 1}\n{"a": 2}\n{"a": 3}\n')
    file = DumpFile(path, position=told.append)
    file.part = Part(start=9, end=18, lines_before=1)
    list(file.objects())
    assert told[-1] == 18


def test_a_mark_of_the_byte_order_inside_a_file_is_no_json(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n\xef\xbb\xbf{"a": 2}\n')
    file = DumpFile(path)
    for part in (None, Part(start=9, end=path.stat().st_size, lines_before=1)):
        file.part = part
        with pytest.raises(DumpError, match="line 2: is not JSON"):
            list(file.objects())


def test_a_file_that_becomes_shorter_meanwhile_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": 2}\n')
    file = DumpFile(path)
    file.part = Part(start=9, end=30, lines_before=1)
    with pytest.raises(DumpError, match=r"a\.jsonl: became 12 bytes shorter"):
        list(file.objects())
