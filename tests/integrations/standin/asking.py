"""What tests ask of an engine, and its spec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from onepolicy.engines.contract import SampleInput, ScoreInput
from standin.openai import OpenAi
from standin.server import StandIn


def spec_of(server: StandIn, tokenizer_folder: Path, **options: object) -> dict[str, object]:
    """The spec of a stand-in's engine. Nothing is tried again, so that a fault shows at once."""
    kind = type(server.dialect).__name__.lower()
    lacks = kind == "trtllm" or (isinstance(server.dialect, OpenAi) and not server.dialect.tokenizes)
    needs = {"tokenizer": str(tokenizer_folder)} if lacks else {}
    return {"engine": kind, "target": server.url, "retries": 0, **needs, **options}


def asked(*ids: int, seed: int = 1, name: str = "r") -> SampleInput:
    """A prompt to complete."""
    return SampleInput(rollout_id=name, prompt_ids=np.asarray(ids, dtype=np.int32), seed=seed)


def given(*ids: int, start: int = 1, report: Any = None) -> ScoreInput:
    """A sequence to score from `start` on."""
    token_ids = np.asarray(ids, dtype=np.int32)
    return ScoreInput(rollout_id="r", token_ids=token_ids, wanted=np.arange(len(ids)) >= start, report=report)
