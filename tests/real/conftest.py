"""A real vLLM on a CPU, started from the environment that `make vllm-env` builds, and ended by its process id."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]
VLLM = ROOT / ".venv-vllm" / "bin" / "python"
OPTIONS = {
    "served-model-name": "smollm2",
    "dtype": "bfloat16",
    "max-model-len": "2048",
    "max-logprobs": "100",
    "max-num-batched-tokens": "8192",
    "host": "127.0.0.1",
}
SWITCHES = ("--enforce-eager", "--enable-prompt-tokens-details", "--no-enable-chunked-prefill")


CONVERTED = """
import torch
from onepolicy.engines.models import packaged_gguf
from onepolicy.integrations.transformers.convert import converted
print(converted(packaged_gguf("smollm2"), name="smollm2", dtype=torch.bfloat16))
"""
"""in a process of its own: torch is slow to import, and only this fixture needs it"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def vllm(model: Path, log: Path, *options: str, port: int | None = None) -> Iterator[tuple[str, subprocess.Popen]]:
    """A server of a model's folder: its URL and its process."""
    port = port or free_port()
    given = [f"--{name}={value}" for name, value in {**OPTIONS, "model": model, "port": port}.items()]
    command = [VLLM, "-m", "vllm.entrypoints.openai.api_server", *given, *SWITCHES, *options]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_SERVER_DEV_MODE": "1"}
    with log.open("wb") as output:
        server = subprocess.Popen(
            [*map(str, command)], env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            wait_until_healthy(f"http://127.0.0.1:{port}", server, log)
            yield f"http://127.0.0.1:{port}", server
        finally:
            end(server)


def wait_until_healthy(url: str, server: subprocess.Popen, log: Path, *, within: float = 300.0) -> None:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text(errors="replace")[-3000:]
        try:
            if httpx.get(f"{url}/health", timeout=2, trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.5)
    raise AssertionError(f"vLLM is not healthy after {within} s:\n{log.read_text(errors='replace')[-3000:]}")


def end(server: subprocess.Popen, how: signal.Signals = signal.SIGTERM) -> None:
    """End the server and the workers that it started, which are of its process group."""
    if server.poll() is None:
        os.killpg(server.pid, how)
    try:
        server.wait(timeout=30)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(timeout=30)


@pytest.fixture(scope="session")
def start_vllm() -> Callable[..., object]:
    assert VLLM.exists(), "there is no .venv-vllm; build it with: make vllm-env"
    return vllm


@pytest.fixture(scope="session")
def end_server() -> Callable[..., None]:
    return end


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The packaged model as safetensors in bfloat16, as Transformers loads it."""
    done = subprocess.run([sys.executable, "-c", CONVERTED], capture_output=True, text=True, check=True, timeout=300)
    return Path(done.stdout.splitlines()[-1])


@pytest.fixture(scope="session")
def vllm_url(start_vllm, smollm2_folder, tmp_path_factory) -> Iterator[str]:
    """One server for all tests that leave it as it is."""
    with start_vllm(smollm2_folder, tmp_path_factory.mktemp("vllm") / "log") as (url, _):
        yield url
