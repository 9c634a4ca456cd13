"""The plain format: Parquet and JSONL with documented columns, every type and length that its docstring names."""

import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onepolicy.dumps.block import BLOCK_TOKENS, NO_STEP
from onepolicy.dumps.file import DumpFile
from onepolicy.errors import DumpError, UsageError
from onepolicy.integrations.columns import dump
from onepolicy.integrations.columns.dump import COLUMNS, columns_format
from onepolicy.integrations.columns.rows import NAMES
from onepolicy.records.tokens import TokenState, digest_of_ids

VALUE, MASKED, INVALID, ABSENT, *_ = TokenState
KINDS = ("jsonl", "parquet")


def stored(tmp_path, rows, kind, *, types=None, name="dump", **options):
    """The same rows as JSONL or as Parquet."""
    path = tmp_path / f"{name}.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        keys = dict.fromkeys(key for row in rows for key in row)
        columns = {key: pa.array([row.get(key) for row in rows], type=(types or {}).get(key)) for key in keys}
        pq.write_table(pa.table(columns), path, **options)
    return DumpFile(path)


class Found:
    """All blocks of a file, row by row."""

    def __init__(self, file, form=COLUMNS):
        assert form.recognises(file)
        self.blocks = list(form.blocks(file))
        self.refused = [refusal for block in self.blocks for refusal in block.refused]

    def rows(self):
        return [row for block in self.blocks for row in self._rows(block)]

    def _rows(self, block):
        told = block.rollouts
        for r, rollout_id in enumerate(told.rollout_ids):
            part = slice(told.offsets[r], told.offsets[r + 1])
            row = {
                "rollout_id": rollout_id,
                "prompt_id": told.prompt_ids[r],
                "tags": json.loads(told.tags[r]),
                "ids": told.token_ids[part].tolist(),
                "sampled": told.sampled[part].tolist(),
                "loss_mask": told.loss_mask[part].tolist(),
                "step": block.steps[r],
                "versions": (block.weight_versions[r], block.trainer_versions[r]),
                "reward": block.rewards[r],
                "advantage": block.advantages[r],
            }
            for name, side in (("rollout", block.rollout), ("trainer", block.trainer)):
                if side is not None:
                    assert side.rollout_ids == told.rollout_ids
                    assert side.digests[r] == digest_of_ids(told.token_ids[part])
                    assert np.array_equal(side.offsets, told.offsets)
                    row[name] = side.logprobs[part].tolist()
                    row[f"{name}_states"] = side.states[part].tolist()
            yield row


def same(found, expected):
    """Lists of numbers with NaN in the same places."""
    return np.array_equal(np.float32(found), np.float32(expected), equal_nan=True)


N = math.nan
PARTS = {
    "prompt_ids": [5, 6],
    "completion_ids": [7, 8, 9],
    "rollout_logprobs": [-1.0, -2.0, -0.5],
    "trainer_logprobs": [-1.5, -2.5, 0.0],
}
FULL = {
    "token_ids": [5, 6, 7, 8, 9],
    "sampled": [False, False, True, True, True],
    "rollout_logprobs": [0.0, 0.0, -1.0, -2.0, -0.5],
    "trainer_logprobs": [-9.0, -9.0, -1.5, -2.5, 0.0],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("given", [PARTS, FULL, PARTS | {"trainer_logprobs": FULL["trainer_logprobs"]}, PARTS | FULL])
def test_completion_lists_and_full_lists_are_told_apart_by_their_length(tmp_path, kind, given):
    (row,) = Found(stored(tmp_path, [given], kind)).rows()
    assert row["ids"] == [5, 6, 7, 8, 9]
    assert row["sampled"] == row["loss_mask"] == [False, False, True, True, True]
    assert same(row["rollout"], [N, N, -1.0, -2.0, -0.5])
    assert same(row["trainer"], [N, N, -1.5, -2.5, 0.0])
    assert row["rollout_states"] == row["trainer_states"] == [MASKED, MASKED, VALUE, VALUE, VALUE]
    assert row["prompt_id"] == digest_of_ids(np.array([5, 6]))
    assert (row["rollout_id"], row["step"], row["versions"], row["tags"]) == ("dump/0", NO_STEP, ("", ""), {})
    assert math.isnan(row["reward"])
    assert math.isnan(row["advantage"])


@pytest.mark.parametrize("kind", KINDS)
def test_every_column_comes_back(tmp_path, kind):
    named = {
        "rollout_id": "r-é",
        "prompt_id": 17,
        "step": 4,
        "weight_version": 7,
        "trainer_version": "v8",
        "reward": 0.25,
        "advantage": -1,
        "tags": {"env": "math ✓", "turns": 3},
        "sampled": [True, False, True],
        "loss_mask": [False, False, False, False, True],
        "unknown": [[1]],
    }
    (row,) = Found(stored(tmp_path, [PARTS | named], kind)).rows()
    assert (row["rollout_id"], row["prompt_id"], row["step"]) == ("r-é", "17", 4)
    assert (row["versions"], row["reward"], row["advantage"]) == (("7", "v8"), 0.25, -1.0)
    assert row["tags"] == {"env": "math ✓", "turns": "3"}
    assert row["sampled"] == [False, False, True, False, True]
    assert row["loss_mask"] == [False, False, False, False, True]
    assert row["rollout_states"] == [MASKED, MASKED, VALUE, MASKED, VALUE]
    assert same(row["rollout"], [N, N, -1.0, N, -0.5])


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_logprob_has_a_state_and_never_a_number(tmp_path, kind):
    given = [-1.0, None, N, math.inf, -math.inf, -9999.0, -1000.0, 0.5, 2e-6, 1e-7, 0.0, -1e300]
    row = {"prompt_ids": [1], "completion_ids": list(range(12)), "rollout_logprobs": given}
    (found,) = Found(stored(tmp_path, [row], kind)).rows()
    assert found["rollout_states"] == [MASKED, VALUE, ABSENT, *[INVALID] * 7, VALUE, VALUE, INVALID]
    assert same(found["rollout"], [N, -1.0, *[N] * 8, 1e-7, 0.0, N])
    assert "trainer" not in found


@pytest.mark.parametrize("kind", KINDS)
def test_null_in_place_of_a_list_is_absent_at_every_compared_token(tmp_path, kind):
    first, second = Found(stored(tmp_path, [PARTS, PARTS | {"trainer_logprobs": None}], kind)).rows()
    assert first["trainer_states"] == [MASKED, MASKED, VALUE, VALUE, VALUE]
    assert second["trainer_states"] == [MASKED, MASKED, ABSENT, ABSENT, ABSENT]
    assert second["rollout_states"] == [MASKED, MASKED, VALUE, VALUE, VALUE]


@pytest.mark.parametrize("kind", KINDS)
def test_without_ids_lists_are_compared_with_each_other(tmp_path, kind):
    rows = [
        {"rollout_logprobs": [-1.0, -2.0], "trainer_logprobs": [-1.0, -2.5]},
        {"rollout_logprobs": [-1.0], "trainer_logprobs": None},
    ]
    first, second = Found(stored(tmp_path, rows, kind)).rows()
    assert first["ids"] == [-1, -1]
    assert first["sampled"] == [True, True]
    assert (first["prompt_id"], second["prompt_id"]) == ("dump/0", "dump/1")
    assert second["trainer_states"] == [ABSENT]


@pytest.mark.parametrize("kind", KINDS)
def test_a_loss_mask_stands_for_sampled_where_no_completion_is_known(tmp_path, kind):
    given = {name: FULL[name] for name in ("token_ids", "rollout_logprobs")} | {"loss_mask": [0, 0, 1, 1, 0]}
    (row,) = Found(stored(tmp_path, [given], kind)).rows()
    assert row["sampled"] == row["loss_mask"] == [False, False, True, True, False]


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_that_sampled_nothing_is_compared_over_its_loss_mask(tmp_path, kind):
    given = FULL | {"sampled": [False] * 5, "loss_mask": [False, True, True, False, False]}
    (row,) = Found(stored(tmp_path, [given], kind)).rows()
    assert row["trainer_states"] == [MASKED, VALUE, VALUE, MASKED, MASKED]
    assert row["prompt_id"] == digest_of_ids(np.array([5, 6, 7, 8, 9]))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_all_lengths_keep_their_order(tmp_path, kind):
    rng = np.random.default_rng(3)
    rows = []
    for i in range(200):
        prompt, completion = rng.integers(0, 5), rng.integers(0, 6)
        whole = bool(rng.integers(0, 2))
        rows.append(
            {
                "rollout_id": f"r{i}",
                "prompt_ids": rng.integers(0, 99, prompt).tolist(),
                "completion_ids": rng.integers(0, 99, completion).tolist(),
                "rollout_logprobs": (-rng.exponential(1, completion)).tolist(),
                "trainer_logprobs": (-rng.exponential(1, prompt * whole + completion)).tolist(),
            }
        )
    types = dict.fromkeys(("prompt_ids", "completion_ids"), pa.list_(pa.int32()))
    found = Found(stored(tmp_path, rows, kind, types=types, row_group_size=33)).rows()
    assert [row["rollout_id"] for row in found] == [f"r{i}" for i in range(200)]
    for row, given in zip(found, rows, strict=True):
        prompt = len(given["prompt_ids"])
        assert row["ids"] == given["prompt_ids"] + given["completion_ids"]
        for name in ("rollout", "trainer"):
            completion = given[f"{name}_logprobs"][-len(given["completion_ids"]) :] if given["completion_ids"] else []
            assert same(row[name], [N] * prompt + completion)


CONTRADICTIONS = [
    ({"rollout_logprobs": [-1.0, -2.0]}, "rollout_logprobs", "2 entries for 3 tokens of the completion (5 with"),
    ({"trainer_logprobs": [-1.0] * 4}, "trainer_logprobs", "4 entries for 3 tokens of the completion (5 with"),
    (
        {"trainer_logprobs": [-1.0] * 6},
        "trainer_logprobs",
        "6 entries for 5 tokens. One more is usually an EOS or a BOS",
    ),
    ({"sampled": [1] * 7}, "sampled", "7 entries for 3 tokens of the completion"),
    ({"loss_mask": [True]}, "loss_mask", "1 entries for 3"),
    ({"completion_ids": [7, -8, 9]}, "completion_ids", "entry 1 is -8"),
    ({"completion_ids": [7, 8, 2**31]}, "completion_ids", "entry 2 is 2147483648"),
    ({"prompt_ids": [5, None]}, "prompt_ids", ""),
    ({"prompt_ids": None}, "prompt_ids", ""),
    ({"token_ids": [5, 6, 7, 8, 10]}, "token_ids", "other ids"),
    ({"token_ids": [5, 6, 7, 8]}, "token_ids", "4 entries for 5 tokens"),
    ({"sampled": [0, 1, 2]}, "sampled", "entry 2 is 2"),
    ({"sampled": [0, 1, None]}, "sampled", ""),
    ({"step": -3}, "step", "-3"),
    ({"step": 1.5}, "step", "1.5"),
    ({"tags": "[1]"}, "tags", "no JSON object"),
    ({"tags": "{"}, "tags", "no JSON"),
]
ONLY_JSON = [
    ({"completion_ids": [7, True, 9]}, "completion_ids", "entry 1 is True"),
    ({"completion_ids": [7, 8.0, 9]}, "completion_ids", "entry 1 is 8.0"),
    ({"completion_ids": [7, "8", 9]}, "completion_ids", "entry 1 is '8'"),
    ({"completion_ids": "789"}, "completion_ids", "'789' stands"),
    ({"rollout_logprobs": [-1.0, False, -1.0]}, "rollout_logprobs", "entry 1 is False"),
    ({"rollout_logprobs": [-1.0, "-1", -1.0]}, "rollout_logprobs", "entry 1 is '-1'"),
    ({"rollout_logprobs": [-1.0, [], -1.0]}, "rollout_logprobs", "entry 1 is a list of 0"),
    ({"rollout_logprobs": [N, 10**400, -1.0]}, "rollout_logprobs", "no float can hold"),
    ({"rollout_logprobs": -1.0}, "rollout_logprobs", "-1.0 stands"),
    ({"sampled": [True, "x", True]}, "sampled", "entry 1 is 'x'"),
    ({"sampled": [True, 0.5, True]}, "sampled", "entry 1 is 0.5"),
    ({"step": True}, "step", "True"),
    ({"reward": "high"}, "reward", "'high'"),
    ({"rollout_id": 1.5}, "rollout_id", "1.5"),
    ({"weight_version": [1]}, "weight_version", "a list of 1"),
    ({"tags": 3}, "tags", "3 stands"),
]


@pytest.mark.parametrize(
    ("kind", "changes", "field", "why"),
    [(kind, *one) for kind in KINDS for one in CONTRADICTIONS] + [("jsonl", *one) for one in ONLY_JSON],
)
def test_a_row_that_contradicts_itself_is_refused_by_field_and_the_others_read(tmp_path, kind, changes, field, why):
    good = dict.fromkeys(changes) if field in {"step", "tags", "reward", "rollout_id", "weight_version"} else {}
    good = PARTS | good | ({"sampled": [1, 1, 1]} if field == "sampled" else {})
    good |= {"loss_mask": [True] * 3} if field == "loss_mask" else {}
    good |= {"token_ids": [5, 6, 7, 8, 9]} if field == "token_ids" else {}
    types = dict.fromkeys(("prompt_ids", "completion_ids"), pa.list_(pa.int64()))
    found = Found(stored(tmp_path, [good, good | changes, good], kind, types=types))
    assert [row["rollout_id"] for row in found.rows()] == ["dump/0", "dump/2"]
    (refusal,) = found.refused
    assert refusal.where.endswith("line 2" if kind == "jsonl" else "row 1")
    assert refusal.field == field
    assert why in refusal.why
    for row in found.rows():
        assert same(row["rollout"], [N, N, -1.0, -2.0, -0.5])
    assert sum(block.read for block in found.blocks) == 3


def test_several_faulty_rows_are_named_in_the_order_of_the_file_each_once(tmp_path):
    good = PARTS | {"sampled": [1, 1, 1]}
    bad = [good | {"trainer_logprobs": [-1.0]}, good | {"completion_ids": [7, -1, 9], "sampled": [1, 2, 1]}]
    rows = [bad[1], good, bad[0], bad[1]]
    types = dict.fromkeys(("prompt_ids", "completion_ids"), pa.list_(pa.int64()))
    found = Found(stored(tmp_path, rows, "parquet", types=types))
    assert [(r.where[-5:], r.field) for r in found.refused] == [
        ("row 0", "completion_ids"),
        ("row 2", "trainer_logprobs"),
        ("row 3", "completion_ids"),
    ]


@pytest.mark.parametrize("width", [pa.float16(), pa.float32(), pa.float64()])
@pytest.mark.parametrize("of", [pa.list_, pa.large_list])
def test_every_width_of_float_and_kind_of_list_is_read_the_same(tmp_path, width, of):
    given = [-1.0, -0.5, None, -0.25]
    rows = [{"token_ids": [1, 2, 3, 4], "sampled": [True] * 4, "rollout_logprobs": given}] * 3
    types = {"token_ids": of(pa.uint16()), "sampled": of(pa.bool_()), "rollout_logprobs": of(width)}
    for row in Found(stored(tmp_path, rows, "parquet", types=types)).rows():
        assert row["ids"] == [1, 2, 3, 4]
        assert same(row["rollout"], [-1.0, -0.5, N, -0.25])
        assert row["rollout_states"] == [VALUE, VALUE, ABSENT, VALUE]


def test_lists_that_are_empty_or_null_in_every_row_have_no_type_and_are_read(tmp_path):
    row = {"prompt_ids": [], "completion_ids": [1], "rollout_logprobs": [None], "trainer_logprobs": [-1.0]}
    (found,) = Found(stored(tmp_path, [row], "parquet")).rows()
    assert (found["ids"], found["rollout_states"], found["trainer_states"]) == ([1], [ABSENT], [VALUE])


def test_a_column_that_is_there_twice_stops_the_file(tmp_path):
    path = tmp_path / "twice.parquet"
    lists = pa.array([[-1.0]])
    pq.write_table(pa.Table.from_arrays([lists, lists], names=["rollout_logprobs", "rollout_logprobs"]), path)
    with pytest.raises(DumpError, match="2 columns 'rollout_logprobs'"):
        list(COLUMNS.blocks(DumpFile(path)))


def test_lists_of_one_fixed_size_are_read(tmp_path):
    rows = [{"token_ids": [1, 2], "sampled": [0, 1], "rollout_logprobs": [-1.0, -0.5]}, {"rollout_logprobs": None}]
    rows[1] |= {"token_ids": [3, 4], "sampled": [1, 1]}
    types = {"rollout_logprobs": pa.list_(pa.float32(), 2), "token_ids": pa.list_(pa.int32(), 2)}
    first, second = Found(stored(tmp_path, rows, "parquet", types=types)).rows()
    assert same(first["rollout"], [N, -0.5])
    assert second["rollout_states"] == [ABSENT, ABSENT]


def test_a_map_of_tags_and_a_dictionary_of_names_are_read(tmp_path):
    rows = [PARTS | {"tags": [("env", "a")], "rollout_id": "x"}]
    types = {"tags": pa.map_(pa.string(), pa.string()), "rollout_id": pa.dictionary(pa.int8(), pa.string())}
    (row,) = Found(stored(tmp_path, rows, "parquet", types=types)).rows()
    assert (row["tags"], row["rollout_id"]) == ({"env": "a"}, "x")


@pytest.mark.parametrize("kind", KINDS)
def test_a_large_file_comes_in_several_blocks_with_one_numbering(tmp_path, kind):
    tokens = BLOCK_TOKENS // 4
    ids, logprobs = list(range(tokens)), [-0.5] * tokens
    rows = [{"token_ids": ids, "loss_mask": [1] * tokens, "rollout_logprobs": logprobs}] * 9
    found = Found(stored(tmp_path, rows, kind))
    assert len(found.blocks) >= 2
    assert max(len(block.rollouts.token_ids) for block in found.blocks) <= 2 * BLOCK_TOKENS
    assert [name for block in found.blocks for name in block.rollouts.rollout_ids] == [f"dump/{i}" for i in range(9)]


def test_lines_with_other_columns_make_a_block_of_their_own(tmp_path):
    one_side = {name: PARTS[name] for name in PARTS if name != "trainer_logprobs"}
    found = Found(stored(tmp_path, [PARTS, one_side, FULL, {"prompt_ids": [1]}], "jsonl"))
    assert [block.trainer is None for block in found.blocks] == [False, True, False]
    assert [row["rollout_id"] for row in found.rows()] == ["dump/0", "dump/1", "dump/2"]
    assert found.refused[0].where.endswith("line 4")


def test_a_file_of_faulty_lines_alone_has_no_rollouts_and_all_refusals(tmp_path):
    bad = PARTS | {"rollout_logprobs": "x"}
    file = stored(tmp_path, [bad, bad], "jsonl")
    (block,) = COLUMNS.blocks(file)
    assert (block.read, len(block.refused), block.rollouts.rollout_ids) == (2, 2, [])


def test_other_names_are_taken_by_a_mapping(tmp_path):
    rename = {"trainer_logprobs": "old_log_probs", "completion_ids": "responses", "prompt_ids": "prompts"}
    theirs = {rename.get(name, name): value for name, value in PARTS.items()}
    for kind in KINDS:
        (row,) = Found(stored(tmp_path, [theirs], kind), columns_format(rename)).rows()
        assert same(row["trainer"], [N, N, -1.5, -2.5, 0.0])
        assert row["ids"] == [5, 6, 7, 8, 9]
        absent = columns_format({"trainer_logprobs": "ref_log_prob"})
        with pytest.raises(DumpError, match=r"no column 'ref_log_prob' to take trainer_logprobs from\..*old_log_probs"):
            list(absent.blocks(stored(tmp_path, [theirs], kind)))


def test_a_mapping_of_a_name_that_is_not_ours_is_an_error_that_lists_ours():
    with pytest.raises(UsageError, match=r"--columns logprob=x.*rollout_logprobs"):
        columns_format({"logprob": "x"})


def test_a_file_is_recognised_by_a_column_of_logprobs(tmp_path):
    for kind in KINDS:
        assert COLUMNS.recognises(stored(tmp_path, [PARTS], kind))
        assert not COLUMNS.recognises(stored(tmp_path, [{"prompt_ids": [1], "logprobs": [-1.0]}], kind, name="other"))
    prime = {"token_ids": [1], "trainer_logprobs": [-1.0], "inference_logprobs": [-1.0]}
    assert not COLUMNS.recognises(stored(tmp_path, [prime], "jsonl", name="prime"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rollout_logprobs": ["a"]}, "'rollout_logprobs' is of type list<.*string>.*a list of floats"),
        ({"rollout_logprobs": -1.0}, "'rollout_logprobs' is of type double"),
        ({"completion_ids": [1.5, 2.5, 3.5]}, "'completion_ids' is of type list<.*double>.*a list of whole numbers"),
        ({"prompt_ids": [True, False]}, "'prompt_ids' is of type list<.*bool>"),
        ({"reward": "x"}, "'reward' is of type string.*a number"),
        ({"step": True}, "'step' is of type bool"),
        ({"rollout_id": 1.5}, "'rollout_id' is of type double"),
        ({"tags": 3}, "'tags' is of type int64"),
        ({"prompt_ids": None}, "prompt_ids: is not there, and completion_ids is"),
    ],
)
def test_a_parquet_column_of_the_wrong_type_stops_the_file(tmp_path, changes, message):
    file = stored(tmp_path, [PARTS | changes], "parquet")
    with pytest.raises(DumpError, match=message):
        list(COLUMNS.blocks(file))


def test_full_ids_without_a_mask_do_not_say_what_was_sampled(tmp_path):
    given = {"token_ids": [1, 2], "rollout_logprobs": [-1.0, -1.0]}
    with pytest.raises(DumpError, match="neither sampled nor loss_mask"):
        list(COLUMNS.blocks(stored(tmp_path, [given], "parquet")))
    (refusal,) = Found(stored(tmp_path, [given], "jsonl")).refused
    assert refusal.field == "sampled"


def test_a_damaged_file_is_an_error_and_no_traceback(tmp_path):
    file = stored(tmp_path, [PARTS] * 5000, "parquet", compression="none", write_page_checksum=True)
    path = tmp_path / "dump.parquet"
    content = bytearray(path.read_bytes())
    content[100:400] = b"\xff" * 300
    path.write_bytes(content)
    with pytest.raises(DumpError, match=r"dump\.parquet"):
        list(COLUMNS.blocks(file))


def test_the_table_of_the_docstring_names_every_column():
    assert all(f"`{name}`" in dump.__doc__ for name in NAMES)
