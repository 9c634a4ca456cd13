"""The legs of both sides of a comparison, and the step from one to the other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from onepolicy.engines.spec import EngineSpec
from onepolicy.integrations import open_engine
from onepolicy.judgement.limits import Limits
from onepolicy.numerics.legs.ladder import Ladder
from onepolicy.workflow.legs import LegsRequest, legs
from onepolicy.workflow.progress import Progress, Silent
from onepolicy.workflow.record import ROLLOUT
from onepolicy.workflow.score import TRAINER

OTHER = "trainer"
"""the leg from the rollout side's prefill to the trainer's"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRequest:
    """Two engines that were compared on a run."""

    rollout: EngineSpec
    trainer: EngineSpec
    limits: Limits = Limits()
    limits_name: str = "strict"
    without: tuple[str, ...] = ()
    """legs that are left out on both sides"""


def legs_of_pair(request: PairRequest, *, path: Path, progress: Progress | None = None) -> tuple[Ladder, ...]:
    """Climb the rollout side's legs, the trainer's prefill last, and then the trainer's own.

    The ladders are called `legs-rollout` and `legs-trainer` in the run. A rollout side that cannot score has none.
    Waivers of the limits are of checks on the pair and hold for no leg.

    path: of the run on which the two were compared.
    Raises: EngineError, RunError, UsageError.
    """
    limits = request.limits.model_copy(update={"waivers": ()})
    shown = progress or Silent()
    sides = [("trainer", request.trainer)]
    if _scores(request.rollout):
        sides.insert(0, ("rollout", request.rollout))
    return tuple(
        legs(
            LegsRequest(
                engine=spec,
                against={OTHER: request.trainer} if side == "rollout" else {},
                without=request.without,
                limits=limits,
                limits_name=request.limits_name,
                name=f"legs-{side}",
                floor_of=(ROLLOUT, TRAINER),
            ),
            path=path,
            progress=shown,
        )
        for side, spec in sides
    )


def _scores(spec: EngineSpec) -> bool:
    engine = open_engine(spec)
    try:
        return engine.scores
    finally:
        engine.close()
