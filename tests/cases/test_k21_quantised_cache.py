"""K21: a KV cache in eight bits whose scales are lost, and one that is first read at a page's edge (B101, B103)."""

import numpy as np
import pytest
import torch
from tiny_transformer import Pass, Tiny, quantised, sequences

import onepolicy
from onepolicy.records.verdict import Status

PROMPT, PAGE = 16, 32
IDS = sequences(length=80)
SCALE = 0.04
"""about the largest key over 127"""


@pytest.fixture(scope="module")
def model() -> Tiny:
    return Tiny()


@pytest.fixture(scope="module")
def exact(model) -> list[np.ndarray]:
    return [model.logprobs(ids) for ids in IDS]


def decoded(model: Tiny, scale: float) -> list[np.ndarray]:
    """The prompt in one prefill; each later token reads all keys and values from the cache."""
    return [
        model.logprobs(ids, Pass(stored=quantised(scale), reads_cache=lambda query, key: query >= PROMPT))
        for ids in IDS
    ]


def paged(model: Tiny, scale: float) -> list[np.ndarray]:
    """Prefill page by page: keys of earlier pages come from the cache, those of the same page do not."""
    return [
        model.logprobs(ids, Pass(stored=quantised(scale), reads_cache=lambda query, key: key // PAGE < query // PAGE))
        for ids in IDS
    ]


def completions(columns: list[np.ndarray]) -> list[np.ndarray]:
    return [column[PROMPT - 1 :] for column in columns]


def judged(rollout, trainer, limits="strict"):
    return onepolicy.compare(rollout=rollout, trainer=trainer, sampled=False, limits=limits)


def test_b101_dropped_scales_fail_from_the_second_token_on(model, exact):
    dropped, forwarded = decoded(model, 1.0), decoded(model, SCALE)
    assert judged(completions(dropped), completions(exact)).status is Status.FAIL
    d = np.array(completions(exact)) - np.array(completions(dropped))
    assert not d[:, 0].any()
    assert np.abs(d[:, 1:]).mean() > 0.1
    lost, kept = (judged(completions(one), completions(exact), "quantised") for one in (dropped, forwarded))
    assert lost.status is Status.FAIL
    assert kept.metrics["k3"] < lost.metrics["k3"] / 1_000
    assert judged(completions(forwarded), completions(decoded(model, SCALE))).status is Status.PASS


def test_b103_the_first_mismatch_is_at_the_edge_of_the_page_in_every_rollout(model, exact):
    """Row 32 is the first to read the cache, and it predicts token 33, whose logprob is entry 32."""
    d = np.array(exact) - np.array(paged(model, SCALE))
    assert {int(np.flatnonzero(row)[0]) for row in d} == {PAGE}
    found = judged(paged(model, SCALE), exact, "bitwise")
    assert found.status is Status.FAIL
    assert all(worst.worst.position >= PAGE for worst in found.worst_rollouts)
    assert judged([model.logprobs(ids) for ids in IDS], exact, "bitwise").status is Status.PASS


def test_b103_clipping_scales_are_a_failure_and_not_noise(model, exact):
    clipped = judged(paged(model, 0.004), exact, "quantised")
    assert clipped.status is Status.FAIL
    assert judged(paged(model, SCALE), exact, "quantised").status is Status.PASS
    assert torch.isfinite(torch.tensor(clipped.metrics["max_abs_d"]))
