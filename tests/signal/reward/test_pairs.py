import json

import pytest

from onepolicy.errors import UsageError
from onepolicy.signal.reward.pairs import answers_of, load_pairs

USER = {"role": "user", "content": "q"}


def written(tmp_path, *lines):
    file = tmp_path / "pairs.jsonl"
    file.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return file


def four(**changes):
    return [{"prompt": f"q{n}", "chosen": "a", "rejected": "b"} | changes for n in range(4)]


def test_the_pairs_of_the_package_are_several_languages_and_several_turns():
    pairs = load_pairs(None)
    assert len({pair.id[:2] for pair in pairs}) == 7
    assert sum(len(pair.messages) > 1 for pair in pairs) == 4
    assert len(answers_of(pairs)) == 2 * len(pairs)
    assert all(pair.filler for pair in pairs)


@pytest.mark.parametrize(
    "line",
    [
        {"messages": [USER], "chosen": "a", "rejected": "b"},
        {"prompt": [USER], "chosen": [{"role": "assistant", "content": "a"}], "rejected": "b"},
        {"chosen": [USER, {"role": "assistant", "content": "a"}], "rejected": [USER, {"content": "b", "role": "x"}]},
        {"prompt": "q", "chosen": "a", "rejected": "b", "score_chosen": 9.5},
    ],
)
def test_each_form_of_preference_data_is_read(tmp_path, line):
    pair = load_pairs(written(tmp_path, line, *four()))[0]
    assert pair.messages == (USER,)
    assert (pair.chosen, pair.rejected) == ("a", "b")
    assert pair.answered("c")[-1] == {"role": "assistant", "content": "c"}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["{"], "line 1: is not JSON"),
        ([[1]], "a pair is an object"),
        ([{"prompt": "q", "chosen": "a"}], "a pair is an object"),
        ([{"prompt": "q", "chosen": "a", "rejected": "a"}], "both answers are the same text"),
        ([{"prompt": "q", "chosen": 3, "rejected": "a"}], "chosen: "),
        ([{"chosen": [USER, USER], "rejected": [{"role": "user", "content": "x"}, USER]}], "differs"),
        (four()[:3], "has 3 pairs"),
        ([], "has 0 pairs"),
        (four(id="p"), "the id 'p' stands twice"),
        (four(prompt="q0"), "line 2: has the pair of .*line 1"),
        (four(prompt=None), "line 1: there is no prompt"),
        (four(rejected=[{"role": "user", "content": "other"}, {"role": "assistant", "content": "b"}]), "is not the"),
    ],
)
def test_a_file_that_is_none_is_refused_with_its_line(tmp_path, lines, said):
    with pytest.raises(UsageError, match=said):
        load_pairs(written(tmp_path, *lines))


def test_a_file_that_is_absent_or_no_text_is_refused(tmp_path):
    with pytest.raises(UsageError, match="there is no file"):
        load_pairs(tmp_path / "none.jsonl")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="UTF-8"):
        load_pairs(tmp_path / "binary")
