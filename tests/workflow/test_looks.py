"""A run that grows is looked at again; the looks are kept in the run, and what was recorded is left as it is."""

from dataclasses import replace
from pathlib import Path

import pytest

import onepolicy
from onepolicy.engines.spec import parse_spec
from onepolicy.errors import RunError, UsageError
from onepolicy.judgement.limits import Limits, MetricLimit
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.run import Run
from onepolicy.records.verdict import Status
from onepolicy.suites import load_suite
from onepolicy.workflow.check import CheckRequest, check
from onepolicy.workflow.judge import JudgeRequest, judge
from onepolicy.workflow.plan import Shard
from onepolicy.workflow.record import RecordRequest, record
from onepolicy.workflow.score import ScoreRequest, score

FAKE = parse_spec("fake:m")
NOISY = parse_spec("fake:m?noise=0.005")


def grown(path: Path, *, prompts: int, extend: bool, suite: str = "standard"):
    request = CheckRequest(
        rollout=FAKE,
        trainer=NOISY,
        suite=suite,
        protocol=SamplingProtocol(max_new_tokens=8),
        budget=8 * prompts,
        extend=extend,
    )
    return check(request, path=path)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.glob("**/part-*.parquet")}


def test_a_run_that_is_extended_keeps_what_it_has_and_counts_the_looks(tmp_path):
    first = grown(tmp_path / "run", prompts=20, extend=False)
    before = content(tmp_path / "run")
    second = grown(tmp_path / "run", prompts=50, extend=True)
    after = content(tmp_path / "run")
    assert (first.look, second.look) == (1, 2)
    assert (first.counts["prompt_groups"], second.counts["prompt_groups"]) == (20, 50)
    assert before.items() <= after.items()
    assert "98.5 % upper bound, look 2" in next(v.message for v in second.verdicts if v.check == "mean_kl")


def test_judging_the_same_data_again_is_the_same_look_whatever_the_limits(tmp_path):
    grown(tmp_path / "run", prompts=20, extend=False)
    again = [
        judge(tmp_path / "run", JudgeRequest(limits=Limits(mean_kl=limit), name=f"{i}"))
        for i, limit in enumerate((1e-6, 1e-3))
    ]
    assert [judgement.look for judgement in again] == [1, 1]
    assert len(Run.open(tmp_path / "run").looks().seen) == 1


def test_the_fourth_look_does_not_pass_what_the_third_did(tmp_path):
    looks = [grown(tmp_path / "run", prompts=24 + 10 * i, extend=i > 0) for i in range(4)]
    assert [judgement.look for judgement in looks] == [1, 2, 3, 4]
    assert [judgement.status for judgement in looks] == [Status.PASS] * 3 + [Status.UNKNOWN]
    assert "Record a new run" in looks[3].sentence


def test_a_run_with_gaps_cannot_pass_and_is_no_look(tmp_path):
    path = tmp_path / "run"
    record(path, RecordRequest(engine=FAKE, budget=640))
    score(path, ScoreRequest(engine=FAKE))
    record(path, RecordRequest(engine=FAKE, budget=1280, extend=True))
    assert judge(path).status is Status.UNKNOWN
    assert not Run.open(path).looks().seen


def test_another_suite_adds_its_prompts(tmp_path):
    grown(tmp_path / "run", prompts=20, extend=False, suite="quick")
    judgement = grown(tmp_path / "run", prompts=30, extend=True, suite="standard")
    manifest = Run.open(tmp_path / "run").manifest
    assert judgement.counts["prompt_groups"] == 30
    assert (manifest.suite, manifest.earlier_suites) == ("standard", {"quick": load_suite("quick").hash})


@pytest.mark.parametrize("extend", [True, False])
def test_an_extension_that_was_begun_is_gone_on_with_by_extend_and_by_resume(tmp_path, extend):
    path, small = tmp_path / "run", RecordRequest(engine=FAKE, budget=640)
    record(path, small)
    large = RecordRequest(engine=FAKE, budget=1920, extend=True)
    run = record(path, large)
    undisturbed = sorted(run.rollout_ids())
    newest = sorted((path / "rollouts").glob("part-*"), key=lambda part: part.stat().st_mtime_ns)[-1]
    newest.unlink()
    Run(path, run.manifest.model_copy(update={"status": "recording"}))._write_manifest()
    again = record(path, replace(large, extend=extend), resume=not extend)
    assert again.manifest.status == "complete"
    assert sorted(again.rollout_ids()) == undisturbed


def test_a_run_that_is_not_complete_is_finished_before_it_is_extended(tmp_path):
    path = tmp_path / "run"
    run = record(path, RecordRequest(engine=FAKE, budget=640))
    next((path / "rollouts").glob("part-*")).unlink()
    Run(path, run.manifest.model_copy(update={"status": "recording"}))._write_manifest()
    with pytest.raises(RunError, match="planned_rollouts = 10"):
        record(path, RecordRequest(engine=FAKE, budget=1280, extend=True))


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        (RecordRequest(engine=FAKE, protocol=SamplingProtocol(temperature=0.5), extend=True), RunError, "temperature"),
        (RecordRequest(engine=NOISY, extend=True), RunError, "rollout_engine"),
        (RecordRequest(engine=FAKE, suite="fixed-quick", extend=True), UsageError, "no sample that could grow"),
    ],
)
def test_an_extension_asks_for_the_same_but_more(request_, error, message, tmp_path):
    record(tmp_path / "run", RecordRequest(engine=FAKE, budget=640))
    with pytest.raises(error, match=message):
        record(tmp_path / "run", request_)


def test_nothing_is_extended_where_there_is_no_run(tmp_path):
    with pytest.raises(RunError, match="no run here"):
        record(tmp_path / "run", RecordRequest(engine=FAKE, extend=True))
    with pytest.raises(UsageError, match="--extend need"):
        check(CheckRequest(rollout=FAKE, trainer=FAKE, extend=True))


def test_shards_extend_to_one_and_the_same_plan(tmp_path):
    path = tmp_path / "run"
    record(path, RecordRequest(engine=FAKE, budget=640))
    for shard in ("1/2", "2/2"):
        run = record(path, RecordRequest(engine=FAKE, budget=1920, extend=True, shard=Shard.parse(shard)))
    assert run.manifest.status == "complete"
    assert len(set(run.rollout_ids())) == 30


def test_a_prompt_of_another_suite_under_an_id_that_was_used_is_refused(tmp_path):
    for name, words in (("one", "Hello"), ("two", "Goodbye")):
        lines = [f'{{"id": "p{i}", "messages": [{{"role": "user", "content": "{words} {i}"}}]}}' for i in range(3)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    path = tmp_path / "run"
    record(path, RecordRequest(engine=FAKE, suite=str(tmp_path / "one.jsonl")))
    with pytest.raises(RunError, match=r"has a prompt 'p0' of .*one.* has another one"):
        record(path, RecordRequest(engine=FAKE, suite=str(tmp_path / "two.jsonl"), extend=True))


def test_scoring_a_grown_run_under_another_name_is_another_look_all_the_same(tmp_path):
    path = tmp_path / "run"
    looks = []
    for number, prompts in enumerate((20, 30, 40)):
        record(path, RecordRequest(engine=FAKE, budget=64 * prompts, extend=number > 0))
        score(path, ScoreRequest(engine=NOISY, name=f"t{number}"))
        looks.append(judge(path, JudgeRequest(trainer=f"t{number}")).look)
    assert looks == [1, 2, 3]


def test_judging_through_python_is_a_look_too(tmp_path):
    path = tmp_path / "run"
    looks = []
    for number, prompts in enumerate((20, 30, 40)):
        record(path, RecordRequest(engine=FAKE, budget=64 * prompts, extend=number > 0))
        score(path, ScoreRequest(engine=NOISY, resume=True))
        sides = [onepolicy.StoredReading(run=Run.open(path), name=name) for name in ("rollout", "trainer")]
        looks.append(onepolicy.compare(rollout=sides[0], trainer=sides[1]).look)
    assert looks == [1, 2, 3]


def test_one_further_trainer_named_twice_is_refused_before_anything_is_computed(tmp_path):
    with pytest.raises(UsageError, match="names fake:m twice"):
        check(CheckRequest(rollout=FAKE, trainer=FAKE, also=(FAKE, FAKE)), path=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_limit_on_no_metric_is_refused_before_anything_is_computed(tmp_path):
    limits = Limits(metrics={"mean_kl": MetricLimit(at_most=1.0)})
    with pytest.raises(UsageError, match="the metric 'mean_kl', which there is not"):
        check(CheckRequest(rollout=FAKE, trainer=FAKE, limits=limits), path=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_spec_that_is_not_utf8_is_refused():
    with pytest.raises(UsageError, match="is not UTF-8"):
        parse_spec("fake:\udcff")
