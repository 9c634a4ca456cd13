"""Recorded files -> a run, which is judged as the files are."""

import json

import pytest
from plain_recording import planted, without, write

from onepolicy.errors import DumpError, RunError
from onepolicy.judgement.limits import Limits
from onepolicy.records.run import Run
from onepolicy.records.verdict import Status
from onepolicy.workflow.compare_recorded import compare_recorded
from onepolicy.workflow.import_recorded import ImportRequest, import_recorded
from onepolicy.workflow.judge import JudgeRequest, judge
from onepolicy.workflow.recorded import find_recording

WIDE = Limits(outlier_rate=0.5)


def imported(tmp_path, a, b=None, **options):
    other = None if b is None else find_recording([b])
    return import_recorded(tmp_path / "run", ImportRequest(recording=find_recording([a]), other=other, **options))


def judged(run):
    return judge(run.path, JudgeRequest(limits=WIDE))


def test_an_imported_run_is_judged_as_its_files_are(tmp_path):
    path = write(tmp_path / "a.jsonl", planted(40), step=7)
    run = imported(tmp_path, path)
    judgement, direct = judged(run), compare_recorded(find_recording([path]), limits=WIDE)[0]
    assert judgement.status is direct.status is Status.PASS
    assert judgement.metrics == pytest.approx(direct.metrics, rel=1e-12)
    assert judgement.native == direct.native


def test_what_was_planted_comes_back(tmp_path):
    rows = list(planted(10))
    run = imported(tmp_path, write(tmp_path / "a.jsonl", rows, step=7, weight_version="v7"))
    rollouts = list(run.rollouts())
    assert [r.token_ids.tolist() for r in rollouts] == [[*row["prompt_ids"], *row["completion_ids"]] for row in rows]
    assert [r.sampled.tolist() for r in rollouts] == [[False] * 4 + [True] * 8] * 10
    assert [r.reward for r in rollouts] == [row["reward"] for row in rows]
    assert {r.tags["step"] for r in rollouts} == {"7"}
    assert len({r.prompt_id for r in rollouts}) == 5
    assert {(s.start, s.end, s.weight_version) for s in run.spans()} == {(4, 12, "v7")}
    assert run.manifest.imported.model_dump(include={"format", "read", "used", "refused"}) == {
        "format": "columns",
        "read": 10,
        "used": 10,
        "refused": 0,
    }


def test_refused_rows_add_up_and_no_judgement_passes(tmp_path):
    rows = list(planted(40))
    rows[3]["rollout_logprobs"] = [*rows[3]["rollout_logprobs"], -1.0]
    run = imported(tmp_path, write(tmp_path / "a.jsonl", rows))
    found = Run.open(run.path).manifest.imported
    assert (found.read, found.used, found.refused) == (40, 39, 1)
    assert "line 4" in found.refusals[0]
    assert judged(run).status is Status.UNKNOWN


def test_a_suspicious_recording_is_imported_with_the_finding(tmp_path):
    rows = list(planted(60, length=24))
    for row in rows:
        row["trainer_logprobs"] = [*row["trainer_logprobs"][1:], -1.0]
    run = imported(tmp_path, write(tmp_path / "a.jsonl", rows))
    assert any(note.startswith("alignment:") for note in run.manifest.imported.notes)


def test_a_mask_that_slipped_is_imported_with_the_finding(tmp_path):
    rows = [{**row, "sampled": [False] * 3 + [True] * 9} for row in planted(40)]
    for row in rows:
        row["token_ids"] = [*row.pop("prompt_ids"), *row.pop("completion_ids")]
    run = imported(tmp_path, write(tmp_path / "a.jsonl", rows))
    assert any("one of the prompt that the mask takes in" in note for note in run.manifest.imported.notes)


def test_the_other_side_comes_from_a_second_file_by_token_ids(tmp_path):
    rows = list(planted(40))
    a = write(tmp_path / "a.jsonl", without(rows, "trainer_logprobs"))
    b = write(tmp_path / "b.jsonl", reversed(without(rows, "rollout_logprobs")))
    run = imported(tmp_path, a, b)
    direct = compare_recorded(find_recording([write(tmp_path / "both.jsonl", rows)]), limits=WIDE)[0]
    assert judged(run).metrics == pytest.approx(direct.metrics, rel=1e-12)


def test_a_rollout_that_the_second_file_lacks_makes_it_unknown(tmp_path):
    rows = list(planted(40))
    a = write(tmp_path / "a.jsonl", without(rows, "trainer_logprobs"))
    b = write(tmp_path / "b.jsonl", without(rows[:-1], "rollout_logprobs"))
    judgement = judged(imported(tmp_path, a, b))
    assert judgement.status is Status.UNKNOWN
    assert any(v.check == "scoring" for v in judgement.verdicts)


def test_rollouts_of_the_second_file_that_the_first_lacks_are_counted(tmp_path):
    rows = list(planted(40))
    a = write(tmp_path / "a.jsonl", without(rows[:-3], "trainer_logprobs"))
    b = write(tmp_path / "b.jsonl", without(rows, "rollout_logprobs"))
    assert any("3 of 40 rollouts" in note for note in imported(tmp_path, a, b).manifest.imported.notes)


def test_two_files_may_be_named_in_either_order(tmp_path):
    rows = [{**row, "weight_version": i} for i, row in enumerate(planted(40))]
    a = write(tmp_path / "a.jsonl", without(rows, "trainer_logprobs"))
    b = write(tmp_path / "b.jsonl", without(rows, "rollout_logprobs", "weight_version"))
    one, other = judged(imported(tmp_path / "1", a, b)), judged(imported(tmp_path / "2", b, a))
    assert one.status is other.status is Status.UNKNOWN
    assert one.metrics == other.metrics


def test_other_weights_in_a_second_file_are_no_pass(tmp_path):
    rows = list(planted(40))
    a = write(tmp_path / "a.jsonl", without(rows, "trainer_logprobs"), weight_version=5, step=1)
    b = write(tmp_path / "b.jsonl", without(rows, "rollout_logprobs"), trainer_version=7, step=1)
    c = write(tmp_path / "c.jsonl", without(rows, "rollout_logprobs"), trainer_version=5, step=1)
    assert judged(imported(tmp_path / "1", a, b)).status is Status.UNKNOWN
    assert judged(imported(tmp_path / "2", a, c)).status is Status.PASS


def test_rollouts_of_another_step_are_other_rollouts(tmp_path):
    rows = list(planted(40))
    a = write(tmp_path / "a.jsonl", without(rows, "trainer_logprobs"), step=1)
    b = write(tmp_path / "b.jsonl", without(rows, "rollout_logprobs"), step=2)
    with pytest.raises(DumpError, match="none of its 40 rollouts"):
        imported(tmp_path, a, b)


def test_rollouts_with_the_same_ids_are_known_by_their_names(tmp_path):
    same = next(iter(planted(1)))
    ids = {name: same[name] for name in ("prompt_ids", "completion_ids")}
    rows = [{**row, **ids, "rollout_id": f"r{i}"} for i, row in enumerate(planted(40))]
    a = write(tmp_path / "a.jsonl", without(rows, "trainer_logprobs"))
    b = write(tmp_path / "b.jsonl", without(reversed(rows), "rollout_logprobs"))
    assert judged(imported(tmp_path / "1", a, b)).metrics["max_abs_d"] < 0.1
    c = write(tmp_path / "c.jsonl", without(rows, "rollout_logprobs", "rollout_id"))
    assert any("the order of the files" in note for note in imported(tmp_path / "2", a, c).manifest.imported.notes)


def test_how_the_second_files_were_sampled_counts_too(tmp_path):
    rows = list(planted(40))
    a = write(tmp_path / "a.jsonl", without(rows, "trainer_logprobs"))
    b = write(tmp_path / "b.jsonl", without(rows, "rollout_logprobs"), tags={"temperature": "0.7"})
    with pytest.raises(DumpError, match=r"--temperature 0\.7"):
        imported(tmp_path, a, b)


def test_an_import_that_was_killed_is_made_anew_by_the_same_command(tmp_path):
    path = write(tmp_path / "a.jsonl", planted(40))
    run = imported(tmp_path, path)
    manifest = run.path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"complete"', '"recording"'))
    assert judged(imported(tmp_path, path)).status is Status.PASS


def test_a_failed_import_leaves_the_folder_that_was_there(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "real")
    path = write(tmp_path / "a.jsonl", [{**row, "rollout_logprobs": [-1.0]} for row in planted(4)])
    with pytest.raises(DumpError, match="all 4 rows were refused"):
        imported(tmp_path, path)
    assert (tmp_path / "run").is_symlink()
    assert not list((tmp_path / "real").iterdir())


def test_two_files_of_other_rollouts_are_refused_and_leave_no_run(tmp_path):
    a = write(tmp_path / "a.jsonl", without(planted(8, seed=1), "trainer_logprobs"))
    b = write(tmp_path / "b.jsonl", without(planted(8, seed=2), "rollout_logprobs"))
    with pytest.raises(DumpError, match="none of its 8 rollouts"):
        imported(tmp_path, a, b)
    assert not (tmp_path / "run").exists()


def test_two_rollout_engines_are_compared_with_the_second_as_trainer(tmp_path):
    rows = list(planted(40))
    a = write(tmp_path / "a.jsonl", without(rows, "trainer_logprobs"))
    moved = [{**row, "rollout_logprobs": row["trainer_logprobs"]} for row in rows]
    b = write(tmp_path / "b.jsonl", without(moved, "trainer_logprobs"))
    assert judged(imported(tmp_path, a, b)).status is Status.PASS


def test_a_second_file_has_nothing_to_add_to_both_sides(tmp_path):
    path = write(tmp_path / "a.jsonl", planted(8))
    with pytest.raises(DumpError, match="holds both sides already"):
        imported(tmp_path, path, path)


def test_a_recording_without_ids_makes_no_run(tmp_path):
    path = write(tmp_path / "a.jsonl", without(planted(8), "prompt_ids", "completion_ids"))
    with pytest.raises(DumpError, match=r"without token ids.*onepolicy compare"):
        imported(tmp_path, path)


def test_a_run_that_is_there_stays(tmp_path):
    path = write(tmp_path / "a.jsonl", planted(8))
    run = imported(tmp_path, path)
    with pytest.raises(RunError):
        imported(tmp_path, path)
    assert Run.open(run.path).manifest.status == "complete"


def test_an_import_that_ended_early_is_unknown_until_it_is_made_again(tmp_path):
    run = imported(tmp_path, write(tmp_path / "a.jsonl", planted(40)))
    manifest = run.path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"complete"', '"recording"'))
    judgement = judge(run.path, JudgeRequest(limits=WIDE))
    assert judgement.status is Status.UNKNOWN


def test_a_column_that_may_be_a_copy_is_no_pass_in_a_run_either(tmp_path):
    rows = [{**row, "trainer_logprobs": row["rollout_logprobs"]} for row in planted(40)]
    judgement = judged(imported(tmp_path, write(tmp_path / "a.jsonl", rows)))
    assert judgement.status is Status.UNKNOWN
    assert any(v.check == "two_columns" for v in judgement.verdicts)


def test_staleness_stays_known_in_the_run(tmp_path):
    rows = [{**row, "weight_version": 3, "trainer_version": 4} for row in planted(40)]
    judgement = judged(imported(tmp_path, write(tmp_path / "a.jsonl", rows, step=1)))
    assert judgement.status is Status.UNKNOWN
    assert any(v.check == "same_weights" for v in judgement.verdicts)


def test_a_tag_of_a_suite_that_is_called_step_lets_no_mixture_of_weights_pass(tmp_path):
    for step in (1, 2, 3):
        write(tmp_path / "f" / f"{step}.jsonl", planted(16, seed=step), step=step, weight_version=step)
    run = imported(tmp_path, tmp_path / "f")
    manifest = json.loads((run.path / "manifest.json").read_text())
    (run.path / "manifest.json").write_text(json.dumps({**manifest, "imported": None}))
    judgement = judged(run)
    assert judgement.status is Status.UNKNOWN
    assert any(v.check == "one_weight_version" and v.status is Status.UNKNOWN for v in judgement.verdicts)


def test_steps_with_a_version_each_are_no_mixture_in_a_run_either(tmp_path):
    for step in (1, 2, 3):
        write(tmp_path / "f" / f"{step}.jsonl", planted(16, seed=step), step=step, weight_version=step)
    assert judged(imported(tmp_path, tmp_path / "f")).status is Status.PASS
