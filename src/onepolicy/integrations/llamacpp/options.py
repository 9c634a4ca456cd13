"""What a `llamacpp:` spec may say."""

from __future__ import annotations

from pydantic import Field

from onepolicy.engines.options import EngineOptions


class LlamaCppOptions(EngineOptions):
    """Options of the engine `llamacpp`."""

    ctx: int = Field(default=4096, ge=1)
    """most tokens of a prompt and its completion together; the model's own limit counts if it is lower"""
    parallel: int = Field(default=4, ge=1)
    """how many requests the server decodes together"""
    threads: int | None = Field(default=None, ge=1)
    """of the server; as many as there are CPUs if not given"""
    batch_size: int = Field(default=8, ge=1)
    """how many prompts are handed over at a time; what is lost at most if the process is killed"""
    timeout: float = Field(default=600.0, gt=0.0)
    """seconds to wait for one completion"""
