"""`onepolicy tokens roundtrip` on files that anybody may have written, on runs and on suites."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import onepolicy
from onepolicy.integrations.fake.vocabulary import tokenizer_json

SHORT = onepolicy.SamplingProtocol(max_new_tokens=24)


@pytest.fixture
def tokenizer(tmp_path):
    """Bytes, a merge, so that a text has more than one segmentation, and three special tokens."""
    content = json.loads(tokenizer_json())
    content["model"]["merges"] = ["t h"]
    content["model"]["vocab"]["th"] = 256
    content["added_tokens"] = [token | {"id": token["id"] + 1} for token in content["added_tokens"]]
    content["post_processor"]["special_tokens"]["<|bos|>"]["ids"] = [257]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    return path


@pytest.fixture
def lines(tmp_path):
    def write(*rows, name="rollouts.jsonl"):
        path = tmp_path / name
        path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
        return path

    return write


@pytest.fixture(scope="module")
def fake_run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    onepolicy.check(rollout="fake:m", trainer="fake:m", run=path, protocol=SHORT)
    return path


def ids(text):
    """One id for each byte, and one for the end."""
    body, end, _ = text.partition("<|im_end|>")
    return [*body.encode(), *([259] if end else [])]


def report(ended):
    return json.loads(ended.out)


def test_rows_that_come_back_end_with_0(cli, tokenizer, lines):
    path = lines({"token_ids": ids("abc")}, {"prompt_ids": [1], "completion_ids": ids("<|im_end|>")}, {"text": "a th"})
    ended = cli("tokens", "roundtrip", path, "--scoring", tokenizer)
    assert ended.status == 0
    assert ended.out.startswith("Pass: all 3 rollouts (7 tokens) come back the same.")


def test_a_row_that_does_not_come_back_ends_with_1_and_shows_where_how_and_why(cli, tokenizer, lines):
    path = lines({"id": "r-7", "prompt_ids": [5, 6], "completion_ids": ids("a th")}, {"token_ids": ids("ok")})
    ended = cli("tokens", "roundtrip", path, "--scoring", tokenizer)
    assert ended.status == 1
    assert "Fail: 1 of 2 rollouts (6 tokens) do not come back the same." in ended.out
    assert "r-7 at token 4: another valid segmentation, 50 % of its tokens stand elsewhere" in ended.out
    assert "sampled  t | h" in ended.out
    assert "74 | 68" in ended.out
    assert max(map(len, ended.out.splitlines())) <= 80


def test_json_holds_counts_causes_and_places_and_the_list_holds_all(cli, tokenizer, lines, tmp_path):
    path = lines(*({"id": f"r-{i}", "token_ids": ids("th")} for i in range(40)))
    ended = cli("tokens", "roundtrip", path, "--scoring", tokenizer, "--json", "--list", tmp_path / "all.jsonl")
    found = report(ended)
    assert ended.status == 1
    assert (found["status"], found["checked"], found["broken"], found["shifted"]) == ("fail", 40, 40, 1.0)
    assert found["causes"] == {"ids": {"another valid segmentation": 40}, "text": {}, "reading": {}}
    assert [b["rollout"] for b in found["breaks"]] == [f"r-{i}" for i in range(5)]
    listed = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert [b["rollout"] for b in listed] == [f"r-{i}" for i in range(40)]
    assert listed[0]["first"] == [
        {"id": 84 - 16 + 48, "text": "t", "bytes": "74"},
        {"id": 104, "text": "h", "bytes": "68"},
    ]


def test_the_text_that_an_engine_gave_is_believed_and_not_decoded_again(cli, tokenizer, lines):
    path = lines({"completion_ids": ids("ab<|im_end|>"), "text": "ab"})
    found = report(cli("tokens", "roundtrip", path, "--scoring", tokenizer, "--json"))
    assert found["causes"]["ids"] == found["causes"]["reading"] == {"EOS missing": 1}


def test_nothing_to_check_is_unknown(cli, tokenizer, lines):
    for path in (lines(name="empty.jsonl"), lines({"completion_ids": [], "prompt_ids": [1]}, {"text": ""})):
        ended = cli("tokens", "roundtrip", path, "--scoring", tokenizer)
        assert ended.status == 3
        assert ended.out.startswith("Unknown: there is no rollout with a token or a text")


def test_an_empty_completion_among_others_is_counted(cli, tokenizer, lines):
    path = lines({"completion_ids": []}, {"completion_ids": ids("ab")})
    found = report(cli("tokens", "roundtrip", path, "--scoring", tokenizer, "--json"))
    assert (found["status"], found["checked"], found["empty"]) == ("pass", 1, 1)


def test_an_id_outside_the_vocabulary_is_a_finding_at_its_place(cli, tokenizer, lines):
    path = lines({"token_ids": [*ids("ab"), 5000, *ids("c")]})
    ended = cli("tokens", "roundtrip", path, "--scoring", tokenizer, "--json")
    assert ended.status == 1
    first = report(ended)["breaks"][0]
    assert (first["cause"], first["position"]) == ("id outside the vocabulary", 2)


BAD_ROWS = {
    '{"token_ids": [1, -5]}': "line 2: token_ids[1] = -5 is no token id: those are 0 to 2147483647",
    '{"token_ids": [1, 2147483648]}': "line 2: token_ids[1] = 2147483648 is no token id",
    '{"token_ids": [1, 1' + "0" * 200 + "]}": "line 2: token_ids[1] = 1000000000",
    '{"token_ids": [1, 2.0]}': "line 2: token_ids[1] = 2.0 is no whole number",
    '{"token_ids": [true]}': "line 2: token_ids[0] = true is no whole number",
    '{"token_ids": [null]}': "line 2: token_ids[0] = null is no whole number",
    '{"token_ids": ["7"]}': 'line 2: token_ids[0] = "7" is no whole number',
    '{"token_ids": [NaN]}': "line 2: token_ids[0] = NaN is no whole number",
    '{"token_ids": "abc"}': "line 2: token_ids is a str and no list",
    '{"completion_ids": [[1]]}': "line 2: completion_ids[0] = [1] is no whole number",
    '{"text": 5}': "line 2: text is a int and no string",
    '{"text": "a\\ud800b"}': "line 2: text has a lone surrogate (U+D800) at character 1",
    '{"id": "x"}': "line 2: has nothing to check. A row has token_ids",
    '{"prompt_ids": [1]}': "line 2: has",
    '{"token_ids": [1], "completion_ids": [1]}': "line 2: has token_ids and completion_ids",
    '{"token_ids": [1]': "line 2: is not JSON in UTF-8",
    "[1]": "line 2: is no JSON object",
    "[" * 100_000: "line 2: is nested too deeply",
}


@pytest.mark.parametrize("bad", BAD_ROWS, ids=lambda row: row[:40])
def test_a_malformed_row_is_refused_with_its_line_and_field(cli, tokenizer, lines, bad):
    ended = cli("tokens", "roundtrip", lines({"token_ids": [65]}, bad), "--scoring", tokenizer)
    assert (ended.status, ended.out) == (2, "")
    assert BAD_ROWS[bad] in ended.err
    assert "Traceback" not in ended.err


def test_bytes_that_are_no_utf8_are_refused_with_their_line(cli, tokenizer, tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"text": "ok"}\n{"text": "\xff"}\n')
    ended = cli("tokens", "roundtrip", path, "--scoring", tokenizer)
    assert ended.status == 2
    assert "line 2: is not JSON in UTF-8" in ended.err


@pytest.mark.parametrize("text", ["nul\0here", "a" * 1_000_000, "\u202etxt", "\x1b[2J"])
def test_hard_texts_are_taken(cli, tokenizer, lines, text):
    ended = cli("tokens", "roundtrip", lines({"text": text}), "--scoring", tokenizer)
    assert ended.status == 0
    assert "\x1b" not in ended.out


def test_parquet_holds_the_same_columns_and_its_rows_are_named(cli, tokenizer, tmp_path):
    path = tmp_path / "rows.parquet"
    table = pa.table(
        {
            "rollout_id": ["a", "b", "c"],
            "prompt_ids": pa.array([[1], [], None], pa.list_(pa.int64())),
            "completion_ids": pa.array([ids("ok"), ids("the"), ids("x th")], pa.large_list(pa.int32())),
        }
    )
    pq.write_table(table, path)
    ended = cli("tokens", "roundtrip", path, "--scoring", tokenizer, "--json")
    assert ended.status == 1
    assert [(b["rollout"], b["position"]) for b in report(ended)["breaks"]] == [("b", 0), ("c", 2)]


def parquet(tmp_path, **columns):
    path = tmp_path / "bad.parquet"
    pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([[1], [2, -7]], pa.list_(pa.int64())), "row 2: token_ids[1] = -7 is no token id"),
        (pa.array([[2**40], [2]], pa.list_(pa.int64())), f"row 1: token_ids[0] = {2**40} is no token id"),
        (pa.array([[1, None]], pa.list_(pa.int32())), "token_ids has a null among its ids"),
        (pa.array([[1.5]], pa.list_(pa.float32())), "the column 'token_ids' has the type list<element: float>"),
        (pa.array(["x"]), "the column 'token_ids' has the type string"),
    ],
)
def test_a_malformed_parquet_column_is_refused_with_its_row(cli, tokenizer, tmp_path, column, message):
    ended = cli("tokens", "roundtrip", parquet(tmp_path, token_ids=column), "--scoring", tokenizer)
    assert (ended.status, ended.out) == (2, "")
    assert message in ended.err


def test_a_parquet_file_that_is_cut_off_is_refused(cli, tokenizer, tmp_path):
    path = parquet(tmp_path, token_ids=pa.array([[1, 2, 3]] * 100, pa.list_(pa.int32())))
    path.write_bytes(path.read_bytes()[:-20])
    ended = cli("tokens", "roundtrip", path, "--scoring", tokenizer)
    assert ended.status == 2
    assert "cannot be read as Parquet" in ended.err


def test_a_run_brings_its_own_tokenizers(cli, fake_run):
    ended = cli("tokens", "roundtrip", fake_run, "--json")
    found = report(ended)
    assert found["checked"] == 32
    assert (found["sampling"], found["scoring"]) == ("of the run", "of the run")
    assert set(found["causes"]["ids"]) <= {"bytes that form no character"}
    assert ended.status == (1 if found["broken"] else 0)


def test_a_run_without_text_shows_none(cli, tmp_path):
    onepolicy.check(rollout="fake:m", trainer="fake:m", run=tmp_path / "run", protocol=SHORT, keep_text=False)
    found = report(cli("tokens", "roundtrip", tmp_path / "run", "--json"))
    assert found["checked"] == 32
    shown = [piece for b in found["breaks"] for piece in (*b["first"], *b["second"])]
    assert shown
    assert {(piece["text"], piece["bytes"]) for piece in shown} == {("", "")}
    assert {b["seen"] for b in found["breaks"]} == {""}


@pytest.mark.parametrize("suite", ["quick", "fixed-quick"])
def test_a_suite_is_sent_as_texts(cli, tokenizer, suite):
    ended = cli("tokens", "roundtrip", suite, "--scoring", tokenizer)
    assert ended.status == 0
    assert "come back the same" in ended.out


def test_a_suite_of_the_users_own_is_known_by_its_first_line(cli, tokenizer, lines):
    path = lines({"id": "a", "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]})
    assert report(cli("tokens", "roundtrip", path, "--scoring", tokenizer, "--json"))["checked"] == 2


def test_several_targets_are_one_answer(cli, tokenizer, lines):
    one, two = lines({"token_ids": ids("a")}), lines({"token_ids": ids("th")}, name="two.jsonl")
    found = report(cli("tokens", "roundtrip", one, two, "--scoring", tokenizer, "--json"))
    assert (found["checked"], found["broken"], found["targets"]) == (2, 1, [str(one), str(two)])


def test_what_is_no_target_or_has_no_tokenizer_is_refused(cli, tokenizer, lines, tmp_path):
    assert "no suite. Shipped suites: quick" in cli("tokens", "roundtrip", "nothing", "--scoring", tokenizer).err
    ended = cli("tokens", "roundtrip", lines({"text": "a"}))
    assert ended.status == 2
    assert "Say with --sampling and --scoring" in ended.err
    assert cli("tokens", "roundtrip", tmp_path, "--scoring", tokenizer).status == 2
    assert cli("tokens", "roundtrip", lines({"text": "a"}), "--scoring", tmp_path / "no.json").status == 2


@pytest.mark.parametrize("fault", ["no-such-target", "malformed", "no-such-tokenizer"])
def test_an_error_leaves_a_list_that_was_there_as_it_was(cli, tokenizer, lines, tmp_path, fault):
    there = tmp_path / "all.jsonl"
    there.write_text("of yesterday")
    good, bad = lines({"token_ids": ids("a th")}), lines({"token_ids": "abc"}, name="bad.jsonl")
    targets = [good, {"no-such-target": "nothing", "malformed": bad}.get(fault, good)]
    scoring = tmp_path / "none.json" if fault == "no-such-tokenizer" else tokenizer
    assert cli("tokens", "roundtrip", *targets, "--scoring", scoring, "--list", there).status == 2
    assert there.read_text() == "of yesterday"
    assert not list(tmp_path.glob(".*.tmp"))
    assert cli("tokens", "roundtrip", good, "--scoring", tokenizer, "--list", there).status == 1
    assert json.loads(there.read_text())["rollout"] == "line 1"


def test_a_list_may_be_the_file_that_is_read(cli, tokenizer, lines):
    path = lines({"id": "r", "token_ids": ids("a th")})
    assert cli("tokens", "roundtrip", path, "--scoring", tokenizer, "--list", path).status == 1
    assert json.loads(path.read_text())["rollout"] == "r"


def test_a_device_is_no_place_for_a_list_and_stays(cli, tokenizer, lines):
    ended = cli("tokens", "roundtrip", lines({"text": "a"}), "--scoring", tokenizer, "--list", "/dev/null")
    assert (ended.status, "is no regular file" in ended.err) == (2, True)
    assert Path("/dev/null").is_char_device()


def test_a_list_that_cannot_be_written_is_named_and_not_taken_for_stdout(cli, tokenizer, lines, tmp_path):
    (tmp_path / "file").write_text("")
    ended = cli(
        "tokens", "roundtrip", lines({"text": "a"}), "--scoring", tokenizer, "--list", tmp_path / "file" / "list"
    )
    assert ended.status == 2
    assert f"{tmp_path / 'file'}" in ended.err
    assert "the run keeps it" not in ended.err
