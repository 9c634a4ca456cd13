"""Kind K10 on a model small enough to be written down: a table of logits for each last token, and the fault planted."""

import numpy as np
import pytest

from onepolicy.judgement.limits import Limits
from onepolicy.numerics.checks.alignment import alignment
from onepolicy.numerics.hybrid import PairedTop
from onepolicy.records.tokens import TokenState
from onepolicy.records.verdict import Status

VOCABULARY, LENGTH, PROMPT, TOP = 24, 80, 8, 12
LIMITS = Limits()


def table(seed=3):
    logits = 2.5 * np.random.default_rng(seed).standard_normal((VOCABULARY, VOCABULARY))
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


MODEL = table()


def sampled(rng):
    ids = [int(rng.integers(VOCABULARY))]
    while len(ids) < LENGTH:
        ids.append(int(rng.choice(VOCABULARY, p=np.exp(MODEL[ids[-1]]))))
    return np.array(ids)


def rows_of(ids):
    """[T, V] the distribution that each token is drawn from; that of the first is flat."""
    return np.vstack([np.full((1, VOCABULARY), -np.log(VOCABULARY)), MODEL[ids[:-1]]])


def right(ids, rows):
    return rows[np.arange(LENGTH), ids]


def same_position(ids, rows):
    """B51: logits t instead of t - 1 for token t."""
    after = np.vstack([rows[1:], MODEL[ids[-1:]]])
    return right(ids, after)


def by_predicted_position(ids, rows):
    """B52: entry i is that of token i + 1."""
    return np.append(right(ids, rows)[1:], -1.0)


def by_token_after(ids, rows):
    return np.concatenate([[-1.0], right(ids, rows)[:-1]])


def gathered_with_five_virtual_tokens(ids, rows):
    """B54: five rows of a learned prefix stand in front, and gather pairs the first rows with the first tokens."""
    return right(ids, np.vstack([table(9)[:5], rows])[:LENGTH])


def unrelated(ids, rows):
    return right(ids, np.vstack([np.full((1, VOCABULARY), -np.log(VOCABULARY)), table(11)[ids[:-1]]]))


def measured_of(measured, rollout, trainer, *, noise=0.02, count=12, top=True, good=0):
    rng = np.random.default_rng(0)
    rows, lists = [], {}
    for number in range(count):
        ids = sampled(rng)
        distributions = rows_of(ids)
        score = right if number < good else trainer
        q = score(ids, distributions) + noise * rng.standard_normal(LENGTH)
        name = f"r-{number}"
        states = np.where(np.arange(LENGTH) < PROMPT, TokenState.MASKED, TokenState.VALUE)
        rows.append(
            rollout(
                right(ids, distributions),
                np.minimum(q, 0),
                name=name,
                ids=ids,
                sampled=np.arange(LENGTH) >= PROMPT,
                p_states=states,
                q_states=states,
            )
        )
        kept = np.argsort(-distributions, axis=1)[:, :TOP].astype(np.int32)
        of_p = np.take_along_axis(distributions, kept, axis=1).astype(np.float32)
        where = slice(PROMPT, None)
        lists[name] = PairedTop(
            positions=np.arange(LENGTH, dtype=np.int32)[where],
            ids=kept[where],
            rollout=of_p[where],
            trainer=of_p[where],
        )
    return measured(rows, blocks=3, top=lists if top else None)


@pytest.mark.parametrize(
    ("fault", "lag", "words"),
    [
        (by_predicted_position, -1, "the trainer's logprobs stand 1 position earlier"),
        (by_token_after, 1, "the trainer's logprobs stand 1 position later"),
        (same_position, 1, "comes from the distribution 1 position later"),
        (gathered_with_five_virtual_tokens, -5, "comes from the distribution 5 positions earlier"),
    ],
)
def test_b51_b52_b54_the_right_lag_is_found_and_named(measured, rollout, fault, lag, words):
    verdict = alignment(measured_of(measured, rollout, fault), LIMITS)
    assert (verdict.status, verdict.required, verdict.value) == (Status.FAIL, True, lag)
    assert words in verdict.message
    assert "look at r-0 first" in verdict.message


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.6])
def test_b157_noise_of_any_size_is_no_shift(measured, rollout, noise):
    verdict = alignment(measured_of(measured, rollout, right, noise=noise), LIMITS)
    assert (verdict.status, verdict.required) == (Status.PASS, True)


@pytest.mark.parametrize("top", [True, False])
def test_two_unrelated_models_are_no_shift(measured, rollout, top):
    verdict = alignment(measured_of(measured, rollout, unrelated, top=top), LIMITS)
    assert verdict.status is Status.PASS
    assert "no shift of up to 8 positions" in verdict.message


def test_a_shift_in_a_few_rollouts_of_many_is_found(measured, rollout):
    verdict = alignment(measured_of(measured, rollout, by_predicted_position, count=24, good=21), LIMITS)
    assert (verdict.status, verdict.value) == (Status.FAIL, -1)
    assert "look at r-21 first" in verdict.message


def test_without_a_token_to_compare_nothing_is_said(measured, rollout):
    nothing = measured([rollout([-1.0], [-1.0], q_states=[TokenState.ABSENT])])
    assert alignment(nothing, LIMITS).status is Status.UNKNOWN


def test_a_handful_of_tokens_is_never_called_shifted(measured, rollout):
    few = measured([rollout([-1.0, -5.0, -2.0, -7.0], [-5.0, -2.0, -7.0, -1.0])])
    assert alignment(few, LIMITS).status is Status.PASS


def test_two_rollouts_are_never_paired_with_each_other(measured, rollout):
    one = measured([rollout([-1.0] * 40, [-3.0] * 40, name="a"), rollout([-3.0] * 40, [-1.0] * 40, name="b")])
    assert one.lags.values.pairs(8) == 2 * 32
    assert one.lags.values.mean(8) == one.lags.values.mean(0) == 2.0


def test_an_end_token_that_alone_is_far_apart_is_no_shift(measured, rollout):
    """At a lag the last tokens of a rollout have no pair, so the others must be compared without them at lag 0 too."""

    def end_token_off(ids, rows):
        return np.append(right(ids, rows)[:-1], -40.0)

    assert alignment(measured_of(measured, rollout, end_token_off, noise=0.0, count=30), LIMITS).status is Status.PASS
