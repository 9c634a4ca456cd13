"""What miles writes with --dump-details or --save-debug-train-data: `train_data/{rollout_id}_{rank}.pt`, a file a
rank.

A dict of `rollout_id`, `rank`, `cp_rank`, `cp_size`, `qkv_format` and `rollout_data`: columns with one entry for each
of the rank's samples. The files of one rollout are read together. Ranks of data parallelism hold other samples; those
of tensor parallelism hold the same ones again, of which the lowest rank's are read; ranks before the last pipeline
stage have no `log_probs`. A sample is known by its entry in `sample_indices`.

Alignment: `tokens` are prompt and response without padding. `log_probs`, `rollout_log_probs` and `advantages` have one
entry for each of the last `response_lengths` tokens; entry i belongs to response token i. With `cp_size` above 1 each
rank keeps the slice of two chunks (zigzag, see `shards.py`), for `qkv_format` bshd chunks of `max_seq_lens`; the
slices are put together, and a row of which one is missing is refused. `loss_masks` are whole on every rank. A token
that no policy sampled has loss mask 0; there is no padding and no sentinel of miles'; SGLang's own floor of about
-3.4e38 may come through.

`log_probs` are the trainer's before the update, `rollout_log_probs` SGLang's after the temperature and before top-p
and top-k; float32, but `rollout_log_probs` bfloat16 where miles casts them. `rewards` are as the trainer got them,
normalised by prompt if the run does so; `raw_reward` covers the whole rollout in an order that the file does not have.

Source: radixark/miles:miles/utils/train_dump_utils.py, miles/backends/training_utils/{cp_utils,data}.py,
miles/ray/rollout/train_data_conversion.py.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onepolicy.dumps.completion_columns import (
    CompletionNames,
    CompletionRow,
    entries,
    numbers,
    recorded,
    token_ids,
    whole,
)
from onepolicy.dumps.contract import Format, RecordedRollout, Refusal
from onepolicy.dumps.fields import FieldError, misfit
from onepolicy.dumps.file import DumpFile
from onepolicy.dumps.stored import StoredTensor
from onepolicy.errors import DumpError
from onepolicy.integrations.miles.shards import Layout, rejoined

NAMES = CompletionNames(
    tokens="tokens",
    loss_mask="loss_masks",
    rollout="rollout_log_probs",
    trainer="log_probs",
    response_length="response_lengths",
    total_length="total_lengths",
)
SLICED = (NAMES.rollout, NAMES.trainer, NAMES.advantages)
PER_SAMPLE = (
    *SLICED,
    NAMES.tokens,
    NAMES.loss_mask,
    NAMES.response_length,
    NAMES.total_length,
    "max_seq_lens",
    "rewards",
    "sample_indices",
    "truncated",
    "weight_versions",
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Shard:
    """The file of one rank."""

    file: DumpFile
    rank: int
    cp_rank: Any
    cp_size: Any
    qkv_format: Any
    columns: Mapping[str, Any]

    @property
    def rows(self) -> int:
        return len(self.columns[NAMES.tokens])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Place:
    """One sample in one file."""

    shard: _Shard
    row: int

    def get(self, name: str) -> Any:
        column = self.shard.columns.get(name)
        return None if column is None else column[self.row]

    def __str__(self) -> str:
        return f"{self.shard.file.name}, sample {self.row}"


def _recognises(file: DumpFile) -> bool:
    found = file.loaded() if file.kind == "torch" else None
    return isinstance(found, dict) and "rollout_id" in found and isinstance(found.get("rollout_data"), dict)


def _group(file: DumpFile) -> str:
    """Folder and rollout of `train_data/7_12.pt`."""
    return re.sub(r"_\d+(\.\w+)*$", "", file.location)


def _together(files: Sequence[DumpFile]) -> Iterator[RecordedRollout | Refusal]:
    loaded = [(file, _content(file)) for file in files]
    steps = {str(found["rollout_id"]) for _, found in loaded}
    if len(steps) > 1:
        raise DumpError(
            f"{files[0].name}: it and the files beside it are named as one rollout and hold the rollouts "
            f"{', '.join(sorted(steps))}. Put each rollout's files under a name of its own."
        )
    shards = sorted((_shard(file, found) for file, found in loaded), key=lambda shard: shard.rank)
    for places in _samples(shards):
        yield _rollout(places, loaded[0][1]["rollout_id"])


def _content(file: DumpFile) -> dict[str, Any]:
    found = file.loaded()
    assert isinstance(found, dict)
    return found


def _shard(file: DumpFile, found: dict[str, Any]) -> _Shard:
    columns = {}
    for name in PER_SAMPLE:
        column = found["rollout_data"].get(name)
        columns[name] = column.array if isinstance(column, StoredTensor) else column
    rows = columns[NAMES.tokens]
    if not _is_column(rows):
        raise DumpError(f"{file.name}: rollout_data has no list of tokens. It is no training data of miles.")
    for name, column in columns.items():
        if column is not None and not (_is_column(column) and len(column) == len(rows)):
            why = misfit(len(column), len(rows), of="samples") if _is_column(column) else "is no list of the samples'"
            raise DumpError(f"{file.name}: rollout_data: {name}: {why}.")
    return _Shard(
        file=file,
        rank=int(found["rank"]) if isinstance(found.get("rank"), int) else 0,
        cp_rank=found.get("cp_rank"),
        cp_size=found.get("cp_size"),
        qkv_format=found.get("qkv_format", "thd"),
        columns=columns,
    )


def _is_column(found: Any) -> bool:
    return isinstance(found, (list, tuple)) or (isinstance(found, np.ndarray) and found.ndim > 0)


def _samples(shards: Sequence[_Shard]) -> list[list[_Place]]:
    """Where each sample is, the lowest rank first; an index that a file has several times is several samples."""
    found: dict[Any, list[_Place]] = {}
    for number, shard in enumerate(shards):
        seen: Counter[Any] = Counter()
        for row in range(shard.rows):
            place = _Place(shard=shard, row=row)
            index = place.get("sample_indices")
            if index is None and len(shards) > 1:
                raise DumpError(
                    f"{place}: sample_indices has no entry, so its copies and slices in the files of other ranks "
                    "cannot be told from other samples. Import one rank's file alone, if context parallelism was off."
                )
            key = ("row", number, row) if index is None else ("index", str(index))
            found.setdefault((key, seen[key]), []).append(place)
            seen[key] += 1
    return list(found.values())


def _rollout(places: list[_Place], step: object) -> RecordedRollout | Refusal:
    first = places[0]
    truncated = first.get("truncated")
    try:
        fields = {NAMES.tokens: first.get(NAMES.tokens), NAMES.loss_mask: first.get(NAMES.loss_mask)} | _sliced(places)
    except FieldError as found:
        return Refusal(where=str(first), field=found.field, why=found.why)
    return recorded(
        CompletionRow(
            where=str(first),
            rollout_id=f"{first.shard.file.label}/{first.row}",
            fields=fields,
            names=NAMES,
            response_length=first.get(NAMES.response_length),
            total_length=first.get(NAMES.total_length),
            tags={"status": "truncated"} if isinstance(truncated, (int, np.integer)) and truncated else {},
            step=step,
            weight_versions=first.get("weight_versions"),
            reward=first.get("rewards"),
        )
    )


def _sliced(places: list[_Place]) -> dict[str, Any]:
    """The columns that context parallelism slices, whole again; None where no rank has one."""
    ranks = _ranks(places)
    fields: dict[str, Any] = {}
    for name in SLICED:
        holders = [place for place in places if place.get(name) is not None]
        if ranks == 1 or not holders:
            fields[name] = holders[0].get(name) if holders else None
            continue
        slices = {_cp_rank(place, ranks): numbers(name, place.get(name)) for place in reversed(holders)}
        fields[name] = rejoined(slices, _layout(places[0], ranks), field=name)
    return fields


def _ranks(places: list[_Place]) -> int:
    """Context-parallel size. Raises: FieldError if the files of one sample do not agree on what it is."""
    first = places[0]
    for place in places[1:]:
        same = np.array_equal(entries(first.get(NAMES.tokens)), entries(place.get(NAMES.tokens)))
        if not same or str(first.get(NAMES.response_length)) != str(place.get(NAMES.response_length)):
            raise FieldError(NAMES.tokens, f"{place} has other tokens, or another response, under the same index")
    sizes = {1 if place.shard.cp_size is None else whole("cp_size", place.shard.cp_size) for place in places}
    if len(sizes) > 1 or 0 in sizes:
        raise FieldError("cp_size", f"is {', '.join(map(str, sorted(sizes)))} in the files that have this sample")
    return sizes.pop()


def _cp_rank(place: _Place, ranks: int) -> int:
    rank = whole("cp_rank", place.shard.cp_rank)
    if rank >= ranks:
        raise FieldError("cp_rank", f"is {rank} of {ranks} in {place.shard.file.name}")
    return rank


def _layout(place: _Place, ranks: int) -> Layout:
    total = len(token_ids(NAMES.tokens, place.get(NAMES.tokens)))
    said = place.get(NAMES.total_length)
    if said is not None and whole(NAMES.total_length, said) != total:
        raise FieldError(NAMES.tokens, misfit(total, whole(NAMES.total_length, said), of="tokens in total_lengths"))
    length = whole(NAMES.response_length, place.get(NAMES.response_length))
    if length > total:
        raise FieldError(NAMES.response_length, f"is {length}, and there are {total} tokens with the prompt")
    qkv_format = str(place.shard.qkv_format)
    if qkv_format not in {"thd", "bshd"}:
        raise FieldError("qkv_format", f"is {qkv_format[:40]!r}; slices of thd and bshd can be put together")
    padded = total if qkv_format == "thd" else whole("max_seq_lens", place.get("max_seq_lens"))
    return Layout(ranks=ranks, total_length=total, response_length=length, padded_length=padded)


MILES = Format(
    name="miles",
    title="miles' train_data/{rollout_id}_{rank}.pt (--dump-details, --save-debug-train-data)",
    recognises=_recognises,
    rows=lambda file: _together([file]),
    group=_group,
    together=_together,
    notes=(
        "SGLang reports logprobs after the temperature and before top-p, top-k and min-p.",
        "Compared are the tokens with loss mask 1: the file does not say which others were sampled.",
    ),
)
