"""`onepolicy tokens compare`: exit statuses, 80 columns, JSON, and text that would move a cursor."""

import json

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())


@pytest.fixture
def folder(tmp_path):
    """Writes a byte-level tokenizer with these merges and added tokens."""

    def write(name, merges=(("t", "h"),), added=("<|end|>",), **config):
        pieces = [*LETTERS, *("".join(merge) for merge in merges)]
        built = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, list(merges)))
        built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        built.decoder = decoders.ByteLevel()
        built.add_special_tokens(list(added))
        (tmp_path / name).mkdir()
        built.save(str(tmp_path / name / "tokenizer.json"))
        (tmp_path / name / "tokenizer_config.json").write_text(json.dumps(config))
        return tmp_path / name

    return write


def test_the_same_tokenizer_in_two_places_ends_with_0(folder, cli):
    ended = cli("tokens", "compare", folder("a"), folder("b", transformers_version="5.1"))
    assert ended.status == 0
    assert ended.out.startswith("Same: ")
    assert "note" in ended.out


def test_another_merge_ends_with_1_and_shows_the_shortest_text_with_both_spellings(folder, cli):
    ended = cli("tokens", "compare", folder("a"), folder("b", merges=(("t", "h"), ("h", "e"))))
    assert ended.status == 1
    assert ended.out.startswith("Different: vocabulary, merges")
    assert "1 only in B: 'h' + 'e'" in ended.out
    shortest = ended.out[ended.out.index("shortest text found that differs: 'he'") :].split("\n")
    e, h, he = LETTERS.index("e"), LETTERS.index("h"), len(LETTERS) + 1
    assert shortest[1].split() == ["A", "'h'", str(h), "'e'", str(e)]
    assert shortest[2].split() == ["B", "'he'", str(he)]


def test_what_cannot_be_read_ends_with_2_and_one_message(folder, cli, tmp_path):
    (tmp_path / "broken.gguf").write_bytes(b"GGUF\3\0\0\0")
    for other in (tmp_path / "absent", tmp_path / "broken.gguf"):
        ended = cli("tokens", "compare", folder(f"for {other.name}"), other)
        assert (ended.status, ended.out) == (2, "")
        assert ended.err.startswith("onepolicy: ")
        assert "Traceback" not in ended.err


def test_json_holds_what_the_table_shows(folder, cli):
    ended = cli("tokens", "compare", folder("a"), folder("b", added=("<|end|>", "<new>")), "--json")
    answer = json.loads(ended.out)
    assert ended.status == answer["exit_status"] == 1
    assert answer["same"] is False
    assert [part["name"] for part in answer["parts"] if not part["same"]] == ["added tokens"]
    assert answer["shortest"]["text"] == "<new>"
    assert answer["a_fingerprint"]["hash"] != answer["b_fingerprint"]["hash"]
    assert set(answer["a_fingerprint"]["parts"]) == {part["name"] for part in answer["parts"]}


def test_no_line_is_wider_than_80_columns(folder, cli):
    long = "<" + "x" * 300 + ">"
    ended = cli("tokens", "compare", folder("a", chat_template="a" * 500), folder("b", added=(long,)))
    assert ended.status == 1
    assert max(map(len, ended.out.split("\n"))) <= 80


def test_what_a_file_says_cannot_move_the_cursor(folder, cli):
    bad = "\x1b[2J\u202e"
    ended = cli("tokens", "compare", folder("a"), folder("b", added=(bad,), chat_template=bad, bos_token=bad))
    assert ended.status == 1
    assert "\x1b" not in ended.out
    assert "\u202e" not in ended.out


def test_a_lone_surrogate_in_a_file_is_shown_as_an_escape(folder, cli):
    ended = cli("tokens", "compare", folder("a", chat_template="\ud800"), folder("b", chat_template="\udfff"))
    assert ended.status == 1
    assert "\\ud800" in ended.out
    assert cli("tokens", "compare", folder("c", chat_template="\ud800"), folder("d"), "--json").status == 1


def test_the_group_lists_its_commands_and_refuses_others(cli):
    assert "compare" in cli("tokens", "--help").out
    ended = cli("tokens", "compair")
    assert ended.status == 2
    assert "compair" in ended.err
