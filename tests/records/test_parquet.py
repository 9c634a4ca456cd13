"""What is written comes back entry for entry; what was damaged is refused by name."""

import dataclasses
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onepolicy.errors import RunError
from onepolicy.records import parquet
from onepolicy.records.parquet import (
    READING_SCHEMA,
    ROLLOUT_SCHEMA,
    reading_block,
    reading_table,
    rollout_block,
    rollout_rows,
    rollout_table,
    span_rows,
    span_table,
    top_rows,
    top_table,
    write_parquet,
)
from onepolicy.records.reading import ReadingRow, TopLists
from onepolicy.records.rollout import Rollout, Span
from onepolicy.records.tokens import TokenState

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
IDS = st.integers(0, 2**31 - 1)


def through_a_file(table, path):
    write_parquet(table, path / "part.parquet")
    return pq.read_table(path / "part.parquet")


def plain(value):
    """A dataclass with arrays as one of lists; NaN as None."""
    if isinstance(value, np.ndarray):
        return [None if x != x else x for x in value.ravel().tolist()]  # noqa: PLR0124 - NaN
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return value


def columns(draw, values, n, dtype):
    return np.array(draw(st.lists(values, min_size=n, max_size=n)), dtype=dtype)


@st.composite
def rollouts(draw):
    n = draw(st.integers(0, 8))
    return Rollout(
        rollout_id=draw(TEXT),
        prompt_id=draw(TEXT),
        trajectory_id=draw(TEXT),
        token_ids=columns(draw, IDS, n, np.int32),
        sampled=columns(draw, st.booleans(), n, bool),
        loss_mask=columns(draw, st.booleans(), n, bool),
        text=draw(st.none() | TEXT),
        reward=draw(st.none() | st.floats(allow_nan=False)),
        group=draw(st.none() | TEXT),
        tags=draw(st.dictionaries(TEXT, TEXT, max_size=3)),
    )


@st.composite
def spans(draw):
    numbers = [draw(IDS) for _ in range(3)]
    return Span(
        rollout_id=draw(TEXT),
        start=numbers[0],
        end=numbers[1],
        turn=numbers[2],
        weight_version=draw(TEXT),
        finish_reason=draw(TEXT),
        stop_reason=draw(TEXT),
        cached_tokens=draw(st.none() | IDS),
        protocol_hash=draw(TEXT),
    )


@st.composite
def reading_rows(draw):
    n = draw(st.integers(0, 6))
    k, places = draw(st.integers(0, 3)), draw(st.integers(0, n))
    numbers = st.floats(-1e3, 0, width=32) | st.just(math.nan) | st.just(-math.inf)
    logprobs = columns(draw, numbers, n, np.float32)
    states = np.where(np.isnan(logprobs), TokenState.ABSENT, columns(draw, st.integers(0, 4), n, np.uint8))
    top = TopLists(
        positions=np.arange(places, dtype=np.int32),
        ids=columns(draw, IDS, places * k, np.int32).reshape(places, k),
        logprobs=columns(draw, numbers, places * k, np.float32).reshape(places, k),
    )
    return ReadingRow(
        rollout_id=draw(TEXT),
        digest=draw(TEXT),
        logprobs=logprobs,
        states=states.astype(np.uint8),
        top1=columns(draw, st.integers(-1, 5), n, np.int32),
        top=draw(st.none() | st.just(top)),
    )


def row(name="r-1", n=2, **fields):
    given_fields = {
        "logprobs": np.full(n, -1.0, dtype=np.float32),
        "states": np.zeros(n, dtype=np.uint8),
        "top1": np.arange(n, dtype=np.int32),
    }
    return ReadingRow(rollout_id=name, digest="0", **{**given_fields, **fields})


def rollout(name="r-1", n=2, **fields):
    flags = np.ones(n, dtype=bool)
    given_fields = {"token_ids": np.arange(n, dtype=np.int32), "sampled": flags, "loss_mask": flags}
    return Rollout(rollout_id=name, prompt_id="p", trajectory_id="t", **{**given_fields, **fields})


@settings(max_examples=40, deadline=None)
@given(st.lists(rollouts(), max_size=5))
def test_rollouts_come_back_as_they_were(tmp_path_factory, written):
    table = through_a_file(rollout_table(written), tmp_path_factory.mktemp("run"))
    assert [plain(r) for r in rollout_rows(table)] == [plain(r) for r in written]


@settings(max_examples=30, deadline=None)
@given(st.lists(spans(), max_size=5))
def test_spans_come_back_as_they_were(tmp_path_factory, written):
    assert list(span_rows(through_a_file(span_table(written), tmp_path_factory.mktemp("run")))) == written


@settings(max_examples=40, deadline=None)
@given(st.lists(reading_rows(), max_size=5))
def test_readings_and_their_top_lists_come_back_as_they_were(tmp_path_factory, written):
    folder = tmp_path_factory.mktemp("run")
    block = reading_block(through_a_file(reading_table(written), folder))
    assert (block.rollout_ids, block.digests) == ([r.rollout_id for r in written], [r.digest for r in written])
    assert block.offsets.tolist() == [0, *np.cumsum([len(r.logprobs) for r in written]).tolist()]
    for name in ("logprobs", "states", "top1"):
        back = np.split(getattr(block, name), block.offsets[1:-1]) if written else []
        assert [plain(part) for part in back] == [plain(getattr(r, name)) for r in written]
    with_top = [(r.rollout_id, plain(r.top)) for r in written if r.top is not None]
    back_top = top_rows(through_a_file(top_table(written), folder))
    read = [(name, plain(top), top.ids.shape, top.logprobs.shape) for name, top in back_top]
    assert [(name, top) for name, top, _, _ in read] == with_top
    assert [shape for _, _, shape, _ in read] == [r.top.ids.shape for r in written if r.top is not None]


def test_a_reading_in_which_one_row_has_no_top1_has_none(tmp_path):
    block = reading_block(through_a_file(reading_table([row("a"), row("b", top1=None), row("c")]), tmp_path))
    assert block.top1 is None
    assert block.rollout_ids == ["a", "b", "c"]


def test_statistics_get_a_column_each(tmp_path):
    entropy = np.float32([0.5, math.nan])
    table = through_a_file(reading_table([row(statistics={"entropy": entropy})]), tmp_path)
    assert plain(table["stat_entropy"].combine_chunks().values.to_numpy(zero_copy_only=False)) == [0.5, None]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a\ud83d\ude00b", "a\U0001f600b"),
        ("a\ud83d", "a\ufffd"),
        ("\ude00b", "\ufffdb"),
        ("\x00 \u2028\r\n", "\x00 \u2028\r\n"),
    ],
)
def test_a_text_with_surrogates_keeps_its_characters_and_marks_the_broken_ones(tmp_path, text, kept):
    (back,) = rollout_rows(through_a_file(rollout_table([rollout(text=text)]), tmp_path))
    assert back.text == kept


def test_row_groups_are_cut_by_tokens_and_lose_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "ROW_GROUP_TOKENS", 100)
    written = [rollout(f"r-{i}", n=30) for i in range(10)]
    write_parquet(rollout_table(written), tmp_path / "part.parquet")
    file = pq.ParquetFile(tmp_path / "part.parquet")
    assert [file.metadata.row_group(g).num_rows for g in range(file.num_row_groups)] == [3, 3, 3, 1]
    back = [r for g in range(4) for r in rollout_rows(file.read_row_group(g))]
    assert [plain(r) for r in back] == [plain(r) for r in written]


def test_a_slice_of_a_table_gives_its_own_rows():
    table = rollout_table([rollout("a", n=2), rollout("b", n=3), rollout("c", n=1)]).slice(1, 2)
    block = rollout_block(table)
    assert (block.rollout_ids, block.offsets.tolist(), block.token_ids.tolist()) == (
        ["b", "c"],
        [0, 3, 4],
        [0, 1, 2, 0],
    )


def test_flat_arrays_of_several_chunks_are_joined():
    table = pa.concat_tables([rollout_table([rollout("a", n=2)]), rollout_table([rollout("b", n=1)])])
    block = rollout_block(table)
    assert (block.offsets.tolist(), block.token_ids.tolist()) == ([0, 2, 3], [0, 1, 0])


# -- damage ------------------------------------------------------------------------------------------------------


def replaced(table, name, values):
    index = table.column_names.index(name)
    return table.set_column(index, pa.field(name, table.schema.field(name).type), pa.array(values, table[name].type))


ROLLOUTS = rollout_table([rollout("r-1"), rollout("r-2")])
READING = reading_table([row("r-1"), row("r-2")])
TOP = top_table(
    [
        row(
            name,
            top=TopLists(
                positions=np.int32([0, 1]), ids=np.zeros((2, 1), np.int32), logprobs=np.zeros((2, 1), np.float32)
            ),
        )
        for name in ("r-1", "r-2")
    ]
)


@pytest.mark.parametrize(
    ("read", "table", "name"),
    [
        *(
            (rollout_block, ROLLOUTS, name)
            for name in ("rollout_id", "prompt_id", "tags", "token_ids", "sampled", "loss_mask")
        ),
        *((reading_block, READING, name) for name in ("rollout_id", "digest", "logprobs", "states")),
        *(
            (lambda table: list(top_rows(table)), TOP, name)
            for name in ("rollout_id", "positions", "k", "ids", "logprobs")
        ),
    ],
)
def test_a_null_in_a_column_that_every_row_fills_is_refused_by_name(read, table, name):
    values = table[name].to_pylist()
    with pytest.raises(RunError, match=f"the column '{name}' holds nulls"):
        read(replaced(table, name, [values[0], None]))


@pytest.mark.parametrize(
    ("read", "table", "name"), [(rollout_block, ROLLOUTS, "token_ids"), (reading_block, READING, "logprobs")]
)
def test_a_null_inside_a_list_is_refused(read, table, name):
    with pytest.raises(RunError, match=f"the column '{name}' holds nulls"):
        read(replaced(table, name, [[0, 1], [None, 1]]))


@pytest.mark.parametrize(
    ("read", "table", "name", "said"),
    [
        (rollout_block, ROLLOUTS, "sampled", "rollout r-2: 2 tokens and 1 entries in 'sampled'"),
        (rollout_block, ROLLOUTS, "loss_mask", "rollout r-2: 2 tokens and 1 entries in 'loss_mask'"),
        (reading_block, READING, "states", "rollout r-2: 2 tokens and 1 entries in 'states'"),
        (reading_block, READING, "top1", "rollout r-2: 2 tokens and 1 entries in 'top1'"),
        (lambda table: list(top_rows(table)), TOP, "ids", "rollout r-2: 2 tokens and 1 entries in 'ids'"),
        (lambda table: list(top_rows(table)), TOP, "logprobs", "rollout r-2: 2 tokens and 1 entries in 'logprobs'"),
    ],
)
def test_lists_of_other_lengths_are_refused_with_the_rollout_and_both_numbers(read, table, name, said):
    values = table[name].to_pylist()
    with pytest.raises(RunError, match=said):
        read(replaced(table, name, [values[0], values[1][:1]]))


@pytest.mark.parametrize("tags", ["{", "", "[]", "null", '"en"'])
def test_tags_that_are_no_object_are_refused_with_the_rollout(tags):
    with pytest.raises(RunError, match="rollout r-2: its tags are no"):
        list(rollout_rows(replaced(ROLLOUTS, "tags", ["{}", tags])))


def test_every_page_carries_a_checksum(tmp_path):
    path = tmp_path / "part.parquet"
    write_parquet(rollout_table([rollout(text="a text that is long enough to be found again")] * 50), path)
    content = bytearray(path.read_bytes())
    content[len(content) // 8] ^= 0xFF
    path.write_bytes(bytes(content))
    with pytest.raises(OSError, match=r"CRC|checksum"):
        pq.ParquetFile(path, page_checksum_verification=True).read()


def test_the_columns_of_a_run_never_change():
    assert ROLLOUTS.schema == ROLLOUT_SCHEMA
    assert READING.schema == READING_SCHEMA
    assert " ".join(ROLLOUT_SCHEMA.names) == (
        "rollout_id prompt_id trajectory_id token_ids sampled loss_mask text reward group tags"
    )
    assert READING_SCHEMA.names == ["rollout_id", "digest", "logprobs", "states", "top1"]
