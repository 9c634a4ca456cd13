"""Oracles: float64 numpy, torch.distributions, and Transformers' own logits warpers."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process

from onepolicy.errors import AlignmentError
from onepolicy.logprobs import report as report_module
from onepolicy.logprobs import streaming
from onepolicy.logprobs.report import ReportRequest, report_from_hidden, report_from_logits
from onepolicy.logprobs.truncation import truncated
from onepolicy.records.protocol import Meaning

PLAIN = ReportRequest()


def exact(logits, ids):
    """float64 logprobs by numpy."""
    x = logits.double().numpy()
    shifted = x - x.max(axis=1, keepdims=True)
    logp = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return logp[np.arange(len(x)), ids.numpy()]


def warped(logits, meaning):
    """The logits after Transformers' warpers, in the order in which `generate` applies them."""
    warpers = [logits_process.TemperatureLogitsWarper(meaning.temperature)]
    warpers += [logits_process.TopKLogitsWarper(meaning.top_k)] if meaning.top_k else []
    warpers += [logits_process.TopPLogitsWarper(meaning.top_p)] if meaning.top_p < 1 else []
    warpers += [logits_process.MinPLogitsWarper(meaning.min_p)] if meaning.min_p else []
    for warper in warpers:
        logits = warper(None, logits)
    return logits


def some(count=37, vocabulary=997, scale=4.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, vocabulary, generator=generator) * scale
    return logits, torch.randint(vocabulary, (count,), generator=generator)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 16 rows and 128 columns, chunks of 2 whole rows, so that a small case crosses every border."""
    monkeypatch.setattr(streaming, "BLOCK", 2**11)
    monkeypatch.setattr(streaming, "MOST_ROWS", 16)
    monkeypatch.setattr(report_module, "CHUNK", 2**11)
    monkeypatch.setattr(streaming, "FEWEST_COLUMNS", 128)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("scale", [0.1, 4.0, 1e4])
def test_streamed_logprobs_equal_float64_within_float32_rounding(scale):
    logits, ids = some(scale=scale)
    report = report_from_logits(logits, ids, PLAIN)
    np.testing.assert_allclose(report.logprobs.numpy(), exact(logits, ids), rtol=3e-7, atol=2e-6)
    assert torch.equal(report.top1, logits.argmax(dim=1))


def test_logprobs_at_the_size_of_a_real_vocabulary_equal_float64():
    logits, ids = some(count=64, vocabulary=49152)
    report = report_from_logits(logits, ids, PLAIN)
    np.testing.assert_allclose(report.logprobs.numpy(), exact(logits, ids), rtol=3e-7, atol=2e-6)


def test_an_offset_of_ten_thousand_costs_no_more_than_the_rounding_of_the_logits():
    logits, ids = some()
    shifted = logits + 1e4
    report = report_from_logits(shifted, ids, PLAIN)
    np.testing.assert_allclose(report.logprobs.numpy(), exact(shifted, ids), rtol=3e-7, atol=2e-6)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("request_", [PLAIN, ReportRequest(top=3)], ids=["streamed", "in rows"])
def test_logits_of_minus_infinity_have_no_probability(request_):
    logits, ids = some()
    logits[:, :256] = -torch.inf
    ids[0], ids[1] = 3, 400
    report = report_from_logits(logits, ids, request_)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(report.logprobs.numpy(), exact(logits, ids), rtol=3e-7, atol=2e-6)
    assert report.logprobs[0] == -torch.inf


def test_logits_that_are_not_numbers_give_logprobs_that_are_not_numbers():
    logits, ids = some(count=3)
    logits[1, 5] = torch.nan
    logits[2] = -torch.inf
    assert report_from_logits(logits, ids, PLAIN).logprobs.isnan().tolist() == [False, True, True]


def test_logprobs_equal_those_of_a_categorical_distribution():
    logits, ids = some()
    expected = torch.distributions.Categorical(logits=logits.double()).log_prob(ids)
    torch.testing.assert_close(report_from_logits(logits, ids, PLAIN).logprobs.double(), expected, rtol=0, atol=4e-6)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("bias", [False, True])
def test_the_head_product_equals_float64(bias):
    hidden, weight = torch.randn(37, 24), torch.randn(997, 24)
    head_bias = torch.randn(997) if bias else None
    ids = torch.randint(997, (37,))
    report = report_from_hidden(hidden, weight, ids, PLAIN, head_bias=head_bias)
    logits = hidden.double() @ weight.double().T + (head_bias.double() if bias else 0.0)
    np.testing.assert_allclose(report.logprobs.numpy(), exact(logits, ids), atol=2e-5)
    assert torch.equal(report.top1, logits.argmax(dim=1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("request_", [PLAIN, ReportRequest(top=3)], ids=["streamed", "in rows"])
def test_half_precision_heads_round_the_logits_as_the_model_does(dtype, request_):
    hidden, weight = torch.randn(37, 64).to(dtype), torch.randn(997, 64).to(dtype)
    ids = torch.randint(997, (37,))
    report = report_from_hidden(hidden, weight, ids, request_)
    assert report.logprobs.dtype == torch.float32
    # One last bit of a logit, should a block be summed in another order: 2^-8 or 2^-11 of at most 32.
    loose = 0.125 if dtype == torch.bfloat16 else 0.02
    difference = np.abs(report.logprobs.double().numpy() - exact(hidden @ weight.T, ids))
    assert difference.max() < loose
    assert np.median(difference) < 4e-6


def test_half_precision_logits_are_scored_in_float32():
    logits, ids = some()
    rounded = logits.bfloat16()
    report = report_from_logits(rounded, ids, PLAIN)
    np.testing.assert_allclose(report.logprobs.numpy(), exact(rounded, ids), rtol=3e-7, atol=2e-6)


def test_logits_handed_over_are_not_written_to():
    logits, ids = some()
    before = logits.clone()
    report_from_logits(logits, ids, ReportRequest(meaning=Meaning(temperature=0.7)))
    report_from_logits(logits, ids, ReportRequest(statistics=True, top=3, seen_ids=[ids] * len(ids)))
    assert torch.equal(logits, before)


MEANINGS = [
    Meaning(temperature=0.7),
    Meaning(temperature=1.3, top_k=20),
    Meaning(top_p=0.9),
    Meaning(min_p=0.05),
    Meaning(temperature=1.7, top_k=50, top_p=0.8, min_p=0.02),
    Meaning(top_k=5000, top_p=1e-6),
]


@pytest.mark.parametrize("meaning", MEANINGS, ids=str)
@pytest.mark.parametrize("rounding", [torch.float32, torch.bfloat16], ids=["distinct", "with ties"])
def test_processed_logprobs_are_those_of_the_warpers_of_transformers(meaning, rounding):
    logits, ids = some(count=80, scale=2.0)
    logits = logits.to(rounding).float()
    ids[::2] = warped(logits, meaning)[::2].topk(2, dim=1).indices[:, 1]  # often kept
    report = report_from_logits(logits, ids, ReportRequest(meaning=meaning))
    expected = exact(warped(logits, meaning), ids)
    np.testing.assert_array_equal(report.logprobs.isneginf().numpy(), np.isneginf(expected))
    np.testing.assert_allclose(report.logprobs.numpy(), expected, rtol=3e-7, atol=2e-6)


@settings(max_examples=150, deadline=None)
@given(
    steps=st.lists(st.lists(st.integers(-6, 6), min_size=7, max_size=7), min_size=1, max_size=3),
    top_k=st.integers(0, 9),
    top_p=st.sampled_from([0.1, 0.35, 0.5, 0.77, 0.9, 0.99, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
)
def test_the_kept_set_is_that_of_transformers_even_among_ties(steps, top_k, top_p, min_p):
    meaning = Meaning(top_k=top_k, top_p=top_p, min_p=min_p)
    logits = torch.tensor(steps, dtype=torch.float32) / 2
    assert torch.equal(truncated(logits, meaning), warped(logits, meaning))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), scale=st.floats(0.01, 50.0), vocabulary=st.integers(1, 300))
def test_probabilities_of_all_tokens_sum_to_one_on_both_paths(seed, scale, vocabulary):
    logits = some(count=1, vocabulary=vocabulary, scale=scale, seed=seed)[0].expand(vocabulary, vocabulary)
    ids = torch.arange(vocabulary)
    streamed = report_from_logits(logits, ids, PLAIN)
    in_rows = report_from_logits(logits, ids, ReportRequest(top=1))
    assert float(streamed.logprobs.double().exp().sum()) == pytest.approx(1.0, abs=1e-5)
    torch.testing.assert_close(streamed.logprobs, in_rows.logprobs, rtol=3e-7, atol=2e-6)
    assert torch.equal(streamed.top1, in_rows.top1)


@pytest.mark.parametrize("meaning", [Meaning(), MEANINGS[4]], ids=str)
def test_top_lists_and_reported_ids_belong_to_the_declared_meaning(meaning):
    logits, ids = some(count=9)
    asked = torch.randint(997, (9, 4))
    report = report_from_logits(logits, ids, ReportRequest(meaning=meaning, top=6, report_ids=asked))
    processed = logits if meaning.is_raw else warped(logits, meaning)
    for k in range(4):
        np.testing.assert_allclose(report.reported[:, k].numpy(), exact(processed, asked[:, k]), rtol=3e-7, atol=2e-6)
    assert torch.equal(report.top_ids, processed.topk(6, dim=1).indices)
    assert torch.equal(report.top_ids[:, 0], report.top1)
    np.testing.assert_allclose(
        report.top_logprobs[:, 3].numpy(), exact(processed, report.top_ids[:, 3]), rtol=3e-7, atol=2e-6
    )


def test_more_top_tokens_than_the_vocabulary_has_are_all_of_them():
    logits, ids = some(count=2, vocabulary=5)
    assert report_from_logits(logits, ids, ReportRequest(top=9)).top_ids.shape == (2, 5)


@pytest.mark.parametrize("request_", [PLAIN, ReportRequest(top=2, statistics=True)], ids=["streamed", "in rows"])
def test_no_tokens_give_an_empty_report(request_):
    report = report_from_hidden(torch.randn(0, 4), torch.randn(9, 4), torch.zeros(0, dtype=torch.long), request_)
    assert report.logprobs.shape == report.top1.shape == (0,)


def test_an_id_outside_the_vocabulary_is_named():
    logits, ids = some(count=3, vocabulary=10)
    ids[2] = 10
    with pytest.raises(AlignmentError, match=r"token_ids\[2\] is 10, and there are logits for ids 0 to 9"):
        report_from_logits(logits, ids, PLAIN)
    with pytest.raises(AlignmentError, match=r"report_ids\[0, 1\] is -1"):
        report_from_logits(logits, ids.clamp(max=9), ReportRequest(report_ids=torch.tensor([[0, -1]] * 3)))


def test_lengths_that_differ_are_refused():
    logits, ids = some(count=3)
    with pytest.raises(AlignmentError, match="2 token ids for 3 rows of logits"):
        report_from_logits(logits, ids[:2], PLAIN)
    with pytest.raises(AlignmentError, match="1 entries of seen_ids for 3 rows"):
        report_from_logits(logits, ids, ReportRequest(statistics=True, seen_ids=[ids]))
