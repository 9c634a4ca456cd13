"""`manifest.json`: what a run is and what was asked of it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from onepolicy.records.protocol import SamplingProtocol, Strict

FORMAT_VERSION = 1


class Manifest(Strict):
    """Written when recording starts, and again, atomically, when it is complete."""

    format_version: int = FORMAT_VERSION
    tool_version: str
    status: Literal["recording", "complete"]
    kind: Literal["fresh", "fixed"]
    """fresh: completions were sampled for this run. fixed: they came with the suite"""
    suite: str
    suite_hash: str
    protocol: SamplingProtocol
    rollout_engine: str
    """spec string of the engine that sampled, or whose tokenizer encoded the fixed sequences"""
    planned_rollouts: int = Field(ge=0)
    keeps_text: bool = True
