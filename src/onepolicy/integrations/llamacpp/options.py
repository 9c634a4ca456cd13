"""What a `llamacpp:` spec may say."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field

from onepolicy.engines.http import ServerOptions
from onepolicy.engines.legs import LegChange, server_legs
from onepolicy.engines.requests import is_url
from onepolicy.errors import UsageError

OF_A_FILE = frozenset({"ctx", "parallel", "threads"})
"""options of a server that is started here"""
OF_A_URL = frozenset({"concurrency", "retries", "key_env", "dtype"})
"""options of one that is already running"""


class LlamaCppOptions(ServerOptions):
    """Options of the engine `llamacpp`. Of a file: ctx, parallel, threads. Of a URL: concurrency, retries, key_env."""

    ctx: int = Field(default=4096, ge=1)
    """most tokens of a prompt and its completion together; the model's own limit counts if it is lower"""
    parallel: int = Field(default=4, ge=1)
    """how many requests the server decodes together"""
    threads: int | None = Field(default=None, ge=1)
    """of the server; as many as there are CPUs if not given"""
    tokenizer: str = ""
    """folder, `tokenizer.json` or GGUF file of the tokenizer, for the token checks"""
    dtype: str = ""
    """of the weights, where the server does not say"""
    cache: Literal["cold", "warm"] | None = None
    """when scoring: compute all before each token anew, or go on from the last one's cache; what came from it is
    counted"""

    def legs(self, target: str) -> dict[str, LegChange | str]:
        """Beside those of every server: each token's own prefill, from nothing."""
        option, at_once = ("concurrency", self.concurrency) if is_url(target) else ("parallel", self.parallel)
        cold = {"cache": "cold"}
        return server_legs(concurrency=at_once, option=option) | {
            "decode": LegChange(options=cold),
            "warm": LegChange(options={"cache": "warm"}, base=cold),
            "turns": "its plain reading goes on from the cache at every token, which is finer than turn by turn",
        }

    def of_file(self) -> Self:
        """As they are for a server in this process, which takes as many requests as it decodes together."""
        self._refuse(OF_A_URL, "belong to a server at a URL; for a GGUF file give ctx, parallel and threads")
        return self.model_copy(update={"concurrency": self.parallel, "retries": 0})

    def of_url(self) -> Self:
        """As they are for a server that is already running."""
        self._refuse(OF_A_FILE, "are decided when llama-server is started (-c, -np, -t), not by who asks it")
        return self

    def _refuse(self, names: frozenset[str], why: str) -> None:
        given = sorted(names & self.model_fields_set)
        if given:
            raise UsageError(f"llamacpp: the options {', '.join(sorted(names))} {why}. Leave out {', '.join(given)}.")
