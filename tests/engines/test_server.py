"""What every engine behind a URL does when its server is of no use."""

import threading

import pytest
from scripted import Answer

from onepolicy.engines.spec import parse_spec
from onepolicy.errors import OnePolicyError
from onepolicy.integrations import open_engine

ENGINES = ("vllm", "sglang", "trtllm", "openai", "llamacpp")
USELESS = {
    "no such path": Answer(b"{}", 404),
    "no object": Answer(b"[]"),
    "a broken connection": None,
    "another form": Answer(b'{"data": 7, "default_generation_settings": 7}'),
}


@pytest.mark.parametrize(
    ("engine", "answer"),
    # what SGLang says of itself is read later, and may have any form until then
    [(one, answer) for one in ENGINES for answer in USELESS if (one, answer) != ("sglang", "another form")],
)
def test_a_server_of_no_use_is_named_and_the_connection_to_it_is_ended(engine, answer, scripted):
    server = scripted(lambda *_: USELESS[answer])
    with pytest.raises(OnePolicyError, match=server.url):
        open_engine(parse_spec(f"{engine}:{server.url}?retries=0"))
    assert f"http {server.url}" not in {thread.name for thread in threading.enumerate()}
