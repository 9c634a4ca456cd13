import json
import textwrap

import pytest

CODE = """
    import os
    import numpy as np
    def logits(token_ids, tp=1):
        rows = np.arange(len(token_ids), dtype=np.float32)[:, None] + np.arange(9, dtype=np.float32)
        if tp == 3:
            os._exit(3)
        return rows * np.float32(1 + (tp - 1) * 2**-23)
"""


@pytest.fixture
def asked(tmp_path, cli):
    (tmp_path / "layouts.py").write_text(textwrap.dedent(CODE))
    (tmp_path / "ids.jsonl").write_text("[1, 2, 3]\n[4, 5]\n")

    def run(*options):
        return cli("parallel", f"callable:{tmp_path / 'layouts.py'}:logits", "--ids", tmp_path / "ids.jsonl", *options)

    return run


def test_the_table_has_a_row_for_each_layout_and_json_the_same(asked):
    ended = asked("--degrees", "fsdp=1", "--degrees", "tp=2")
    assert ended.status == 0
    for shown in ("layout", "repeat", "fsdp=1", "tp=2", "all", "2 sequences, 5 tokens x 9 logits in float32"):
        assert shown in ended.out
    found = json.loads(asked("--degrees", "tp=2", "--json").out)
    assert [one["layout"] for one in found["layouts"]] == ["repeat", "tp=2"]
    assert found["layouts"][1]["max_ulp"] >= 1


def test_the_exit_status_follows_the_verdict(asked):
    assert asked("--degrees", "tp=2", "--bitwise", "tp").status == 1
    assert asked("--degrees", "tp=2", "--max-mean-abs-d", "1e-3").status == 0
    ended = asked("--degrees", "tp=3")
    assert ended.status == 2
    assert "exited with status 3" in ended.err


def test_an_engine_that_cannot_be_spread_is_refused(cli):
    ended = cli("parallel", "fake:x", "--degrees", "tp=2")
    assert ended.status == 2
    assert "cannot be spread over ranks" in ended.err
