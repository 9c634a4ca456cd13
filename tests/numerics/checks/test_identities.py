"""I1, I2 and the rate of outlier rollouts on planted faults, through the fake engine's exact distributions."""

import numpy as np
import pytest
from scipy import stats

from onepolicy.engines.spec import EngineSpec, parse_spec
from onepolicy.integrations.fake.engine import FakeEngine
from onepolicy.judgement.statistics import binomial_bounds
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.verdict import Judgement, Status
from onepolicy.suites import load_suite
from onepolicy.workflow.check import CheckRequest, check
from onepolicy.workflow.judge import judge
from onepolicy.workflow.progress import Silent
from onepolicy.workflow.record import RecordRequest, record_with
from onepolicy.workflow.score import ScoreRequest, score_with


def judged(tmp_path, trainer: str, *, rollout: str = "fake:m", **protocol) -> Judgement:
    request = CheckRequest(
        rollout=parse_spec(rollout),
        trainer=parse_spec(trainer),
        suite="standard",
        protocol=SamplingProtocol(max_new_tokens=64, **protocol),
        top=0,
    )
    return check(request, path=tmp_path / "run")


def verdict(judgement: Judgement, name: str):
    return next(v for v in judgement.verdicts if v.check == name)


def test_both_identities_hold_for_a_model_against_its_noisy_self(tmp_path):
    judgement = judged(tmp_path, "fake:m?noise=0.02")
    assert verdict(judgement, "mean_ratio").status is Status.PASS
    assert verdict(judgement, "sampled_as_reported").status is Status.PASS
    assert abs(verdict(judgement, "sampled_as_reported").value) < 3


@pytest.mark.parametrize("offset", [0.01, -0.01, 1e-5])
def test_an_offset_on_every_token_breaks_the_first_identity_though_k3_passes(tmp_path, offset):
    judgement = judged(tmp_path, f"fake:m?offset={offset}")
    assert verdict(judgement, "mean_kl").status is Status.PASS
    found = verdict(judgement, "mean_ratio")
    assert found.status is Status.FAIL
    assert found.value == pytest.approx(np.exp(offset), abs=2e-6)
    assert judgement.status is Status.FAIL


def test_a_temperature_that_the_logprobs_do_not_show_breaks_the_second_identity(tmp_path):
    """Both sides agree on raw logprobs; the tokens were drawn at 0.7 while the protocol says 1."""

    class Cold(FakeEngine):
        def sample(self, batch, protocol, wanted):
            return super().sample(batch, protocol.model_copy(update={"temperature": 0.7}), wanted)

    spec = EngineSpec(engine="fake", target="m")
    engine = Cold.open(spec)
    request = RecordRequest(engine=spec, suite="standard", top=0)
    run = record_with(engine, tmp_path / "run", request, load_suite("standard"), resume=False, progress=Silent())
    score_with(engine, run, ScoreRequest(engine=spec), progress=Silent())
    judgement = judge(run.path)
    assert verdict(judgement, "mean_kl").status is Status.PASS
    assert verdict(judgement, "mean_ratio").status is Status.PASS
    found = verdict(judgement, "sampled_as_reported")
    assert found.status is Status.FAIL
    assert found.value < -10
    assert "more likely" in found.message


def test_a_renormalised_kept_set_gives_its_mass_to_the_mean_ratio(tmp_path):
    """Sampled and reported under top_p 0.9, scored raw by a trainer that claims the same meaning."""
    judgement = judged(tmp_path, "fake:m", rollout="fake:m?logprobs=processed", top_p=0.9)
    assert verdict(judgement, "mean_ratio").status is Status.PASS, "the trainer scores under the same meaning"


def test_the_identities_do_not_speak_of_greedy_tokens(tmp_path):
    judgement = judged(tmp_path, "fake:m?offset=0.01", temperature=0.0)
    for name in ("mean_ratio", "sampled_as_reported"):
        assert (verdict(judgement, name).status, verdict(judgement, name).required) == (Status.UNKNOWN, False)


@pytest.mark.parametrize(("bad", "of"), [(0, 24), (0, 200), (3, 50), (24, 24), (1, 1)])
def test_binomial_bounds_are_those_of_clopper_and_pearson(bad, of):
    low = stats.binomtest(bad, of).proportion_ci(confidence_level=0.99, method="exact").low
    high = stats.binomtest(bad, of).proportion_ci(confidence_level=0.90, method="exact").high
    found = binomial_bounds(bad=bad, of=of, lower_alpha=0.005, upper_alpha=0.05)
    assert found == pytest.approx((low, high), abs=1e-9)


def test_none_bad_among_24_prompts_still_allows_twelve_percent():
    assert binomial_bounds(bad=0, of=24, lower_alpha=0.005, upper_alpha=0.05)[1] == pytest.approx(0.117, abs=5e-4)
