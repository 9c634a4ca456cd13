"""What an `sglang:` spec may say."""

from __future__ import annotations

from pydantic import Field

from onepolicy.engines.http import ServerOptions


class SglangOptions(ServerOptions):
    """Options of the engine `sglang`."""

    tokenizer: str = ""
    """folder, `tokenizer.json` or GGUF file of the tokenizer and its chat template; the server's own folder if it can
    be read from here"""
    dtype: str = ""
    """of weights and activations, where the server only says `auto`"""
    top_logprobs: int = Field(default=100, ge=1)
    """tokens in each list that is asked for when scoring; the other side's most likely tokens are looked up in it"""
