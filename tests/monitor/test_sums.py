"""The device's sums against those of numpy, which share no line of code."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onepolicy.monitor import sums as sums_module
from onepolicy.monitor.batch import Given, batch_of
from onepolicy.monitor.layout import EXTRAS, LENGTH, SLICES, extras, merged, step_summary
from onepolicy.monitor.sums import DeviceSums
from onepolicy.numerics.measurement import Measurement
from onepolicy.numerics.pair import Pair, pair_up
from onepolicy.numerics.steps.summary import StepSummary
from onepolicy.numerics.table import reductions
from onepolicy.records.parquet import ReadingBlock, RolloutBlock
from onepolicy.records.tokens import TokenState, digest_of_ids

LIMIT = 0.05
ODD = (float("nan"), float("inf"), float("-inf"), -9999.0, -1000.0, -999.0, 0.0, -0.0, 5e-7, 2e-6, 1.0, -1e-30)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
EXACT = ("rollouts", "states", "histogram", "equal", "same")


@dataclass
class Case:
    p: torch.Tensor
    q: torch.Tensor
    sampled: torch.Tensor
    loss_mask: torch.Tensor
    groups: list[str]
    lags: list[int]
    advantages: list[float]

    def given(self) -> Given:
        return Given(
            rollout_logprobs=self.p,
            trainer_logprobs=self.q,
            sampled=self.sampled,
            loss_mask=self.loss_mask,
            rollout_versions=[-1 if lag < 0 else 100 - lag for lag in self.lags],
            trainer_version=100,
            advantages=torch.tensor(self.advantages, dtype=torch.float64),
            groups=self.groups,
        )

    def pair(self) -> Pair:
        rows, width = self.p.shape
        ids = [f"r{row}" for row in range(rows)]
        offsets = np.arange(rows + 1, dtype=np.int64) * width
        block = RolloutBlock(
            rollout_ids=ids,
            prompt_ids=self.groups,
            tags=["{}"] * rows,
            offsets=offsets,
            token_ids=np.zeros(rows * width, dtype=np.int32),
            sampled=self.sampled.numpy().astype(bool).ravel(),
            loss_mask=self.loss_mask.numpy().astype(bool).ravel(),
        )
        digests = [digest_of_ids(np.array([row])) for row in range(rows)]
        return pair_up(block, digests, _reading(block, self.p), _reading(block, self.q))


def _reading(block: RolloutBlock, values: torch.Tensor) -> ReadingBlock:
    column = values.to(torch.float32).numpy().ravel()
    states = np.full(len(column), TokenState.VALUE, dtype=np.uint8)
    return ReadingBlock(
        rollout_ids=block.rollout_ids, digests=[], offsets=block.offsets, logprobs=column, states=states, top1=None
    )


def _column(generator: np.random.Generator, like: np.ndarray, odd: float) -> np.ndarray:
    column = np.where(
        generator.random(like.shape) < 0.1, like, np.minimum(like + generator.normal(0, 0.1, like.shape), 0)
    )
    return np.where(generator.random(like.shape) < odd, generator.choice(ODD, like.shape), column)


@st.composite
def cases(draw: st.DrawFn, *, tame: bool = False, rows: int = 6) -> Case:
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = (draw(st.integers(1 if tame else 0, rows)), draw(st.integers(1 if tame else 0, 40)))
    odd = 0.0 if tame else draw(st.sampled_from((0.0, 0.02, 0.5)))
    p = _column(generator, -np.exp(generator.normal(-1, 2, shape)), odd)
    q = _column(generator, p, odd)
    dtype = draw(st.sampled_from(DTYPES))
    strided = draw(st.booleans())
    tensors = [torch.from_numpy(np.ascontiguousarray(x.T if strided else x)).to(dtype) for x in (p, q)]
    p_t, q_t = (x.T if strided else x for x in tensors)
    share = draw(st.sampled_from((0.0, 0.5, 1.0)))
    masks = [torch.from_numpy(generator.random(shape) < share), torch.from_numpy(generator.random(shape) < 0.5)]
    kind = draw(st.sampled_from((torch.bool, torch.int64, torch.float32)))
    names = [f"prompt {i}" for i in range(3)]
    return Case(
        p=p_t,
        q=q_t,
        sampled=masks[0].to(kind),
        loss_mask=masks[1],
        groups=[names[i] for i in generator.integers(0, 3, shape[0])],
        lags=generator.integers(-1, 12, shape[0]).tolist(),
        advantages=np.where(generator.random(shape[0]) < 0.2, np.nan, generator.normal(size=shape[0])).tolist(),
    )


def _on_device(*parts: Case, masks: bool = False) -> np.ndarray:
    sums = DeviceSums(torch.device("cpu"))
    for case in parts:
        sums.add(batch_of(case.given(), first_group=0), worst_rollout_kl=LIMIT, masks=masks)
    return sums.take().numpy()


def _in_numpy(*parts: Case) -> StepSummary:
    summary = StepSummary(step=3)
    for case in parts:
        summary.add_pair(case.pair(), lags=np.array(case.lags, dtype=np.int64), advantages=np.array(case.advantages))
    return summary


def _same(found: StepSummary, wanted: StepSummary) -> None:
    for field in fields(StepSummary):
        if field.name == "step":
            continue
        one, other = getattr(found, field.name), getattr(wanted, field.name)
        if field.name in EXACT:
            assert np.array_equal(one, other), field.name
        else:
            # sums of d may cancel: their error is that of the sum of |d|
            scale = max(1.0, float(np.abs(np.where(np.isfinite(other), other, 0)).max(initial=0)))
            assert one == pytest.approx(other, rel=1e-12, abs=1e-12 * scale), field.name
    assert np.array_equal(found.cells[..., 0], wanted.cells[..., 0])
    assert np.array_equal(found.clusters[:, 0], wanted.clusters[:, 0])
    assert found.largest[0] == wanted.largest[0]


@settings(max_examples=100, deadline=None)
@given(cases())
def test_the_device_sums_what_numpy_sums(case: Case) -> None:
    _same(step_summary(_on_device(case), step=3), _in_numpy(case))


@settings(max_examples=25, deadline=None)
@given(st.lists(cases(), min_size=2, max_size=4))
def test_micro_batches_add_up_to_the_step(parts: list[Case]) -> None:
    _same(step_summary(_on_device(*parts), step=3), _in_numpy(*parts))


@settings(max_examples=25, deadline=None)
@given(cases(), cases())
def test_two_ranks_merge_to_what_one_process_sees(one: Case, other: Case) -> None:
    both = merged(np.stack([_on_device(one), _on_device(other)]))
    _same(step_summary(both, step=3), _in_numpy(one, other))


@settings(max_examples=100, deadline=None)
@given(cases(tame=True))
def test_every_metric_is_that_of_the_offline_comparison(case: Case) -> None:
    measured = Measurement()
    measured.add(case.pair())
    found = reductions(step_summary(_on_device(case), step=3).measurement())
    wanted = reductions(measured)
    assert found.keys() == wanted.keys()
    assert found == pytest.approx(wanted, rel=1e-9, abs=1e-12)


def _one(p: list[float], q: list[float], **changes: Any) -> Case:
    tensors = {"p": torch.tensor([p]), "q": torch.tensor([q])}
    ones = torch.ones(1, len(p), dtype=torch.bool)
    rest = {"sampled": ones, "loss_mask": ones, "groups": ["a"], "lags": [0], "advantages": [float("nan")]}
    return Case(**{**tensors, **rest, **changes})


def test_a_ratio_beyond_float64_is_infinite_and_its_difference_of_probabilities_is_not() -> None:
    summary = step_summary(_on_device(_one([-900.0, -1.0], [-1.0, -1.0])), step=1)
    assert np.isinf(summary.sums[4])
    assert np.isinf(summary.worst.max())
    assert summary.largest[2] == pytest.approx(np.exp(-1.0), rel=1e-12)


@pytest.mark.parametrize("tokens", [1, 7, 60, 10_000])
def test_the_size_of_the_parts_changes_nothing(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    p = -3 - torch.rand(9, 20, generator=generator)
    q = p + 0.2 * torch.randn(9, 20, generator=generator)
    sampled = torch.randint(0, 3, (9, 20), generator=generator)
    given_ = Given(rollout_logprobs=p, trainer_logprobs=q, sampled=sampled)
    monkeypatch.setattr(sums_module, "_TOKENS", {"cpu": tokens})
    sums, whole = DeviceSums(torch.device("cpu")), DeviceSums(torch.device("cpu"))
    scores = sums.add(batch_of(given_, first_group=0), worst_rollout_kl=LIMIT, masks=True)
    monkeypatch.setattr(sums_module, "_TOKENS", {"cpu": 1 << 20})
    wanted = whole.add(batch_of(given_, first_group=0), worst_rollout_kl=LIMIT, masks=True)
    assert torch.equal(scores.outlier, wanted.outlier)
    assert torch.equal(scores.mean_k3, wanted.mean_k3)
    one, other = sums.take().numpy(), whole.take().numpy()
    assert extras(one) == extras(other)
    _same(step_summary(one, step=1), step_summary(other, step=1))


def test_the_trainers_settings_of_torch_change_nothing() -> None:
    generator = torch.Generator().manual_seed(1)
    p = (-3 - torch.rand(6, 20, generator=generator)).to(torch.bfloat16)
    q = (p + 0.2 * torch.randn(6, 20, generator=generator)).to(torch.bfloat16)
    given_ = Given(
        rollout_logprobs=p, trainer_logprobs=q, sampled=torch.ones(6, 20), rollout_versions=[1] * 6, trainer_version=2
    )

    def vector() -> np.ndarray:
        sums = DeviceSums(torch.device("cpu"))
        sums.add(batch_of(given_, first_group=0), worst_rollout_kl=LIMIT, masks=True)
        return sums.take().numpy()

    plain = vector()
    try:
        torch.set_default_dtype(torch.bfloat16)
        torch.set_default_device("meta")
        torch.use_deterministic_algorithms(True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert np.array_equal(vector(), plain)
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)


def test_a_small_difference_keeps_its_digits() -> None:
    summary = step_summary(_on_device(_one([-1.0, -1.0], [-1.0 + 2**-17, -1.0])), step=1)
    d = 2.0**-17
    assert summary.sums[4] == pytest.approx(d * d / 2 + d**3 / 6 + d**4 / 24, rel=1e-9)


def test_an_edge_of_confidence_belongs_to_the_interval_above_it() -> None:
    edges = np.log([0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999]).astype(np.float32).tolist()
    summary = step_summary(_on_device(_one(edges, edges)), step=1)
    assert summary.cells[0, :, 0].tolist() == [0, 1, 1, 1, 1, 1, 1, 1, 1]


def test_equal_numbers_are_counted_bit_for_bit() -> None:
    summary = step_summary(_on_device(_one([-0.0, -1.0, -2.0, -1e-4], [0.0, -1.0, -2.5, -1e-4])), step=1)
    assert summary.equal.tolist() == [2, 2, 1]


def test_places_that_are_zero_on_both_sides_are_counted_and_whole_rollouts_of_them() -> None:
    p = -torch.ones(4, 9)
    q = -torch.ones(4, 9)
    p[0], q[0] = 0.0, -0.0  # a whole rollout
    p[1, 3], q[1, 3] = 0.0, 0.0  # equal on both sides, and not certain
    p[2, 2], q[2, 4] = 0.0, 0.0  # one side each
    p[3, :7], q[3, :7] = 0.0, 0.0  # short: the rest is not compared
    sampled = torch.ones(4, 9)
    sampled[3, 7:] = 0
    sums = DeviceSums(torch.device("cpu"))
    given_ = Given(rollout_logprobs=p, trainer_logprobs=q, sampled=sampled)
    sums.add(batch_of(given_, first_group=0), worst_rollout_kl=LIMIT, masks=False)
    assert step_summary(sums.take().numpy(), step=1).same.tolist() == [9 + 1 + 7, 9, 1]


def test_weights_ahead_of_the_trainers_are_not_the_trainers() -> None:
    ones = -torch.ones(6, 2)
    versions = [5, 6, 20, 4, -1, None]
    given_ = Given(
        rollout_logprobs=ones, trainer_logprobs=ones, sampled=ones != 0, rollout_versions=versions, trainer_version=5
    )
    sums = DeviceSums(torch.device("cpu"))
    sums.add(batch_of(given_, first_group=0), worst_rollout_kl=LIMIT, masks=False)
    cells = step_summary(sums.take().numpy(), step=1).cells[..., 0].sum(axis=1)
    assert cells.tolist() == [2, 4, 0, 0, 0, 0, 0, 0, 2, 4]


def test_an_outlier_is_beyond_the_limit_or_has_something_that_is_no_logprob() -> None:
    p = torch.tensor([[-1.0, -1.0], [-1.0, -1.0], [-1.0, float("nan")], [-1.0, float("nan")]])
    q = torch.tensor([[-1.0, -1.1], [-1.0, -3.0], [-1.0, -1.0], [-1.0, -1.0]])
    sampled = torch.tensor([[1, 1], [1, 1], [1, 1], [1, 0]])
    given_ = Given(rollout_logprobs=p, trainer_logprobs=q, sampled=sampled)
    sums = DeviceSums(torch.device("cpu"))
    scores = sums.add(batch_of(given_, first_group=0), worst_rollout_kl=LIMIT, masks=True)
    assert scores.outlier.tolist() == [False, True, True, False]
    counts = extras(sums.take().numpy())
    assert counts == {"outliers": 2, "masked": 2, "odd_masks": 0, "failed": 0}


def test_entries_of_a_mask_that_are_neither_0_nor_1_are_counted() -> None:
    sampled = torch.tensor([[0.0, 1.0, 0.5, 2.0]])
    given_ = Given(rollout_logprobs=-torch.ones(1, 4), trainer_logprobs=-torch.ones(1, 4), sampled=sampled)
    sums = DeviceSums(torch.device("cpu"))
    sums.add(batch_of(given_, first_group=0), worst_rollout_kl=LIMIT, masks=False)
    assert extras(sums.take().numpy())["odd_masks"] == 2


def test_rollouts_without_a_group_are_each_their_own() -> None:
    given_ = Given(rollout_logprobs=-torch.ones(5, 2), trainer_logprobs=-torch.ones(5, 2), sampled=torch.ones(5, 2))
    sums = DeviceSums(torch.device("cpu"))
    for first in (0, 5):
        sums.add(batch_of(given_, first_group=first), worst_rollout_kl=LIMIT, masks=False)
    assert len(step_summary(sums.take().numpy(), step=1).measurement().clusters) == 10


def test_the_vector_has_a_place_for_everything_once() -> None:
    places = np.concatenate([np.arange(LENGTH)[part] for part in SLICES.values()])
    assert np.array_equal(places, np.arange(LENGTH))
    assert SLICES["extras"].stop - SLICES["extras"].start == len(EXTRAS)
