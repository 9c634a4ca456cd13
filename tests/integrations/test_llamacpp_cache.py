"""llama.cpp's cache of a slot: each token's own prefill against going on from the last one's."""

from dataclasses import dataclass

import numpy as np
import pytest
from llamacpp_standin import LlamaCpp

from onepolicy.engines.contract import ScoreInput, Wanted
from onepolicy.engines.legs import CACHED
from onepolicy.engines.spec import parse_spec
from onepolicy.integrations import open_engine
from onepolicy.records.tokens import TokenState

IDS = np.arange(60, 80, dtype=np.int32)


@dataclass(kw_only=True)
class Counting(LlamaCpp):
    """It says that it took all but the last token from the cache where it may."""

    counts: bool = True

    def completion(self, body):
        status, answer = super().completion(body)
        taken = len(body["prompt"]) - 1 if body.get("cache_prompt") else 0
        return status, {**answer, "timings": {"cache_n": taken} if self.counts else {}}


def scored(server, options):
    engine = open_engine(parse_spec(f"llamacpp:{server.url}?timeout=20&retries=1{options}"))
    try:
        item = ScoreInput(rollout_id="r", token_ids=IDS, wanted=np.arange(len(IDS)) >= 5)
        return engine.score([item], Wanted())[0], engine.condition(path="prefill").path
    finally:
        engine.close()


@pytest.mark.parametrize(("cache", "path"), [("cold", "prefill"), ("warm", "decode")])
def test_the_logprobs_are_the_models_and_the_counts_the_servers(serve, cache, path):
    server = serve(Counting())
    row, found = scored(server, f"&cache={cache}")
    valued = row.states == TokenState.VALUE
    np.testing.assert_allclose(row.logprobs[valued], server.dialect.tiny.of_tokens(IDS.tolist())[valued], rtol=1e-6)
    expected = [0.0] * 15 if cache == "cold" else [0.0, *(float(at - 1) for at in range(6, 20))]
    assert row.statistics[CACHED][5:].tolist() == expected
    assert np.isnan(row.statistics[CACHED][:5]).all()
    assert found == path


def test_without_the_option_nothing_is_counted(serve):
    row, path = scored(serve(Counting()), "")
    assert (row.statistics, path) == ({}, "decode")


def test_a_server_that_counts_nothing_proves_nothing(serve):
    row, _ = scored(serve(Counting(counts=False)), "&cache=warm")
    assert np.isnan(row.statistics[CACHED]).all()
