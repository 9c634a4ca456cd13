"""What an engine is handed when a run is scored."""

import json
from concurrent.futures import Future

from onepolicy.engines.spec import parse_spec
from onepolicy.integrations.fake.engine import FakeEngine
from onepolicy.integrations.fake.options import FakeOptions
from onepolicy.workflow import score as score_module
from onepolicy.workflow.progress import Silent
from onepolicy.workflow.record import RecordRequest, record
from onepolicy.workflow.score import ScoreRequest, score_with

FAKE = parse_spec("fake:m")


class Seen(FakeEngine):
    """Keeps the lengths of each batch."""

    def __init__(self) -> None:
        super().__init__(FakeOptions(batch_size=4))
        self.batches = []

    def score(self, batch, wanted):
        self.batches.append([len(item.token_ids) for item in batch])
        return super().score(batch, wanted)


class AtOnce(Seen):
    """Answers each sequence by itself, as a server does."""

    concurrency = 4

    def submit_score(self, item, wanted):
        future: Future = Future()
        future.set_result(self.score([item], wanted)[0])
        return future

    submit_sample = submit_score


def recorded(tmp_path):
    words = [3, 40, 5, 7, 60, 2, 50, 9, 1, 1, 90, 2]
    lines = [{"id": f"s{i:02}", "prompt": "Say: ", "completion": "word " * count} for i, count in enumerate(words)]
    (tmp_path / "suite.jsonl").write_text("\n".join(map(json.dumps, lines)))
    run = record(tmp_path / "run", RecordRequest(engine=FAKE, suite=str(tmp_path / "suite.jsonl")))
    return run, [len(rollout.token_ids) for rollout in run.rollouts()]


def test_batches_are_of_sequences_of_about_one_length_and_windows_stay_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(score_module, "WINDOW", 2)
    run, lengths = recorded(tmp_path)
    engine = Seen()
    score_with(engine, run, ScoreRequest(engine=FAKE, name="again"), progress=Silent())
    expected = sorted(lengths[:8], reverse=True) + sorted(lengths[8:], reverse=True)
    assert engine.batches == [expected[i : i + 4] for i in (0, 4, 8)]


def test_a_server_pads_nothing_and_is_asked_in_the_order_of_the_run(tmp_path):
    run, lengths = recorded(tmp_path)
    engine = AtOnce()
    score_with(engine, run, ScoreRequest(engine=FAKE, name="again"), progress=Silent())
    assert engine.batches == [[length] for length in lengths]
