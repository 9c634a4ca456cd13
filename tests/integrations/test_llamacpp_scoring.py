"""llama.cpp as trainer side: given tokens are forced one after the other."""

import numpy as np
import pytest
import torch
from llamacpp_standin import LlamaCpp
from standin import Faults

from onepolicy.engines.contract import SampleInput, ScoreInput, Wanted
from onepolicy.engines.spec import parse_spec
from onepolicy.errors import EngineError
from onepolicy.integrations import open_engine
from onepolicy.records.protocol import Meaning, SamplingProtocol
from onepolicy.records.reading import TopLists
from onepolicy.records.tokens import TokenState

END = 258
HARD = list("aé介😀b".encode())


def scoring(ids, *, start=1, name="r-0", report=None):
    ids = np.asarray(ids, dtype=np.int32)
    return ScoreInput(rollout_id=name, token_ids=ids, wanted=np.arange(len(ids)) >= start, report=report)


def opened(server, options=""):
    return open_engine(parse_spec(f"llamacpp:{server.url}?timeout=20&retries=1{options}"))


@pytest.mark.parametrize("special", [True, False])
def test_every_token_gets_the_models_own_logprob_also_inside_characters(serve, special):
    server = serve(LlamaCpp(special=special))
    ids = [72, *HARD, END, *HARD, 0xE4, 0x62, 0xFF]
    engine = opened(server)
    try:
        (row,) = engine.score([scoring(ids)], Wanted())
    finally:
        engine.close()
    assert row.states.tolist() == [TokenState.MASKED] + [TokenState.VALUE] * (len(ids) - 1)
    np.testing.assert_allclose(row.logprobs[1:], server.dialect.tiny.of_tokens(ids)[1:], rtol=1e-6)


def test_only_wanted_tokens_are_asked_for_and_the_others_are_masked(serve):
    server = serve(LlamaCpp())
    engine = opened(server)
    before = len(server.asked("/completion"))
    ids = np.arange(60, 70, dtype=np.int32)
    wanted = np.isin(np.arange(10), [3, 4, 8])
    try:
        (row,) = engine.score([ScoreInput(rollout_id="r", token_ids=ids, wanted=wanted)], Wanted())
    finally:
        engine.close()
    bodies = server.asked("/completion")[before:]
    assert [len(body["prompt"]) for body in bodies] == [3, 4, 8]
    assert [body["cache_prompt"] for body in bodies] == [False, True, True], "what another sequence left is not used"
    assert len({body["id_slot"] for body in bodies}) == 1
    assert (row.states == TokenState.VALUE).tolist() == wanted.tolist()


def test_a_first_token_has_nothing_before_it_and_is_absent(serve):
    engine = opened(serve(LlamaCpp()))
    try:
        (row,) = engine.score([scoring([70, 71], start=0)], Wanted())
    finally:
        engine.close()
    assert row.states.tolist() == [TokenState.ABSENT, TokenState.VALUE]


def test_the_other_sides_most_likely_tokens_are_reported_as_far_as_they_are_listed(serve):
    server = serve(LlamaCpp())
    ids = [72, 105, 106]
    exact = server.dialect.tiny.logprobs(ids[:2])
    best = np.argsort(-exact, kind="stable")
    asked = np.asarray([[best[0], best[1], best[200]]], dtype=np.int32)
    report = TopLists(positions=np.asarray([2]), ids=asked, logprobs=np.zeros((1, 3), np.float32))
    engine = opened(server)
    try:
        (row,) = engine.score([scoring(ids, report=report)], Wanted())
    finally:
        engine.close()
    np.testing.assert_allclose(row.top.logprobs[0, :2], exact[best[:2]], rtol=1e-6)
    assert np.isnan(row.top.logprobs[0, 2])


def test_many_sequences_never_share_a_slot_at_one_time(serve):
    server = serve(LlamaCpp(slots=2, faults=Faults(delay=0.001)))
    engine = opened(server)
    items = [scoring(range(40 + n, 60 + n), name=f"r-{n}") for n in range(8)]
    try:
        rows = engine.score(items, Wanted())
    finally:
        engine.close()
    for item, row in zip(items, rows, strict=True):
        expected = server.dialect.tiny.of_tokens(item.token_ids.tolist())[1:]
        np.testing.assert_allclose(row.logprobs[1:], expected, rtol=1e-6)
    assert server.most_at_once <= 2


def test_scoring_under_another_meaning_is_refused(serve):
    engine = opened(serve(LlamaCpp()))
    try:
        with pytest.raises(EngineError, match=r"logprobs are raw, .* are asked for"):
            engine.score([scoring([1, 2])], Wanted(meaning=Meaning.processed_by(SamplingProtocol(temperature=0.5))))
    finally:
        engine.close()


def test_a_server_that_does_not_heed_the_bias_cannot_score(serve):
    engine = opened(serve(LlamaCpp(heeds_bias=False)))
    try:
        with pytest.raises(EngineError, match=r"rollout r-0: .* was made to give token 0 and gave .* Use it as --rol"):
            engine.score([scoring([5, 0, 0, 0, 0])], Wanted())
    finally:
        engine.close()


def test_a_sequence_that_is_longer_than_the_server_takes_is_refused_with_its_length(serve):
    engine = opened(serve(LlamaCpp(max_length=16)))
    try:
        with pytest.raises(EngineError, match=r"rollout r-0: .*17 tokens exceed the 16 .*larger -c"):
            engine.score([scoring(range(17))], Wanted())
    finally:
        engine.close()


@pytest.mark.parametrize("odd", [-9999.0, -3.4028234663852886e38, float("nan"), 0.5, None])
def test_a_sentinel_is_never_a_number(serve, odd):
    server = serve(LlamaCpp())
    engine = opened(server)
    server.dialect.faults.odd_values = (odd,)
    try:
        (row,) = engine.score([scoring([72, 73, 74])], Wanted())
    finally:
        engine.close()
    assert set(row.states[1:].tolist()) == {TokenState.ABSENT if odd is None else TokenState.INVALID}
    assert np.isnan(row.logprobs).all()


def test_its_reading_of_a_real_file_is_the_models_and_its_own_sampling_again(tiny):
    model, path = tiny
    engine = open_engine(parse_spec(f"llamacpp:{path}?ctx=256&parallel=1&threads=1"))
    try:
        asked = [SampleInput(rollout_id=f"r-{n}", prompt_ids=np.asarray([72, 105]), seed=n) for n in range(4)]
        sampled = engine.sample(asked, SamplingProtocol(max_new_tokens=60), Wanted())
        items = [scoring([72, 105, *one.token_ids.tolist()], start=2, name=one.rollout_id) for one in sampled]
        rows = engine.score(items, Wanted())
        assert engine.condition(path="prefill").path == "decode"
    finally:
        engine.close()
    for completion, row in zip(sampled, rows, strict=True):
        assert (row.states[2:] == TokenState.VALUE).all()
        np.testing.assert_allclose(row.logprobs[2:], completion.logprobs, atol=5e-3)
        assert np.abs(row.logprobs[2:] - completion.logprobs).mean() < 5e-4
        ids = torch.tensor([[72, 105, *completion.token_ids.tolist()]])
        with torch.no_grad():
            exact = model(ids).logits[0].double().log_softmax(-1)[range(1, ids.shape[1] - 1), ids[0, 2:]].numpy()
        # the server keeps its cache in float16, and these weights are large
        assert np.abs(row.logprobs[2:] - exact).mean() < 0.01


@pytest.mark.real
def test_on_the_packaged_model_it_agrees_with_its_own_sampling_and_with_transformers_as_far_as_is_known():
    engine = open_engine(parse_spec("llamacpp:smollm2?parallel=1"))
    try:
        prompts = ["Tell me about Paris.", "用中文介绍一下北京。"]
        ids = [engine.encode_chat([{"role": "user", "content": text}]) for text in prompts]
        asked = [
            SampleInput(rollout_id=f"r-{n}-{seed}", prompt_ids=one, seed=seed)
            for n, one in enumerate(ids)
            for seed in range(3)
        ]
        sampled = engine.sample(asked, SamplingProtocol(max_new_tokens=48), Wanted())
        items = [
            scoring(np.concatenate([one.prompt_ids, done.token_ids]), start=len(one.prompt_ids), name=one.rollout_id)
            for one, done in zip(asked, sampled, strict=True)
        ]
        rows = engine.score(items, Wanted())
    finally:
        engine.close()
    trainer = open_engine(parse_spec("transformers:smollm2"))
    other = trainer.score(items, Wanted())
    trainer.close()
    own = np.concatenate([row.logprobs[item.wanted] for item, row in zip(items, rows, strict=True)])
    rollout = np.concatenate([done.logprobs for done in sampled])
    transformers = np.concatenate([row.logprobs[item.wanted] for item, row in zip(items, other, strict=True)])
    # at most 3e-5 in most rollouts; in some the server rounds otherwise, which quantised activations amplify
    assert np.median(np.abs(own - rollout)) < 1e-4
    assert np.abs(own - rollout).mean() < 0.06
    assert 0.02 < np.abs(own - transformers).mean() < 0.12
