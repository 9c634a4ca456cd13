"""Rollouts, spans and reading rows as Parquet tables, and back as flat arrays without a copy."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from onepolicy.errors import AlignmentError, RunError
from onepolicy.records.blocks import ReadingBlock, RolloutBlock
from onepolicy.records.reading import ReadingRow, TopLists
from onepolicy.records.rollout import Rollout, Span
from onepolicy.records.tokens import IntArray

__all__ = [
    "MOMENT_COLUMNS",
    "READING_SCHEMA",
    "ROLLOUT_SCHEMA",
    "ROW_GROUP_TOKENS",
    "SPAN_SCHEMA",
    "STATISTIC_PREFIX",
    "TOP_SCHEMA",
    "ReadingBlock",
    "RolloutBlock",
    "read_tags",
    "reading_block",
    "reading_table",
    "rollout_block",
    "rollout_rows",
    "rollout_table",
    "span_rows",
    "span_table",
    "top_rows",
    "top_table",
    "write_parquet",
]

ROW_GROUP_TOKENS = 1 << 21
STATISTIC_PREFIX = "stat_"
MOMENT_COLUMNS = (STATISTIC_PREFIX + "entropy", STATISTIC_PREFIX + "varentropy")

_TEXT = pa.string()
ROLLOUT_SCHEMA = pa.schema(
    [
        pa.field("rollout_id", _TEXT, nullable=False),
        pa.field("prompt_id", _TEXT, nullable=False),
        pa.field("trajectory_id", _TEXT, nullable=False),
        pa.field("token_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("sampled", pa.list_(pa.bool_()), nullable=False),
        pa.field("loss_mask", pa.list_(pa.bool_()), nullable=False),
        pa.field("text", _TEXT),
        pa.field("reward", pa.float64()),
        pa.field("group", _TEXT),
        pa.field("tags", _TEXT, nullable=False),
    ]
)
SPAN_SCHEMA = pa.schema(
    [
        pa.field("rollout_id", _TEXT, nullable=False),
        pa.field("start", pa.int32(), nullable=False),
        pa.field("end", pa.int32(), nullable=False),
        pa.field("turn", pa.int32(), nullable=False),
        pa.field("weight_version", _TEXT, nullable=False),
        pa.field("finish_reason", _TEXT, nullable=False),
        pa.field("stop_reason", _TEXT, nullable=False),
        pa.field("cached_tokens", pa.int32()),
        pa.field("protocol_hash", _TEXT, nullable=False),
    ]
)
READING_SCHEMA = pa.schema(
    [
        pa.field("rollout_id", _TEXT, nullable=False),
        pa.field("digest", _TEXT, nullable=False),
        pa.field("logprobs", pa.list_(pa.float32()), nullable=False),
        pa.field("states", pa.list_(pa.uint8()), nullable=False),
        pa.field("top1", pa.list_(pa.int32())),
    ]
)
TOP_SCHEMA = pa.schema(
    [
        pa.field("rollout_id", _TEXT, nullable=False),
        pa.field("positions", pa.list_(pa.int32()), nullable=False),
        pa.field("k", pa.int32(), nullable=False),
        pa.field("ids", pa.list_(pa.int32()), nullable=False),
        pa.field("logprobs", pa.list_(pa.float32()), nullable=False),
    ]
)


def rollout_table(rollouts: Sequence[Rollout]) -> pa.Table:
    """[R] rollouts as a table of `ROLLOUT_SCHEMA`."""
    columns = {
        "rollout_id": [r.rollout_id for r in rollouts],
        "prompt_id": [r.prompt_id for r in rollouts],
        "trajectory_id": [r.trajectory_id for r in rollouts],
        "token_ids": _lists([r.token_ids for r in rollouts], np.int32),
        "sampled": _lists([r.sampled for r in rollouts], np.bool_),
        "loss_mask": _lists([r.loss_mask for r in rollouts], np.bool_),
        "text": [None if r.text is None else _storable(r.text) for r in rollouts],
        "reward": [r.reward for r in rollouts],
        "group": [r.group for r in rollouts],
        "tags": [json.dumps(r.tags, sort_keys=True, ensure_ascii=False) for r in rollouts],
    }
    return pa.table(columns, schema=ROLLOUT_SCHEMA)


def span_table(spans: Sequence[Span]) -> pa.Table:
    """[S] spans as a table of `SPAN_SCHEMA`."""
    return pa.table({f.name: [getattr(s, f.name) for s in spans] for f in SPAN_SCHEMA}, schema=SPAN_SCHEMA)


def reading_table(rows: Sequence[ReadingRow]) -> pa.Table:
    """[R] rows as a table of `READING_SCHEMA` and one list column for each statistic."""
    columns: dict[str, object] = {
        "rollout_id": [r.rollout_id for r in rows],
        "digest": [r.digest for r in rows],
        "logprobs": _lists([r.logprobs for r in rows], np.float32),
        "states": _lists([r.states for r in rows], np.uint8),
        "top1": _optional_lists([r.top1 for r in rows], np.int32),
    }
    schema = READING_SCHEMA
    _same_statistics(rows)
    for name in rows[0].statistics if rows else ():
        schema = schema.append(pa.field(STATISTIC_PREFIX + name, pa.list_(pa.float32()), nullable=False))
        columns[STATISTIC_PREFIX + name] = _lists([r.statistics[name] for r in rows], np.float32)
    return pa.table(columns, schema=schema)


def _same_statistics(rows: Sequence[ReadingRow]) -> None:
    for row in rows:
        if row.statistics.keys() != rows[0].statistics.keys():
            raise AlignmentError(
                f"rollout {row.rollout_id} has the statistics {sorted(row.statistics)}, and {rows[0].rollout_id} "
                f"{sorted(rows[0].statistics)}; the rows of one batch must have the same"
            )


def top_table(rows: Sequence[ReadingRow]) -> pa.Table:
    """The top lists of the rows that carry some, as a table of `TOP_SCHEMA`."""
    kept = [(row.rollout_id, row.top) for row in rows if row.top is not None]
    columns = {
        "rollout_id": [rollout_id for rollout_id, _ in kept],
        "positions": _lists([top.positions for _, top in kept], np.int32),
        "k": [top.ids.shape[1] for _, top in kept],
        "ids": _lists([top.ids.ravel() for _, top in kept], np.int32),
        "logprobs": _lists([top.logprobs.ravel() for _, top in kept], np.float32),
    }
    return pa.table(columns, schema=TOP_SCHEMA)


def write_parquet(table: pa.Table, path: Path) -> None:
    """Row groups of about two million tokens; floats byte-stream-split, everything compressed with zstd."""
    floats = [f"{f.name}.list.element" for f in table.schema if f.type == pa.list_(pa.float32())]
    texts = [f.name for f in table.schema if pa.types.is_string(f.type)]
    pq.write_table(
        table,
        path,
        compression="zstd",
        write_page_checksum=True,
        use_dictionary=texts,
        column_encoding=dict.fromkeys(floats, "BYTE_STREAM_SPLIT"),
        row_group_size=_rows_per_group(table),
    )


def rollout_rows(table: pa.Table) -> Iterator[Rollout]:
    """The rollouts of a table, one by one."""
    block = rollout_block(table)
    texts, rewards = table["text"].to_pylist(), table["reward"].to_pylist()
    groups, trajectories = table["group"].to_pylist(), table["trajectory_id"].to_pylist()
    for i, rollout_id in enumerate(block.rollout_ids):
        part = slice(block.offsets[i], block.offsets[i + 1])
        yield Rollout(
            rollout_id=rollout_id,
            prompt_id=block.prompt_ids[i],
            trajectory_id=trajectories[i],
            token_ids=block.token_ids[part],
            sampled=block.sampled[part],
            loss_mask=block.loss_mask[part],
            text=texts[i],
            reward=rewards[i],
            group=groups[i],
            tags=read_tags(rollout_id, block.tags[i]),
        )


def read_tags(rollout_id: str, tags: str) -> dict[str, str]:
    """A rollout's tags from their JSON. Raises RunError if it is damaged."""
    try:
        found = json.loads(tags)
    except (ValueError, RecursionError) as error:
        raise RunError(f"rollout {rollout_id}: its tags are not JSON ({error}). The run is damaged.") from error
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise RunError(f"rollout {rollout_id}: its tags are no JSON object of strings. The run is damaged.")
    return found


def span_rows(table: pa.Table) -> Iterator[Span]:
    """The spans of a table, one by one."""
    return (Span(**row) for row in table.to_pylist())


def rollout_block(table: pa.Table) -> RolloutBlock:
    """A table's rollouts as flat arrays. Raises RunError if the list columns of a row differ in length."""
    offsets, token_ids = _flat(table, "token_ids")
    sampled_offsets, sampled = _flat(table, "sampled")
    mask_offsets, loss_mask = _flat(table, "loss_mask")
    ids = _filled(table, "rollout_id")
    for name, other in (("sampled", sampled_offsets), ("loss_mask", mask_offsets)):
        _same_lengths(ids, offsets, other, name=name)
    return RolloutBlock(
        rollout_ids=ids,
        prompt_ids=_filled(table, "prompt_id"),
        tags=_filled(table, "tags"),
        offsets=offsets,
        token_ids=token_ids,
        sampled=sampled,
        loss_mask=loss_mask,
    )


def reading_block(table: pa.Table) -> ReadingBlock:
    """A table's reading rows as flat arrays. Raises RunError if the list columns of a row differ in length."""
    offsets, logprobs = _flat(table, "logprobs")
    state_offsets, states = _flat(table, "states")
    ids = _filled(table, "rollout_id")
    _same_lengths(ids, offsets, state_offsets, name="states")

    def optional(name: str) -> Any:
        if name not in table.column_names or table[name].null_count:
            return None
        other, values = _flat(table, name)
        _same_lengths(ids, offsets, other, name=name)
        return values

    return ReadingBlock(
        rollout_ids=ids,
        digests=_filled(table, "digest"),
        offsets=offsets,
        logprobs=logprobs,
        states=states,
        top1=optional("top1"),
        entropy=optional(STATISTIC_PREFIX + "entropy"),
        varentropy=optional(STATISTIC_PREFIX + "varentropy"),
    )


def top_rows(table: pa.Table) -> Iterator[tuple[str, TopLists]]:
    """Rollout id and top lists, one rollout at a time. Raises RunError if a row's lists do not fit each other."""
    offsets_p, positions = _flat(table, "positions")
    offsets_i, ids = _flat(table, "ids")
    offsets_l, logprobs = _flat(table, "logprobs")
    names, ks = _filled(table, "rollout_id"), _filled(table, "k")
    _same_lengths(names, np.concatenate([[0], np.cumsum(np.diff(offsets_p) * ks)]), offsets_i, name="ids")
    _same_lengths(names, offsets_i, offsets_l, name="logprobs")
    for i, rollout_id in enumerate(names):
        part, shape = slice(offsets_i[i], offsets_i[i + 1]), (offsets_p[i + 1] - offsets_p[i], ks[i])
        yield (
            rollout_id,
            TopLists(
                positions=positions[offsets_p[i] : offsets_p[i + 1]],
                ids=ids[part].reshape(shape),
                logprobs=logprobs[part].reshape(shape),
            ),
        )


def _rows_per_group(table: pa.Table) -> int:
    lists = next((name for name in ("token_ids", "logprobs") if name in table.column_names), None)
    if lists is None or table.num_rows == 0:
        return max(1, int(table.num_rows))
    per_row = max(1, len(table[lists].combine_chunks().values) // int(table.num_rows))
    return max(1, min(int(table.num_rows), ROW_GROUP_TOKENS // per_row))


def _lists(rows: Sequence[npt.NDArray[np.generic]], dtype: npt.DTypeLike) -> pa.ListArray:
    offsets = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    values = np.concatenate([np.asarray(row, dtype=dtype) for row in rows]) if rows else np.empty(0, dtype=dtype)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


def _optional_lists(rows: Iterable[IntArray | None], dtype: npt.DTypeLike) -> pa.Array:
    kept = list(rows)
    if all(row is not None for row in kept):
        return _lists([row for row in kept if row is not None], dtype)
    return pa.array([None if row is None else row.tolist() for row in kept], type=pa.list_(pa.int32()))


def _flat(table: pa.Table, name: str) -> tuple[npt.NDArray[np.int64], Any]:
    column = table[name]
    chunk = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(chunk, pa.ChunkedArray):
        chunk = chunk.combine_chunks() if chunk.num_chunks else pa.array([], type=column.type)
    if chunk.null_count or chunk.values.null_count:
        raise RunError(f"the column {name!r} holds nulls; a run writes NaN and a state where there is no value")
    offsets = chunk.offsets.to_numpy().astype(np.int64)
    values = chunk.values.slice(offsets[0], offsets[-1] - offsets[0])
    return offsets - offsets[0], values.to_numpy(zero_copy_only=False)


def _filled(table: pa.Table, name: str) -> list[Any]:
    if table[name].null_count:
        raise RunError(f"the column {name!r} holds nulls; every row of a run has a value there")
    values: list[Any] = table[name].to_pylist()
    return values


def _storable(text: str) -> str:
    """Parquet holds UTF-8: two surrogates that are one character become it, a lone one the mark of a broken one."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _same_lengths(ids: list[str], offsets: npt.NDArray[np.int64], other: npt.NDArray[np.int64], *, name: str) -> None:
    if not np.array_equal(offsets, other):
        row = int(np.flatnonzero(np.diff(offsets) != np.diff(other))[0])
        raise RunError(
            f"rollout {ids[row]}: {np.diff(offsets)[row]} tokens and {np.diff(other)[row]} entries in {name!r}"
        )
