"""`llamacpp:http://...`, and the server that `llamacpp:FILE` starts."""

import subprocess
import sys
import threading

import httpx
import numpy as np
import pytest
from llamacpp_standin import LlamaCpp
from standin import Faults, Vllm

from onepolicy.engines.contract import SampleInput, Sampler, Wanted
from onepolicy.engines.spec import parse_spec
from onepolicy.errors import EngineError, UsageError
from onepolicy.integrations import open_engine, open_sampler
from onepolicy.integrations.llamacpp.engine import LlamaCppEngine
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.tokens import TokenState


def prompt(name="r-0", ids=(72, 105), seed=0):
    return SampleInput(rollout_id=name, prompt_ids=np.asarray(ids, dtype=np.int32), seed=seed)


def opened(server, options=""):
    return open_sampler(parse_spec(f"llamacpp:{server.url}?timeout=20&retries=1{options}"))


def sampled(engine, **protocol):
    try:
        return engine.sample([prompt()], SamplingProtocol(**{"max_new_tokens": 40} | protocol), Wanted(top=3))[0]
    finally:
        engine.close()


# a server that is already running


def test_it_says_what_it_is(serve):
    engine = opened(serve(LlamaCpp(slots=3, max_length=512)))
    try:
        assert isinstance(engine, Sampler)
        info = engine.info
        assert (info.name, info.version, info.model) == ("llamacpp", "b7777-abcdef", "/models/m.gguf")
        assert (info.dtype, info.device, info.weights_hash) == ("Q4_1", "server", "")
        assert (info.vocab_size, info.max_length, engine.concurrency) == (259, 512, 3)
        assert info.options == {"slots": "3", "sampled_logprobs": "raw"}
    finally:
        engine.close()


def test_fewer_requests_than_slots_may_be_asked_for(serve):
    engine = opened(serve(LlamaCpp(slots=8)), "&concurrency=2")
    engine.close()
    assert engine.concurrency == 2


@pytest.mark.parametrize("special", [True, False])
def test_sampled_logprobs_are_the_models_for_the_very_tokens_also_inside_characters(serve, special):
    server = serve(LlamaCpp(special=special))
    engine = opened(server)
    try:
        many = engine.sample([prompt(f"r-{n}", seed=n) for n in range(6)], SamplingProtocol(), Wanted(top=3))
    finally:
        engine.close()
    for completion in many:
        ids = completion.token_ids.tolist()
        assert (completion.states == TokenState.VALUE).all()
        expected = server.dialect.tiny.of_tokens([72, 105, *ids])[2:]
        np.testing.assert_allclose(completion.logprobs, expected, rtol=1e-6)
        assert completion.top.positions.tolist() == list(range(len(ids)))
        best = [np.sort(server.dialect.tiny.logprobs([72, 105, *ids[:at]]))[::-1][:3] for at in range(len(ids))]
        np.testing.assert_allclose(completion.top.logprobs, best, rtol=1e-6)
    assert any(byte >= 0xC0 for one in many for byte in one.token_ids.tolist()), "or this test shows nothing"


@pytest.mark.parametrize("option", ["ctx=1024", "parallel=2", "threads=1"])
def test_options_of_a_server_that_is_started_here_are_refused_for_a_url(option):
    with pytest.raises(UsageError, match=rf"ctx, parallel, threads are decided when .* Leave out {option[:3]}"):
        open_engine(parse_spec(f"llamacpp:http://127.0.0.1:9?{option}"))


@pytest.mark.parametrize("option", ["concurrency=2", "retries=3", "key_env=HOME"])
def test_options_of_a_url_are_refused_for_a_file(tiny, option):
    with pytest.raises(UsageError, match=rf"belong to a server at a URL.* Leave out {option[:3]}"):
        open_engine(parse_spec(f"llamacpp:{tiny[1]}?{option}"))


def test_another_kind_of_server_is_named_as_such(serve):
    with pytest.raises(EngineError, match=r"http://127.*/props"):
        opened(serve(Vllm()))


def test_props_without_slots_end_in_a_message(serve):
    with pytest.raises(EngineError, match=r"http://127.* answers in a form that cannot be read"):
        opened(serve(LlamaCpp(props=(("total_slots", None),))))


def test_a_server_that_used_another_setting_is_refused_when_it_is_opened(serve):
    with pytest.raises(EngineError, match=r"sampled with top_p=0.95; top_p=1.0 was sent"):
        opened(serve(LlamaCpp(overrides=(("top_p", 0.95),))))


def test_a_server_that_adds_to_the_ids_is_refused(serve):
    with pytest.raises(EngineError, match=r"counts 2 prompt tokens, 1 were sent. Look for a BOS"):
        opened(serve(LlamaCpp(adds_bos=True)))


def test_a_server_that_ignores_the_temperature_is_refused(serve):
    engine = opened(serve(LlamaCpp(faults=Faults(ignores_temperature=True))))
    try:
        with pytest.raises(EngineError, match=r"ignores the request's `temperature`"):
            engine.sampled_meaning(SamplingProtocol(temperature=0.5))
    finally:
        engine.close()


def test_processed_logprobs_are_known_as_such(serve):
    protocol = SamplingProtocol(temperature=0.5)
    engine = opened(serve(LlamaCpp(logprobs="processed")))
    try:
        assert not engine.sampled_meaning(protocol).is_raw
    finally:
        engine.close()


def test_another_model_behind_the_url_is_seen(serve):
    server = serve(LlamaCpp())
    engine = opened(server)
    server.dialect.faults.other_model_after = server.dialect.served
    with pytest.raises(EngineError, match=r"rollout r-0: .*'another' answered, 'm' was there before"):
        sampled(engine)


def test_other_ids_than_its_list_speaks_of_leave_the_rollout_without_a_number(serve):
    server = serve(LlamaCpp())
    engine = opened(server)
    tokens = server.dialect.shown_ids
    calls = iter(range(10**6))
    server.dialect.shown_ids = lambda ids: tokens(ids) if next(calls) % 2 else [(i + 1) % 100 for i in ids]
    completion = sampled(engine, max_new_tokens=6)
    assert (completion.states != TokenState.VALUE).all()


def test_a_server_that_lists_fewer_logprobs_and_cannot_be_asked_for_them_is_refused(serve):
    server = serve(LlamaCpp())
    engine = opened(server)
    server.dialect.faults.fewer_logprobs = True
    with pytest.raises(EngineError, match=r"rollout r-0: the llama.cpp server lists no logprobs"):
        sampled(engine)


@pytest.mark.parametrize("fault", [Faults(refuse=1), Faults(refuse=1, refuse_status=429), Faults(cut_json=1)])
def test_what_may_pass_is_tried_again(serve, fault):
    server = serve(LlamaCpp())
    engine = opened(server)
    server.dialect.faults = fault
    assert (sampled(engine).states == TokenState.VALUE).all()


def test_a_server_that_dies_ends_in_a_message_with_its_url(serve):
    server = serve(LlamaCpp())
    engine = opened(server)
    server.die()
    with pytest.raises(EngineError, match=rf"rollout r-0: {server.url}/completion: .*--resume"):
        sampled(engine)


def test_a_prompt_that_does_not_fit_says_how_the_server_is_to_be_started(serve):
    engine = opened(serve(LlamaCpp(max_length=64)))
    with pytest.raises(EngineError, match=r"2 prompt tokens and max_new_tokens=63 exceed the 64 .* larger -c"):
        sampled(engine, max_new_tokens=63)


@pytest.mark.parametrize("special", [True, False])
def test_the_bytes_of_every_token_are_the_servers_own(serve, special):
    server = serve(LlamaCpp(special=special))
    engine = opened(server)
    try:
        found = [engine.bytes_of(token) for token in (0, 72, 0xE4, 258, 999)]
    finally:
        engine.close()
    assert found == [b"\x00", b"H", b"\xe4", b"<|im_end|>", None]


def test_the_tokenizer_of_the_option_is_the_one_for_the_token_checks(serve, tiny):
    engine = opened(serve(LlamaCpp()), f"&tokenizer={tiny[1]}")
    try:
        assert b'"<|end|>"' in engine.tokenizer_file()
    finally:
        engine.close()


# a server in this process


def test_a_closed_server_leaves_no_thread_of_python_and_no_open_port(tiny):
    _, path = tiny
    before = threading.active_count()
    engine = LlamaCppEngine.open(parse_spec(f"llamacpp:{path}?ctx=256&parallel=2&threads=1"))
    engine.sample([prompt()], SamplingProtocol(max_new_tokens=2), Wanted())
    address = engine.client.url
    assert httpx.get(f"{address}/health").is_success
    engine.close()
    assert threading.active_count() == before
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{address}/health")


def test_an_answer_that_takes_too_long_names_the_option(tiny):
    _, path = tiny
    with pytest.raises(EngineError, match=r"no whole answer within 0.0001 s.*timeout"):
        LlamaCppEngine.open(parse_spec(f"llamacpp:{path}?ctx=256&threads=1&timeout=0.0001"))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(EngineError, match=r"there is no GGUF file .*absent.gguf.*smollm2"):
        open_sampler(parse_spec(f"llamacpp:{tmp_path}/absent.gguf"))


def test_a_file_that_is_no_gguf_is_named(tmp_path):
    (tmp_path / "bad.gguf").write_bytes(b"no model")
    with pytest.raises(EngineError, match=r"llama.cpp cannot load .*bad.gguf"):
        open_sampler(parse_spec(f"llamacpp:{tmp_path}/bad.gguf"))


def test_without_the_package_the_extra_is_named(tiny):
    _, path = tiny
    program = (
        "import sys; sys.modules['xllamacpp'] = None\n"
        "from onepolicy.engines.spec import parse_spec\n"
        "from onepolicy.errors import MissingExtraError\n"
        "from onepolicy.integrations import open_sampler\n"
        "try: open_sampler(parse_spec('llamacpp:' + sys.argv[1]))\n"
        "except MissingExtraError as error: print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    assert "'xllamacpp', which is not installed" in run.stdout
    assert "onepolicy[llamacpp]" in run.stdout


def test_an_unknown_option_lists_the_known_ones(tmp_path):
    with pytest.raises(UsageError, match=r"no option 'beams'.*ctx, parallel"):
        open_sampler(parse_spec(f"llamacpp:{tmp_path}/model.gguf?beams=2"))
