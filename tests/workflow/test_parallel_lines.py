"""Large JSONL, read by several processes: what comes of it is what one process makes of it."""

import contextlib
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import fields, is_dataclass
from pathlib import Path

import numpy as np
import pytest
from plain_recording import planted, without, write

from onepolicy.dumps import parts
from onepolicy.dumps.file import DumpFile
from onepolicy.dumps.source import Part
from onepolicy.errors import DumpError
from onepolicy.workflow.parallel_lines import AS_IT_COMES, Job, Spread, Workers
from onepolicy.workflow.progress import Silent
from onepolicy.workflow.recorded import Tally, blocks_of, find_recording

SMALL = {"from_bytes": 1, "part_bytes": 3000}
ALONE, HERE, SPREAD = Spread(workers=0), Spread(workers=0, **SMALL), Spread(workers=2, **SMALL)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(parts, "SCAN", 500)


class Bytes(Silent):
    total = done = 0

    def start(self, title, total, unit="rollouts"):
        self.total = total

    def advance(self, count):
        self.done += count


def read(paths, spread, **options):
    """(blocks, tally, what ended it, progress)"""
    tally, progress, blocks, error = Tally(), Bytes(), [], ""
    try:
        blocks.extend(blocks_of(find_recording(paths, **options), tally, progress, spread=spread))
    except DumpError as found:
        error = str(found)
    return blocks, tally, error, progress


def same(a, b):
    """Whether two values are the same in all that they hold."""
    if is_dataclass(a):
        return type(a) is type(b) and all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def rows_of(blocks):
    """What does not depend on where a block ends."""
    names = ("rollout_ids", "prompt_ids", "tags")
    texts = [(x for block in blocks for x in getattr(block.rollouts, name)) for name in names]
    sides = [[getattr(block, side) for block in blocks] for side in ("rollout", "trainer")]
    joined = [np.concatenate([getattr(block.rollouts, name) for block in blocks]) for name in ("token_ids", "sampled")]
    for side in sides:
        there = [block for block in side if block is not None]
        joined += [np.concatenate([getattr(b, name) for b in there]) for name in ("logprobs", "states") if there]
    return [*map(list, texts), *(array.tobytes() for array in joined)]


def check_all_ways(paths, **options):
    """Read it as one piece, in parts, and in parts by other processes."""
    alone, here, spread = (read(paths, how, **options) for how in (ALONE, HERE, SPREAD))
    assert same(here[0], spread[0])
    assert len(spread[0]) > 2
    assert alone[1:3] == here[1:3] == spread[1:3]
    assert here[3].done == spread[3].done
    if not alone[2]:
        assert rows_of(alone[0]) == rows_of(spread[0])
        assert spread[3].done == spread[3].total > 0
    return spread


def lines(count=60, **extra):
    return [json.dumps({**row, **extra}).encode() for row in planted(count)]


def odd_file():
    """Blank lines, ends of two kinds, a line longer than a part, rows that are refused, and no end of the last line."""
    found = lines()
    longest = {**next(planted(1, length=3000, seed=7)), "tags": {"a": "é\u2028"}}
    found[20:20] = [b"", b"  ", json.dumps(longest).encode(), b"\r"]
    found[50:50] = lines(5, token_ids=[1]) + lines(3, reward="none")
    found[9] = b'{"nothing": NaN}'
    return b"\xef\xbb\xbf" + b"\r\n".join(found)


def test_an_odd_file_is_read_as_it_is_by_one_process(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(odd_file())
    blocks, tally, error, _ = check_all_ways([tmp_path / "a.jsonl"])
    assert (tally.read, tally.refused, error) == (69, 9, "")
    ids = [name for block in blocks for name in block.rollouts.rollout_ids]
    assert ids == [f"a/{line}" for line in range(72) if line not in {9, 20, 21, 23, *range(50, 58)}]


def test_a_file_of_one_line_is_one_part(tmp_path):
    path = write(tmp_path / "a.jsonl", planted(1, length=2000))
    assert same(read([path], SPREAD)[0], read([path], ALONE)[0])


def test_the_files_of_a_folder_come_in_their_order_packed_ones_between_them(tmp_path):
    for step in range(6):
        write(tmp_path / f"step_{step}.jsonl", planted(12, seed=step), step=step)
    (tmp_path / "step_3.jsonl").rename(tmp_path / "plain")
    (tmp_path / "step_3.jsonl.gz").write_bytes(gzip.compress((tmp_path / "plain").read_bytes()))
    (tmp_path / "plain").unlink()
    blocks = check_all_ways([tmp_path])[0]
    assert [int(step) for block in blocks for step in block.steps] == [s for s in range(6) for _ in range(12)]


def test_other_names_of_columns_reach_the_other_processes(tmp_path):
    rows = [{f"my_{name}": value for name, value in row.items()} for row in planted(60)]
    columns = {name.removeprefix("my_"): name for name in rows[0]}
    check_all_ways([write(tmp_path / "a.jsonl", rows)], columns=columns)


def test_a_format_of_rows_is_found_by_its_name(tmp_path):
    choice = {"text": "x", "finish_reason": "stop", "prompt_token_ids": [1, 2], "token_ids": [3, 4]}
    choice["logprobs"] = {"tokens": ["token_id:3", "token_id:4"], "token_logprobs": [-1.0, -0.5]}
    answers = ({"id": "a", "object": "text_completion", "choices": [choice | {"index": 0}]} for _ in range(100))
    blocks = check_all_ways([write(tmp_path / "a.jsonl", answers)])[0]
    assert sum(len(block.rollouts.rollout_ids) for block in blocks) == 100


@pytest.mark.parametrize("place", [1, 25, 59])
def test_a_damaged_line_ends_the_reading_where_it_stands(tmp_path, place):
    found = lines()
    found[place] = found[place][:-1]
    if place < 40:
        found[40] = b"[1]"  # another one, which is not reached
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(found))
    _, tally, error, _ = alone = read([tmp_path / "a.jsonl"], HERE)
    assert f"a.jsonl, line {place + 1}: is not JSON" in error
    blocks, *rest = read([tmp_path / "a.jsonl"], SPREAD)
    assert rest[:2] == [tally, error]
    assert same(blocks, alone[0])


def test_of_two_faulty_files_the_first_is_named(tmp_path):
    write(tmp_path / "1.jsonl", planted(30))
    write(tmp_path / "2.jsonl", planted(1, seed=1))
    recording = find_recording([tmp_path])
    write(tmp_path / "2.jsonl", [{"other": 1}])  # looked at while the end of 1 is still read
    content = (tmp_path / "1.jsonl").read_bytes()
    for damaged, named in ((content[:-3] + b"\n", "1.jsonl, line 30: is not JSON"), (content, "2.jsonl: is not Par")):
        (tmp_path / "1.jsonl").write_bytes(damaged)
        with pytest.raises(DumpError, match=named):
            list(blocks_of(recording, Tally(), Silent(), spread=SPREAD))


def test_a_file_without_one_of_the_sides_says_so_in_every_part(tmp_path):
    rows = list(planted(60))
    path = write(tmp_path / "a.jsonl", [*rows[:30], *without(rows[30:], "trainer_logprobs")])
    blocks = check_all_ways([path])[0]
    assert (blocks[0].trainer is None, blocks[-1].trainer is None) == (False, True)


def test_little_is_read_in_this_process(tmp_path, monkeypatch):
    path = write(tmp_path / "a.jsonl", planted(20))
    started = started_processes(monkeypatch)
    assert len(read([path], AS_IT_COMES)[0]) == 1
    assert started == []
    read([path], SPREAD)
    assert 1 <= len(started) <= 2


def started_processes(monkeypatch):
    found = []

    class Kept(subprocess.Popen):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            found.append(self)

    monkeypatch.setattr(subprocess, "Popen", Kept)
    return found


def test_no_process_is_left_after_the_end_an_error_or_when_nobody_reads_on(tmp_path, monkeypatch):
    path = write(tmp_path / "a.jsonl", planted(200))
    started = started_processes(monkeypatch)
    blocks = blocks_of(find_recording([path]), Tally(), Silent(), spread=SPREAD)
    next(blocks)
    blocks.close()
    read([path], SPREAD)
    path.write_bytes(path.read_bytes() + b"{")
    assert "is not JSON" in read([path], SPREAD)[2]
    assert len(started) >= 3
    assert all(process.returncode is not None for process in started)


@contextlib.contextmanager
def one_worker(format_name="columns"):
    workers = Workers(format_name=format_name, columns=None, spread=SPREAD)
    try:
        yield workers
    finally:
        workers.close()


def job_of(path):
    return Job(files=[DumpFile(path)], part=Part(start=0, end=path.stat().st_size, lines_before=0))


def test_a_process_that_is_killed_is_an_error_that_names_the_file(tmp_path, monkeypatch):
    path = write(tmp_path / "a.jsonl", planted(4))
    started = started_processes(monkeypatch)
    with one_worker() as workers:
        first = workers.submit(job_of(path)).result()
        assert (len(first.blocks), first.error) == (1, None)
        started[0].kill()
        found = [workers.submit(job_of(path)).exception() for _ in range(3)]  # the other thread may take one
    error = next(error for error in found if error is not None)
    assert isinstance(error, DumpError)
    assert f"{path}, after line 0: the process that read it was killed by SIGKILL, as the kernel does" in str(error)


def test_a_process_that_is_killed_while_it_answers_is_an_error(tmp_path, monkeypatch):
    path = write(tmp_path / "a.jsonl", planted(8000))
    started = started_processes(monkeypatch)
    with one_worker() as workers:
        coming = workers.submit(job_of(path))
        while not started:
            time.sleep(0.01)
        started[0].kill()
        with pytest.raises(DumpError, match="killed by SIGKILL"):
            coming.result()


def test_a_process_that_fails_says_what_it_said(tmp_path):
    path = write(tmp_path / "a.jsonl", planted(4))
    with one_worker("no-such-format") as workers, pytest.raises(RuntimeError, match=r"(?s)a\.jsonl.*status 1.*no-such"):
        workers.submit(job_of(path)).result()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_the_processes_end_with_one_that_is_killed(tmp_path):
    path = write(tmp_path / "a.jsonl", planted(2000))
    script = f"""
import time
from onepolicy.workflow import parallel_lines, recorded
from onepolicy.workflow.progress import Silent
spread = parallel_lines.Spread(workers=2, from_bytes=1, part_bytes=3000)
blocks = recorded.blocks_of(recorded.find_recording([{str(path)!r}]), recorded.Tally(), Silent(), spread=spread)
next(blocks)
print("reading", flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"reading\n"
        started = children_of(process.pid)
        assert started
        process.kill()
    for _ in range(1000):
        if not any(map(is_running, started)):
            return
        time.sleep(0.01)
    for pid in started:
        os.kill(pid, signal.SIGKILL)
    pytest.fail("they went on")


def children_of(parent):
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (folder / "stat").read_text().rpartition(")")[2].split()[1] == str(parent):
                found.append(int(folder.name))
    return found


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
