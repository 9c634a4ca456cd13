"""Stand-in servers that end with the test, and engines that talk to them."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from standin import Dialect, StandIn, spec_of, standing_in

from onepolicy.engines.contract import Sampler
from onepolicy.engines.spec import parse_spec
from onepolicy.integrations import open_sampler
from onepolicy.integrations.fake.vocabulary import tokenizer_json

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture
def serve() -> Iterator[Callable[[Dialect], StandIn]]:
    """Start a dialect behind a free port."""
    with ExitStack() as open_ones:
        yield lambda dialect: open_ones.enter_context(standing_in(dialect))


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory) -> Path:
    """The tokenizer of the stand-ins' model, with its chat template."""
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "tokenizer.json").write_bytes(tokenizer_json())
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder


@pytest.fixture(scope="session")
def suite(tmp_path_factory) -> Path:
    """Enough short prompts for a verdict."""
    file = tmp_path_factory.mktemp("suite") / "short.jsonl"
    lines = [{"id": f"p{n}", "messages": [{"role": "user", "content": f"say {n}"}]} for n in range(24)]
    file.write_text("\n".join(json.dumps(line) for line in lines))
    return file


@pytest.fixture
def engine_of(tokenizer_folder) -> Iterator[Callable[..., Sampler]]:
    """The engine of a stand-in, with options; closed with the test."""
    with ExitStack() as open_ones:

        def opened(server: StandIn, **options: object) -> Sampler:
            engine = open_sampler(parse_spec(spec_of(server, tokenizer_folder, **options)))
            open_ones.callback(engine.close)
            return engine

        yield opened


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A random Llama with 256 byte tokens and its GGUF file."""
    from tiny_gguf import tiny_model, write_gguf  # noqa: PLC0415 - torch, only where a real engine is asked

    model = tiny_model()
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(model, path)
    return model, path
