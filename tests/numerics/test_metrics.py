"""Oracles: expectations by enumeration of a small vocabulary, written out in plain Python."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onepolicy.errors import AlignmentError
from onepolicy.numerics.metrics import (
    importance_ratio,
    kl_exact,
    kl_hybrid,
    kl_k1,
    kl_k2,
    kl_k3,
    kl_top_k_bucket,
    log_ratio,
    probability_difference,
    top1_agreement,
)

ROLLOUT = [0.5, 0.3, 0.15, 0.05]
TRAINER = [0.4, 0.4, 0.1, 0.1]
PER_TOKEN = (log_ratio, importance_ratio, probability_difference, kl_k1, kl_k2, kl_k3)
INF = math.inf


def kl_by_hand(p, q):
    return math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


def expected(metric, p=ROLLOUT, q=TRAINER):
    """The metric's mean over every token that p may sample."""
    values = metric(trainer_logprobs=np.log(q), rollout_logprobs=np.log(p))
    return math.fsum(a * v for a, v in zip(p, values, strict=True))


def of(metric, rollout, trainer):
    return metric(trainer_logprobs=np.array(trainer), rollout_logprobs=np.array(rollout))


def hybrid_of_each(p, q, size):
    """The hybrid estimate for each token that may be sampled; S is the first `size` tokens."""
    with np.errstate(divide="ignore"):
        p_log, q_log = np.log(p), np.log(q)
    n = len(p)
    return kl_hybrid(
        trainer_top=np.tile(q_log[:size], (n, 1)),
        rollout_top=np.tile(p_log[:size], (n, 1)),
        sampled_in_top=np.arange(n) < size,
        k3=kl_k3(trainer_logprobs=q_log, rollout_logprobs=p_log),
    )


@st.composite
def two_distributions(draw):
    n = draw(st.integers(2, 7))
    weights = st.lists(st.floats(0.01, 1.0), min_size=n, max_size=n)
    p, q = draw(weights), draw(weights)
    return [x / math.fsum(p) for x in p], [x / math.fsum(q) for x in q]


def test_d_is_trainer_minus_rollout_in_float64():
    d = log_ratio(trainer_logprobs=np.float32([-1.0]), rollout_logprobs=np.float32([-1.5]))
    assert d.dtype == np.float64
    assert d.tolist() == [0.5]


def test_k1_is_positive_where_the_rollout_side_is_surer():
    assert of(kl_k1, [-1.0], [-1.5]).tolist() == [0.5]


@pytest.mark.parametrize("metric", [kl_k1, kl_k3])
def test_k1_and_k3_average_to_the_exact_kl(metric):
    assert expected(metric) == pytest.approx(kl_by_hand(ROLLOUT, TRAINER), rel=1e-13)
    assert expected(metric) != pytest.approx(kl_by_hand(TRAINER, ROLLOUT), rel=1e-2)


def test_k2_averages_to_half_the_mean_square_of_the_log_ratio():
    by_hand = sum(p * math.log(q / p) ** 2 / 2 for p, q in zip(ROLLOUT, TRAINER, strict=True))
    assert expected(kl_k2) == pytest.approx(by_hand, rel=1e-13)


def test_the_importance_ratio_averages_to_one():
    assert expected(importance_ratio) == pytest.approx(1.0, rel=1e-14)


def test_the_probability_difference_is_trainer_minus_rollout():
    assert of(probability_difference, np.log(ROLLOUT), np.log(TRAINER)) == pytest.approx([-0.1, 0.1, -0.05, 0.05])


def test_the_probability_difference_survives_a_rollout_side_that_is_next_to_nothing():
    assert of(probability_difference, [-900.0, -200.0], [-1.0, -1.0]) == pytest.approx([math.exp(-1)] * 2)


@given(two_distributions())
def test_k1_and_k3_are_unbiased_for_any_two_distributions(pq):
    assert expected(kl_k1, *pq) == pytest.approx(kl_by_hand(*pq), abs=1e-13)
    assert expected(kl_k3, *pq) == pytest.approx(kl_by_hand(*pq), abs=1e-13)


@given(st.floats(-30, 0, width=32), st.floats(-30, 0, width=32))
def test_k2_and_k3_are_never_negative(p, q):
    assert of(kl_k2, [p], [q])[0] >= 0
    assert of(kl_k3, [p], [q])[0] >= -1e-16


def test_k3_keeps_its_digits_where_the_two_sides_almost_agree():
    d = 2.0**-20
    series = d**2 / 2 + d**3 / 6 + d**4 / 24
    assert of(kl_k3, [-1.0], [-1.0 + d])[0] == pytest.approx(series, rel=1e-4)


@pytest.mark.parametrize("metric", PER_TOKEN)
def test_nan_on_either_side_comes_out_as_nan_and_stays_in_its_place(metric):
    values = of(metric, [math.nan, -1.0, -1.0], [-1.0, math.nan, -2.0])
    assert np.isnan(values).tolist() == [True, True, False]


@pytest.mark.parametrize("metric", PER_TOKEN)
def test_two_lengths_are_refused_and_named_and_one_number_is_not_spread_over_many(metric):
    with pytest.raises(AlignmentError, match=r"\(1,\) trainer logprobs and \(3,\) rollout logprobs"):
        of(metric, [-1.0, -2.0, -3.0], [-1.0])


@pytest.mark.parametrize(
    ("metric", "excluded_by_trainer", "excluded_by_rollout"),
    [
        (log_ratio, -INF, INF),
        (importance_ratio, 0.0, INF),
        (probability_difference, -math.exp(-1), math.exp(-1)),
        (kl_k1, INF, -INF),
        (kl_k2, INF, INF),
        (kl_k3, INF, INF),
    ],
)
def test_a_token_that_one_side_excludes_has_the_limit_as_its_value(metric, excluded_by_trainer, excluded_by_rollout):
    assert of(metric, [-1.0], [-INF])[0] == pytest.approx(excluded_by_trainer)
    assert of(metric, [-INF], [-1.0])[0] == pytest.approx(excluded_by_rollout)


def test_a_ratio_beyond_float64_is_infinite_without_a_warning():
    assert of(importance_ratio, [-900.0], [-1.0])[0] == INF
    assert of(kl_k3, [-900.0], [-1.0])[0] == INF


@given(two_distributions())
def test_the_exact_kl_is_the_sum_over_the_vocabulary(pq):
    p, q = pq
    assert kl_exact(trainer_distribution=np.log([q]), rollout_distribution=np.log([p]))[0] == pytest.approx(
        kl_by_hand(p, q), abs=1e-14
    )


def test_the_exact_kl_ignores_what_the_rollout_side_never_samples_and_is_infinite_where_only_the_trainer_excludes():
    half = math.log(0.5)
    both = kl_exact(
        trainer_distribution=np.array([[half, half, -INF]]), rollout_distribution=np.array([[0, -INF, -INF]])
    )
    assert both[0] == pytest.approx(math.log(2))
    assert kl_exact(trainer_distribution=np.array([[0, -INF]]), rollout_distribution=np.array([[half, half]]))[0] == INF


@pytest.mark.parametrize("rollout", [-1.0, -INF])
def test_nan_in_one_place_of_a_distribution_makes_its_kl_nan(rollout):
    pair = {"trainer": np.array([[math.nan, -1.0]]), "rollout": np.array([[rollout, -1.0]])}
    exact = kl_exact(trainer_distribution=pair["trainer"], rollout_distribution=pair["rollout"])
    hybrid = kl_hybrid(
        trainer_top=pair["trainer"], rollout_top=pair["rollout"], sampled_in_top=np.array([True]), k3=np.zeros(1)
    )
    bucket = kl_top_k_bucket(trainer_top=pair["trainer"], rollout_top=pair["rollout"])
    assert np.isnan([exact[0], hybrid[0], bucket[0]]).all()


@given(two_distributions(), st.data())
def test_the_bucket_bound_never_exceeds_the_exact_kl_and_meets_it_on_the_whole_vocabulary(pq, data):
    p, q = pq
    size = data.draw(st.integers(1, len(p)))
    bound = kl_top_k_bucket(trainer_top=np.log([q[:size]]), rollout_top=np.log([p[:size]]))[0]
    tail_p, tail_q = math.fsum(p[size:]), math.fsum(q[size:])
    by_hand = kl_by_hand([*p[:size], tail_p], [*q[:size], tail_q])
    assert bound == pytest.approx(by_hand, abs=1e-9)
    assert bound <= kl_by_hand(p, q) + 1e-12


def test_the_bucket_bound_stays_finite_where_rounding_hides_the_tail():
    p, q = np.log([[0.7, 0.3 - 1e-12]]), np.float32(np.log([[0.6, 0.4]])) + np.float32(1e-7)
    bound = kl_top_k_bucket(trainer_top=q, rollout_top=p)[0]
    assert bound == pytest.approx(kl_by_hand([0.7, 0.3], [0.6, 0.4]), rel=1e-5)


@given(two_distributions(), st.data())
def test_the_hybrid_estimate_is_unbiased_and_never_negative_for_any_fixed_set(pq, data):
    p, q = pq
    values = hybrid_of_each(p, q, data.draw(st.integers(0, len(p))))
    assert (values >= -1e-15).all()
    assert math.fsum(a * v for a, v in zip(p, values, strict=True)) == pytest.approx(kl_by_hand(p, q), abs=1e-13)


@given(two_distributions())
def test_the_hybrid_estimate_is_the_exact_kl_for_every_token_if_the_set_is_the_vocabulary(pq):
    p, q = pq
    assert hybrid_of_each(p, q, len(p)) == pytest.approx([kl_by_hand(p, q)] * len(p), abs=1e-13)


def test_the_hybrid_estimate_stays_unbiased_where_the_rollout_side_excludes_a_token_of_the_set():
    p, q = [0.6, 0.0, 0.4], [0.5, 0.2, 0.3]
    values = hybrid_of_each(p, q, 2)
    assert 0.6 * values[0] + 0.4 * values[2] == pytest.approx(kl_by_hand(p, q), rel=1e-13)


def test_the_hybrid_estimate_is_infinite_where_only_the_trainer_excludes_a_token_of_the_set():
    assert hybrid_of_each([0.6, 0.4], [1.0, 0.0], 2)[0] == INF


def test_the_hybrid_estimate_keeps_its_digits_where_the_two_sides_almost_agree():
    p, d = 0.5, 1e-7
    value = kl_hybrid(
        trainer_top=np.log([[p]]) + d, rollout_top=np.log([[p]]), sampled_in_top=np.array([True]), k3=np.ones(1)
    )
    assert value[0] == pytest.approx(p * d * d / 2, rel=1e-2)


def test_a_sampled_token_counts_by_k3_only_outside_the_set():
    top = np.log([[0.5], [0.5]])
    values = kl_hybrid(
        trainer_top=top, rollout_top=top, sampled_in_top=np.array([True, False]), k3=np.array([7.0, 9.0])
    )
    assert values.tolist() == [0.0, 9.0]


def test_top1_agreement_is_nan_where_a_side_does_not_say():
    agreement = top1_agreement(trainer_top1=np.array([3, 4, -1, 5, -1]), rollout_top1=np.array([3, 5, 2, -1, -1]))
    assert agreement[:2].tolist() == [1.0, 0.0]
    assert np.isnan(agreement[2:]).all()
