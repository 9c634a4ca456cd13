"""The engine `openai`: what a generic server can do is seen in its answers, and what it cannot do is said."""

import numpy as np
import pytest
from standin import BITING, OPENAI, OpenAi, TinyModel, asked, given, spec_of

import onepolicy
from onepolicy.engines.contract import Wanted
from onepolicy.errors import EngineError
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.tokens import TokenState

PROTOCOL = SamplingProtocol(temperature=0.7, top_p=0.8, top_k=7, min_p=0.01, max_new_tokens=5)
PROMPT = (72, 101, 108)
SCORED = (72, 101, 108, 108, 111, 32, 119, 3, 111)
"""one token in it that no server lists among its most likely"""
ORACLE = TinyModel()


def by_id(**more):
    return OpenAi(returns_ids="tokens_as_ids", **more)


@pytest.mark.parametrize(
    ("dialect", "abilities"),
    [
        (OpenAi(), "ids_in"),
        (OpenAi(takes_ids=False), "none"),
        (OpenAi(returns_ids="token_ids"), "ids_in ids_out"),
        (by_id(), "ids_in ids_out lists_by_id"),
        (by_id(echoes=True), "ids_in ids_out lists_by_id echo"),
        (by_id(logprob_token_ids=True), "ids_in ids_out lists_by_id given_ids"),
        (OpenAi(echoes=True), "ids_in"),
    ],
)
def test_what_it_can_do_is_seen(serve, engine_of, dialect, abilities):
    assert str(engine_of(serve(dialect)).abilities) == abilities


def test_every_sampling_field_is_sent(serve, engine_of):
    server = serve(by_id())
    engine_of(server).sample([asked(*PROMPT, seed=17)], PROTOCOL, Wanted(top=4))
    body = server.asked("/v1/completions")[-1]
    assert {name: body[name] for name in (*BITING, "seed", "max_tokens", "logprobs", "prompt")} == {
        "temperature": 0.7,
        "top_p": 0.8,
        "top_k": 7,
        "min_p": 0.01,
        "seed": 17,
        "max_tokens": 5,
        "logprobs": 4,
        "prompt": list(PROMPT),
    }
    assert body.items() >= {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}.items()


def test_a_server_that_refuses_top_k_zero_is_sent_minus_one(serve, engine_of):
    server = serve(by_id(refuses_top_k_zero=True))
    engine_of(server).sample([asked(*PROMPT)], SamplingProtocol(), Wanted())
    assert server.asked("/v1/completions")[-1]["top_k"] == -1


def test_a_server_without_ids_back_is_refused_before_anything_is_sampled(serve, engine_of):
    server = serve(OpenAi())
    engine = engine_of(server)
    for ask in (
        lambda: engine.sampled_meaning(SamplingProtocol()),
        lambda: engine.sample([asked(*PROMPT)], PROTOCOL, Wanted()),
        lambda: engine.score([given(*PROMPT)], Wanted()),
    ):
        with pytest.raises(EngineError, match=r"returns no ids.*return_token_ids"):
            ask()


def test_a_server_that_takes_no_ids_is_refused_with_its_words(serve, engine_of):
    engine = engine_of(serve(OpenAi(takes_ids=False)))
    with pytest.raises(EngineError, match=r"takes no ids as a prompt.*must be a string"):
        engine.sample([asked(*PROMPT)], PROTOCOL, Wanted())


def test_a_server_with_openais_fields_alone_is_sent_no_other(serve, engine_of):
    server = serve(OpenAi(strict=True))
    engine = engine_of(server)
    assert set(server.asked("/v1/completions")[-1]) <= OPENAI
    with pytest.raises(EngineError, match="returns no ids"):
        engine.sample([asked(*PROMPT)], PROTOCOL, Wanted())


def test_an_alias_may_answer_by_another_name_and_must_keep_it(serve, engine_of):
    server = serve(by_id(answers_as="m-2026-08"))
    engine = engine_of(server)
    assert engine.info.model == "m-2026-08"
    assert len(engine.sample([asked(*PROMPT)], PROTOCOL, Wanted())) == 1
    server.dialect.answers_as = "m-2026-09"
    with pytest.raises(EngineError, match="'m-2026-09' answered"):
        engine.sample([asked(*PROMPT)], PROTOCOL, Wanted())


def test_no_more_is_asked_for_than_the_server_lists(serve, engine_of):
    server = serve(by_id())
    (one,) = engine_of(server).sample([asked(*PROMPT)], SamplingProtocol(), Wanted(top=20))
    assert server.asked("/v1/completions")[-1]["logprobs"] == 5
    assert one.top.ids.shape == (len(one.token_ids), 5)


def test_the_servers_own_tokenizer_is_used_where_none_is_given(serve, engine_of):
    engine = engine_of(serve(by_id(tokenizes=True)), tokenizer="")
    assert engine.encode("hi", add_special_tokens=False).tolist() == [104, 105]
    assert engine.encode_chat([{"role": "user", "content": "a"}])[0] == 257


def test_without_any_tokenizer_it_says_how_to_give_one(serve, engine_of):
    engine = engine_of(serve(by_id()), tokenizer="")
    with pytest.raises(EngineError, match=r"no /tokenize.*\?tokenizer=PATH"):
        engine.encode("hi", add_special_tokens=False)


# -- scoring --------------------------------------------------------------------------------------------------------


def test_a_server_without_echo_is_a_rollout_side_or_scores_by_stepping(serve, engine_of):
    engine = engine_of(serve(by_id()))
    assert not engine.scores
    with pytest.raises(EngineError, match=r"only be a rollout side.*\?score=stepping"):
        engine.score([given(*SCORED)], Wanted())


def test_stepping_needs_tokens_that_are_named_by_ids(serve, engine_of):
    engine = engine_of(serve(OpenAi(returns_ids="token_ids")), score="stepping")
    assert not engine.scores
    with pytest.raises(EngineError, match=r"by their texts.*--rollout"):
        engine.score([given(*SCORED)], Wanted())


def test_stepping_with_named_tokens_is_exact_for_each(serve, engine_of):
    engine = engine_of(serve(by_id(logprob_token_ids=True)), score="stepping")
    (row,) = engine.score([given(*SCORED)], Wanted())
    assert row.states.tolist() == [TokenState.MASKED] + [TokenState.VALUE] * (len(SCORED) - 1)
    np.testing.assert_allclose(row.logprobs[1:], ORACLE.of_tokens(SCORED)[1:], rtol=1e-6)


def test_stepping_with_lists_knows_the_tokens_that_are_listed_and_no_other(serve, engine_of):
    server = serve(by_id())
    engine = engine_of(server, score="stepping")
    before = len(server.asked("/v1/completions"))
    (row,) = engine.score([given(*SCORED)], Wanted())
    assert len(server.asked("/v1/completions")) - before == len(SCORED) - 1
    exact = ORACLE.of_tokens(SCORED)
    for at in range(1, len(SCORED)):
        listed = SCORED[at] in np.argsort(-ORACLE.logprobs(SCORED[:at]), kind="stable")[:5]
        assert row.states[at] == (TokenState.VALUE if listed else TokenState.ABSENT)
        if listed:
            assert row.logprobs[at] == pytest.approx(exact[at], rel=1e-6)
    assert {TokenState.VALUE, TokenState.ABSENT} <= set(row.states.tolist())


def test_a_token_that_stepping_happens_to_sample_is_not_known_for_that(serve, engine_of):
    """Else a token would be known more often the likelier the server's draw makes it."""
    engine = engine_of(serve(by_id()), score="stepping", max_logprobs=1)
    (drawn,) = engine.sample([asked(*PROMPT, seed=0)], SamplingProtocol(max_new_tokens=1), Wanted())
    most_likely = int(ORACLE.logprobs(PROMPT).argmax())
    assert drawn.token_ids[0] != most_likely
    (row,) = engine.score([given(*PROMPT, int(drawn.token_ids[0]), start=3)], Wanted())
    assert row.states[3] == TokenState.ABSENT
    (row,) = engine.score([given(*PROMPT, most_likely, start=3)], Wanted())
    assert row.states[3] == TokenState.VALUE


def test_a_server_that_steps_over_other_ids_is_an_error(serve, engine_of):
    server = serve(by_id())
    engine = engine_of(server, score="stepping")
    server.dialect.faults.wrong_prompt_ids = True
    with pytest.raises(EngineError, match="prompt tokens"):
        engine.score([given(*SCORED)], Wanted())


def check(rollout, trainer, suite, path):
    protocol = SamplingProtocol(max_new_tokens=12)
    return onepolicy.check(rollout=rollout, trainer=trainer, suite=str(suite), run=path, protocol=protocol)


@pytest.mark.parametrize(("rollout", "status"), [("fake:m", 0), ("fake:m?temperature=1.3", 1)])
def test_a_check_that_steps_with_named_tokens(serve, tokenizer_folder, suite, tmp_path, rollout, status):
    server = serve(by_id(logprob_token_ids=True))
    trainer = spec_of(server, tokenizer_folder, score="stepping")
    judgement = check(rollout, trainer, suite, tmp_path / "run")
    assert judgement.exit_status == status, judgement.sentence


def test_a_check_that_steps_with_lists_alone_lacks_tokens_and_is_never_a_pass(serve, tokenizer_folder, suite, tmp_path):
    trainer = spec_of(serve(by_id()), tokenizer_folder, score="stepping")
    judgement = check("fake:m", trainer, suite, tmp_path / "run")
    assert judgement.exit_status == 3
    assert any(v.check == "coverage" and v.status == onepolicy.Status.UNKNOWN for v in judgement.verdicts)


def test_a_check_with_a_server_of_texts_is_an_error(serve, tokenizer_folder, suite, tmp_path):
    spec = spec_of(serve(OpenAi()), tokenizer_folder)
    with pytest.raises(EngineError, match="returns no ids"):
        check(spec, "fake:m", suite, tmp_path / "run")
