"""Plain Parquet or JSON lines with columns of these names: what everything else can be converted to.

One row is one rollout. Entry i of a list belongs to token i of the whole sequence, or of the completion: which one, its
length says. Nothing is shifted. Anything else in the file is not read.

| column | type | what |
|---|---|---|
| `token_ids` | list of int | prompt and completion; needs `sampled` or `loss_mask` |
| `prompt_ids`, `completion_ids` | lists of int | in place of `token_ids`. Without any ids the lists are compared with each other, and nothing can be scored again |
| `sampled` | list of bool | the policy produced this token; if it is absent: the completion, or where that is not known the loss mask, or without ids every token |
| `loss_mask` | list of bool | the trainer trains on this token; if it is absent: `sampled` |
| `rollout_logprobs` | list of float | nats, of the policy that sampled |
| `trainer_logprobs` | list of float | nats, of the trainer; one of the two must be there |
| `rollout_id` | text, may be absent | unique in the file; else FILE/ROW, from 0 on |
| `prompt_id` | text, may be absent | samples of one prompt share it; else the digest of the prompt's ids, and without ids each rollout is a prompt of its own |
| `step` | int, may be absent | of the training |
| `weight_version`, `trainer_version` | text or int, may be absent | of the policy that sampled; of the weights that the trainer scored with |
| `reward`, `advantage` | float, may be absent | of the rollout |
| `tags` | JSON, map or struct, may be absent | names and strings |

Only sampled tokens are compared (those of the loss mask in a row without one), the others are MASKED whatever stands
there. At a compared token null is ABSENT, and so is every token of a row that has null in place of the list; NaN, an
infinity, -9999, anything at or below -1000 or above 1e-6 is INVALID; 0.0 is a value. A column that is not in the file is
a side that was not recorded. Masks may be 0 and 1. Logprobs may be float16, float32 or float64 and become float32.

Source: this project.
"""  # noqa: E501 - a table

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from onepolicy.dumps.block import RecordedBlock
from onepolicy.dumps.contract import Format
from onepolicy.errors import DumpError, UsageError
from onepolicy.integrations.columns.blocks import block_of
from onepolicy.integrations.columns.jsonl import jsonl_rows
from onepolicy.integrations.columns.parquet import parquet_rows
from onepolicy.integrations.columns.rows import LOGPROBS, NAMES

if TYPE_CHECKING:
    from onepolicy.dumps.file import DumpFile

_PRIME_RL = "inference_logprobs"
"""beside a `trainer_logprobs`, this is a token export of prime-rl"""


def columns_format(rename: Mapping[str, str]) -> Format:
    """The format for a file whose columns have other names. rename: our name -> the file's.

    Raises: UsageError for a name that is not ours.
    """
    unknown = sorted(set(rename) - set(NAMES))
    if unknown:
        raise UsageError(
            f"--columns {unknown[0]}={rename[unknown[0]]}: there is no such column. Ours: {', '.join(NAMES)}."
        )
    names = dict(zip(NAMES, NAMES, strict=True)) | dict(rename)

    def recognises(file: DumpFile) -> bool:
        found = _names_of(file)
        return any(names[name] in found for name in LOGPROBS) and (bool(rename) or _PRIME_RL not in found)

    def blocks(file: DumpFile) -> Iterator[RecordedBlock]:
        _check_renamed(file, rename)
        if file.kind == "parquet":
            for rows in parquet_rows(file, names):
                yield block_of(rows, label=file.label)
            return
        for rows, refused in jsonl_rows(file, names):
            yield block_of(rows, label=file.label, besides=refused)

    return Format(
        name="columns",
        title="Parquet or JSONL with columns by our names, or by yours (--columns OURS=YOURS)",
        recognises=recognises,
        blocks=blocks,
        notes=(
            "the file does not say which distribution its logprobs belong to; they are taken as that of sampling",
            "nor with which weights the trainer scored; they are taken as those before the update",
        ),
    )


COLUMNS = columns_format({})


def _names_of(file: DumpFile) -> set[str]:
    """The columns of a Parquet file, the keys of the first line of a JSON file; none of another kind."""
    if file.kind == "parquet":
        schema = file.schema()
        return set(schema.names) if schema is not None else set()
    return set(file.first() or ())


def _check_renamed(file: DumpFile, rename: Mapping[str, str]) -> None:
    """Raises: DumpError if a column that was named is not in the file."""
    found = _names_of(file) if rename else ()
    for ours, theirs in rename.items():
        if theirs not in found:
            raise DumpError(
                f"{file.name}: there is no column {theirs!r} to take {ours} from. It has: {', '.join(sorted(found))}."
            )
