"""The engine `trtllm` by contract: a stand-in that is as strict as `trtllm-serve`. No real server was run."""

import pytest
from standin import BITING, STRICT, Trtllm, asked, given, spec_of

import onepolicy
from onepolicy.engines.contract import Wanted
from onepolicy.errors import EngineError, UsageError
from onepolicy.integrations.trtllm.request import completion
from onepolicy.records.protocol import SamplingProtocol

PROTOCOL = SamplingProtocol(temperature=0.7, top_p=0.8, top_k=7, min_p=0.01, max_new_tokens=5)
PROMPT = (72, 101, 108)


def test_every_sampling_field_is_sent_and_none_that_the_server_does_not_know(serve, engine_of):
    server = serve(Trtllm())
    engine_of(server).sample([asked(*PROMPT, seed=17)], PROTOCOL, Wanted(top=4))
    body = server.asked("/v1/completions")[-1]
    assert set(body) <= STRICT
    assert {name: body[name] for name in (*BITING, "seed", "max_tokens", "prompt")} == {
        "temperature": 0.7,
        "top_p": 0.8,
        "top_k": 7,
        "min_p": 0.01,
        "seed": 17,
        "max_tokens": 5,
        "prompt": list(PROMPT),
    }
    neutral = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "min_tokens": 0}
    assert body.items() >= {**neutral, "ignore_eos": False, "add_special_tokens": False, "n": 1}.items()


def test_the_stand_in_refuses_a_field_more(serve, engine_of):
    engine = engine_of(serve(Trtllm()))
    body = completion(asked(*PROMPT), PROTOCOL, model="m") | {"return_token_ids": True}
    with pytest.raises(EngineError, match=r"status 400.*extra_forbidden.*return_token_ids"):
        engine.client.post("/v1/completions", body)


def test_the_text_is_that_of_the_tokenizer_as_the_server_gives_none_beside_ids(serve, engine_of):
    engine = engine_of(serve(Trtllm()))
    (one,) = engine.sample([asked(*PROMPT)], PROTOCOL, Wanted())
    assert one.text == engine.decode(one.token_ids) != ""


def test_it_cannot_score_and_says_what_it_can_be(serve, engine_of):
    engine = engine_of(serve(Trtllm()))
    assert not engine.scores
    with pytest.raises(EngineError, match=r"no logprobs of a prompt.*--rollout"):
        engine.score([given(*PROMPT)], Wanted())


def test_a_check_with_it_as_trainer_is_an_error(serve, tokenizer_folder, suite, tmp_path):
    server = serve(Trtllm())
    with pytest.raises(EngineError, match="trtllm can only be a rollout side"):
        onepolicy.check(
            rollout="fake:m", trainer=spec_of(server, tokenizer_folder), suite=str(suite), run=tmp_path / "run"
        )


def test_without_a_tokenizer_it_says_how_to_give_one(serve, engine_of):
    engine = engine_of(serve(Trtllm()), tokenizer="")
    assert engine.tokenizer_file() is None
    for ask in (
        lambda: engine.encode_chat([{"role": "user", "content": "a"}]),
        lambda: engine.encode("a", add_special_tokens=False),
        lambda: engine.sample([asked(*PROMPT)], PROTOCOL, Wanted()),
    ):
        with pytest.raises(EngineError, match=r"\?tokenizer=PATH"):
            ask()


def test_a_conversation_is_rendered_in_the_tokenizers_template(serve, engine_of):
    engine = engine_of(serve(Trtllm()))
    ids = engine.encode_chat([{"role": "user", "content": "é"}])
    assert engine.decode(ids) == "<|im_start|>user\né<|im_end|>\n<|im_start|>assistant\n"
    assert engine.encode("hi", add_special_tokens=True).tolist() == [256, 104, 105]


def test_a_backend_without_lists_samples_at_temperature_one_alone(serve, engine_of):
    engine = engine_of(serve(Trtllm(most_logprobs=1)))
    assert str(engine.sampled_logprobs) == "temperature unknown, truncation unknown"
    assert engine.sampled_meaning(SamplingProtocol()).is_raw
    with pytest.raises(EngineError, match="temperature"):
        engine.sampled_meaning(PROTOCOL)


def test_it_says_what_the_server_is(serve, engine_of):
    server = serve(Trtllm())
    assert (engine_of(server).info.version, engine_of(server).info.dtype) == ("1.2.0", "unknown")
    assert engine_of(server, dtype="float16").info.dtype == "float16"


def test_a_model_that_is_not_served_is_named_with_those_that_are(serve, engine_of):
    with pytest.raises(UsageError, match=r"no model 'x'.*serves: m"):
        engine_of(serve(Trtllm()), model="x")
