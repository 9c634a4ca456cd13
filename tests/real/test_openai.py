"""The generic engine against a real vLLM: what is seen of it, and that echo and stepping give vLLM's own numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from onepolicy.engines.contract import SampleInput, ScoreInput, Wanted
from onepolicy.engines.spec import parse_spec
from onepolicy.integrations import open_sampler
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.reading import TopLists
from onepolicy.records.tokens import TokenState

pytestmark = pytest.mark.real
TEXT = "The capital of France is Paris, 数学 and 12345 more."


@pytest.fixture(scope="module")
def engines(vllm_url) -> Iterator[dict]:
    options = {"target": vllm_url, "engine": "openai", "max_logprobs": 20}
    specs = {
        "vllm": {"target": vllm_url, "engine": "vllm", "max_logprobs": 100},
        "echo": options,
        "stepping": {**options, "score": "stepping"},
    }
    opened = {name: open_sampler(parse_spec(spec)) for name, spec in specs.items()}
    yield opened
    for engine in opened.values():
        engine.close()


def test_what_vllm_can_do_is_seen_without_knowing_that_it_is_vllm(engines):
    assert str(engines["echo"].abilities) == "ids_in ids_out lists_by_id echo given_ids"
    assert str(engines["echo"].sampled_logprobs) == "raw"
    assert engines["echo"].scores


def test_samples_and_lists_are_those_of_the_engine_vllm(engines):
    prompt = engines["vllm"].encode_chat([{"role": "user", "content": TEXT}])
    item = SampleInput(rollout_id="r", prompt_ids=prompt, seed=3)
    protocol = SamplingProtocol(max_new_tokens=16)
    first, second = (engines[name].sample([item], protocol, Wanted(top=10))[0] for name in ("vllm", "echo"))
    np.testing.assert_array_equal(first.token_ids, second.token_ids)
    np.testing.assert_array_equal(first.logprobs, second.logprobs)
    np.testing.assert_array_equal(first.top.ids, second.top.ids)
    assert first.text == second.text


def test_echo_and_stepping_give_the_logprobs_of_vllms_own_prompt(engines):
    ids = engines["vllm"].encode(TEXT, add_special_tokens=False)
    positions = np.arange(2, len(ids), dtype=np.int32)
    others = np.asarray([[at, 2 * at, 300 + at] for at in positions], dtype=np.int32)
    report = TopLists(positions=positions, ids=others, logprobs=np.zeros(others.shape, np.float32))
    item = ScoreInput(rollout_id="r", token_ids=ids, wanted=np.arange(len(ids)) > 0, report=report)
    rows = {name: engine.score([item], Wanted())[0] for name, engine in engines.items()}
    for row in rows.values():
        assert (row.states[1:] == TokenState.VALUE).all()
    np.testing.assert_array_equal(rows["echo"].logprobs, rows["vllm"].logprobs)
    # in bfloat16, prompts of other lengths are computed in other shapes
    np.testing.assert_allclose(rows["stepping"].logprobs[1:], rows["vllm"].logprobs[1:], atol=0.3)
    assert np.abs(rows["stepping"].logprobs - rows["vllm"].logprobs)[1:].mean() < 0.05
    assert np.isfinite(rows["stepping"].top.logprobs).all()
