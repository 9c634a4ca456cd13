"""vLLM's prefix cache: cold and warm requests, and what the server says that it took from there."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from standin import Vllm, given

from onepolicy.engines.contract import Wanted
from onepolicy.engines.legs import CACHED
from onepolicy.records.tokens import TokenState

IDS = [30 + n % 60 for n in range(40)]
BLOCK = 16


@dataclass(kw_only=True)
class Caching(Vllm):
    """Blocks of a prompt are kept by their ids and the request's salt; the given ids have their logprobs."""

    counts: bool = True
    knows_salt: bool = True
    blocks: set = field(default_factory=set)
    found: int = 0

    def completion(self, body):
        prompt = body["prompt"]
        salt = body.get("cache_salt") if self.knows_salt else None
        own = [(salt, *prompt[:end]) for end in range(BLOCK, len(prompt), BLOCK)]
        self.found = BLOCK * sum(block in self.blocks for block in own)
        self.blocks.update((salt, *prompt[:end]) for end in range(BLOCK, len(prompt) + 1, BLOCK))
        return super().completion(body)

    def count(self, usage):
        if self.counts:
            usage["prompt_tokens_details"] = {"cached_tokens": self.found}

    def listed(self, body, drawn):
        found = super().listed(body, drawn)
        for token in body.get("logprob_token_ids") or ():
            found["top_logprobs"][0][self.spelled(token, body)] = float(drawn.reported[0][token])
        return found


def row_of(serve, engine_of, server=None, **options):
    standing = serve(server or Caching())
    (row,) = engine_of(standing, engine="vllm", **options).score([given(*IDS)], Wanted())
    return standing, row


@pytest.mark.parametrize("cache", ["cold", "warm"])
def test_each_token_has_the_models_own_logprob(serve, engine_of, cache):
    server, row = row_of(serve, engine_of, cache=cache)
    wanted = row.states == TokenState.VALUE
    assert wanted.sum() == len(IDS) - 1
    np.testing.assert_allclose(row.logprobs[wanted], server.dialect.tiny.of_tokens(IDS)[wanted], rtol=1e-6)


def test_a_cold_request_takes_nothing_from_the_cache(serve, engine_of):
    server, row = row_of(serve, engine_of, cache="cold")
    assert set(row.statistics[CACHED][1:].tolist()) == {0.0}
    salts = [body["cache_salt"] for body in server.asked("/v1/completions") if "cache_salt" in body]
    assert len(set(salts)) == len(salts) == len(IDS) - 1


def test_warm_requests_find_every_whole_block_before_their_token(serve, engine_of):
    server, row = row_of(serve, engine_of, cache="warm")
    expected = [BLOCK * ((at - 1) // BLOCK) for at in range(1, len(IDS))]
    assert row.statistics[CACHED][1:].tolist() == expected
    salts = {body["cache_salt"] for body in server.asked("/v1/completions") if "cache_salt" in body}
    assert len(salts) == 1


def test_two_sequences_do_not_warm_each_other(serve, engine_of):
    engine = engine_of(serve(Caching()), engine="vllm", cache="warm", concurrency=1)
    rows = engine.score([given(*IDS[:17]), given(*IDS[:17])], Wanted())
    assert rows[0].statistics[CACHED].tolist()[1:] == rows[1].statistics[CACHED].tolist()[1:] == [0.0] * 16


def test_a_server_that_counts_nothing_proves_nothing(serve, engine_of):
    _, row = row_of(serve, engine_of, Caching(counts=False), cache="warm")
    assert np.isnan(row.statistics[CACHED]).all()


def test_a_server_that_ignores_the_salt_is_seen_to_be_warm_when_it_should_be_cold(serve, engine_of):
    _, row = row_of(serve, engine_of, Caching(knows_salt=False), cache="cold")
    assert np.nanmax(row.statistics[CACHED]) > 0


def test_a_server_that_does_not_list_the_given_ids_leaves_their_tokens_absent(serve, engine_of):
    _, row = row_of(serve, engine_of, Vllm(), cache="cold")
    assert TokenState.ABSENT in row.states.tolist()
