"""K21, K22: quantised caches, stale caches, and logits that a cache left out (B101, B103 to B107, B109)."""

import shutil

import numpy as np
import pytest
import torch
from cases.case_runs import columns, first, function, known, named, of, of_tokens, sampled, served, trained, why
from causes.planted import statistics
from leg_faults import BLOCK
from tiny_transformer import Pass, Tiny, quantised, sequences

from onepolicy.records.finding import Outcome

PROMPT, PAGE, SCALE = 16, 32, 0.04
IDS = sequences(length=80)


@pytest.fixture(scope="module")
def model():
    return Tiny()


@pytest.fixture(scope="module")
def exact(model):
    return [model.logprobs(ids) for ids in IDS]


def with_statistics(model, p, q, *, start=1):
    with torch.no_grad():
        logits = np.concatenate([model(ids)[start - 1 : -1].double().numpy() for ids in IDS])
    return columns(IDS, p, q, start=start, trainer_statistics=statistics(logits, [ids[start - 1 :] for ids in IDS]))


def decoded(model, scale):
    how = {"stored": quantised(scale), "reads_cache": lambda query, key: query >= PROMPT}
    return [model.logprobs(ids, Pass(**how)) for ids in IDS]


def paged(model, scale):
    how = {"stored": quantised(scale), "reads_cache": lambda query, key: key // PAGE < query // PAGE}
    return [model.logprobs(ids, Pass(**how)) for ids in IDS]


@pytest.mark.parametrize(
    ("read", "scale"), [(decoded, 1.0), (paged, SCALE), (paged, 0.004)], ids=["b101", "b103", "b103 clipped"]
)
def test_a_quantised_cache_is_no_other_cause_and_what_it_takes_is_said(model, exact, read, scale):
    findings, sentence = of_tokens(with_statistics(model, read(model, scale), exact, start=PROMPT), known())
    assert not named(findings), sentence
    assert of(findings, "quantised weights").outcome is Outcome.UNTESTED
    assert "16-bit KV cache" in of(findings, "quantised weights").seen


def test_b104_values_of_another_request_in_a_leading_span_are_no_other_cause(model, exact):
    """Every second request shares its first block with the one before; the buffer keeps what that one's had there."""
    wrong = [column.copy() for column in exact]
    for number in range(1, len(wrong), 2):
        wrong[number][: 2 * BLOCK - 1] = exact[number - 1][: 2 * BLOCK - 1]
    findings, sentence = of_tokens(with_statistics(model, wrong, exact), known())
    assert not named(findings), sentence
    assert of(findings, "prefix cache").outcome is Outcome.UNTESTED


@pytest.fixture(scope="module")
def recorded(rope, tmp_path_factory):
    return sampled(tmp_path_factory.mktemp("recorded") / "run", f"transformers:{rope}", before="You are kind. ")


@pytest.fixture
def behind(recorded, tmp_path, rope):
    def make(fault, *, statistics=False):
        path = trained(shutil.copytree(recorded, tmp_path / fault), f"transformers:{rope}", statistics=statistics)
        code = f"return {fault}(MODEL, token_ids)"
        return why(served(path, function(tmp_path, rope, code, name=fault)), of="served")

    return make


def test_b105_keys_of_older_weights_are_no_other_cause_and_a_cold_request_is_asked_for(behind):
    found = behind("cache_of_older_weights")
    assert found.differs
    assert not named(found), found.sentence
    assert of(found, "prefix cache").outcome is Outcome.UNTESTED
    assert "with its cache flushed" in of(found, "prefix cache").seen


def test_b106_the_other_order_of_calls_is_sound(behind):
    assert behind("cache_cleared").sentence.startswith("Nothing to explain")


@pytest.mark.parametrize("lag", [16, 32])
def test_b107_values_that_are_read_from_index_0_are_a_shift_by_what_was_cached(exact, lag):
    moved = [np.concatenate([column[lag:], column[:lag]]) for column in exact]
    findings, sentence = of_tokens(columns(IDS, moved, exact), known())
    assert named(findings) == [("shift", "cause")], sentence
    assert first(findings).value == lag
    assert "block size" in first(findings).remedy


def test_b107_logits_that_are_read_from_index_0_are_no_other_cause(behind):
    found = behind("logits_of_a_skipped_prefix")
    assert found.differs
    assert not named(found), found.sentence


def test_b107_logits_that_are_read_from_index_0_are_no_penalty(behind):
    found = behind("logits_of_a_skipped_prefix", statistics=True)
    assert not named(found), found.sentence


def test_b107_logits_that_are_read_from_index_0_are_left_to_a_reading_without_the_cache(behind):
    """Logits against other tokens: no logprob that either side has is the right one, only moved."""
    found = of(behind("logits_of_a_skipped_prefix"), "prefix cache")
    assert found.outcome is Outcome.UNTESTED
    assert "with its cache flushed" in found.seen


def test_b109_one_wrong_token_at_each_boundary_is_no_other_cause(model, exact):
    wrong = [column.copy() for column in exact]
    for column in wrong:
        column[BLOCK] = column[BLOCK - 1] - 3.0
    findings, sentence = of_tokens(with_statistics(model, wrong, exact), known())
    assert not named(findings), sentence
    assert of(findings, "prefix cache").outcome is Outcome.UNTESTED


def test_b109_a_boundary_without_a_value_is_not_compared(behind):
    assert not behind("absent_boundary").causes
