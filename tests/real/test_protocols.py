"""Real engines sample as a protocol says: by what they drew, not by what they were sent.

Two things are looked at. Edges: no sampled token lies beyond rank k or outside the nucleus, by the engine's own lists
of the same step. And identity I2: for tokens drawn from a distribution, -logprob - entropy has mean zero. The
distribution is worked out here from the logits of the same weights in float32, and where it is truncated from the
engine's own lists, as rounding moves what lies at an edge. Each check is also held against another protocol, where it
must fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

from onepolicy.engines.contract import Completion, SampleInput, Sampler, Wanted
from onepolicy.engines.spec import parse_spec
from onepolicy.integrations import open_sampler
from onepolicy.numerics.surprise import Surprise
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.tokens import TokenState
from onepolicy.suites import load_suite
from onepolicy.workflow.obeyed import refuse_unobeyed

pytestmark = pytest.mark.real
LONG = partial(pytest.param, marks=pytest.mark.full)
"""slower than a vLLM, which samples all prompts at once"""

PROMPTS = 24
STOPPED = 32
"""prompts of the protocol whose completions end early"""
LISTED = 100
"""tokens in each list, which is what the vLLM here was started with"""
BY_CHANCE = 4.0
"""standard deviations; two sided 6e-5"""
FAR = 6.0
ROUNDING = {"transformers": 1e-4, "vllm": 1e-4, "llamacpp": 0.05}
"""nats between a step's list and its token; llama.cpp lists some tokens in a second request, which rounds otherwise"""
STOP = " a"
"""begins many words, so it ends completions soon, and mostly inside a larger token"""
PLAIN = SamplingProtocol(max_new_tokens=24)
COLD = SamplingProtocol(max_new_tokens=24, temperature=0.7)
TOP_K = SamplingProtocol(max_new_tokens=24, top_k=5)
NUCLEUS = SamplingProtocol(max_new_tokens=24, top_p=0.7, temperature=0.9)
PENALTY = SamplingProtocol(max_new_tokens=32, repetition_penalty=1.5, stop=(STOP,))


@dataclass(frozen=True, kw_only=True)
class Engine:
    name: str
    sampler: Sampler

    def draw(self, protocol: SamplingProtocol, *, count: int = PROMPTS) -> list[tuple[np.ndarray, Completion]]:
        """The ids of each prompt, and its completion."""
        refuse_unobeyed(self.sampler, parse_spec(f"{self.name}:here"), protocol)
        prompts = load_suite("quick").prompts
        ids = [self.sampler.encode_chat(prompts[n % len(prompts)].messages) for n in range(count)]
        asked = [SampleInput(rollout_id=f"r{n}", prompt_ids=one, seed=n) for n, one in enumerate(ids)]
        completions = self.sampler.sample(asked, protocol, Wanted(top=LISTED))
        for one in completions:
            assert (one.states == TokenState.VALUE).all()
        return [(item.prompt_ids, one) for item, one in zip(asked, completions, strict=True)]


@pytest.fixture(scope="module", params=[LONG("transformers"), LONG("llamacpp"), "vllm"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    spec = {"transformers": "transformers:smollm2?dtype=float32", "llamacpp": "llamacpp:smollm2?ctx=1024"}
    if request.param == "vllm":
        spec["vllm"] = f"vllm:{request.getfixturevalue('vllm_url')}?max_logprobs={LISTED}"
    sampler = open_sampler(parse_spec(spec[request.param]))
    yield Engine(name=request.param, sampler=sampler)
    sampler.close()


@pytest.fixture(scope="module")
def logits_of(smollm2_folder) -> Callable[[Sequence[int]], np.ndarray]:
    """[T, V] of the same weights in float32."""
    import torch  # noqa: PLC0415 - slow to import, and not needed to collect tests
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    model: Any = AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32).eval()

    def logits(ids: Sequence[int]) -> np.ndarray:
        with torch.no_grad():
            return model(torch.tensor([list(ids)])).logits[0].numpy()

    return logits


# -- identity I2 ------------------------------------------------------------------------------------------------------


def log_softmax(scores: np.ndarray) -> np.ndarray:
    shifted = scores - scores.max()
    return shifted - np.log(np.exp(shifted).sum())


def add(found: Surprise, logprobs: np.ndarray, token: int) -> None:
    """Take in a token and the logprobs [V] that it is said to be drawn from; -inf where nothing is."""
    possible = logprobs[np.isfinite(logprobs)].astype(np.float64)
    entropy = -(np.exp(possible) * possible).sum()
    found.tokens += 1
    found.excess += -float(logprobs[token]) - entropy
    found.variance += float((np.exp(possible) * (possible + entropy) ** 2).sum())


def processed(logits: np.ndarray, before: Sequence[int], protocol: SamplingProtocol) -> np.ndarray:
    """[V] logprobs by the definition of the penalty and the temperature."""
    scores, seen, penalty = logits.copy(), np.unique(before), protocol.repetition_penalty
    scores[seen] = np.where(scores[seen] > 0, scores[seen] / penalty, scores[seen] * penalty)
    return log_softmax(scores / protocol.temperature)


def z_of(drawn, logits_of, *protocols: SamplingProtocol) -> list[float]:
    """Of each protocol, how many standard deviations the samples lie from it; below zero are likelier ones."""
    found = [Surprise() for _ in protocols]
    for prompt, one in drawn:
        ids = [*prompt.tolist(), *one.token_ids.tolist()]
        logits = logits_of(ids)
        for at in range(len(prompt), len(ids)):
            for surprise, protocol in zip(found, protocols, strict=True):
                add(surprise, processed(logits[at - 1], ids[:at], protocol), ids[at])
    return [surprise.z for surprise in found]


# -- edges, by the engine's own lists ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Step:
    """A sampled token and the list of its step."""

    token: int
    logprob: float
    ids: np.ndarray
    logprobs: np.ndarray


def steps(drawn) -> Iterator[Step]:
    for _, one in drawn:
        assert one.top is not None
        assert one.top.positions.tolist() == list(range(len(one.token_ids)))
        for at, token in enumerate(one.token_ids.tolist()):
            listed = np.isfinite(one.top.logprobs[at])
            yield Step(
                token=token,
                logprob=float(one.logprobs[at]),
                ids=one.top.ids[at][listed],
                logprobs=one.top.logprobs[at][listed].astype(np.float64),
            )


def beyond_rank(drawn, k: int, *, rounding: float) -> int:
    """Tokens less likely than the k-th of their step."""
    return sum(step.logprob < step.logprobs[k - 1] - rounding for step in steps(drawn))


def masses(step: Step, temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """[L] the least and the most that the probability before each listed token can be, after the temperature.

    What is not listed has a known mass at temperature 1, and no token of it is likelier than the last listed one.
    """
    power = 1.0 / temperature
    listed = np.exp(step.logprobs * power)
    rest = max(1.0 - np.exp(step.logprobs).sum(), 0.0) * np.exp(step.logprobs[-1] * (power - 1.0))
    before = np.concatenate([[0.0], listed.cumsum()[:-1]])
    return before / (listed.sum() + rest), before / listed.sum()


def outside_nucleus(drawn, protocol: SamplingProtocol, *, rounding: float) -> int:
    """Tokens before which the likelier ones have the nucleus' whole mass already, for certain.

    Where the whole list may lie inside, its end is not the nucleus' and a token beyond it says nothing.
    """
    found = 0
    for step in steps(drawn):
        least, _ = masses(step, protocol.temperature)
        inside = least < protocol.top_p
        found += not inside.all() and step.logprob < step.logprobs[inside].min() - rounding
    return found


def kept(step: Step, protocol: SamplingProtocol) -> np.ndarray | None:
    """[L] which of a list may be drawn; None where the list is too short to tell."""
    if protocol.top_k:
        return np.arange(len(step.ids)) < protocol.top_k
    least, most = masses(step, protocol.temperature)
    inside = least < protocol.top_p
    known = np.array_equal(inside, most < protocol.top_p) and not inside[-1]
    return inside if known else None


def truncated(drawn, protocol: SamplingProtocol) -> Surprise:
    """Of the steps whose list tells the truncated distribution, whatever was drawn there."""
    found = Surprise()
    for step in steps(drawn):
        inside = kept(step, protocol)
        place = np.flatnonzero(step.ids == step.token)
        if inside is not None and len(place) and inside[place[0]]:
            scores = np.where(inside, step.logprobs / protocol.temperature, -np.inf)
            add(found, log_softmax(scores), int(place[0]))
    return found


# -- five protocols ---------------------------------------------------------------------------------------------------


def test_plain_samples_are_of_the_models_own_distribution(engine, logits_of):
    drawn = engine.draw(PLAIN)
    own, colder = z_of(drawn, logits_of, PLAIN, COLD)
    assert abs(own) < BY_CHANCE
    assert colder > FAR
    rounding = ROUNDING[engine.name]
    assert beyond_rank(drawn, TOP_K.top_k, rounding=rounding) > 20
    assert outside_nucleus(drawn, NUCLEUS, rounding=rounding) > 20


def test_a_temperature_is_obeyed(engine, logits_of):
    drawn = engine.draw(COLD)
    own, plain = z_of(drawn, logits_of, COLD, PLAIN)
    assert abs(own) < BY_CHANCE
    assert plain < -FAR


def test_no_token_beyond_rank_k_is_drawn_and_those_before_it_as_often_as_they_should(engine):
    drawn = engine.draw(TOP_K)
    assert beyond_rank(drawn, TOP_K.top_k, rounding=ROUNDING[engine.name]) == 0
    assert beyond_rank(drawn, TOP_K.top_k - 1, rounding=ROUNDING[engine.name]) > 0
    found = truncated(drawn, TOP_K)
    assert found.tokens > 0.98 * sum(len(one.token_ids) for _, one in drawn)
    assert abs(found.z) < BY_CHANCE
    assert truncated(drawn, TOP_K.model_copy(update={"temperature": 0.5})).z > FAR


def test_no_token_outside_the_nucleus_is_drawn_and_those_inside_as_often_as_they_should(engine):
    drawn = engine.draw(NUCLEUS)
    assert outside_nucleus(drawn, NUCLEUS, rounding=ROUNDING[engine.name]) == 0
    smaller = NUCLEUS.model_copy(update={"top_p": 0.6})
    assert outside_nucleus(drawn, smaller, rounding=ROUNDING[engine.name]) > 0
    found = truncated(drawn, NUCLEUS)
    assert found.tokens > 0.7 * sum(len(one.token_ids) for _, one in drawn)
    assert abs(found.z) < BY_CHANCE


def test_a_penalty_acts_on_prompt_and_completion_and_a_stop_string_ends_it(engine, logits_of):
    drawn = engine.draw(PENALTY, count=STOPPED)
    own, plain = z_of(drawn, logits_of, PENALTY, PLAIN)
    assert abs(own) < BY_CHANCE
    assert plain > FAR
    whole_text = [one for _, one in drawn if "\ufffd" not in one.text]  # inside a character llama.cpp looks for nothing
    assert len(whole_text) > 0.6 * STOPPED
    inside = 0
    for one in whole_text:
        before, whole, last = (engine.sampler.decode(ids) or "" for ids in parts(one.token_ids))
        assert STOP not in before
        if STOP in whole:
            assert (one.finish_reason, one.stop_reason) == ("stop", STOP)
            assert STOP in one.text
            inside += last.strip() != STOP.strip()
        else:
            assert one.stop_reason != STOP
    stopped = [one for one in whole_text if one.stop_reason == STOP]
    assert len(stopped) > 0.5 * len(whole_text)
    assert inside > 5


def parts(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All but the last, all, and the last."""
    return ids[:-1], ids, ids[-1:]
