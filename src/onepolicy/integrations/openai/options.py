"""What an `openai:` spec may say."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from onepolicy.engines.http import ServerOptions


class OpenAiOptions(ServerOptions):
    """Options of the engine `openai`."""

    model: str = ""
    """name of the model to ask for; needed only if the server has several"""
    tokenizer: str = ""
    """folder, `tokenizer.json` or GGUF file of the model's tokenizer and chat template; needed unless the server has
    `/tokenize` as vLLM has it"""
    dtype: str = ""
    """of weights and activations; the server does not say"""
    max_logprobs: int = Field(default=5, ge=0)
    """most likely tokens that the server lists at most; OpenAI's own limit is 5"""
    score: Literal["echo", "stepping"] = "echo"
    """echo: the logprobs of an echoed prompt, where the server gives them. stepping: one request for each token that is
    scored; a token that the server does not list has no logprob then"""
