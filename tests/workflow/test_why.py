"""A check that fails says why: kept beside its judgement, at the top of its report, and never in place of it."""

from pathlib import Path

import pytest

import onepolicy
from onepolicy.engines.spec import parse_spec
from onepolicy.errors import EngineError
from onepolicy.judgement.limits import Limits
from onepolicy.records.finding import Diagnosis, Outcome
from onepolicy.records.run import Run
from onepolicy.records.verdict import Judgement, Status
from onepolicy.workflow import why as of_why
from onepolicy.workflow.diagnose import DiagnoseRequest, diagnose
from onepolicy.workflow.judge import JudgeRequest, judge, stored_html
from onepolicy.workflow.record import RecordRequest, record
from onepolicy.workflow.score import ScoreRequest, score
from onepolicy.workflow.why import keep_diagnosis, why

STALE = "fake:m?seed=1"
"""the rollout engine has other weights than the trainer"""
SHORT = onepolicy.SamplingProtocol(max_new_tokens=24)
WHY = '<section class="why"'


class Notes:
    """Keeps what a step tells."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def start(self, title: str, total: int, unit: str = "rollouts") -> None:
        pass

    def advance(self, count: int) -> None:
        pass

    def note(self, message: str) -> None:
        self.told.append(message)


def checked(path: Path, *, rollout: str = STALE, **options: object) -> Judgement:
    options = {"weights": {"step 0": STALE}, **options}
    return onepolicy.check(rollout=rollout, trainer="fake:m", run=path, protocol=SHORT, **options)


def page(path: Path, name: str = "default") -> str:
    return (path / "judgements" / name / "report.html").read_text(encoding="utf-8")


def kept(path: Path, name: str = "default") -> Diagnosis | None:
    return Run.open(path).diagnosis(name)


@pytest.fixture
def run(tmp_path) -> Path:
    checked(tmp_path / "run")
    return tmp_path / "run"


def without_why(path: Path) -> Path:
    assert checked(path, why=False).status is Status.FAIL
    return path


def test_a_check_that_fails_keeps_the_cause_beside_its_judgement(run):
    found = kept(run)
    assert (found.causes[0].cause, found.causes[0].outcome) == ("stale weights", Outcome.CAUSE)
    assert found.sentence.startswith("Cause: the rollout side has the weights of step 0")


def test_its_report_has_the_answer_above_everything_but_the_verdict(run):
    text = page(run)
    assert text.count(WHY) == 1
    assert text.index('<section class="verdict fail"') < text.index(WHY) < text.index("<h2>Why it matters</h2>")
    assert stored_html(run, "default") == text


def test_the_judgement_is_the_same_with_and_without(run, tmp_path):
    other = without_why(tmp_path / "other")
    mine, theirs = (Run.open(path).judgement("default") for path in (run, other))
    assert mine.model_copy(update={"run": ""}) == theirs.model_copy(update={"run": ""})


def test_nothing_is_looked_for_if_nobody_wants_to_know(tmp_path):
    path = without_why(tmp_path / "run")
    assert kept(path) is None
    assert WHY not in page(path)


def test_a_check_that_passes_has_nothing_to_explain(tmp_path):
    assert checked(tmp_path / "run", rollout="fake:m").status is Status.PASS
    assert kept(tmp_path / "run") is None


def test_a_judgement_that_does_not_fail_is_not_looked_into(run):
    loose = Run.open(run).judgement("default").model_copy(update={"status": Status.UNKNOWN})
    assert why(run, loose) is None


def test_a_judgement_made_anew_does_not_show_an_earlier_diagnosis(run):
    judge(run)
    assert kept(run) is None
    assert WHY not in page(run)
    assert WHY not in stored_html(run, "default")


def test_a_judgement_made_anew_on_other_readings_does_not_show_it_either(run):
    score(run, ScoreRequest(engine=parse_spec(STALE), name="same"))
    assert judge(run, JudgeRequest(trainer="same")).status is Status.PASS
    assert kept(run) is None


def test_a_judgement_of_another_name_leaves_it_where_it_is(run):
    judge(run, JudgeRequest(name="loose", limits=Limits(mean_kl=10)))
    assert kept(run) is not None
    assert kept(run, "loose") is None


def test_a_diagnosis_is_kept_beside_every_judgement_on_its_readings_and_no_other(tmp_path):
    path = without_why(tmp_path / "run")
    score(path, ScoreRequest(engine=parse_spec(STALE), name="same"))
    judge(path, JudgeRequest(name="loose", limits=Limits(mean_kl=10)))
    judge(path, JudgeRequest(name="other", trainer="same"))
    found = diagnose(path, DiagnoseRequest(experiments=False))
    assert keep_diagnosis(path, found) == ["default", "loose"]
    assert [kept(path, name) for name in ("default", "loose", "other")] == [found, found, None]
    assert [WHY in page(path, name) for name in ("default", "loose", "other")] == [True, True, False]
    assert [stored_html(path, name) == page(path, name) for name in ("default", "loose", "other")] == [True] * 3


def test_what_goes_wrong_in_the_diagnosis_is_a_note_and_leaves_the_judgement(tmp_path):
    record(tmp_path / "run", RecordRequest(engine=parse_spec("fake:m"), protocol=SHORT))
    score(tmp_path / "run", ScoreRequest(engine=parse_spec("fake:m?offset=1000")))  # no number is a logprob
    judgement, notes = judge(tmp_path / "run"), Notes()
    assert judgement.status is Status.FAIL
    assert why(tmp_path / "run", judgement, progress=notes) is None
    assert "no token has a logprob on both sides" in notes.told[-1]
    assert kept(tmp_path / "run") is None
    assert Run.open(tmp_path / "run").judgement("default") == judgement


def test_weights_that_cannot_be_opened_leave_the_judgement(tmp_path):
    assert checked(tmp_path / "run", weights={"step 0": "fake:m?nonsense=1"}).status is Status.FAIL


def test_a_bug_in_the_diagnosis_is_no_note(run, monkeypatch):
    def breaks(*_: object, **__: object) -> Diagnosis:
        raise ZeroDivisionError

    monkeypatch.setattr(of_why, "diagnose", breaks)
    with pytest.raises(ZeroDivisionError):
        why(run, Run.open(run).judgement("default"))


def test_a_judgement_that_was_changed_by_hand_keeps_no_diagnosis(tmp_path):
    path, notes = without_why(tmp_path / "run"), Notes()
    stored = Run.open(path).judgement("default")
    Run.open(path).write_judgement("default", stored.model_copy(update={"sentence": "Fail: so it is."}))
    assert keep_diagnosis(path, diagnose(path, DiagnoseRequest(experiments=False)), progress=notes) == []
    assert notes.told[-1].startswith("the diagnosis is not kept in the run:")
    assert kept(path) is None


def test_other_weights_that_are_no_engine_are_refused_before_anything_is_sampled(tmp_path):
    with pytest.raises((EngineError, onepolicy.UsageError)):
        checked(tmp_path / "run", weights={"step 0": "no engine"})
    assert not (tmp_path / "run").exists()
