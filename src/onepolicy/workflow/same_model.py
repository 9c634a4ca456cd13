"""A reading is of one model: the one that answers is asked, again and again, whether it still is that one."""

from __future__ import annotations

import numpy as np

from onepolicy.engines.contract import Engine, Replaceable
from onepolicy.errors import EngineError
from onepolicy.records.canary import MOST_MEAN_D, Canary
from onepolicy.records.run import Run
from onepolicy.records.tokens import IntArray


def canary_of(engine: Engine, token_ids: IntArray | None) -> Canary | None:
    """What an engine says of some ids; None if its model cannot become another one, or there are no ids."""
    if not isinstance(engine, Replaceable) or token_ids is None:
        return None
    return engine.canary(token_ids)


def canary_ids(run: Run) -> IntArray | None:
    """Ids to ask for: those of a canary that the run has, so that all its readings can be held together."""
    for name in run.reading_names():
        known = run.reading_info(name).canary
        if known is not None and known.logprobs:  # one that holds nothing would notice nothing
            return np.asarray(known.token_ids, dtype=np.int32)
    return next((rollout.token_ids for rollout in run.rollouts()), None)


class SameModel:
    """Compares an engine with the canary that a reading keeps.

    of_versions: whether what is computed says which weight version it is of, so that a new version that the engine
    names is no fault: the numbers are kept apart by it.
    """

    def __init__(self, engine: Engine, began: Canary | None, *, of_versions: bool) -> None:
        self._engine = engine
        self._known = began
        self._of_versions = of_versions

    def check(self) -> None:
        """Raise EngineError if another model answers than the reading began with."""
        if self._known is None:
            return
        now = canary_of(self._engine, np.asarray(self._known.token_ids, dtype=np.int32))
        if now is None:
            return
        if now.weight_version != self._known.weight_version:
            if not self._of_versions:
                raise EngineError(_other_version(self._engine, self._known, now))
            self._known = now
        elif not self._known.is_of_the_model_of(now):
            raise EngineError(_other_model(self._engine, self._known, now))


def _other_version(engine: Engine, known: Canary, now: Canary) -> str:
    return (
        f"{engine.info.name} ({engine.info.model}): its weights were {known.weight_version!r} when this reading began "
        f"and are {now.weight_version!r} now. A reading is of one model: score with the first weights, or make "
        "another one (--name). What was finished before is kept."
    )


def _other_model(engine: Engine, known: Canary, now: Canary) -> str:
    return (
        f"{engine.info.name} ({engine.info.model}): another model answers than the one that this reading began with: "
        f"the logprobs of the same {len(known.token_ids)} ids differ by {known.mean_abs_d(now):.2g} nats in the mean, "
        f"and one model repeats them to less than {MOST_MEAN_D:g}. Was the server restarted with other weights, or are "
        "there several behind this URL? Go on with the first model and --resume, or begin another run."
    )
