"""The token commands with a live server on one side."""

import json

import pytest
from llamacpp_standin import LlamaCpp
from standin import standing_in

from onepolicy.integrations.fake import vocabulary

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(vocabulary.tokenizer_json())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "bos_token": "<|bos|>"}))
    return tmp_path


def test_the_commands_take_the_url_of_a_server(cli, folder):
    with standing_in(LlamaCpp()) as server:
        url = f"llamacpp:{server.url}"
        compared = cli("tokens", "compare", str(folder), url)
        rendered = cli("tokens", "template", str(folder), url)
        rows = folder / "rows.jsonl"
        rows.write_text(json.dumps({"id": "a", "token_ids": [0xE4, 72]}) + "\n")
        sent = cli("tokens", "roundtrip", "--sampling", url, str(rows))
    assert compared.status == 0, compared.out
    assert "by its answers" in compared.out
    assert rendered.status == 0, rendered.out
    assert sent.status == 1, sent.out


def test_a_template_of_a_server_alone_says_what_to_give(cli):
    ended = cli("tokens", "template", "llamacpp:http://127.0.0.1:9")
    assert ended.status == 2
    assert "Give that first" in ended.err


def test_a_server_that_is_not_there_is_named_with_status_2(cli, folder):
    ended = cli("tokens", "compare", str(folder), "llamacpp:http://127.0.0.1:9?retries=0")
    assert ended.status == 2
    assert "http://127.0.0.1:9/props" in ended.err
