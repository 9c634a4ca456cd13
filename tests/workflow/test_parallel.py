"""Layouts of functions in plain numpy; models are in tests/real/test_parallel.py."""

import json
import textwrap
from pathlib import Path

import numpy as np
import pytest

from onepolicy.engines.parallel import parse_layouts
from onepolicy.engines.spec import EngineSpec
from onepolicy.errors import EngineError, UsageError
from onepolicy.records.verdict import Status
from onepolicy.workflow.parallel import ParallelRequest, parallel
from onepolicy.workflow.parallel_sequences import SequenceSource
from onepolicy.workflow.parallel_verdicts import Rule

IDS = [[3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7]]
SOUND = """
    import os
    import numpy as np
    RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    def hidden(token_ids):
        rng = np.random.default_rng(0)
        weights = rng.normal(size=(10, 64)).astype(np.float32), rng.normal(size=(64, 11)).astype(np.float32)
        return weights[0][token_ids], weights[1]
    def logits(token_ids, **layout):
        x, head = hidden(token_ids)
        return x @ head
"""
SPLIT = (
    SOUND
    + """
    def logits(token_ids, tp=1):
        x, head = hidden(token_ids)
        step = 64 // tp
        parts = [x[:, i * step : (i + 1) * step] @ head[i * step : (i + 1) * step] for i in range(tp)]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total
"""
)


@pytest.fixture
def compared(tmp_path):
    """Run the layouts of a function on fixed ids."""
    ids = tmp_path / "ids.jsonl"
    ids.write_text("\n".join(map(json.dumps, IDS)))

    def run(code: str, *layouts: str, timeout: float = 60.0, logits: Path | None = None, **rule):
        (tmp_path / "layouts.py").write_text(textwrap.dedent(code))
        request = ParallelRequest(
            spec=EngineSpec(engine="callable", target=f"{tmp_path / 'layouts.py'}:logits"),
            layouts=parse_layouts(layouts),
            source=SequenceSource(ids=ids),
            rule=Rule(**rule),
            timeout=timeout,
            logits=logits,
        )
        return parallel(request)

    return run


def one(result, layout):
    return next(found for found in result.layouts if found.layout == layout)


def test_a_layout_that_changes_nothing_is_bit_identical(compared):
    found = compared(SOUND, "fsdp=2")
    assert found.status is Status.PASS
    assert found.sentence == "Pass: repeat and fsdp=2 are bit-identical to one process."
    assert (found.sequences, found.tokens, found.vocabulary, found.dtype) == (3, 14, 11, "float32")
    fsdp = one(found, "fsdp=2")
    assert (fsdp.identical, fsdp.bitwise_share, fsdp.max_ulp, fsdp.mean_abs_d) == (3, 1.0, 0, 0.0)
    assert fsdp.digests == found.digests


def test_split_sums_differ_and_inform_unless_they_are_held_against_a_limit(compared):
    found = compared(SPLIT, "tp=2")
    tp = one(found, "tp=2")
    assert 0.0 < tp.bitwise_share < 1.0
    assert tp.max_ulp > 0
    assert 0.0 < tp.mean_abs_d < 1e-5
    assert found.status is Status.PASS
    assert "tp=2 informs: " in found.sentence
    assert compared(SPLIT, "tp=2", max_mean_abs_d=1e-5).status is Status.PASS
    tight = compared(SPLIT, "tp=2", max_mean_abs_d=1e-12)
    assert tight.status is Status.FAIL
    assert tight.sentence.startswith("Fail: ")
    assert compared(SPLIT, "tp=2", bitwise=frozenset({"tp"})).status is Status.FAIL


def test_the_numbers_are_those_of_the_two_logits(compared, tmp_path):
    found = one(compared(SPLIT, "tp=2", logits=tmp_path / "kept"), "tp=2")
    space: dict = {}
    code = textwrap.dedent(SPLIT).replace('int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])', "0, 1")
    exec(code, space)
    pairs = [(space["logits"](ids), space["logits"](ids, tp=2)) for ids in IDS]
    kept = np.fromfile(tmp_path / "kept" / "0000.bits", dtype=np.float32).reshape(5, 11)
    assert np.array_equal(kept, pairs[0][0])
    d = [
        np.abs(lp(q)[np.arange(len(ids) - 1), ids[1:]] - lp(p)[np.arange(len(ids) - 1), ids[1:]])
        for ids, (p, q) in zip(IDS, pairs, strict=True)
    ]
    assert found.mean_abs_d == pytest.approx(np.concatenate(d).mean(), rel=1e-6)
    assert found.max_abs_d == pytest.approx(np.concatenate(d).max(), rel=1e-6)
    equal = sum(np.count_nonzero(p == q) for p, q in pairs)
    assert found.bitwise_share == equal / sum(p.size for p, _ in pairs)


def lp(logits):
    logits = logits.astype(np.float64)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def test_one_rank_that_differs_is_enough(compared):
    code = SOUND + "\n    whole = logits\n    def logits(token_ids, **layout):\n"
    code += "        return whole(token_ids) + np.float32(RANK * 1e-3)\n"
    found = compared(code, "fsdp=2")
    assert found.status is Status.FAIL
    assert one(found, "fsdp=2").identical == 0
    assert "bit-identical was required" in found.sentence


def test_the_mean_is_of_the_rank_that_is_farthest_by_it(compared):
    code = SOUND + "\n    whole = logits\n    def logits(token_ids, tp=1):\n        found = whole(token_ids)\n"
    code += "        if tp > 1 and RANK == 0: found = np.nextafter(found, np.float32(np.inf))\n"
    code += "        if tp > 1 and RANK == 1: found[0] = -found[0]\n        return found\n"
    found = compared(code, "tp=2", max_mean_abs_d=1e-3)
    assert one(found, "tp=2").mean_abs_d > 1e-3
    assert found.status is Status.FAIL


def test_a_rank_may_have_no_logits_and_not_all_of_them(compared):
    code = SOUND + "\n    whole = logits\n    def logits(token_ids, pp=1):\n"
    last = code + "        return whole(token_ids) if RANK == SIZE - 1 else None\n"
    assert compared(last, "pp=2", bitwise=frozenset({"pp"})).status is Status.PASS
    never = code + "        return whole(token_ids) if SIZE == 1 else None\n"
    with pytest.raises(EngineError, match="no rank of the layout gave logits"):
        compared(never, "pp=2")


NOISY = SOUND + (
    "\n    whole, calls = logits, []\n"
    "    def logits(token_ids, **layout):\n"
    "        calls.append(1)\n"
    "        return whole(token_ids) + np.float32({noise})\n"
)


def test_a_layout_that_does_not_repeat_itself_fails(compared):
    found = compared(NOISY.format(noise="(SIZE - 1) * (len(calls) > 3)"), "fsdp=2")
    assert found.status is Status.FAIL
    assert one(found, "fsdp=2").identical == 3
    assert not one(found, "fsdp=2").repeats
    assert "a second pass in the same processes gave other logits" in found.sentence


def test_one_process_that_does_not_repeat_itself_is_said_first(compared):
    found = compared(NOISY.format(noise="len(calls)"), "fsdp=2")
    assert found.status is Status.FAIL
    assert not found.base_repeats
    assert "Fail: one process does not repeat itself" in found.sentence


def test_a_rank_that_dies_is_an_error_with_what_it_printed(compared):
    code = SOUND + "\n    def logits(token_ids, **layout):\n        RANK == 1 and (print('out of luck'), os._exit(7))\n"
    code += "        return hidden(token_ids)[0]\n"
    with pytest.raises(EngineError) as caught:
        compared(code, "fsdp=2")
    message = str(caught.value)
    assert "(fsdp=2): rank 1 of 2 exited with status 7 while computing sequence line 1" in message
    assert "out of luck" in message
    assert message.endswith("All ranks have been ended.")


def test_a_rank_that_hangs_is_an_error_within_the_time_and_says_where(compared):
    code = SOUND + "\n    import time\n    def logits(token_ids, **layout):\n        RANK == 1 and time.sleep(1000)\n"
    code += "        return hidden(token_ids)[0]\n"
    with pytest.raises(EngineError) as caught:
        compared(code, "fsdp=2", timeout=8.0)
    message = str(caught.value)
    assert "no answer from rank 1 of 2 within 8 s of computing sequence line 1" in message
    assert "in logits" in message


@pytest.mark.parametrize(
    ("returned", "found"),
    [
        ("np.full((len(token_ids), 4), np.nan, np.float32)", "the logit of token 0 at position 0 is NaN"),
        ("np.zeros((len(token_ids), 4))", "an array of float64"),
        ("np.zeros((1, len(token_ids), 4), np.float32)", "Drop the first axis"),
        ("np.zeros((2, 4), np.float32)", "for 5 tokens"),
        ("[1.0]", "list. Return logits"),
        ("np.zeros((len(token_ids), 3 + SIZE), np.float32)", "the base run has float32"),
        ("{}['no']", "KeyError"),
    ],
)
def test_what_are_no_logits_is_refused(compared, returned, found):
    code = SOUND + f"\n    def logits(token_ids, **layout):\n        return {returned}\n"
    with pytest.raises(EngineError, match=found):
        compared(code, "fsdp=2")


def test_a_suite_needs_a_tokenizer(tmp_path):
    (tmp_path / "layouts.py").write_text(textwrap.dedent(SOUND))
    spec = EngineSpec(engine="callable", target=f"{tmp_path / 'layouts.py'}:logits")
    with pytest.raises(EngineError, match="cannot encode a suite's text"):
        parallel(ParallelRequest(spec=spec, layouts=parse_layouts(["fsdp=2"])))


@pytest.mark.parametrize("text", ["fsdp", "fsdp=", "fsdp=0", "=2", "fsdp=2,x", "tp=-1"])
def test_what_is_no_layout_is_refused(text):
    with pytest.raises(UsageError, match="is no layout"):
        parse_layouts([text])


def test_a_layout_is_asked_for_once():
    assert [str(layout) for layout in parse_layouts(["fsdp=1, 2", "tp=2"])] == ["fsdp=1", "fsdp=2", "tp=2"]
    with pytest.raises(UsageError, match="fsdp=2 is asked for more than once"):
        parse_layouts(["fsdp=2", "tp=1", "fsdp=2"])


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("[1, 2]\nx", "line 2: is not JSON"),
        ("[1, 2.5]", "is no list of ids"),
        ("3", "is no list of ids"),
        ("[1]\n\n", "no sequence of two tokens"),
    ],
)
def test_what_are_no_ids_is_refused(content, found, tmp_path):
    path = tmp_path / "ids.jsonl"
    path.write_text(content)
    with pytest.raises(UsageError, match=found):
        SequenceSource(ids=path).sequences(lambda sequence: pytest.fail("nothing to encode"))
