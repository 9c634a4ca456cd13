"""The engine `sglang` by contract: a stand-in that answers as SGLang's own API does. No real server was run."""

import numpy as np
import pytest
from standin import BITING, END, Faults, Sglang, TinyModel, asked, given

from onepolicy.engines.contract import Wanted
from onepolicy.errors import EngineError
from onepolicy.integrations.sglang.answer import row_of
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.reading import TopLists
from onepolicy.records.tokens import TokenState

PROTOCOL = SamplingProtocol(temperature=0.7, top_p=0.8, top_k=7, min_p=0.01, max_new_tokens=5)
PROMPT = (72, 101, 108)
CHAT = [{"role": "user", "content": "é"}]
RENDERED = "<|im_start|>user\né<|im_end|>\n<|im_start|>assistant\n"


def test_every_sampling_field_is_sent(serve, engine_of):
    server = serve(Sglang())
    engine_of(server).sample([asked(*PROMPT, seed=17)], PROTOCOL, Wanted(top=4))
    body = server.asked("/generate")[-1]
    params = body["sampling_params"]
    assert {name: params[name] for name in (*BITING, "sampling_seed", "max_new_tokens")} == {
        "temperature": 0.7,
        "top_p": 0.8,
        "top_k": 7,
        "min_p": 0.01,
        "sampling_seed": 17,
        "max_new_tokens": 5,
    }
    neutral = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "min_new_tokens": 0}
    assert params.items() >= {**neutral, "ignore_eos": False, "skip_special_tokens": False, "n": 1}.items()
    assert body.items() >= {"input_ids": list(PROMPT), "return_logprob": True, "logprob_start_len": -1}.items()
    assert body["top_logprobs_num"] == 4


def test_a_top_k_that_is_off_is_written_as_the_server_wants_it(serve, engine_of):
    server = serve(Sglang())
    engine_of(server).sample([asked(*PROMPT)], SamplingProtocol(), Wanted())
    params = server.asked("/generate")[-1]["sampling_params"]
    assert {name: params[name] for name in BITING} == {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}


def test_a_score_generates_nothing_and_starts_at_the_first_token(serve, engine_of):
    server = serve(Sglang())
    engine_of(server).score([given(*PROMPT)], Wanted())
    body = server.asked("/generate")[-1]
    assert body.items() >= {"input_ids": list(PROMPT), "logprob_start_len": 0, "top_logprobs_num": 0}.items()
    params = {"max_new_tokens": 0, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}
    assert body["sampling_params"].items() >= params.items()


def test_logprobs_are_after_the_temperature_unless_the_server_returns_originals(serve, engine_of):
    for mode, processing in (("temperature", {"temperature": 0.7}), ("raw", {})):
        (one,) = engine_of(serve(Sglang(logprobs=mode))).sample([asked(*PROMPT)], PROTOCOL, Wanted())
        expected = TinyModel().of_tokens([*PROMPT, *one.token_ids.tolist()], **processing)[len(PROMPT) :]
        np.testing.assert_allclose(one.logprobs, expected, rtol=1e-6)


def test_the_vocabularys_last_id_is_echoed_as_zero_and_taken_for_what_it_is(serve, engine_of):
    ids = (72, END, 0, 101, END)
    (row,) = engine_of(serve(Sglang())).score([given(*ids)], Wanted())
    assert (row.states[1:] == TokenState.VALUE).all()
    np.testing.assert_allclose(row.logprobs[1:], TinyModel().of_tokens(ids)[1:], rtol=1e-6)


def test_a_zero_for_any_other_id_is_an_error():
    tuples = [[None, 72, None], [-1.0, 0, None], [-1.0, 108, None]]
    answer = {"text": "", "output_ids": [], "meta_info": {"input_token_logprobs": tuples}}
    with pytest.raises(EngineError, match="position 1"):
        row_of(given(*PROMPT), answer)


def test_wrong_ids_beside_the_logprobs_are_an_error(serve, engine_of):
    engine = engine_of(serve(Sglang(faults=Faults(wrong_ids=True))))
    with pytest.raises(EngineError, match="other completion ids"):
        engine.sample([asked(*PROMPT)], PROTOCOL, Wanted())
    with pytest.raises(EngineError, match="other prompt ids"):
        engine.score([given(*PROMPT)], Wanted())


def test_a_server_that_does_not_name_the_prompts_ids_still_counts_them(serve, engine_of):
    server = serve(Sglang(names_prompt=False))
    engine = engine_of(server)
    assert len(engine.sample([asked(*PROMPT)], PROTOCOL, Wanted())) == 1
    server.dialect.faults.wrong_prompt_ids = True
    with pytest.raises(EngineError, match="counts 4 prompt tokens, 3 were sent"):
        engine.sample([asked(*PROMPT)], PROTOCOL, Wanted())


def test_each_completion_names_the_weights_that_it_was_sampled_with(serve, engine_of):
    server = serve(Sglang(weight_version="step-0"))
    engine = engine_of(server)
    server.dialect.faults.reload_after = server.dialect.served + 2
    completions = [engine.sample([asked(*PROMPT, seed=seed)], PROTOCOL, Wanted())[0] for seed in range(4)]
    assert [one.weight_version for one in completions] == ["step-0", "step-0", "step-1", "step-1"]
    assert engine.client.call(engine.weight_version()) == "step-1"


def test_cached_tokens_and_reasons_are_kept(serve, engine_of):
    engine = engine_of(serve(Sglang(cached_tokens=2)))
    seen = engine.sample(
        [asked(*PROMPT, seed=seed) for seed in range(40)], SamplingProtocol(max_new_tokens=8), Wanted()
    )
    assert {one.cached_tokens for one in seen} == {2}
    assert {(one.finish_reason, one.stop_reason) for one in seen} == {("stop", str(END)), ("length", "")}


def test_a_request_that_the_server_gives_up_is_an_error(serve, engine_of):
    engine = engine_of(serve(Sglang(aborts=True)))
    with pytest.raises(EngineError, match="rollout r: the server gave up: out of memory"):
        engine.sample([asked(*PROMPT)], PROTOCOL, Wanted())


def test_it_says_what_the_server_is(serve, engine_of):
    info = engine_of(serve(Sglang(root="/models/m", max_length=1234))).info
    assert (info.name, info.version, info.model, info.dtype) == ("sglang", "0.5.9", "/models/m", "bfloat16")
    assert info.max_length == 1234
    assert info.options["sampled_logprobs"] == "temperature processed, truncation raw"


def test_an_older_server_is_asked_by_the_older_names(serve, engine_of):
    engine = engine_of(serve(Sglang(old_paths=True)))
    assert engine.info.version == "0.5.9"
    assert engine.client.call(engine.weight_version()) == "default"


def test_it_encodes_and_decodes_as_the_server_does_with_special_tokens(serve, engine_of):
    engine = engine_of(serve(Sglang()))
    assert engine.encode("hi", add_special_tokens=True).tolist() == [256, 104, 105]
    assert engine.decode(np.asarray([256, 104, END], dtype=np.int32)) == "<|bos|>h<|im_end|>"


def test_a_conversation_becomes_the_ids_that_the_server_renders(serve, engine_of):
    server = serve(Sglang())
    engine = engine_of(server)
    assert engine.decode(engine.encode_chat(CHAT)) == RENDERED
    assert server.asked("/v1/chat/completions")[-1]["messages"] == CHAT


def test_without_that_the_servers_folder_renders_it(serve, engine_of, tokenizer_folder):
    engine = engine_of(serve(Sglang(renders=False, root=str(tokenizer_folder))))
    assert engine.decode(engine.encode_chat(CHAT)) == RENDERED
    assert engine.tokenizer_file() is not None


def test_the_option_tokenizer_counts_before_both(serve, engine_of, tokenizer_folder):
    server = serve(Sglang())
    engine = engine_of(server, tokenizer=str(tokenizer_folder))
    assert engine.decode(engine.encode_chat(CHAT)) == RENDERED
    assert not server.asked("/v1/chat/completions")


def test_without_any_of_them_it_says_what_to_give(serve, engine_of):
    engine = engine_of(serve(Sglang(renders=False, root="org/model")))
    assert engine.tokenizer_file() is None
    with pytest.raises(EngineError, match=r"\?tokenizer=PATH"):
        engine.encode_chat(CHAT)


def test_lists_are_asked_for_at_the_length_of_the_option(serve, engine_of):
    server = serve(Sglang())
    ids = np.asarray([[65]], dtype=np.int32)
    report = TopLists(positions=np.asarray([1], dtype=np.int32), ids=ids, logprobs=np.zeros((1, 1), np.float32))
    engine_of(server, top_logprobs=33).score([given(*PROMPT, report=report)], Wanted())
    assert server.asked("/generate")[-1]["top_logprobs_num"] == 33
