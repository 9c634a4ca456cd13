"""K24: experts that both sides choose by themselves, and recorded routes that are padded or misread (B114, B116)."""

import numpy as np
import pytest
import torch
from tiny_transformer import NOT_RECORDED, Pass, Shape, Tiny, sequences

import onepolicy
from onepolicy.records.verdict import Status

IDS = sequences(count=24, length=64)
NUDGE = 3e-3


@pytest.fixture(scope="module")
def model() -> Tiny:
    return Tiny(Shape(experts=4))


@pytest.fixture(scope="module")
def engine(model):
    """Logprobs [R][T - 1] and routes of an engine whose router rounds a little differently."""
    return freely(model, nudge=NUDGE)


def freely(model, **how):
    columns, routes = [], []
    for ids in IDS:
        one = Pass(**how)
        columns.append(model.logprobs(ids, one))
        routes.append(one.routes)
    return columns, routes


def scored(model, **how):
    """The trainer's logprobs; `how` as a function of the number of a sequence."""
    return [model.logprobs(ids, Pass(**{key: value(n) for key, value in how.items()})) for n, ids in enumerate(IDS)]


def judged(rollout, trainer):
    return onepolicy.compare(rollout=rollout, trainer=trainer, sampled=False)


def test_b114_free_routing_fails_on_the_tokens_whose_experts_flip_and_replay_takes_it_away(model, engine):
    columns, routes = engine
    free, own = freely(model)
    found = judged(columns, free)
    assert found.status is Status.FAIL
    flipped = np.array([sets_differ(a, b) for a, b in zip(routes, own, strict=True)])
    d = np.abs(np.array(free) - np.array(columns))
    assert 0.0 < flipped.mean() < 0.5
    assert np.median(d[flipped[:, :-1]]) > 10 * np.median(d[~flipped[:, :-1]])
    assert found.metrics["abs_d_p99"] > 10 * found.metrics["abs_d_p50"]
    replayed = judged(columns, scored(model, replay=lambda n: routes[n]))
    assert replayed.status is Status.PASS
    assert replayed.metrics["k3"] < found.metrics["k3"] / 100


def sets_differ(one, other) -> np.ndarray:
    """[T] whether a token has another set of experts in any layer."""
    pairs = zip(one, other, strict=True)
    return torch.stack([(a.sort(-1).values != b.sort(-1).values).any(-1) for a, b in pairs]).any(0).numpy()


def cut(routes, fill: int, *, kept: int = 40):
    """The capture ends early; what follows is filled up."""
    return [torch.cat([one[:kept], torch.full_like(one[kept:], fill)]) for one in routes]


def test_b116_a_short_capture_padded_with_expert_0_fails_and_a_sentinel_passes(model):
    free, own = freely(model)
    padded = judged(free, scored(model, replay=lambda n: cut(own[n], 0)))
    assert padded.status is Status.FAIL
    assert all(worst.worst.position >= 40 for worst in padded.worst_rollouts)
    assert judged(free, scored(model, replay=lambda n: cut(own[n], NOT_RECORDED))).status is Status.PASS


def test_b116_scores_gathered_behind_the_mask_fail_and_give_the_router_no_gradient(model, engine):
    columns, routes = engine
    masked = judged(columns, scored(model, replay=lambda n: routes[n], masked_scores=lambda n: True))
    assert masked.status is Status.FAIL
    assert judged(columns, scored(model, replay=lambda n: routes[n])).status is Status.PASS
    assert router_gradient(model, masked=True) < 1e-9 < router_gradient(model, masked=False)


def router_gradient(model, *, masked: bool) -> float:
    """Largest gradient of the last router from a token that is sent to experts 2 and 3, where it chose the others."""
    model.zero_grad()
    own = Pass()
    with torch.no_grad():
        model(IDS[0], own)
    foreign = torch.tensor([[2, 3]]).expand(len(IDS[0]), 2)
    logits = model(IDS[0], Pass(replay=[own.routes[0], foreign], masked_scores=masked))
    row = next(i for i, chosen in enumerate(own.routes[1].tolist()) if not set(chosen) & {2, 3})
    logits[row].log_softmax(-1)[0].backward()
    return float(model.layers[1]["gate"].grad.abs().max())
