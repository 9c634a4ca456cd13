"""A real vLLM that gives processed logprobs, sampled colder and truncated, and scored here under that very meaning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onepolicy.engines.spec import parse_spec
from onepolicy.judgement.load import load_limits
from onepolicy.numerics.pair import Pair, pair_up
from onepolicy.records.join import ReadingJoin, digests_of
from onepolicy.records.protocol import Meaning, SamplingProtocol
from onepolicy.records.run import Run
from onepolicy.records.tokens import TokenState
from onepolicy.records.verdict import Judgement, Status, Verdict
from onepolicy.workflow.judge import JudgeRequest, judge
from onepolicy.workflow.record import RecordRequest, record
from onepolicy.workflow.score import ScoreRequest, score

pytestmark = [pytest.mark.real, pytest.mark.full]

TRAINER = parse_spec("transformers:smollm2?dtype=float32")
SAMPLED = SamplingProtocol(max_new_tokens=32, temperature=0.7, top_p=0.9)
PLAIN = SamplingProtocol(max_new_tokens=32)
LEVEL = 2.0
"""how many times the noise at temperature 1, or how small a part of it, is still its level"""
AT_THE_EDGE = 0.04
"""probability by which rounding in bfloat16 moves the edge of a nucleus at most; two of 1,024 tokens lay beyond it"""


@dataclass(frozen=True, kw_only=True)
class Rollouts:
    """One run, scored under its own meaning and raw."""

    path: Path

    def judged(self, trainer: str) -> Judgement:
        return judge(self.path, JudgeRequest(trainer=trainer, limits=load_limits("bf16"), name=trainer))

    def pairs(self, trainer: str = "same") -> Iterator[Pair]:
        run = Run.open(self.path)
        joins = [ReadingJoin(run, name) for name in ("rollout", trainer)]
        for block in run.rollout_blocks():
            digests = digests_of(block)
            yield pair_up(block, digests, *(join.take(block, digests) for join in joins))

    def by_prompt(self, trainer: str = "same") -> np.ndarray:
        """[prompts, 2] the sum of |d| and the number of tokens."""
        found = {
            prompt: sums
            for pair in self.pairs(trainer)
            for prompt, *sums in zip(
                pair.rollouts.prompt_ids, pair.sums.column("abs_d"), pair.sums.column("tokens"), strict=True
            )
        }
        return np.array([found[prompt] for prompt in sorted(found)])


def made(url: str, path: Path, protocol: SamplingProtocol) -> Rollouts:
    engine = parse_spec(f"vllm:{url}?max_logprobs=100")
    record(path, RecordRequest(engine=engine, protocol=protocol, suite="quick", top=0))
    score(path, ScoreRequest(engine=TRAINER, name="same"))
    return Rollouts(path=path)


@pytest.fixture(scope="module")
def runs(start_vllm, smollm2_folder, tmp_path_factory) -> dict[str, Rollouts]:
    folder = tmp_path_factory.mktemp("processed")
    with start_vllm(smollm2_folder, folder / "log", "--logprobs-mode=processed_logprobs") as (url, _):
        return {
            "plain": made(url, folder / "plain", PLAIN),
            "sampled": made(url, folder / "sampled", SAMPLED),
        }


def verdict(judgement: Judgement, check: str) -> Verdict:
    return next(v for v in judgement.verdicts if v.check == check)


def ratio_of_means(first: np.ndarray, second: np.ndarray) -> tuple[float, float, float]:
    """mean |d| of the first over that of the second, and the 99 % bounds of a bootstrap over their prompts.

    Shape: [prompts, 2] each, of the same prompts.
    """
    assert first.shape == second.shape
    chosen = np.random.default_rng(0).integers(len(first), size=(4000, len(first)))

    def mean(sums: np.ndarray) -> np.ndarray:
        total = sums.sum(axis=-2)
        return total[..., 0] / total[..., 1]

    low, high = np.quantile(mean(first[chosen]) / mean(second[chosen]), [0.005, 0.995])
    return float(mean(first) / mean(second)), float(low), float(high)


def test_under_the_meaning_that_was_sampled_from_the_noise_is_that_of_temperature_one(runs):
    info = Run.open(runs["sampled"].path).reading_info("rollout")
    assert (
        info.meaning
        == Run.open(runs["sampled"].path).reading_info("same").meaning
        == Meaning(temperature=0.7, top_p=0.9)
    )
    assert Run.open(runs["plain"].path).reading_info("rollout").meaning == Meaning()
    value, low, high = ratio_of_means(runs["sampled"].by_prompt(), runs["plain"].by_prompt())
    assert 1 / LEVEL < low < value < high < LEVEL


def test_scored_raw_the_meanings_differ_and_there_is_no_number(runs):
    score(runs["sampled"].path, ScoreRequest(engine=TRAINER, name="raw", meaning=Meaning()))
    judgement = runs["sampled"].judged("raw")
    assert judgement.status is verdict(judgement, "meaning").status is Status.UNKNOWN
    for check in ("mean_kl", "worst_rollout", "max_abs_d"):
        assert (verdict(judgement, check).status, verdict(judgement, check).value) == (Status.UNKNOWN, None)
    apart, _, _ = ratio_of_means(runs["sampled"].by_prompt("raw"), runs["plain"].by_prompt())
    assert apart > 5, "it would have been a large number"


@pytest.fixture(scope="module")
def mass_before(runs, smollm2_folder) -> np.ndarray:
    """[compared tokens] probability of the likelier tokens at temperature 0.7, from the logits here."""
    import torch  # noqa: PLC0415 - slow to import, and not needed to collect tests
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    model: Any = AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32).eval()
    found = []
    for rollout in Run.open(runs["sampled"].path).rollouts():
        ids = torch.tensor(rollout.token_ids.astype(np.int64))
        with torch.no_grad():
            chances = (model(ids[None]).logits[0, :-1] / SAMPLED.temperature).softmax(dim=1)
        own = chances.gather(1, ids[1:, None])
        before = (chances * (chances > own)).sum(dim=1).numpy()
        found.append(before[rollout.sampled[1:]])
    return np.concatenate(found)


def test_a_token_that_rounding_moved_out_of_the_kept_set_is_counted_named_and_at_the_edge(runs, mass_before):
    pairs, judgement = list(runs["sampled"].pairs()), runs["sampled"].judged("same")
    states = np.concatenate([pair.trainer_states[pair.compared] for pair in pairs])
    assert all((pair.rollout_states[pair.compared] == TokenState.VALUE).all() for pair in pairs)
    assert set(states.tolist()) <= {TokenState.VALUE, TokenState.EXCLUDED}
    excluded = states == TokenState.EXCLUDED
    said = verdict(judgement, "kept_set")
    assert excluded.mean() < 0.02
    assert excluded.sum() == judgement.counts.get("trainer_excluded", 0)
    if not excluded.any():
        assert said.status is Status.PASS
        return
    assert said.status is Status.UNKNOWN
    assert said.value == pytest.approx(excluded.mean())
    assert (mass_before[excluded] > SAMPLED.top_p - 1e-4).all()
    assert (mass_before[excluded] < SAMPLED.top_p + AT_THE_EDGE).all()
    assert (mass_before[~excluded] < SAMPLED.top_p + 1e-4).all()
    assert verdict(judgement, "mean_kl").value is None
    assert judgement.status is Status.UNKNOWN
