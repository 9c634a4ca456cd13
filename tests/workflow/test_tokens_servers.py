"""The token tools on live servers, against stand-ins whose tokenizer is the fake engine's."""

import json
from contextlib import ExitStack

import pytest
from llamacpp_standin import LlamaCpp
from standin import Sglang, Vllm, standing_in

from onepolicy.errors import EngineError, UsageError
from onepolicy.integrations.fake import vocabulary
from onepolicy.tokens.open import open_tokenizer
from onepolicy.tokens.render import ChatTemplate
from onepolicy.tokens.template.report import book_of
from onepolicy.workflow.tokens_roundtrip import RoundTripRequest, tokens_roundtrip
from onepolicy.workflow.tokens_servers import compare_targets, names_server, template_against

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
KINDS = {"vllm": Vllm, "llamacpp": LlamaCpp, "sglang": Sglang}


@pytest.fixture
def folder(tmp_path):
    """The fake vocabulary's tokenizer with the stand-ins' template."""
    (tmp_path / "tokenizer.json").write_bytes(vocabulary.tokenizer_json())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "bos_token": "<|bos|>"}))
    return tmp_path


def book(folder, kind):
    """llama.cpp takes a BOS out of what a template writes and puts it in front of the ids; vLLM leaves both alone."""
    source = ("{{ bos_token }}" if kind == "llamacpp" else "") + TEMPLATE
    stored = open_tokenizer(str(folder))
    return book_of(stored, template=ChatTemplate(source=source, special=stored.special, origin="here"))


@pytest.fixture
def started():
    with ExitStack() as stack:

        def start(kind, **fields):
            server = stack.enter_context(standing_in(KINDS[kind](**fields)))
            return f"{kind}:{server.url}?retries=0&timeout=20", server

        yield start


def planted(server, path, change):
    """Answer one path otherwise."""
    reply = server.dialect.reply

    def changed(method, where, body):
        answer = reply(method, where, body)
        return change(body, answer) if where == path else answer

    server.dialect.reply = changed


def test_an_engine_at_a_url_is_a_server_and_a_path_is_none():
    assert names_server("vllm:http://127.0.0.1:1")
    assert names_server("llamacpp:https://host/v1?retries=0")
    assert not any(map(names_server, ["smollm2", "llamacpp:smollm2", "C:/models", "./http:/x", "org/name"]))


@pytest.mark.parametrize("kind", ["vllm", "llamacpp"])
def test_a_server_with_the_same_tokenizer_is_the_same(kind, started, folder):
    url, _ = started(kind)
    for a, b in ((str(folder), url), (url, str(folder)), (url, url)):
        comparison = compare_targets(a, b)
        assert comparison.same, comparison
        assert comparison.exit_status == 0
        assert comparison.parts == ()
        assert comparison.sentence.startswith("Same: all ")


def test_two_kinds_of_server_with_one_tokenizer_are_the_same(started):
    assert compare_targets(started("vllm")[0], started("llamacpp")[0]).same


@pytest.mark.parametrize("kind", ["vllm", "llamacpp"])
def test_the_shortest_text_with_other_ids_is_shown_with_both_spellings(kind, started, folder):
    url, server = started(kind)

    def lowered(body, answer):
        ids = [104 if token == 72 else token for token in answer[1]["tokens"]]
        return 200, {**answer[1], "tokens": ids}

    planted(server, "/tokenize", lowered)
    comparison = compare_targets(str(folder), url)
    assert comparison.exit_status == 1
    assert "probes differ" in comparison.sentence
    found = comparison.shortest
    assert (found.text, found.kind, found.a_ids, found.b_ids) == ("H", "ids", (72,), (104,))
    assert (found.a_pieces, found.b_pieces) == (("H",), ("h",))


def test_equal_ids_that_are_read_as_another_text_differ(started, folder):
    url, server = started("llamacpp")
    planted(server, "/detokenize", lambda body, answer: (200, {"content": answer[1]["content"].replace("1", "l")}))
    found = compare_targets(str(folder), url).shortest
    assert (found.text, found.kind, found.a_text, found.b_text) == ("1", "text", "1", "l")


def test_a_server_that_adds_no_bos_where_the_other_does_differs_at_the_ends(started, folder):
    url, server = started("llamacpp")
    planted(server, "/tokenize", lambda body, answer: (200, {"tokens": [t for t in answer[1]["tokens"] if t != 256]}))
    comparison = compare_targets(str(folder), url)
    assert comparison.exit_status == 1
    assert any(kind.differ for kind in comparison.classes if kind.name == "beginning and end")


def test_a_text_that_a_server_refuses_is_a_difference(started, folder):
    url, server = started("llamacpp")

    def refusing(body, answer):
        return (400, {"error": {"message": "no"}}) if "\x00" in body["content"] else answer

    planted(server, "/tokenize", refusing)
    found = compare_targets(str(folder), url).shortest
    assert (found.text, found.a_ids, found.b_ids) == ("\x00", (0,), None)


def test_a_server_that_dies_meanwhile_is_an_error_and_no_answer(started):
    url, server = started("llamacpp")
    asked = iter(range(10**6))

    def dying(body, answer):
        return (500, {"error": "gone"}) if next(asked) > 50 else answer

    planted(server, "/tokenize", dying)
    with pytest.raises(EngineError, match=r"/tokenize: .*500"):
        compare_targets(url, url)


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_with_the_same_template_writes_all_conversations_alike(kind, started, folder):
    url, _ = started(kind)
    report = template_against(book(folder, kind), url)
    assert report.exit_status == 0, report.sentence
    assert report.other == url


def test_a_bos_that_only_llama_cpp_puts_in_front_is_found(started, folder):
    report = template_against(book(folder, "vllm"), started("llamacpp")[0])
    assert report.exit_status == 1
    assert "BOS" in report.verdicts[0].message


@pytest.mark.parametrize(("kind", "path"), [("llamacpp", "/apply-template"), ("vllm", "/tokenize")])
def test_a_system_message_that_only_the_server_adds_is_found(kind, path, started, folder):
    url, server = started(kind)
    system = "<|im_start|>system\nBe kind.<|im_end|>\n"

    def with_system(body, answer):
        if "messages" not in body:
            return answer
        if "prompt" in answer[1]:
            return 200, {"prompt": system + answer[1]["prompt"]}
        ids = vocabulary.encode(system, add_special_tokens=False).tolist()
        return 200, {**answer[1], "tokens": ids + answer[1]["tokens"]}

    planted(server, path, with_system)
    report = template_against(book(folder, kind), url)
    (verdict,) = report.verdicts
    assert report.exit_status == 1
    assert verdict.value == 8
    assert verdict.evidence[0].position == (2 if kind == "llamacpp" else 1)
    assert "the first has 'user" in verdict.message
    assert "the second 'system" in verdict.message


def test_a_conversation_that_a_server_refuses_is_told_with_its_reason(started, folder):
    url, server = started("llamacpp")

    def strict(body, answer):
        refused = any("reasoning_content" in message for message in body["messages"])
        return (400, {"error": {"message": "unknown field"}}) if refused else answer

    planted(server, "/apply-template", strict)
    report = template_against(book(folder, "llamacpp"), url)
    (found,) = [one for one in report.verdicts[0].evidence if "refuses" in one.note]
    assert found.rollout_id == "reasoning in its own field"


@pytest.mark.parametrize("kind", ["vllm", "llamacpp"])
def test_a_round_trip_through_a_server(kind, started, folder, tmp_path):
    url, _ = started(kind)
    rows = [{"id": "a", "text": "Hello"}, {"id": "b", "token_ids": [*"介".encode(), 72, 258]}]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for sampling, scoring in ((url, str(folder)), (str(folder), url), (url, "")):
        report = tokens_roundtrip(RoundTripRequest(targets=(str(file),), sampling=sampling, scoring=scoring))
        assert report.status.exit_status == 0, report
        assert report.checked == 2
    rows = [{"id": "c", "token_ids": [0xE4, 72]}]
    file.write_text(json.dumps(rows[0]) + "\n")
    report = tokens_roundtrip(RoundTripRequest(targets=(str(file),), sampling=url))
    assert report.status.exit_status == 1


@pytest.mark.parametrize("kind", ["vllm", "llamacpp"])
def test_a_break_after_tokens_that_a_server_cannot_spell_stands_at_its_own_place(kind, started, folder, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"id": "a", "token_ids": [*"介".encode(), 72, 0xE4, 72]}) + "\n")
    request = RoundTripRequest(targets=(str(file),), sampling=started(kind)[0], scoring=str(folder))
    (found,) = [one for one in tokens_roundtrip(request).breaks if one.way == "ids"]
    assert found.position == 4


def test_an_engine_that_cannot_be_asked_is_named():
    with pytest.raises((UsageError, EngineError), match="nothing"):
        compare_targets("smollm2", "nothing:http://127.0.0.1:9")
