"""A damaged run is an error that names the file, never a traceback and never a pass."""

import json
import random
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onepolicy.engines.spec import parse_spec
from onepolicy.errors import OnePolicyError, RunError
from onepolicy.records.run import Run
from onepolicy.workflow.judge import judge
from onepolicy.workflow.score import ScoreRequest, score

KINDS = ("rollouts/part-", "readings/rollout/part-", "readings/trainer/part-", "readings/rollout/top-")
JSON_FILES = ("manifest.json", "readings/trainer/reading.json", "judgements/default/verdicts.json")


def first_file(run: Path, kind: str) -> Path:
    return sorted((run / kind).parent.glob(f"{Path(kind).name}*.parquet"))[0]


def read_back(run: Path, file: str):
    return Run.open(run).judgement("default") if "judgements" in file else judge(run)


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_cut_off_anywhere_is_an_error_that_names_it(kind, run_copy):
    path = run_copy()
    part = first_file(path, kind)
    content = part.read_bytes()
    for end in {0, 1, 4, 8, *range(9, len(content), len(content) // 9), len(content) - 1}:
        part.write_bytes(content[:end])
        with pytest.raises(RunError, match=part.name):
            judge(path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_never_ends_in_a_traceback(kind, run_copy):
    path, chance = run_copy(), random.Random(kind)
    part = first_file(path, kind)
    content = part.read_bytes()
    for _ in range(40):
        damaged = bytearray(content)
        damaged[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        part.write_bytes(damaged)
        with suppress(OnePolicyError):
            judge(path)


def test_a_flipped_bit_in_the_data_never_changes_a_number_unnoticed(run_copy):
    path = run_copy()
    part = first_file(path, "readings/trainer/part-")
    content, expected = part.read_bytes(), judge(path)
    place = pq.read_metadata(part).row_group(0).column(2)
    assert place.path_in_schema.startswith("logprobs")
    for position in range(place.data_page_offset, place.data_page_offset + place.total_compressed_size, 3):
        part.write_bytes(content[:position] + bytes([content[position] ^ 8]) + content[position + 1 :])
        with suppress(RunError):
            assert judge(path) == expected


def test_a_foreign_parquet_file_is_refused_with_the_columns_it_has(run_copy):
    path = run_copy()
    part = first_file(path, "readings/trainer/part-")
    pq.write_table(pa.table({"step": [1, 2], "loss": [0.5, 0.25]}), part)
    with pytest.raises(RunError, match=r"needs the column 'rollout_id' of type string; this file has step: int64"):
        judge(path)


def test_a_part_with_a_column_of_another_type_is_refused(run_copy):
    path = run_copy()
    part = first_file(path, "readings/trainer/part-")
    table = pq.read_table(part)
    wide = table["logprobs"].cast(pa.list_(pa.float64()))
    pq.write_table(table.set_column(table.column_names.index("logprobs"), "logprobs", wide), part)
    with pytest.raises(RunError, match=r"'logprobs' of type list<.*: float>; this file has .*double"):
        judge(path)


def test_nulls_where_a_run_has_none_are_refused(run_copy, rewrite):
    path = run_copy()
    part = first_file(path, "readings/trainer/part-")
    table = pq.read_table(part)
    rows = table.to_pylist()
    rows[0]["logprobs"][-1] = None
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), part)
    with pytest.raises(RunError, match=f"{part.name}: the column 'logprobs' holds nulls"):
        judge(path)


def test_lists_of_unequal_length_are_refused_with_the_rollout(run_copy, rewrite):
    path, name = run_copy(), []

    def shorten(rows):
        name.append(next(iter(rows)))
        rows[name[0]]["logprobs"].pop()

    rewrite(path / "readings" / "trainer", shorten)
    with pytest.raises(RunError, match=f"rollout {name[0]}: .* entries in 'states'"):
        judge(path)


DAMAGE = {
    "empty": b"",
    "null": b"null",
    "a list": b"[]",
    "a number": b"1e999",
    "no UTF-8": b"\xff\xfe{}",
    "nested too deep": b"[" * 100_000,
    "a number too long": b'{"format_version": ' + b"1" * 6000 + b"}",
    "a lone surrogate": b'{"format_version": 1, "\\ud800": 1}',
}


@pytest.mark.parametrize("file", JSON_FILES)
@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_json_is_an_error_that_names_the_file(file, damage, run_copy):
    path = run_copy()
    (path / file).write_bytes(DAMAGE[damage])
    with pytest.raises(RunError, match=Path(file).name) as error:
        read_back(path, file)
    assert str(error.value).encode()


@pytest.mark.parametrize("file", JSON_FILES)
def test_json_cut_off_anywhere_is_an_error_that_names_the_file(file, run_copy):
    path = run_copy()
    content = (path / file).read_bytes()
    for end in range(0, len(content) - 2, len(content) // 12):
        (path / file).write_bytes(content[:end])
        with pytest.raises(RunError, match=f"{Path(file).name}: is not JSON"):
            read_back(path, file)


@pytest.mark.parametrize("file", JSON_FILES)
@pytest.mark.parametrize("value", [None, [], {}, "x", {"a": 1}])
def test_json_with_a_value_of_another_type_is_an_error_or_reads_as_what_it_says(file, value, run_copy):
    path = run_copy()
    content = json.loads((path / file).read_text())
    for key in content:
        (path / file).write_text(json.dumps({**content, key: value}))
        with suppress(OnePolicyError):
            read_back(path, file)


def test_a_run_of_a_later_format_says_which_version_it_has_and_which_is_read(run_copy):
    path = run_copy()
    content = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**content, "format_version": 2}))
    with pytest.raises(RunError, match=r"format version 2; this onepolicy reads version 1"):
        judge(path)


@pytest.mark.parametrize("content", [None, b"", b"{}"])
def test_a_damaged_or_absent_tokenizer_is_an_error_and_scoring_again_writes_it_anew(content, run_copy):
    path = run_copy()
    file = next((path / "tokenizers").iterdir())
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(RunError, match=f"{file.name}: the tokenizer is damaged or absent"):
        judge(path)
    file.unlink(missing_ok=True)
    score(path, ScoreRequest(engine=parse_spec("fake:m?batch_size=4"), resume=True))
    assert judge(path).exit_status == 0


def test_a_missing_reading_is_named_with_those_that_are_there(run_copy):
    path = run_copy()
    (path / "readings" / "trainer" / "reading.json").unlink()
    with pytest.raises(RunError, match=r"no reading 'trainer'. The run has: rollout\."):
        judge(path)


def test_tags_that_are_no_json_are_refused(run_copy, rewrite):
    path = run_copy()
    rewrite(path / "rollouts", lambda rows: rows["quick-003/0"].update(tags="{"))
    with pytest.raises(RunError, match="quick-003/0"):
        judge(path)
