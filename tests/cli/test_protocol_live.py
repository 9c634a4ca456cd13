"""`onepolicy protocol` of running servers, which are stand-ins."""

import json
import socket

import pytest
from llamacpp_standin import DEFAULTS, LlamaCpp
from standin import Vllm, standing_in


@pytest.fixture
def llamacpp():
    props = (("default_generation_settings", {"params": DEFAULTS, "n_ctx": 4096}),)
    with standing_in(LlamaCpp(props=props)) as server:
        yield f"llamacpp:{server.url}"


def test_show_says_which_answer_each_value_is_from(cli, llamacpp):
    ended = cli("protocol", "show", llamacpp)
    assert ended.status == 0
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in ended.out.splitlines() if line.strip()}
    assert lines["temperature"] == "0.8 said by /completion"
    assert lines["max_total_tokens"] == "4096 said by /props"
    assert ended.err.startswith("asking llamacpp at http://")


def test_a_lock_of_a_server_is_kept_where_it_is_told_and_verified(cli, llamacpp, tmp_path):
    assert cli("protocol", "lock", llamacpp).status == 2
    path = tmp_path / "server.lock"
    assert cli("protocol", "lock", llamacpp, "--output", path).status == 0
    ended = cli("protocol", "verify", llamacpp, "--lock", path)
    assert (ended.status, ended.out.splitlines()[-1][:5]) == (0, "SAME:")


def test_what_a_measurement_does_not_tell_apart_is_shown_and_unknown(cli, tmp_path):
    said = {"temperature": 0.605, "top_p": 0.9, "top_k": 20, "max_new_tokens": 16, "max_total_tokens": 8192}
    file = tmp_path / "served.yaml"
    file.write_text(json.dumps({**said, "seed_policy": "none"}))
    with standing_in(Vllm()) as server:
        ended = cli("protocol", "diff", f"vllm:{server.url}?completions=2", file)
    assert ended.status == 3
    shown = " ".join(ended.out.split())
    assert "temperature = 0.6 and 0.605: they are nearer than what was measured tells apart" in shown
    assert "presence_penalty = not known: the same tokens are drawn whatever is sent" in shown
    assert ended.out.splitlines()[-1] == "UNKNOWN: what is known of the two is the same."


@pytest.mark.parametrize("engine", ["vllm", "llamacpp"])
def test_a_port_on_which_nobody_listens_is_said_at_once(cli, engine):
    with socket.socket() as taken:  # bound and not listening: nobody else gets it
        taken.bind(("127.0.0.1", 0))
        ended = cli("protocol", "show", f"{engine}:http://127.0.0.1:{taken.getsockname()[1]}")
    assert ended.status == 2
    assert "the connection is refused" in ended.err
    assert "tries" not in ended.err
