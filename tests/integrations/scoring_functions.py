"""Functions that a user brings, in a file, and sequences to score with them."""

import textwrap
from pathlib import Path

import numpy as np
import pytest

from onepolicy.engines.contract import ScoreInput, Wanted
from onepolicy.engines.spec import EngineSpec
from onepolicy.errors import EngineError
from onepolicy.integrations.callable.engine import CallableEngine
from onepolicy.integrations.callable.function import UserFunction

NUMBERS = Wanted()
BATCH = [[5, 6, 7], [8, 9]]


def sequences(*many: list[int]) -> list[ScoreInput]:
    return [
        ScoreInput(rollout_id=f"r-{number}", token_ids=np.int32(ids), wanted=np.ones(len(ids), bool))
        for number, ids in enumerate(many)
    ]


def engine_of(call) -> CallableEngine:
    return CallableEngine(UserFunction(name="my:score", call=call), target="my:score")


def score(call, wanted: Wanted = NUMBERS):
    return engine_of(call).score(sequences(*BATCH), wanted)


def error_of(call) -> str:
    with pytest.raises(EngineError) as caught:
        score(call)
    return str(caught.value)


def file_with(folder: Path, code: str) -> str:
    path = folder / "scoring.py"
    path.write_text(textwrap.dedent(code))
    return str(path)


def spec_of(folder: Path, code: str, **options: str) -> EngineSpec:
    return EngineSpec(engine="callable", target=f"{file_with(folder, code)}:score", options=options)
