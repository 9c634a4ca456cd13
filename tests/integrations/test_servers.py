"""What every server engine keeps, each against a stand-in that speaks as the real server does."""

import math
from dataclasses import replace

import numpy as np
import pytest
from standin import END, LOWEST, Faults, OpenAi, Sglang, TinyModel, Trtllm, Vllm, asked, given, spec_of

import onepolicy
from onepolicy.engines.contract import Wanted
from onepolicy.errors import EngineError
from onepolicy.records.protocol import Meaning, SamplingProtocol
from onepolicy.records.reading import TopLists
from onepolicy.records.tokens import TokenState

PROMPT = (72, 101, 108)
SCORED = (257, 72, 101, 108, 108, 111, 32, 119, END)
PLAIN = SamplingProtocol(max_new_tokens=12)
SERVERS = {
    "vllm": Vllm(),
    "sglang": Sglang(logprobs="raw"),
    "trtllm": Trtllm(),
    "openai": OpenAi(returns_ids="tokens_as_ids", most_logprobs=20, echoes=True, tokenizes=True),
    "openai with a list of ids": OpenAi(returns_ids="token_ids", most_logprobs=20, tokenizes=True),
}
LISTING = ("vllm", "sglang", "openai")
SCORING = ("vllm", "sglang", "openai")
ORACLE = TinyModel()


@pytest.fixture
def start(serve, engine_of):
    """A server by its name, with changes and faults, and its engine."""

    def started(name, *, options=None, faults=None, **changes):
        server = serve(replace(SERVERS[name], **changes, faults=faults or Faults()))
        more = {"max_logprobs": 20} if name.startswith("openai") else {}
        return server, engine_of(server, **{**more, **(options or {})})

    return started


def sampled(engine, *items, protocol=PLAIN, top=0):
    return engine.sample(items, protocol, Wanted(top=top))


def oracle_of(completion, prompt=PROMPT, **processing):
    return ORACLE.of_tokens([*prompt, *completion.token_ids.tolist()], **processing)[len(prompt) :]


# -- numbers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SERVERS)
def test_sampled_logprobs_are_the_models(start, name):
    _, engine = start(name)
    completions = sampled(engine, *(asked(*PROMPT, seed=seed, name=f"r{seed}") for seed in range(20)))
    assert len({tuple(one.token_ids.tolist()) for one in completions}) > 10
    for one in completions:
        assert (one.states == TokenState.VALUE).all()
        np.testing.assert_allclose(one.logprobs, oracle_of(one), rtol=1e-6)


@pytest.mark.parametrize("name", SCORING)
def test_scored_logprobs_are_the_models(start, name):
    _, engine = start(name)
    (row,) = engine.score([given(*SCORED, start=2)], Wanted())
    assert row.states.tolist() == [TokenState.MASKED] * 2 + [TokenState.VALUE] * (len(SCORED) - 2)
    np.testing.assert_allclose(row.logprobs[2:], ORACLE.of_tokens(SCORED)[2:], rtol=1e-6)


@pytest.mark.parametrize("name", SCORING)
def test_a_first_token_has_no_logprob(start, name):
    _, engine = start(name)
    (row,) = engine.score([given(*SCORED, start=0)], Wanted())
    assert row.states[0] == TokenState.ABSENT
    assert np.isnan(row.logprobs[0])


@pytest.mark.parametrize("name", SCORING)
def test_what_a_server_samples_it_scores_alike(start, name):
    _, engine = start(name)
    (one,) = sampled(engine, asked(*PROMPT, seed=3))
    (row,) = engine.score([given(*PROMPT, *one.token_ids.tolist(), start=len(PROMPT))], Wanted())
    np.testing.assert_allclose(row.logprobs[len(PROMPT) :], one.logprobs, rtol=1e-6)


@pytest.mark.parametrize("name", SERVERS)
def test_the_end_token_ends_a_completion_and_belongs_to_it(start, name):
    _, engine = start(name)
    ends = [
        one for one in sampled(engine, *(asked(*PROMPT, seed=seed) for seed in range(40))) if len(one.token_ids) < 12
    ]
    assert ends
    for one in ends:
        assert (one.finish_reason, one.token_ids[-1]) == ("stop", END)
    assert {
        one.finish_reason for one in sampled(engine, asked(*PROMPT), protocol=SamplingProtocol(max_new_tokens=1))
    } <= {
        "length",
        "stop",
    }


# -- lists of the most likely tokens --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LISTING)
def test_a_list_does_not_depend_on_what_was_sampled(start, name):
    _, engine = start(name)
    one_token = SamplingProtocol(max_new_tokens=1)
    items = [asked(*PROMPT, seed=seed) for seed in range(60)]
    completions = sampled(engine, *items, protocol=one_token, top=3)
    expected = np.argsort(-ORACLE.logprobs(PROMPT), kind="stable")[:3]
    assert any(one.token_ids[0] not in expected for one in completions)
    assert any(one.token_ids[0] in expected for one in completions)
    for one in completions:
        assert one.top.ids.tolist() == [expected.tolist()]
        np.testing.assert_allclose(one.top.logprobs[0], ORACLE.logprobs(PROMPT)[expected], rtol=1e-6)
        assert one.top1.tolist() == [expected[0]]


@pytest.mark.parametrize("name", SCORING)
def test_the_other_sides_tokens_are_reported_by_id(start, name):
    _, engine = start(name)
    positions = np.asarray([2, 4], dtype=np.int32)
    ids = np.asarray([np.argsort(-ORACLE.logprobs(SCORED[:at]))[:4] for at in positions], dtype=np.int32)
    report = TopLists(positions=positions, ids=ids, logprobs=np.zeros(ids.shape, dtype=np.float32))
    (row,) = engine.score([given(*SCORED, report=report)], Wanted())
    expected = [ORACLE.logprobs(SCORED[:at])[tokens] for at, tokens in zip(positions, ids, strict=True)]
    np.testing.assert_allclose(row.top.logprobs, expected, rtol=1e-6)
    assert row.top.ids.tolist() == ids.tolist()


@pytest.mark.parametrize("name", SCORING)
def test_a_scored_token_beyond_the_list_is_not_reported_as_one_of_it(start, name):
    """Else what is known of a list would depend on which token happens to be there."""
    _, engine = start(name, options={"sglang": {"top_logprobs": 3}}.get(name, {"max_logprobs": 3}))
    at = 2
    rare = int(np.argsort(-ORACLE.logprobs(SCORED[:at]))[40])
    report = TopLists(
        positions=np.asarray([at], dtype=np.int32),
        ids=np.asarray([[rare]], dtype=np.int32),
        logprobs=np.zeros((1, 1), dtype=np.float32),
    )
    (row,) = engine.score([given(*SCORED[:at], rare, *SCORED[at:], report=report)], Wanted())
    assert np.isnan(row.top.logprobs).all()
    assert row.states[at] == TokenState.VALUE


def test_servers_that_name_listed_tokens_by_text_give_no_list(start):
    for name in ("trtllm", "openai with a list of ids"):
        _, engine = start(name)
        (one,) = sampled(engine, asked(*PROMPT), top=5)
        assert (one.top, one.top1) == (None, None)


# -- meaning --------------------------------------------------------------------------------------------------------

COLD = SamplingProtocol(temperature=0.7, max_new_tokens=12)
CUT = SamplingProtocol(temperature=0.7, top_k=5, max_new_tokens=12)


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize(
    ("mode", "cold", "cut"),
    [
        ("raw", Meaning(), Meaning()),
        ("processed", Meaning(temperature=0.7), Meaning(temperature=0.7, top_k=5)),
        ("temperature", Meaning(temperature=0.7), Meaning(temperature=0.7)),
    ],
)
def test_meaning_is_measured(start, name, mode, cold, cut):
    _, engine = start(name, logprobs=mode)
    assert engine.sampled_meaning(PLAIN) == Meaning()
    assert engine.sampled_meaning(COLD) == cold
    assert engine.sampled_meaning(CUT) == cut
    (one,) = sampled(engine, asked(*PROMPT), protocol=CUT)
    expected = oracle_of(one, temperature=cut.temperature, top_k=cut.top_k)
    np.testing.assert_allclose(one.logprobs, expected, rtol=1e-6)


@pytest.mark.parametrize("name", SCORING)
def test_processed_logprobs_of_given_tokens_are_refused(start, name):
    _, engine = start(name)
    with pytest.raises(EngineError, match=r"temperature 1 and no truncation"):
        engine.score([given(*SCORED)], Wanted(meaning=Meaning(temperature=0.7)))


# -- faults ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SERVERS)
def test_other_prompt_ids_than_were_sent_are_an_error(start, name):
    server, engine = start(name)
    server.dialect.faults.wrong_prompt_ids = True
    with pytest.raises(EngineError, match=r"rollout r: .*BOS"):
        sampled(engine, asked(*PROMPT))


@pytest.mark.parametrize("name", SCORING)
def test_other_scored_ids_than_were_sent_are_an_error(start, name):
    server, engine = start(name)
    server.dialect.faults.wrong_prompt_ids = True
    with pytest.raises(EngineError, match=r"other prompt ids"):
        engine.score([given(*SCORED)], Wanted())


@pytest.mark.parametrize("name", SERVERS)
def test_fewer_logprobs_than_tokens_are_an_error(start, name):
    server, engine = start(name)
    server.dialect.faults.fewer_logprobs = True
    with pytest.raises(EngineError, match=r"rollout r: \d+ (logprobs|prompt logprobs|output_top)|other completion ids"):
        sampled(engine, asked(*PROMPT))


@pytest.mark.parametrize("name", SCORING)
def test_fewer_logprobs_than_scored_tokens_are_an_error(start, name):
    server, engine = start(name)
    server.dialect.faults.fewer_logprobs = True
    with pytest.raises(EngineError, match=r"rollout r: "):
        engine.score([given(*SCORED)], Wanted())


ODD = (-9999.0, LOWEST, None, math.nan, 0.5, -1e300)
STATES = [TokenState.INVALID, TokenState.INVALID, TokenState.ABSENT] + [TokenState.INVALID] * 3


@pytest.mark.parametrize("name", SERVERS)
def test_sentinels_nulls_and_nan_of_sampled_tokens_become_states(start, name):
    server, engine = start(name)
    server.dialect.faults.odd_values = ODD
    one = max(sampled(engine, *(asked(*PROMPT, seed=seed) for seed in range(8))), key=lambda one: len(one.token_ids))
    assert one.states.tolist() == STATES + [TokenState.VALUE] * (len(one.token_ids) - len(ODD))
    assert np.isnan(one.logprobs[: len(ODD)]).all()
    np.testing.assert_allclose(one.logprobs[len(ODD) :], oracle_of(one)[len(ODD) :], rtol=1e-6)


@pytest.mark.parametrize("name", SCORING)
def test_sentinels_nulls_and_nan_of_scored_tokens_become_states(start, name):
    server, engine = start(name)
    server.dialect.faults.odd_values = ODD
    (row,) = engine.score([given(*SCORED)], Wanted())
    assert row.states[1 : 1 + len(ODD)].tolist() == STATES
    assert (row.states[1 + len(ODD) :] == TokenState.VALUE).all()


@pytest.mark.parametrize("name", SERVERS)
def test_a_word_where_a_logprob_belongs_is_an_error(start, name):
    server, engine = start(name)
    server.dialect.faults.odd_values = ("-1.5",)
    with pytest.raises(EngineError, match=r"'-1.5' stands where a logprob belongs"):
        sampled(engine, asked(*PROMPT))


@pytest.mark.parametrize("name", ["vllm", "openai", "openai with a list of ids"])
def test_an_answer_of_another_model_is_an_error(start, name):
    server, engine = start(name)
    server.dialect.faults.other_model_after = 0
    with pytest.raises(EngineError, match=r"another|does not exist"):
        sampled(engine, asked(*PROMPT))


@pytest.mark.parametrize("name", SERVERS)
def test_a_sequence_beyond_the_servers_limit_is_an_error_with_its_words(start, name):
    _, engine = start(name, max_length=16)
    with pytest.raises(EngineError, match=r"rollout r: .*status 400"):
        sampled(engine, asked(*PROMPT * 5))


@pytest.mark.parametrize("name", SCORING)
def test_a_server_without_prompt_logprobs_is_an_error(start, name):
    server, engine = start(name)
    server.dialect.faults.no_prompt_logprobs = True
    with pytest.raises(EngineError, match=r"rollout r: "):
        engine.score([given(*SCORED)], Wanted())


# -- end to end -----------------------------------------------------------------------------------------------------


@pytest.fixture
def checked(tmp_path, suite):
    def check(rollout, trainer, **protocol):
        return onepolicy.check(
            rollout=rollout,
            trainer=trainer,
            suite=str(suite),
            run=tmp_path / "run",
            protocol=SamplingProtocol(max_new_tokens=16, **protocol),
        )

    return check


@pytest.mark.parametrize("name", SERVERS)
def test_the_same_model_as_rollout_side_passes(start, checked, tokenizer_folder, name):
    server, _ = start(name)
    judgement = checked(spec_of(server, tokenizer_folder), "fake:m")
    assert judgement.exit_status == 0, judgement.sentence


@pytest.mark.parametrize(
    ("name", "trainer"),
    [(name, "fake:m?temperature=1.3") for name in SERVERS]
    + [(name, trainer) for name in ("vllm", "sglang") for trainer in ("fake:m?seed=1", "fake:m?offset=-0.05")],
)
def test_another_model_than_the_rollout_side_fails(start, checked, tokenizer_folder, name, trainer):
    server, _ = start(name)
    assert checked(spec_of(server, tokenizer_folder), trainer).exit_status == 1


@pytest.mark.parametrize("name", SCORING)
@pytest.mark.parametrize(("rollout", "status"), [("fake:m", 0), ("fake:m?temperature=1.3", 1), ("fake:m?seed=1", 1)])
def test_as_trainer_side(start, checked, tokenizer_folder, name, rollout, status):
    server, _ = start(name)
    judgement = checked(
        rollout, spec_of(server, tokenizer_folder, **({"max_logprobs": 20} if name != "sglang" else {}))
    )
    assert judgement.exit_status == status, judgement.sentence


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_that_ignores_the_temperature_is_refused(start, checked, tokenizer_folder, name):
    server, _ = start(name, faults=Faults(ignores_temperature=True))
    with pytest.raises(EngineError, match="ignores the request's `temperature`"):
        checked(spec_of(server, tokenizer_folder), "fake:m", temperature=0.5)


@pytest.mark.parametrize(
    ("name", "mode"),
    [(name, mode) for name in ("vllm", "sglang") for mode in ("raw", "temperature", "processed")]
    + [("trtllm", "processed")],
)
def test_another_temperature_is_compared_under_the_meaning_that_was_measured(
    start, checked, tokenizer_folder, name, mode
):
    server, _ = start(name, logprobs=mode)
    judgement = checked(spec_of(server, tokenizer_folder), "fake:m", temperature=0.7)
    assert judgement.exit_status == 0, judgement.sentence
    # raw logprobs of tokens that were drawn at another temperature measure no KL of the policy
    assert ("no sample of the policy" in judgement.sentence) == (mode == "raw")


def test_two_servers_are_compared_with_each_other(start, checked, tokenizer_folder):
    first, _ = start("sglang")
    second, _ = start("vllm")
    judgement = checked(spec_of(first, tokenizer_folder), spec_of(second, tokenizer_folder))
    assert judgement.exit_status == 0, judgement.sentence


@pytest.mark.parametrize("name", ["vllm", "trtllm", "openai"])
def test_lists_in_a_form_that_nobody_knows_are_an_error_where_meaning_is_measured(start, monkeypatch, name):
    server, engine = start(name)
    listed = type(server.dialect).listed
    monkeypatch.setattr(
        type(server.dialect), "listed", lambda self, body, drawn: {**listed(self, body, drawn), "top_logprobs": [["a"]]}
    )
    with pytest.raises(EngineError, match="cannot be read"):
        engine.sampled_meaning(COLD)
