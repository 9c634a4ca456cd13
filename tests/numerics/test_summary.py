"""Oracle: the definitions in float64, one rollout at a time."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onepolicy.numerics import summary
from onepolicy.numerics.summary import HISTOGRAM_ERROR, ROLLOUT_SUMS, TokenTotals, summarise


def by_definition(p, q):
    """The sums of one rollout, in the order of ROLLOUT_SUMS."""
    p, q = p.astype(float), q.astype(float)
    d = q - p
    return [
        len(p),
        d.sum(),
        np.abs(d).sum(),
        (d**2 / 2).sum(),
        (np.exp(d) - 1 - d).sum(),
        np.exp(d).sum(),
        np.abs(np.exp(q) - np.exp(p)).sum(),
    ]


def columns(n, *, seed=0, noise=0.3):
    rng = np.random.default_rng(seed)
    p = -rng.exponential(2.0, n).astype(np.float32)
    q = np.minimum(p + noise * rng.standard_normal(n), 0).astype(np.float32)
    same = rng.random(n) < 0.3
    return p, np.where(same, p, q)


def summed(p, q, lengths, threads=None):
    offsets = np.array([0, *np.cumsum(lengths)], dtype=np.int64)
    p, q = np.array(p, dtype=np.float32), np.array(q, dtype=np.float32)
    return summarise(trainer_logprobs=q, rollout_logprobs=p, offsets=offsets, threads=threads)


def check_against_definition(p, q, lengths):
    sums, totals = summed(p, q, lengths)
    ends = np.cumsum(lengths)
    for row, (end, length) in enumerate(zip(ends, lengths, strict=True)):
        part = slice(end - length, end)
        assert sums.sums[row] == pytest.approx(by_definition(p[part], q[part]), rel=1e-5, abs=1e-6)
        largest = np.abs(q[part].astype(float) - p[part]).max(initial=0.0)
        assert sums.max_abs_d[row] == largest
    assert totals.tokens == len(p)
    assert totals.bitwise_equal == sum(a == b for a, b in zip(p, q, strict=True))
    assert totals.unsaturated == sum(a < -1e-3 for a in p)
    assert totals.bitwise_equal_unsaturated == sum(a == b and a < -1e-3 for a, b in zip(p, q, strict=True))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 30), max_size=20), st.integers(0, 1000))
def test_sums_are_those_of_each_rollout_whatever_the_lengths(lengths, seed):
    check_against_definition(*columns(sum(lengths), seed=seed), lengths)


@pytest.mark.parametrize(
    "lengths",
    [
        [1],
        [0],
        [],
        [0, 0, 5, 0, 0],
        [100_000],
        [3, 70_000, 0, 2],
        [0] * 40 + [9_000] * 9 + [0] * 3,
        [32_768, 32_768, 1],
    ],
    ids=str,
)
def test_no_shape_of_a_block_moves_a_sum(lengths):
    check_against_definition(*columns(sum(lengths)), lengths)


def test_the_columns_are_found_by_name():
    sums, _ = summed([-1.0, -2.0], [-1.5, -2.25], [2])
    assert {name: sums.column(name)[0] for name in ROLLOUT_SUMS[:4]} == {
        "tokens": 2.0,
        "d": -0.75,
        "abs_d": 0.75,
        "k2": 0.15625,
    }


def test_small_differences_keep_their_k3():
    d = 2.0**-17
    sums, _ = summed([-1.0] * 1000, [-1.0 + d] * 1000, [1000])
    assert sums.column("k3")[0] == pytest.approx(1000 * (d**2 / 2 + d**3 / 6), rel=1e-4)


def test_the_number_of_threads_moves_no_number():
    lengths = [0, 50_000, 10, *[300] * 500]
    p, q = columns(sum(lengths))
    (one, one_totals), (two, two_totals) = (summed(p, q, lengths, threads) for threads in (1, 2))
    assert np.array_equal(one.sums, two.sums)
    assert np.array_equal(one.max_abs_d, two.max_abs_d)
    assert np.array_equal(one_totals.histogram, two_totals.histogram)
    assert one_totals.max_probability_difference == two_totals.max_probability_difference
    assert one_totals.moments == pytest.approx(two_totals.moments, rel=1e-12)


def test_more_threads_than_pieces_is_no_error():
    sums, _ = summed([-1.0], [-1.0], [1], threads=64)
    assert sums.column("tokens").tolist() == [1.0]


def test_totals_of_two_parts_add_up_to_the_totals_of_both():
    p, q = columns(5_000)
    whole = summed(p, q, [5_000])[1]
    merged = TokenTotals()
    for part in (slice(0, 1_234), slice(1_234, 5_000)):
        merged.add(summed(p[part], q[part], [len(p[part])])[1])
    assert np.array_equal(merged.histogram, whole.histogram)
    assert merged.moments == pytest.approx(whole.moments, rel=1e-12)
    counts = ("tokens", "bitwise_equal", "unsaturated", "bitwise_equal_unsaturated", "max_probability_difference")
    assert [getattr(merged, name) for name in counts] == [getattr(whole, name) for name in counts]


@pytest.mark.parametrize("n", [1, 2, 7, 100, 1_000, 20_011])
@pytest.mark.parametrize("percent", [0, 50, 90, 99, 99.9, 100])
def test_percentiles_are_within_the_stated_error_of_the_smallest_value_that_enough_tokens_do_not_exceed(n, percent):
    p, q = columns(n, seed=n)
    rank = max(math.ceil(Fraction(str(percent)) * n / 100), 1)  # np.percentile takes rank 1,000 for 99.9 % of 1,000
    exact = np.sort(np.abs(q.astype(float) - p))[rank - 1]
    assert summed(p, q, [n])[1].abs_d_percentile(percent) == pytest.approx(exact, rel=HISTOGRAM_ERROR)


def test_the_last_of_a_thousand_tokens_is_not_the_99_9th_percentile():
    totals = summed([-2.0] * 1000, [-2.0] * 999 + [-1.0], [1000])[1]
    assert totals.abs_d_percentile(99.9) == 0.0
    assert totals.abs_d_percentile(100) == pytest.approx(1.0, rel=HISTOGRAM_ERROR)


def test_without_tokens_percentiles_and_correlation_are_nan():
    assert math.isnan(TokenTotals().abs_d_percentile(50))
    assert math.isnan(TokenTotals().correlation())


@pytest.mark.parametrize("noise", [1e-4, 0.3, 30.0])
def test_the_correlation_is_that_of_the_two_columns(noise):
    p, q = columns(4_000, noise=noise)
    exact = np.corrcoef(p.astype(float), q.astype(float))[0, 1]
    assert summed(p, q, [4_000])[1].correlation() == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize("constant", [-1.1, -0.3, 0.0])
def test_the_correlation_with_a_column_that_does_not_vary_is_nan(constant):
    p, _ = columns(1_001)
    still = np.full(1_001, constant, dtype=np.float32)
    assert math.isnan(summed(p, still, [1_001])[1].correlation())
    assert math.isnan(summed(still, p, [1_001])[1].correlation())
    assert math.isnan(summed(still, still, [1_001])[1].correlation())


def test_a_ratio_beyond_float64_is_infinite_without_a_warning_and_spoils_no_other_rollout():
    sums, totals = summed([-900.0, -1.0], [-1.0, -1.5], [1, 1])
    assert sums.column("k3")[0] == sums.column("ratio")[0] == math.inf
    assert sums.column("probability_difference")[0] == pytest.approx(math.exp(-1))
    assert totals.max_probability_difference == pytest.approx(math.exp(-1))
    assert sums.sums[1] == pytest.approx(by_definition(np.array([-1.0]), np.array([-1.5])), rel=1e-6)


@pytest.mark.parametrize(("p", "q"), [(-200.0, -1.0), (-1.0, -200.0), (-90.0, -0.5), (-700.0, -0.25)])
def test_the_probability_difference_is_right_where_one_side_is_next_to_nothing(p, q):
    sums, totals = summed([p], [q], [1])
    assert sums.column("probability_difference")[0] == pytest.approx(math.exp(max(p, q)), rel=1e-6)
    assert totals.max_probability_difference == pytest.approx(math.exp(max(p, q)), rel=1e-6)


def test_pieces_cover_every_rollout_once_and_keep_rollouts_whole(monkeypatch):
    monkeypatch.setattr(summary, "_BLOCK_TOKENS", 10)
    lengths = [3, 3, 3, 3, 0, 25, 0, 1, 9, 10, 11]
    check_against_definition(*columns(sum(lengths)), lengths)
