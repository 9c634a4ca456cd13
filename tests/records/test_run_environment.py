"""A reading is of one environment: what goes on in another one would mix the numbers of two engines."""

import pytest

from onepolicy.engines.spec import parse_spec
from onepolicy.errors import RunError
from onepolicy.workflow import score as module
from onepolicy.workflow.record import RecordRequest, record
from onepolicy.workflow.score import ScoreRequest, score

FAKE = parse_spec("fake:m")


def test_a_reading_is_not_gone_on_with_in_another_environment(tmp_path, monkeypatch):
    path = tmp_path / "run"
    record(path, RecordRequest(engine=FAKE, budget=640))
    score(path, ScoreRequest(engine=FAKE))
    record(path, RecordRequest(engine=FAKE, budget=1280, extend=True))
    here = module.environment()
    monkeypatch.setattr(module, "environment", lambda: {**here, "numpy": "0.1"})
    with pytest.raises(RunError, match=f"numpy = '{here['numpy']}', and now '0.1'"):
        score(path, ScoreRequest(engine=FAKE, resume=True))
