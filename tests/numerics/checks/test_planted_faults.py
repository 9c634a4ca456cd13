"""Faults planted in what a real vLLM and Transformers said of 2,716 tokens; each is caught by the check it is for.

The two controls without a fault are the recorded pair under the limits of bfloat16, and float32 alone against float32
in padded batches under the default limits.
"""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy.special import log_softmax

import onepolicy
from onepolicy.judgement.decide import decide
from onepolicy.judgement.limits import Limits
from onepolicy.judgement.load import load_limits
from onepolicy.numerics.checks import CHECKS
from onepolicy.numerics.hybrid import PairedTop
from onepolicy.numerics.measurement import Measurement
from onepolicy.numerics.metrics import kl_top_k_bucket
from onepolicy.records.verdict import Status
from recorded_trainer import trainer_columns
from recording import recorded

BFLOAT16 = load_limits("bf16")


@cache
def vllm():
    return recorded()


@cache
def transformers():
    return trainer_columns()


@pytest.fixture
def against(rollout):
    """[(rollout logprobs, trainer logprobs)] for each recorded rollout -> rows."""

    def rows(p, q):
        return [
            rollout(list(one), list(other), name=row.rollout_id, ids=list(range(len(one))))
            for row, one, other in zip(vllm(), p, q, strict=True)
        ]

    return rows


@pytest.fixture
def recorded_pair(against):
    """vLLM bfloat16 against Transformers float32, changed by a fault: (p, q) -> (p, q)."""

    def rows(fault=lambda p, q: (p, q)):
        return against(*fault([row.logprobs for row in vllm()], transformers()["float32"]))

    return rows


@pytest.fixture
def float32_pair(against):
    """Transformers float32 in left-padded batches against itself alone, likewise."""

    def rows(fault=lambda p, q: (p, q)):
        return against(*fault(transformers()["float32_padded"], transformers()["float32"]))

    return rows


def verdicts(measurement: Measurement, limits: Limits):
    return {verdict.check: verdict for verdict in (check(measurement, limits) for check in CHECKS)}


def by(offset):
    """d + offset on every token. One side is lowered, as raised ones would end above zero and be no logprobs."""

    def lowered(side, much):
        return [one - np.float32(max(much, 0.0)) for one in side]

    return lambda p, q: (lowered(p, offset), lowered(q, -offset))


def test_the_recorded_pair_passes_the_limits_of_bfloat16(recorded_pair, measured):
    found = verdicts(measured(recorded_pair()), BFLOAT16)
    assert decide(list(found.values())) is Status.PASS, found
    assert found["mean_kl"].value == pytest.approx(1.158e-3, rel=1e-3)


def test_float32_alone_and_padded_pass_the_default_limits(float32_pair, measured):
    found = verdicts(measured(float32_pair()), Limits())
    assert decide(list(found.values())) is Status.PASS, found
    assert found["mean_kl"].value < 1e-9


@pytest.mark.parametrize("offset", [0.01, -0.01])
def test_a_hundredth_on_every_token_is_caught_by_mean_ratio_alone(recorded_pair, measured, offset):
    found = verdicts(measured(recorded_pair(by(offset))), BFLOAT16)
    assert [name for name, verdict in found.items() if verdict.status is Status.FAIL] == ["mean_ratio"]
    assert found["mean_ratio"].value == pytest.approx(np.exp(offset), abs=2e-3)


@pytest.mark.parametrize("offset", [1e-5, -1e-5])
def test_a_hundred_thousandth_on_every_token_of_a_float32_pair_is_caught_by_mean_ratio_alone(
    float32_pair, measured, offset
):
    found = verdicts(measured(float32_pair(by(offset))), Limits())
    assert [name for name, verdict in found.items() if verdict.status is Status.FAIL] == ["mean_ratio"]
    assert found["mean_ratio"].value == pytest.approx(1 + offset, abs=1e-6)


def renormalised(row, q):
    """Logprobs of the tokens within a kept mass of 0.9, the rollout side's renormalised over it.

    Of the recorded tokens those that lie in the kept set are draws from it.
    """
    chances = np.exp(row.top_logprobs, dtype=np.float64)
    before = np.cumsum(chances, axis=1) - chances
    kept = before < 0.9
    mass = (chances * kept).sum(axis=1)
    drawn = ((row.top_ids == row.completion_ids[:, None]) & kept).any(axis=1)
    return (row.logprobs - np.log(mass))[drawn], q[drawn], mass[drawn]


def test_a_kept_mass_of_nine_tenths_renormalised_on_one_side_is_caught_by_mean_ratio(against, measured):
    """By mean_kl as well under the limits of bfloat16; k3 sees a small part of the KL, so wider ones let it pass.

    Where one token holds nine tenths alone its renormalised logprob is 0.0, which placeholder_zeros sees.
    """
    p, q, mass = zip(*(renormalised(*one) for one in zip(vllm(), transformers()["float32"], strict=True)), strict=True)
    measurement, kl = measured(against(p, q)), -np.log(np.concatenate(mass)).mean()
    found = verdicts(measurement, BFLOAT16)
    assert (found["mean_ratio"].status, found["mean_kl"].status) == (Status.FAIL, Status.FAIL)
    assert found["mean_ratio"].value == pytest.approx(np.concatenate(mass).mean(), abs=0.01)
    assert found["mean_kl"].value < kl / 4
    wide = verdicts(measurement, BFLOAT16.model_copy(update={"mean_kl": kl / 3, "worst_rollout_kl": 0.1}))
    failing = [name for name, verdict in wide.items() if verdict.status is Status.FAIL]
    assert failing == ["placeholder_zeros", "mean_ratio"]


def swap_two_of_one_length(p, q):
    first, second = [i for i, row in enumerate(vllm()) if len(row.completion_ids) == 128][:2]
    changed = list(q)
    changed[first], changed[second] = q[second], q[first]
    return p, changed


def test_a_mispaired_row_is_caught_by_worst_rollout(recorded_pair, measured):
    found = verdicts(measured(recorded_pair(swap_two_of_one_length)), BFLOAT16)["worst_rollout"]
    assert found.status is Status.FAIL
    assert "paired wrongly" in found.message
    swapped = {row.rollout_id for row in vllm() if len(row.completion_ids) == 128}
    assert {evidence.rollout_id for evidence in found.evidence} < swapped
    assert len(found.evidence) == 2


def one_mispaired(p, q):
    """One row alone: the trainer's numbers of another rollout, cut to its length."""
    lengths = [len(row.completion_ids) for row in vllm()]
    changed = list(q)
    changed[lengths.index(41)] = q[lengths.index(128)][:41]
    return p, changed


def test_one_mispaired_row_of_41_tokens_is_caught_and_named(recorded_pair, measured):
    found = verdicts(measured(recorded_pair(one_mispaired)), BFLOAT16)["worst_rollout"]
    assert found.status is Status.FAIL
    named = next(row.rollout_id for row in vllm() if len(row.completion_ids) == 41)
    assert [evidence.rollout_id for evidence in found.evidence] == [named]


def drawn_at(pair, against, temperature):
    """Tokens drawn at a temperature from vLLM's lists, taken for whole distributions; both sides report raw."""
    rng = np.random.default_rng(0)
    raw = [log_softmax(row.top_logprobs.astype(np.float64), axis=1) for row in vllm()]
    noise = iter(rng.gumbel(size=(sum(map(len, raw)), raw[0].shape[1])))
    drawn = [np.array([np.argmax(one / temperature + next(noise)) for one in rows]) for rows in raw]
    p = [rows[np.arange(len(rows)), at] for rows, at in zip(raw, drawn, strict=True)]
    every = np.concatenate(raw)
    entropy = -(np.exp(every) * every).sum(axis=1)
    varentropy = (np.exp(every) * every**2).sum(axis=1) - entropy**2
    measurement = Measurement()
    measurement.add(replace(pair(against(p, p)), rollout_entropy=entropy, rollout_varentropy=varentropy))
    return measurement


def test_sampling_at_seven_tenths_with_raw_logprobs_is_caught_by_sampled_as_reported_alone(pair, against):
    found = verdicts(drawn_at(pair, against, 0.7), BFLOAT16)
    assert [name for name, verdict in found.items() if verdict.status is Status.FAIL] == ["sampled_as_reported"]
    assert found["sampled_as_reported"].value < -10


def test_sampling_at_the_temperature_of_the_logprobs_passes(pair, against):
    found = verdicts(drawn_at(pair, against, 1.0), BFLOAT16)
    assert decide(list(found.values())) is Status.PASS
    assert abs(found["sampled_as_reported"].value) < 3


def differing_in_the_tail_alone(rollout, many=40):
    """Both sides agree on the two tokens of their lists and on the mass of the rest, and not within the rest."""
    head, tail = np.log([0.6, 0.3]), (np.log(0.1), np.log(0.05))
    rows, tops = [], {}
    for number in range(many):
        ids = [7, 7, 7, 8, 8, 8, 7, 8, 7, 99]
        inside = [head[0] if one == 7 else head[1] for one in ids[:-1]]
        rows.append(rollout([*inside, tail[0]], [*inside, tail[1]], name=f"r-{number:02}", ids=ids))
        lists, same = np.tile(head.astype(np.float32), (10, 1)), np.tile(np.int32([7, 8]), (10, 1))
        positions = np.arange(10, dtype=np.int32)
        tops[f"r-{number:02}"] = PairedTop(positions=positions, ids=same, rollout=lists, trainer=lists)
    return rows, tops


def test_a_bucket_bound_below_the_limit_passes_nothing(rollout, measured):
    rows, tops = differing_in_the_tail_alone(rollout)
    lists = next(iter(tops.values()))
    bound = kl_top_k_bucket(trainer_top=lists.trainer, rollout_top=lists.rollout)
    found = verdicts(measured(rows, top=tops), Limits(mean_kl=1e-2, worst_rollout_kl=1.0, max_abs_d=1.0))
    assert bound == pytest.approx(0.0, abs=1e-6)
    assert found["mean_kl"].quantity == "kl_hybrid"
    assert found["mean_kl"].status is Status.FAIL
    assert found["mean_kl"].value == pytest.approx((0.5 - 1 + np.log(2)) / 10, rel=1e-5)


def test_only_the_lists_of_snapshots_are_judged_by_a_bucket_bound_which_can_fail_them_and_passes_none():
    source = Path(onepolicy.__file__).parent
    using = [path.name for path in source.rglob("*.py") if "kl_top_k_bucket" in path.read_text(encoding="utf-8")]
    assert sorted(using) == ["metrics.py", "snapshot_lists.py"]
