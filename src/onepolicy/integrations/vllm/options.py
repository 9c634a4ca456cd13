"""What a `vllm:` spec may say."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from onepolicy.engines.http import ServerOptions
from onepolicy.engines.legs import LegChange


class VllmOptions(ServerOptions):
    """Options of the engine `vllm`."""

    model: str = ""
    """name of the model or adapter to ask for; needed only if the server has several"""
    tokenizer: str = ""
    """folder, `tokenizer.json` or GGUF file of the tokenizer, for the token checks; the server's own folder if it can
    be read from here"""
    dtype: str = ""
    """of weights and activations, where the server does not say (only its developer mode does)"""
    max_logprobs: int = Field(default=20, ge=0)
    """what the server was started with (--max-logprobs); lists for the other side's tokens are cut to it"""
    cache: Literal["cold", "warm"] | None = None
    """score with one request for each token: nothing before it from the prefix cache, or all blocks that it has"""

    def legs(self, target: str) -> dict[str, LegChange | str]:
        """Beside those of every server: the prefix cache."""
        finer = "`warm` reads every token after a prefix from the cache, which is finer than turn by turn"
        warm = LegChange(options={"cache": "warm"}, base={"cache": "cold"})
        return super().legs(target) | {"warm": warm, "turns": finer}
