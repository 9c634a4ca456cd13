"""Ranks that onepolicy starts itself: N processes that call the user's function in lock step.

Each rank gets the same batch from the parent. Rank 0's answer counts; a batch is done when all ranks are.
"""

from __future__ import annotations

import os

from onepolicy.integrations.callable.batch import Batch
from onepolicy.integrations.callable.channel import Frame
from onepolicy.integrations.callable.group import RankGroup
from onepolicy.integrations.callable.process import RankStart
from onepolicy.records.tokens import Float64

_WORKER = "onepolicy.integrations.callable.worker"


def is_under_torchrun() -> bool:
    """Whether this process is itself one of several ranks; see `onepolicy.integrations.callable.torchrun`."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


class StartedRanks:
    """N processes that hold the user's function. After any failure all of them are ended."""

    def __init__(self, target: str, *, count: int, timeout: float) -> None:
        start = RankStart(module=_WORKER, target=target)
        self._group = RankGroup(start, count=count, timeout=timeout, name=f"callable:{target}")
        ready = self._group.ask(None, "loading")[0]
        self.version = str(ready.header["version"])
        self.takes_temperature = bool(ready.header["takes_temperature"])

    @property
    def process_ids(self) -> list[int]:
        """Of the ranks, in their order; empty once they are ended."""
        return self._group.process_ids

    def score(self, batch: Batch) -> list[Float64]:
        """Rank 0's logprobs, once all ranks are through.

        Raises: EngineError naming the rank that raised, died or took longer than the timeout.
        """
        header = {"rollout_ids": batch.rollout_ids, "temperature": batch.temperature}
        frame = Frame(header=header, arrays=batch.token_ids)
        return list(self._group.ask(frame, f"scoring {batch.label}")[0].arrays)

    def close(self) -> None:
        """End the ranks and wait for them."""
        self._group.close()
