"""Every field of a protocol that an engine obeys is in its requests as the server spells it; the others are refused."""

import json

import pytest
from llamacpp_standin import LlamaCpp
from standin import END, STRICT, OpenAi, Sglang, Trtllm, Vllm, asked, text_of

from onepolicy.engines.contract import Wanted
from onepolicy.engines.obeyed import ALWAYS, for_request
from onepolicy.errors import EngineError, UsageError
from onepolicy.integrations import protocol_reader
from onepolicy.integrations.vllm.answer import completion_of
from onepolicy.records.protocol import Constraint, SamplingProtocol

PROMPT = (72, 101, 108)
PATHS = {
    "vllm": "/v1/completions",
    "sglang": "/generate",
    "trtllm": "/v1/completions",
    "openai": "/v1/completions",
    "llamacpp": "/completion",
}
SERVERS = {
    "vllm": Vllm,
    "sglang": lambda: Sglang(logprobs="raw"),
    "trtllm": Trtllm,
    "openai": lambda: OpenAi(returns_ids="tokens_as_ids", most_logprobs=20, tokenizes=True),
    "llamacpp": LlamaCpp,
}
SCHEMA = '{"type": "object"}'
COMMON = {"temperature": 0.7, "top_k": 5, "max_new_tokens": 9}
PENALTIES = {"presence_penalty": 0.5, "frequency_penalty": 0.25}
ENDS = {"min_new_tokens": 2, "stop_token_ids": (65, 0)}
REGEX = Constraint(kind="regex", text="a+")
OBEYED = {
    "vllm": {"repetition_penalty": 1.3, **PENALTIES, **ENDS, "stop": ("é", "ab"), "constraint": REGEX},
    "sglang": {**PENALTIES, **ENDS, "stop": ("é", "ab"), "constraint": REGEX},
    "trtllm": {
        "repetition_penalty": 1.3,
        **PENALTIES,
        **ENDS,
        "constraint": REGEX,
        "processors": ("temperature", "penalties", "top_k", "top_p", "min_p"),
    },
    "openai": {**PENALTIES, "stop": ("é", "ab")},
    "llamacpp": {
        "repetition_penalty": 1.3,
        "penalty_window": 7,
        "ignore_eos": True,
        "stop": ("é", "ab"),
        "constraint": Constraint(kind="json_schema", text=SCHEMA),
        "processors": ("penalties", "top_k", "top_p", "min_p", "temperature"),
    },
}
SPELLED = {
    "vllm": {
        "repetition_penalty": 1.3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "min_tokens": 2,
        "stop": ["ab", "é"],
        "stop_token_ids": [0, 65],
        "ignore_eos": False,
        "include_stop_str_in_output": True,
        "structured_outputs": {"regex": "a+"},
    },
    "sglang": {
        "repetition_penalty": 1.0,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "min_new_tokens": 2,
        "stop": ["ab", "é"],
        "stop_token_ids": [0, 65],
        "ignore_eos": False,
        "no_stop_trim": True,
        "regex": "a+",
    },
    "trtllm": {
        "repetition_penalty": 1.3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "min_tokens": 2,
        "stop": [],
        "stop_token_ids": [0, 65],
        "ignore_eos": False,
        "include_stop_str_in_output": True,
        "response_format": {"type": "regex", "regex": "a+"},
    },
    "openai": {
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "stop": ["ab", "é"],
        "repetition_penalty": 1.0,
        "min_tokens": 0,
        "stop_token_ids": [],
        "ignore_eos": False,
        "include_stop_str_in_output": True,
    },
    "llamacpp": {
        "repeat_penalty": 1.3,
        "repeat_last_n": 7,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "ignore_eos": True,
        "stop": ["ab", "é"],
        "json_schema": json.loads(SCHEMA),
        "samplers": ["penalties", "top_k", "top_p", "min_p", "temperature"],
    },
}
REFUSED = {
    "vllm": [
        ({"penalty_window": 7}, "penalty_window"),
        ({"top_p": 0.9, "min_p": 0.1}, "processors.*min_p, top_k, top_p"),
        ({"presence_penalty": 3.0}, "presence_penalty"),
    ],
    "sglang": [
        ({"repetition_penalty": 1.3}, "repetition_penalty.*completion alone"),
        ({"top_k": 5, "top_p": 0.9}, "processors"),
        ({"penalty_window": 7}, "penalty_window"),
    ],
    "trtllm": [
        ({"penalty_window": 7}, "penalty_window"),
        ({"temperature": 0.7, "presence_penalty": 1.0}, "processors"),
    ],
    "openai": [
        ({"repetition_penalty": 1.3}, "repetition_penalty"),
        ({"min_new_tokens": 2}, "min_new_tokens"),
        ({"stop_token_ids": (1,)}, "stop_token_ids"),
        ({"ignore_eos": True}, "ignore_eos"),
        ({"stop": ("a", "b", "c", "d", "e")}, "at most 4"),
    ],
    "llamacpp": [
        ({"presence_penalty": 0.5}, "presence_penalty.*prompt too"),
        ({"min_new_tokens": 2}, "min_new_tokens"),
        ({"stop_token_ids": (1,)}, "stop_token_ids"),
        ({"constraint": REGEX}, "constraint"),
    ],
}


@pytest.fixture
def start(serve, engine_of):
    """A server by its name, and its engine."""

    def started(name):
        server = serve(SERVERS[name]())
        return server, engine_of(server)

    return started


def sent(server, name):
    body = server.asked(PATHS[name])[-1]
    return body["sampling_params"] if name == "sglang" else body


@pytest.mark.parametrize("name", SERVERS)
def test_every_field_is_sent_as_the_server_spells_it(start, name):
    server, engine = start(name)
    protocol = SamplingProtocol(**COMMON, **OBEYED[name])
    assert set(protocol.changed) <= engine.obeys
    engine.sample([asked(*PROMPT)], protocol, Wanted())
    assert sent(server, name).items() >= SPELLED[name].items()


@pytest.mark.parametrize("name", SERVERS)
def test_a_plain_protocol_sends_the_same_fields_switched_off(start, name):
    server, engine = start(name)
    engine.sample([asked(*PROMPT)], SamplingProtocol(), Wanted())
    body = sent(server, name)
    off = {"repetition_penalty": 1.0, "repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    off |= {"min_tokens": 0, "min_new_tokens": 0, "stop": [], "stop_token_ids": [], "ignore_eos": False, "grammar": ""}
    constraints = {"structured_outputs", "response_format", "regex", "json_schema", "ebnf"}
    expected = {key: off[key] for key in set(SPELLED[name]) & set(off)}
    assert {key: body.get(key, off[key]) for key in expected} == expected
    assert not constraints & set(body)


@pytest.mark.parametrize("name", ["vllm", "sglang", "trtllm", "llamacpp"])
def test_what_is_sent_reads_back_as_the_protocol(start, name):
    """The reader shares the names with the writer, and neither the values nor the fields that stand beside them."""
    server, engine = start(name)
    protocol = SamplingProtocol(**COMMON, **OBEYED[name])
    engine.sample([asked(*PROMPT, seed=17)], protocol, Wanted())
    body = sent(server, name)
    source = {"request": {"sampling_params": body}} if name == "sglang" else {"request": body}
    read = protocol_reader(name)(source).protocol
    again = for_request(asked(*PROMPT, seed=17), protocol)
    beside = {"add_bos": read.add_bos, "processors": read.processors, "logprobs": read.logprobs}
    assert read == again.model_copy(update=beside)


def test_trtllm_is_sent_no_field_that_it_does_not_know(start):
    server, engine = start("trtllm")
    engine.sample([asked(*PROMPT)], SamplingProtocol(**COMMON, **OBEYED["trtllm"]), Wanted())
    assert set(server.asked("/v1/completions")[-1]) <= STRICT


def test_a_json_schema_for_trtllm_is_one(start):
    server, engine = start("trtllm")
    constraint = Constraint(kind="json_schema", text=SCHEMA)
    engine.sample([asked(*PROMPT)], SamplingProtocol(constraint=constraint), Wanted())
    body = server.asked("/v1/completions")[-1]
    assert body["response_format"] == {"type": "json", "schema": json.loads(SCHEMA)}
    with pytest.raises(UsageError, match="no JSON"):
        engine.sampled_meaning(SamplingProtocol(constraint=Constraint(kind="json_schema", text="{")))


@pytest.mark.parametrize(("name", "fields", "says"), [(n, *case) for n, cases in REFUSED.items() for case in cases])
def test_what_a_server_cannot_do_is_refused_by_name_before_anything_is_sampled(start, name, fields, says):
    server, engine = start(name)
    before = len(server.requests)
    protocol = SamplingProtocol(**fields)
    with pytest.raises(UsageError, match=rf"{says}.*sample with another engine"):
        engine.sampled_meaning(protocol)
    with pytest.raises(UsageError, match=says):
        engine.sample([asked(*PROMPT)], protocol, Wanted())
    assert len(server.requests) == before


@pytest.mark.parametrize("name", SERVERS)
def test_every_engine_obeys_the_common_fields(start, name):
    _, engine = start(name)
    assert engine.obeys > ALWAYS
    assert engine.obeys <= set(SamplingProtocol.model_fields)


# -- what comes back --------------------------------------------------------------------------------------------------


def completions(engine, count=30, **fields):
    items = [asked(*PROMPT, seed=seed, name=f"r{seed}") for seed in range(count)]
    return engine.sample(items, SamplingProtocol(**{"max_new_tokens": 12, **fields}), Wanted())


def likely_token(engine):
    """One that many completions have, which is no end token."""
    drawn = [int(token) for one in completions(engine) for token in one.token_ids if token < 128]
    return max(set(drawn), key=drawn.count)


@pytest.mark.parametrize("name", ["vllm", "sglang", "trtllm"])
def test_a_stop_id_ends_a_completion_and_is_its_reason(start, name):
    _, engine = start(name)
    stop = likely_token(engine)
    stopped = [one for one in completions(engine, stop_token_ids=(stop,)) if stop in one.token_ids]
    assert stopped
    for one in stopped:
        assert (one.token_ids.tolist().index(stop), one.token_ids[-1]) == (len(one.token_ids) - 1, stop)
        assert (one.finish_reason, one.stop_reason) == ("stop", str(stop))


def test_a_stop_id_of_zero_is_a_reason_too():
    choice = {"prompt_token_ids": list(PROMPT), "token_ids": [0], "logprobs": {"token_logprobs": [-1.0]}}
    choice |= {"finish_reason": "stop", "stop_reason": 0, "text": ""}
    one = completion_of(asked(*PROMPT), {"model": "m", "choices": [choice]}, Wanted(), model="m", weight_version="")
    assert one.stop_reason == "0"


@pytest.mark.parametrize("name", ["vllm", "sglang", "llamacpp"])
def test_a_stop_string_ends_a_completion_and_stays_in_it(start, name):
    _, engine = start(name)
    stop = text_of([likely_token(engine)])
    stopped = [one for one in completions(engine, stop=(stop,)) if one.stop_reason == stop]
    assert stopped
    for one in stopped:
        assert one.finish_reason == "stop"
        assert one.text.endswith(stop)
        assert text_of(one.token_ids.tolist()).count(stop) == 1
        assert (one.states == 0).all(), "the server lists no logprob for the stop's tokens; they are asked for"


@pytest.mark.parametrize("name", ["vllm", "sglang", "trtllm"])
def test_no_completion_is_shorter_than_the_least_length(start, name):
    _, engine = start(name)
    assert min(len(one.token_ids) for one in completions(engine, 60)) < 6
    shortest = min(len(one.token_ids) for one in completions(engine, 60, min_new_tokens=6))
    assert 6 <= shortest < 12


@pytest.mark.parametrize("name", ["vllm", "sglang", "trtllm", "llamacpp"])
def test_a_completion_that_ignores_the_end_token_goes_to_its_limit(start, name):
    _, engine = start(name)
    assert {one.finish_reason for one in completions(engine, ignore_eos=True)} == {"length"}
    assert any(END in one.token_ids[:-1] for one in completions(engine, 60, ignore_eos=True))


@pytest.mark.parametrize("name", SERVERS)
def test_the_total_length_limits_the_completion(start, name):
    server, engine = start(name)
    completions(engine, 1, max_total_tokens=len(PROMPT) + 4)
    limits = ("max_tokens", "max_new_tokens", "n_predict")
    assert [sent(server, name)[key] for key in limits if key in sent(server, name)] == [4]
    with pytest.raises(EngineError, match=r"r0: its prompt has 3 tokens and max_total_tokens = 3 leaves 0"):
        completions(engine, 1, max_total_tokens=len(PROMPT))
