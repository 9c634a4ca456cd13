"""A model that is written down, and a server that samples otherwise than it is asked to.

The model is a table: the logits of the next token follow from the last one. Columns of it go through
`onepolicy.compare`, so no engine of the project has a part in them. The server is the fake engine under another
protocol than the run's; its logprobs are raw, as a server's are that takes defaults from a model's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onepolicy.engines.spec import parse_spec
from onepolicy.integrations.fake.engine import FakeEngine
from onepolicy.records.protocol import Meaning, SamplingProtocol
from onepolicy.records.verdict import Judgement, Verdict
from onepolicy.suites import load_suite
from onepolicy.workflow.judge import judge
from onepolicy.workflow.progress import Silent
from onepolicy.workflow.record import RecordRequest, record_with
from onepolicy.workflow.score import ScoreRequest, score

VOCABULARY, ROLLOUTS, LENGTH = 40, 48, 40
Process = Callable[[np.ndarray, Sequence[int]], np.ndarray]
"""[V] logits and the ids before -> [V] logits that are drawn from"""


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


class Table:
    """Draws and scores by enumeration."""

    def __init__(self) -> None:
        self.logits = 2.0 * np.random.default_rng(7).standard_normal((VOCABULARY, VOCABULARY))

    def draw(self, process: Process, *, seed: int = 0) -> list[list[int]]:
        """Rollouts, the first id of each is its prompt."""
        rng = np.random.default_rng(seed)
        rollouts = []
        for number in range(ROLLOUTS):
            ids = [number % VOCABULARY]
            while len(ids) <= LENGTH:
                probabilities = np.exp(log_softmax(process(self.logits[ids[-1]], ids)))
                ids.append(int(rng.choice(VOCABULARY, p=probabilities)))
            rollouts.append(ids)
        return rollouts

    def rows(self, ids: Sequence[int], process: Process) -> np.ndarray:
        """[LENGTH, V] logprobs of each step."""
        return np.array(
            [log_softmax(process(self.logits[ids[at - 1]], ids[:at])) for at in range(1, len(ids))], dtype=np.float64
        )

    def logprobs(self, rollouts: Sequence[Sequence[int]], process: Process) -> list[np.ndarray]:
        """Of the drawn tokens."""
        return [self.rows(ids, process)[np.arange(len(ids) - 1), ids[1:]] for ids in rollouts]


def plain(logits: np.ndarray, before: Sequence[int]) -> np.ndarray:
    return logits


def at_temperature(value: float) -> Process:
    return lambda logits, before: logits / value


def in_nucleus(mass: float) -> Process:
    def process(logits: np.ndarray, before: Sequence[int]) -> np.ndarray:
        order = np.argsort(-logits)
        probabilities = np.exp(log_softmax(logits))[order]
        outside = order[probabilities.cumsum() - probabilities >= mass]
        kept = logits.copy()
        kept[outside] = -np.inf
        return kept

    return process


def with_penalty(value: float) -> Process:
    def process(logits: np.ndarray, before: Sequence[int]) -> np.ndarray:
        seen = np.unique(before)
        changed = logits.copy()
        changed[seen] = np.where(logits[seen] > 0, logits[seen] / value, logits[seen] * value)
        return changed

    return process


class Server(FakeEngine):
    """Samples under other values than those of the request, and says raw logprobs of what it drew."""

    def __init__(self, changes: dict[str, Any]) -> None:
        super().__init__()
        self._changes = changes

    def sample(self, batch, protocol, wanted):
        return super().sample(batch, protocol.model_copy(update=self._changes), wanted)


def sample_with(server: FakeEngine, path: Path, protocol: SamplingProtocol) -> Path:
    request = RecordRequest(engine=parse_spec("fake:m"), protocol=protocol)
    record_with(server, path, request, load_suite("quick"), resume=False, progress=Silent())
    return path


def scored(path: Path, meaning: Meaning | None = None) -> Judgement:
    score(path, ScoreRequest(engine=parse_spec("fake:m"), meaning=meaning))
    return judge(path)


def verdict_of(judgement: Any, check: str) -> Verdict:
    return next(verdict for verdict in judgement.verdicts if verdict.check == check)


@pytest.fixture(scope="session")
def table() -> Table:
    return Table()


@pytest.fixture(scope="session")
def processes() -> dict[str, Any]:
    return {"plain": plain, "temperature": at_temperature, "nucleus": in_nucleus, "penalty": with_penalty}


@pytest.fixture(scope="session")
def verdict() -> Callable[..., Verdict]:
    return verdict_of


@pytest.fixture(scope="session")
def sampled_by() -> Callable[..., Path]:
    """A run that the protocol describes and a server sampled, whatever it did."""
    return sample_with


@pytest.fixture
def served(tmp_path) -> Callable[..., Path]:
    """A run that the protocol describes and a server with other values sampled."""

    def make(protocol: SamplingProtocol | None = None, **changes: Any) -> Path:
        return sample_with(Server(changes), tmp_path / "served", protocol or SamplingProtocol(max_new_tokens=48))

    return make


@pytest.fixture
def recorded(tmp_path) -> Callable[..., Path]:
    """A run of the fake engine as it is asked for, of the option `logprobs`."""

    def make(logprobs: str, protocol: SamplingProtocol) -> Path:
        spec = parse_spec(f"fake:m?logprobs={logprobs}")
        return sample_with(FakeEngine.open(spec), tmp_path / logprobs, protocol)

    return make


@pytest.fixture(scope="session")
def judged() -> Callable[..., Judgement]:
    """A run scored by the fake engine under its own meaning, or another one, and judged."""
    return scored
