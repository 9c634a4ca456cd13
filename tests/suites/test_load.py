import hashlib
import json

import pytest

from onepolicy.errors import UsageError
from onepolicy.suites import load_suite

PROMPT = {"id": "a", "messages": [{"role": "user", "content": "Why?"}]}
FIXED = {"id": "b", "prompt": "1 + 1 =", "completion": " 2", "tags": {"language": "zxx"}}


def lines(*items):
    return "\n".join(item if isinstance(item, str) else json.dumps(item) for item in items).encode()


@pytest.fixture
def suite_of(tmp_path):
    def load(content):
        path = tmp_path / "mine.jsonl"
        path.write_bytes(content)
        return load_suite(str(path))

    return load


def test_a_file_of_prompts_loads_under_its_own_name_with_the_hash_of_its_bytes(suite_of):
    content = lines(PROMPT, {**PROMPT, "id": "c", "tags": {"kind": "x"}})
    suite = suite_of(content)
    assert (suite.name, suite.is_fixed, [p.id for p in suite.prompts]) == ("mine", False, ["a", "c"])
    assert suite.hash == hashlib.sha256(content).hexdigest()[:16]
    assert suite.prompts[0].messages == ({"role": "user", "content": "Why?"},)


def test_a_file_of_fixed_sequences_is_fixed(suite_of):
    suite = suite_of(lines(FIXED))
    assert (suite.is_fixed, suite.sequences[0].completion, suite.prompts) == (True, " 2", ())


def test_texts_are_exact(suite_of):
    text = " \u2028e\u0301\r\n\ttrailing  \u0085"
    for ascii_only in (True, False):
        content = json.dumps({**FIXED, "completion": text}, ensure_ascii=ascii_only).encode()
        assert suite_of(content).sequences[0].completion == text


def test_blank_lines_and_windows_line_ends_are_no_items(suite_of):
    assert len(suite_of(lines(PROMPT, "", "  \r").replace(b"\n", b"\r\n") + b"\n\n").prompts) == 1


def test_a_suite_that_is_not_there_is_refused_with_the_names_of_the_shipped_ones(tmp_path):
    for name in ("slow", str(tmp_path), str(tmp_path / "absent.jsonl")):
        with pytest.raises(
            UsageError, match=r"no such file\. Shipped suites: quick, standard, fixed-quick, fixed-standard"
        ):
            load_suite(name)


@pytest.mark.parametrize("content", [b"", b"\n\n  \r\n", b"\t"])
def test_an_empty_suite_is_refused(suite_of, content):
    with pytest.raises(UsageError, match="is empty: nothing could be compared"):
        suite_of(content)


NESTED = {"role": "user", "content": {"text": "Why?"}}


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (b"\xff\xfe", r"is not UTF-8 \(byte 6\d of the file\)"),
        (b"{", "is not JSON"),
        (b"\xef\xbb\xbf" + lines(FIXED), "is not JSON .*BOM"),
        (lines([1, 2]), "is no JSON object"),
        (b"3", "is no JSON object"),
        (b"null", "is no JSON object"),
        (lines({**PROMPT, "id": "b", "answer": "x"}), "answer: Extra inputs"),
        (lines({**PROMPT, "id": "b", "completion": "x"}), "completion: Extra inputs"),
        (lines({"messages": PROMPT["messages"]}), "id: Field required"),
        (lines({"id": "b", "prompt": "x"}), "completion: Field required"),
        (lines({"id": "b"}), "prompt: Field required"),
        (lines({**PROMPT, "id": ""}), "id: String should have at least 1 character"),
        (lines({**PROMPT, "id": 3}), "id: Input should be a valid string"),
        (lines({**PROMPT, "id": "b", "messages": []}), "messages: Tuple should have at least 1 item"),
        (lines({**PROMPT, "id": "b", "messages": [NESTED]}), "messages.0.content: Input should be a valid string"),
        (lines({**PROMPT, "id": "b", "messages": [{"role": "user"}]}), "messages.0: .*no content"),
        (lines({**PROMPT, "id": "b", "messages": [{"content": "x"}]}), "messages.0: .*no role"),
        (lines({**PROMPT, "id": "b", "tags": {"language": 3}}), "tags.language: Input should be a valid string"),
        (lines({**FIXED, "completion": ""}), "completion: String should have at least 1 character"),
        (b'{"id": "b", "prompt": "x", "completion": "\\ud800"}', "completion: .*surrogates|completion: .*unicode"),
        (lines(PROMPT), "the id 'a' stands twice, first in line 1"),
        (lines(FIXED), "mixes prompts and fixed sequences"),
    ],
    ids=str,
)
def test_a_malformed_line_is_refused_with_its_number_and_what_is_wrong_with_it(suite_of, second, said):
    for before, number in ((b"", 2), (b"\n\n", 4)):
        content = lines(PROMPT) + b"\n" + before + second
        with pytest.raises(UsageError, match=rf"line {number}: {said}"):
            suite_of(content)


def test_a_mark_of_the_byte_order_is_refused_on_the_first_line(suite_of):
    with pytest.raises(UsageError, match=r"line 1: is not JSON .*BOM"):
        suite_of(b"\xef\xbb\xbf" + lines(PROMPT))
