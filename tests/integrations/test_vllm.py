"""The engine `vllm` against a stand-in that answers as vLLM 0.32 does; against a real one in tests/real."""

import json

import numpy as np
import pytest
from standin import BITING, Faults, TinyModel, Vllm, asked, given

from onepolicy.engines.contract import Wanted
from onepolicy.errors import EngineError, UsageError
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.reading import TopLists

ORDER = ("penalties", "temperature", "min_p", "top_k", "top_p")
PROTOCOL = SamplingProtocol(temperature=0.7, top_p=0.8, top_k=7, min_p=0.01, max_new_tokens=5, processors=ORDER)
PROMPT = (72, 101, 108)


def test_every_sampling_field_is_sent(serve, engine_of):
    server = serve(Vllm())
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
    neutral = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "min_tokens": 0}
    assert body.items() >= {**neutral, "ignore_eos": False, "add_special_tokens": False, "n": 1}.items()


def test_a_plain_protocol_leaves_no_default_of_the_server_in_force(serve, engine_of):
    server = serve(Vllm())
    engine_of(server).sample([asked(*PROMPT)], SamplingProtocol(), Wanted())
    body = server.asked("/v1/completions")[-1]
    assert {name: body[name] for name in BITING} == {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}


def test_a_score_asks_for_the_prompts_logprobs_and_one_token_more(serve, engine_of):
    server = serve(Vllm())
    engine_of(server).score([given(*PROMPT)], Wanted())
    body = server.asked("/v1/completions")[-1]
    assert body.items() >= {"prompt": list(PROMPT), "prompt_logprobs": 0, "max_tokens": 1, "logprobs": None}.items()
    assert body.items() >= {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}.items()


def test_it_says_what_the_server_is(serve, engine_of):
    engine = engine_of(serve(Vllm(developer=True, root="/models/m", max_length=1234)))
    assert (engine.info.name, engine.info.version, engine.info.model) == ("vllm", "0.32.0", "/models/m")
    assert (engine.info.dtype, engine.info.max_length) == ("bfloat16", 1234)
    assert engine.info.options["sampled_logprobs"] == "raw"


def test_without_developer_mode_the_dtype_is_unknown_unless_it_is_given(serve, engine_of):
    server = serve(Vllm())
    assert engine_of(server).info.dtype == "unknown"
    assert engine_of(server, dtype="float16").info.dtype == "float16"


def test_the_most_likely_token_of_a_scored_position_is_known_where_lists_are_asked_for(serve, engine_of):
    engine, ids = engine_of(serve(Vllm())), (*PROMPT, 108)
    report = TopLists(
        positions=np.asarray([3], dtype=np.int32),
        ids=np.asarray([[65]], np.int32),
        logprobs=np.zeros((1, 1), np.float32),
    )
    (row,) = engine.score([given(*ids, start=2, report=report)], Wanted())
    assert row.top1.tolist() == [-1, -1, *(int(TinyModel().logprobs(ids[:at]).argmax()) for at in (2, 3))]


def test_cached_tokens_are_kept_where_the_server_counts_them(serve, engine_of):
    for count in (None, 0, 2):
        (one,) = engine_of(serve(Vllm(cached_tokens=count))).sample([asked(*PROMPT)], PROTOCOL, Wanted())
        assert one.cached_tokens == count


def test_the_weight_version_of_each_completion_is_kept(serve, engine_of):
    server = serve(Vllm(developer=True, weight_version="step-0"))
    engine = engine_of(server)
    (before,) = engine.sample([asked(*PROMPT)], PROTOCOL, Wanted())
    server.dialect.weight_version = "step-1"
    (after,) = engine.sample([asked(*PROMPT)], PROTOCOL, Wanted())
    assert (before.weight_version, after.weight_version) == ("step-0", "step-1")


def test_weights_that_change_during_a_completion_are_seen(serve, engine_of):
    server = serve(Vllm(developer=True, weight_version="step-0"))
    engine = engine_of(server)
    server.dialect.faults.reload_after = server.dialect.served
    (one,) = engine.sample([asked(*PROMPT)], PROTOCOL, Wanted())
    assert one.weight_version == "step-0 to step-1"


def test_it_encodes_and_decodes_as_the_server_does(serve, engine_of):
    engine = engine_of(serve(Vllm()))
    assert engine.encode("hi", add_special_tokens=True).tolist() == [256, 104, 105]
    assert engine.encode("hi", add_special_tokens=False).tolist() == [104, 105]
    ids = engine.encode_chat([{"role": "user", "content": "é"}])
    assert engine.decode(ids) == "<|im_start|>user\né<|im_end|>\n<|im_start|>assistant\n"


def test_the_tokenizer_file_of_the_servers_folder_is_read_where_it_can_be(serve, engine_of, tokenizer_folder):
    file = engine_of(serve(Vllm(root=str(tokenizer_folder)))).tokenizer_file()
    assert json.loads(file) == json.loads((tokenizer_folder / "tokenizer.json").read_bytes())
    assert engine_of(serve(Vllm(root="org/model"))).tokenizer_file() is None


def test_a_model_that_is_not_served_is_named_with_those_that_are(serve, engine_of):
    server = serve(Vllm(model="base"))
    with pytest.raises(UsageError, match=r"no model 'adapter'.*base"):
        engine_of(server, model="adapter")


def test_more_logprobs_than_the_server_lists_are_refused_in_its_words(serve, engine_of):
    engine = engine_of(serve(Vllm(most_logprobs=20)))
    with pytest.raises(EngineError, match=r"rollout r: .*greater than max allowed"):
        engine.sample([asked(*PROMPT)], PROTOCOL, Wanted(top=50))


def test_lists_for_the_other_side_are_as_long_as_the_option_says(serve, engine_of):
    server = serve(Vllm(most_logprobs=100))
    ids = np.asarray([[65]], dtype=np.int32)
    report = TopLists(positions=np.asarray([1], dtype=np.int32), ids=ids, logprobs=np.zeros((1, 1), np.float32))
    engine_of(server, max_logprobs=100).score([given(*PROMPT, report=report)], Wanted())
    assert server.asked("/v1/completions")[-1]["prompt_logprobs"] == 100


def test_logprobs_of_another_token_than_was_scored_are_absent(serve, engine_of):
    """An entry counts by its id: the list of a position that lacks the token has nothing to say of it."""
    engine = engine_of(serve(Vllm(faults=Faults(wrong_ids=True))))
    (row,) = engine.score([given(*PROMPT)], Wanted())
    assert np.isnan(row.logprobs).all()
