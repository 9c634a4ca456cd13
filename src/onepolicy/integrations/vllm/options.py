"""What a `vllm:` spec may say."""

from __future__ import annotations

from pydantic import Field

from onepolicy.engines.http import ServerOptions


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
