"""What stand-ins of servers sample with where a request leaves fields out: said, refused, or measured."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest
from llamacpp_standin import DEFAULTS, LlamaCpp
from standin import END, Asked, Drawn, Json, OpenAi, Reply, Vllm

from onepolicy.engines.spec import parse_spec
from onepolicy.errors import EngineError, UsageError
from onepolicy.integrations.llamacpp.live import live_protocol as of_llamacpp
from onepolicy.integrations.vllm.live import live_protocol as of_vllm
from onepolicy.records.verdict import Status
from onepolicy.sampling.measured.effective import Effective
from onepolicy.workflow.protocol import compare, said_in
from onepolicy.workflow.protocol_lock import lock_path

PENALTIES = {"repetition_penalty", "presence_penalty", "frequency_penalty"}
"""which the stand-in drops without a word"""


@dataclass(kw_only=True)
class Live(Vllm):
    """With a limit of its own, other end tokens, and biases of logits."""

    most: int | None = None
    also_ends: tuple[int, ...] = ()
    names_the_limit: bool = True

    def limit(self, body: Json) -> int:
        asked = 16 if body.get("max_tokens") is None else body["max_tokens"]
        return min(asked, self.most or asked)

    def refusal(self, body: Json) -> str:
        if (body.get("min_tokens") or 0) > self.limit(body):
            most = f"max_tokens={self.limit(body)}" if self.names_the_limit else "the most"
            return f"min_tokens must be less than or equal to {most}, got {body['min_tokens']}."
        return super().refusal(body)

    def asked(self, body: Json) -> Asked:
        asked = replace(super().asked(body), max_tokens=self.limit(body))
        ends = replace(asked, stop_token_ids=(*asked.stop_token_ids, *self.also_ends))
        bias = body.get("logit_bias") or {}
        return replace(ends, forced=[int(token) for token in bias] * asked.max_tokens) if bias else ends

    def draw(self, asked: Asked) -> Drawn:
        drawn = super().draw(asked)
        first = (asked.forced or [None])[0]
        if first not in (END, *self.also_ends):
            return drawn
        return Drawn(ids=drawn.ids[:1], reported=drawn.reported[:1], finish_reason="stop", stopped_by=first)


@pytest.fixture
def measured(serve) -> Any:
    """What is found of a stand-in, with fewer completions than of a real server."""

    def found(dialect: Vllm, request: Json | None = None) -> Effective:
        return of_vllm(parse_spec(f"vllm:{serve(dialect).url}?retries=0"), request or {}, per_text=3)

    return found


def test_what_vllm_takes_from_a_generation_config_is_measured(measured):
    found = measured(Live(also_ends=(7,)))
    protocol, sources = found.read.protocol, found.read.sources
    assert (protocol.temperature, protocol.top_p, protocol.top_k, protocol.min_p) == (0.6, 0.9, 20, 0.0)
    assert sources["temperature"].startswith("measured: 0.6 draws the same")
    assert (protocol.max_new_tokens, protocol.max_total_tokens) == (16, 8192)
    assert sources["max_total_tokens"] == "said by /v1/models"
    assert sources["max_new_tokens"].startswith("said by its refusal")
    assert sources["processors"].startswith("measured: ")
    assert "temperature before top_p" in sources["processors"]
    assert protocol.logprobs == "raw"
    notes = {note.field: note for note in found.read.ignored}
    assert set(notes) == PENALTIES, "what a server drops is a note that matters and no default"
    assert all(note.matters and "drops the field" in note.why for note in notes.values())
    assert all(sources[name].startswith("not known") for name in PENALTIES)


def test_fields_of_a_request_are_sent_and_the_server_s_own_limit_goes_over_them(measured):
    request = {"temperature": 0.3, "top_p": 1.0, "top_k": 0, "max_tokens": 500, "stop": ["x"]}
    found = measured(Live(most=40), request)
    protocol, sources = found.read.protocol, found.read.sources
    assert (protocol.temperature, sources["temperature"]) == (0.3, "the request")
    assert (protocol.max_new_tokens, protocol.stop) == (40, ("x",))
    assert set(found.measured) == {"min_p", *PENALTIES}


def test_a_limit_that_no_refusal_names_is_not_known(measured):
    found = measured(Live(names_the_limit=False), {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0})
    assert found.read.sources["max_new_tokens"] == "not known"
    assert "max_new_tokens" in {note.field for note in found.read.ignored if note.matters}


def test_stop_ids_are_not_known_of_a_server_that_returns_no_ids_where_a_token_is_forced(measured):
    @dataclass(kw_only=True)
    class Silent(Live):
        def complete(self, choice: Json, body: Json, *more: Any) -> None:
            super().complete(choice, body, *more)
            if "logit_bias" in body:
                choice["token_ids"] = None

    found = measured(Silent(), {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0})
    assert "stop_token_ids" in {note.field for note in found.read.ignored if note.matters}


def test_nothing_is_known_of_a_server_that_draws_at_random(measured):
    @dataclass(kw_only=True)
    class Restless(Live):
        def asked(self, body: Json) -> Asked:
            return replace(super().asked(body), seed=None)

    found = measured(Restless())
    assert {one.value for one in found.measured.values()} == {None}


# -- llama.cpp --------------------------------------------------------------------------------------------------------


def of_props(**own: Any) -> tuple[tuple[str, Any], ...]:
    return (("default_generation_settings", {"params": {**DEFAULTS, **own}, "n_ctx": 4096}),)


def test_llamacpp_says_it_all(serve):
    server = serve(LlamaCpp(props=of_props(), overrides=(("stop", ["\n\n"]),)))
    found = of_llamacpp(parse_spec(f"llamacpp:{server.url}?retries=0"), {"top_k": 3, "n_predict": 200})
    protocol, sources = found.read.protocol, found.read.sources
    assert (protocol.temperature, protocol.top_k, protocol.repetition_penalty) == (0.8, 3, 1.1)
    assert (protocol.max_new_tokens, protocol.max_total_tokens) == (200, 4096)
    assert (protocol.stop, sources["stop"]) == (("\n\n",), "said by /completion")
    assert (sources["temperature"], sources["max_total_tokens"]) == ("said by /completion", "said by /props")
    assert protocol.processors == ("penalties", "top_k", "top_p", "min_p", "temperature")
    assert protocol.seed_policy == "none"
    assert not [note for note in found.read.ignored if note.matters]


def test_a_context_that_props_does_not_tell_is_not_known(serve):
    server = serve(LlamaCpp(props=(("default_generation_settings", {"params": DEFAULTS}),)))
    found = of_llamacpp(parse_spec(f"llamacpp:{server.url}?retries=0"), {"n_predict": 200})
    assert found.read.sources["max_total_tokens"].startswith("not known")
    assert [note.field for note in found.read.ignored if note.matters] == ["max_total_tokens"]


def test_a_limit_that_props_does_not_know_is_that_of_a_request_which_ends_at_once(serve):
    server = serve(Short(props=of_props(n_predict=-1)))
    found = of_llamacpp(parse_spec(f"llamacpp:{server.url}"), {})
    assert found.read.protocol.max_new_tokens == 300
    assert found.read.sources["max_new_tokens"] == "said by /completion"
    assert [body.get("grammar", "") for body in server.asked("/completion")] == ["", 'root ::= ""']


@dataclass(kw_only=True)
class Short(LlamaCpp):
    """Of 300 tokens unless asked for fewer, or for the empty text."""

    def completion(self, body: Json) -> Reply:
        left_out = "n_predict" not in body
        length = 1 if body.get("grammar") == 'root ::= ""' else 300
        status, answer = super().completion(body | ({"n_predict": length} if left_out else {}))
        if left_out:
            answer["generation_settings"]["n_predict"] = 300
        return status, answer


def test_a_chat_request_to_llamacpp_is_refused():
    with pytest.raises(UsageError, match="give the fields of a /completion request"):
        of_llamacpp(parse_spec("llamacpp:http://127.0.0.1:1"), {"messages": []})


# -- as sources -------------------------------------------------------------------------------------------------------


def test_a_running_server_is_compared_with_a_file(serve, tmp_path):
    url = f"llamacpp:{serve(LlamaCpp(props=of_props())).url}"
    file, request = tmp_path / "props.json", tmp_path / "request.json"
    file.write_text(json.dumps(dict(of_props())))
    assert not compare(url, f"llamacpp:{file}").differences
    request.write_text(json.dumps({"stop": ["x"]}))
    found = compare(f"{url}?request={request}", url)
    assert [one.field for one in found.differences] == ["stop"]


def test_what_lies_within_the_resolution_or_is_an_own_end_token_is_no_difference(serve, tmp_path):
    url = serve(Live(also_ends=(7,))).url
    said = {"temperature": 0.605, "top_p": 0.9, "top_k": 20, "max_new_tokens": 16, "max_total_tokens": 8192}
    file = tmp_path / "served.yaml"
    file.write_text(json.dumps({**said, "seed_policy": "none", "stop_token_ids": [END, 7], "presence_penalty": 1.0}))
    found = compare(f"vllm:{url}?completions=3&retries=0", str(file))
    assert (found.differences, [one.field for one in found.untold]) == ((), ["temperature"])
    assert found.status is Status.UNKNOWN
    assert found.a.lacks("presence_penalty"), "the stand-in drops it, so it is in no diff"
    file.write_text(json.dumps({**said, "temperature": 0.9, "seed_policy": "none", "stop_token_ids": [END]}))
    again = compare(f"vllm:{url}?completions=3&retries=0", str(file))
    assert [one.field for one in again.differences] == ["temperature", "stop_token_ids"]


def test_a_lock_of_a_running_server_needs_a_place():
    with pytest.raises(UsageError, match="Say where it is kept"):
        lock_path("vllm:http://127.0.0.1:1")


def test_a_request_that_is_none_and_a_server_that_is_not_asked_are_errors(serve, tmp_path):
    with pytest.raises(UsageError, match="there is no such file"):
        said_in(f"vllm:http://127.0.0.1:1?request={tmp_path / 'none.json'}")
    with pytest.raises(UsageError, match="is no number of completions"):
        said_in("vllm:http://127.0.0.1:1?completions=none")
    with pytest.raises(UsageError, match="no option 'completions'"):
        said_in("llamacpp:http://127.0.0.1:1?completions=4")
    with pytest.raises(UsageError, match="cannot be asked for"):
        said_in(f"openai:{serve(OpenAi()).url}")
    with pytest.raises(EngineError):
        said_in("vllm:http://127.0.0.1:1?retries=0")
