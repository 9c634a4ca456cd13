"""An engine that answers something else than it was asked ends the recording; nothing of the answer is kept."""

from dataclasses import replace

import numpy as np
import pytest

from onepolicy.engines.spec import parse_spec
from onepolicy.errors import AlignmentError, EngineError, RunError
from onepolicy.integrations.fake.engine import FakeEngine
from onepolicy.integrations.fake.options import FakeOptions
from onepolicy.records import run as run_module
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.run import Run
from onepolicy.records.tokens import TokenState
from onepolicy.suites import load_suite
from onepolicy.workflow.plan import Shard
from onepolicy.workflow.progress import Silent
from onepolicy.workflow.record import RecordRequest, record, record_with


class Answers(FakeEngine):
    """A sampler whose answers are changed on their way."""

    def __init__(self, change) -> None:
        super().__init__(FakeOptions(batch_size=4))
        self._change = change

    def sample(self, batch, protocol, wanted):
        return self._change(super().sample(batch, protocol, wanted))


def third(change):
    """Change the third completion of a batch."""
    return lambda completions: [*completions[:2], change(completions[2]), *completions[3:]]


def without_tokens(one):
    return replace(one, token_ids=one.token_ids[:0], logprobs=one.logprobs[:0], states=one.states[:0])


def without_number(one):
    logprobs = one.logprobs.copy()
    logprobs[0] = np.nan
    return replace(one, logprobs=logprobs, states=np.full(len(logprobs), TokenState.VALUE, dtype=np.uint8))


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (third(without_tokens), EngineError, "rollout quick-003/0 came back with no token at all"),
        (third(lambda one: replace(one, logprobs=one.logprobs[1:])), EngineError, "quick-003/0 .* tokens, .* logprobs"),
        (third(lambda one: replace(one, states=one.states[1:])), EngineError, "quick-003/0 .* logprobs and .* states"),
        (third(lambda one: replace(one, rollout_id="other")), EngineError, "was asked for the rollouts .*'other'"),
        (third(without_number), AlignmentError, "rollout quick-003/0: a position has the state VALUE and no number"),
        (lambda completions: completions[1:], EngineError, "was asked for the rollouts"),
    ],
)
def test_an_answer_that_does_not_fit_is_an_error_that_names_the_rollout(change, kind, message, tmp_path):
    request = RecordRequest(engine=parse_spec("fake:m?batch_size=4"), protocol=SamplingProtocol(max_new_tokens=8))
    with pytest.raises(kind, match=message):
        record_with(Answers(change), tmp_path / "run", request, load_suite("quick"), resume=False, progress=Silent())
    assert Run.open(tmp_path / "run").rollout_ids() == []
    assert not Run.open(tmp_path / "run").reading_parts("rollout")


def test_a_whole_and_a_shard_of_it_are_not_written_at_once(tmp_path):
    run = record(tmp_path / "run", RecordRequest(engine=parse_spec("fake:m"), budget=640))
    with run.writing("rollouts", shard="1/2"), run.writing("rollouts", shard="2/2"):
        for other in ("1/1", "1/2"):
            with pytest.raises(RunError, match="another process is writing"), run.writing("rollouts", shard=other):
                pass
    with (
        run.writing("rollouts"),
        pytest.raises(RunError, match="another process"),
        run.writing("rollouts", shard="1/2"),
    ):
        pass


def test_a_run_that_another_shard_starts_in_this_very_moment_is_gone_on_with(tmp_path, monkeypatch):
    """The manifest may appear between looking for it and looking at what else the folder holds."""
    request, looked = RecordRequest(engine=parse_spec("fake:m"), budget=640, shard=Shard(index=0, count=2)), []
    is_unused = run_module._is_unused

    def looks_while_another_starts(path):
        if not looked:
            looked.append(path)
            record(path, replace(request, shard=Shard(index=1, count=2)), resume=True)
        return is_unused(path)

    (tmp_path / "run").mkdir()
    monkeypatch.setattr(run_module, "_is_unused", looks_while_another_starts)
    run = record(tmp_path / "run", request, resume=True)
    assert run.manifest.status == "complete"
