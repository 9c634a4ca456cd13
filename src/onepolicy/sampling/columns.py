"""A run's readings -> the sampled tokens whose statistics, or whose most likely alternatives, are recorded."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onepolicy.records.join import TopJoin
from onepolicy.records.parquet import READING_SCHEMA, STATISTIC_PREFIX, ReadingBlock, reading_block
from onepolicy.records.protocol import Meaning, SamplingProtocol
from onepolicy.records.run import Run
from onepolicy.records.stored import open_parquet, read_row_group
from onepolicy.records.tokens import TokenState
from onepolicy.sampling.from_lists import ListBlock
from onepolicy.sampling.from_statistics import COLUMNS, StatisticBlock


def readings_with_statistics(run: Run) -> list[str]:
    """Names of the readings that keep statistics, the sampling side's first."""
    return [name for name in _in_order(run) if run.reading_info(name).request.statistics]


def readings_with_lists(run: Run) -> list[str]:
    """Names of the readings that keep the most likely tokens of the raw distribution.

    A reading that reports another one's ids has no lists of its own: they need not be its most likely ones.
    """
    found = []
    for name in _in_order(run):
        info = run.reading_info(name)
        own = info.request.top > 0 and info.request.report_ids_of is None
        found += [name] if own and info.meaning.is_raw and run.top_parts(name) else []
    return found


def statistic_blocks(run: Run, name: str, protocol: SamplingProtocol) -> Iterator[StatisticBlock]:
    """The tokens of a reading that have statistics, one row group at a time."""
    info = run.reading_info(name)
    is_declared = info.meaning.truncates and info.meaning == Meaning.processed_by(protocol)
    for path in run.reading_parts(name):
        with open_parquet(path, READING_SCHEMA) as file:
            kept = {column: STATISTIC_PREFIX + column for column in COLUMNS}
            there = {k: v for k, v in kept.items() if v in file.schema_arrow.names}
            for group in range(file.num_row_groups):
                table = read_row_group(path, file, group, [*READING_SCHEMA.names, *there.values()])
                block = reading_block(table)
                flat = {
                    column: table[stored].combine_chunks().flatten().to_numpy(zero_copy_only=False).astype(np.float64)
                    for column, stored in there.items()
                }
                if "rank" in flat and "log_mass_above" in flat:
                    yield _statistics(block, flat, is_raw=info.meaning.is_raw, is_declared=is_declared)


def list_blocks(run: Run, name: str) -> Iterator[ListBlock]:
    """The tokens of a reading that have a list of most likely ones, one rollout at a time."""
    vocabulary, top = run.reading_info(name).engine.vocab_size, TopJoin(run, name)
    for path in run.reading_parts(name):
        with open_parquet(path, READING_SCHEMA) as file:
            for group in range(file.num_row_groups):
                block = reading_block(read_row_group(path, file, group, READING_SCHEMA.names))
                yield from _lists(block, top, vocabulary)


def sampled_tokens(run: Run) -> int:
    """Tokens of the run that were sampled."""
    return sum(int(block.sampled.sum()) for block in run.rollout_blocks())


def _in_order(run: Run) -> list[str]:
    return sorted(run.reading_names(), key=lambda name: (name != "rollout", name))


def _statistics(block: ReadingBlock, flat: dict[str, np.ndarray], *, is_raw: bool, is_declared: bool) -> StatisticBlock:
    there = (block.states == TokenState.VALUE) & ~np.isnan(flat["rank"]) & ~np.isnan(flat["log_mass_above"])
    return StatisticBlock(
        columns={name: values[there] for name, values in flat.items()},
        logprobs=block.logprobs[there].astype(np.float64) if is_raw else None,
        is_declared=is_declared,
    )


def _lists(block: ReadingBlock, top: TopJoin, vocabulary: int | None) -> Iterator[ListBlock]:
    for row, rollout_id in enumerate(block.rollout_ids):
        found = top.get(rollout_id)
        if found is None or not found.ids.shape[1]:
            continue
        places = block.offsets[row] + found.positions
        lists = np.asarray(found.logprobs, dtype=np.float64)
        usable = (block.states[places] == TokenState.VALUE) & np.isfinite(lists).all(axis=1)
        if usable.any():
            yield ListBlock(
                logprobs=block.logprobs[places[usable]].astype(np.float64),
                lists=-np.sort(-lists[usable], axis=1),
                vocabulary=vocabulary,
            )
