"""What real servers sample with where a request leaves fields out, and in what two of them differ.

vLLM takes defaults from a generation config and does not say so; llama.cpp has them as start flags and says them. vLLM
has no flag for a stop string, so that one is planted in llama.cpp.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

ONEPOLICY = [sys.executable, "-m", "onepolicy"]
LLAMACPP = """
import json, sys
import xllamacpp
from onepolicy.engines.models import packaged_gguf
params = xllamacpp.CommonParams()
params.model.path = str(packaged_gguf("smollm2"))
params.hostnames, params.port, params.verbosity = ["127.0.0.1"], 0, -1
params.n_parallel, params.n_ctx, params.fit_params, params.n_gpu_layers, params.ui = 1, 2048, False, 0, False
own = json.loads(sys.argv[1])
for name, value in own.pop("sampling").items():
    setattr(params.sampling, name, value)
for name, value in own.items():
    setattr(params, name, value)
served = xllamacpp.Server(params)
print(served.listening_address, flush=True)
sys.stdin.read()
"""
OFF = {"temp": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "penalty_repeat": 1.0}
PLANTED = {"temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.2, "max_new_tokens": 12}
"""of the generation config; the other side has the same top_p and none of the others"""

FEW = "completions=3"
"""of each text; 8 if nothing is said"""


@contextmanager
def llamacpp(**own: object) -> Iterator[str]:
    """A server with these parameters of the start; it ends when its input does."""
    command = [sys.executable, "-c", LLAMACPP, json.dumps(own)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield f"llamacpp:{server.stdout.readline().strip()}"
        server.communicate("")


def answer(*arguments: object) -> tuple[int, dict]:
    command = [*ONEPOLICY, "protocol", *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.stdout[:1] in ("{", "["), done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.fixture(scope="module")
def planted_folder(smollm2_folder, tmp_path_factory) -> Path:
    """The same model with another generation config."""
    folder = tmp_path_factory.mktemp("planted")
    for file in smollm2_folder.iterdir():
        if file.name != "generation_config.json":
            os.link(file.resolve(), folder / file.name)
    own = json.loads((smollm2_folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(own | PLANTED))
    return folder


@pytest.mark.full
def test_a_plain_vllm_and_a_plain_llamacpp_differ_in_nothing_that_matters(vllm_url):
    with llamacpp(sampling=OFF, n_predict=16) as other:
        status, found = answer("diff", f"vllm:{vllm_url}?{FEW}", other)
    assert (status, found["differences"], found["untold"]) == (0, [], [])
    assert found["a"]["sources"]["temperature"].startswith("measured: ")
    assert found["b"]["sources"]["temperature"].startswith("said by ")


@pytest.mark.full
def test_exactly_the_planted_differences_of_two_servers_are_named(start_vllm, planted_folder, tmp_path):
    config = f"--generation-config={planted_folder}"
    other = {**OFF, "temp": 0.9, "top_p": 0.9}
    with (
        start_vllm(planted_folder, tmp_path / "log", config) as (url, _),
        llamacpp(sampling=other, n_predict=200, antiprompt=["\n\n"]) as second,
    ):
        status, found = answer("diff", f"vllm:{url}?{FEW}", second)
    sides = {one["field"]: (one["a"], one["b"]) for one in found["differences"]}
    assert sides == {
        "temperature": (0.7, 0.9),
        "repetition_penalty": (1.2, 1.0),
        "max_new_tokens": (12, 200),
        "stop": ([], ["\n\n"]),
        "processors": (
            ["penalties", "temperature", "top_k", "top_p", "min_p"],
            ["penalties", "top_k", "top_p", "min_p", "temperature"],
        ),
    }
    assert all(one["matters"] for one in found["differences"])
    assert (status, found["untold"], found["a"]["ignored"]) == (1, [], [])
    assert "temperature before top_p" in found["a"]["sources"]["processors"]
