"""Recorded files -> verdicts, without a run."""

import json

import numpy as np
import pytest
from plain_recording import planted, without, write

from onepolicy.api import compare as compare_arrays
from onepolicy.errors import DumpError, UsageError
from onepolicy.judgement.limits import Limits
from onepolicy.judgement.load import load_limits
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.verdict import Status
from onepolicy.workflow.compare_recorded import compare_recorded
from onepolicy.workflow.recorded import find_recording

WIDE = Limits(outlier_rate=0.5)


def judged(path, **options):
    return compare_recorded(find_recording([path]), limits=WIDE, **options)


def verdict(judgement, check):
    return next(v for v in judgement.verdicts if v.check == check)


def test_both_sides_of_a_file_are_judged_as_the_same_arrays_are(tmp_path):
    rows = list(planted(40))
    judgement, imported = judged(write(tmp_path / "a.jsonl", rows))
    assert (imported.read, imported.used, imported.refused) == (40, 40, 0)
    arrays = compare_arrays(
        rollout=[row["rollout_logprobs"][4:] for row in rows],
        trainer=[row["trainer_logprobs"][4:] for row in rows],
        prompt_ids=[str(row["prompt_ids"]) for row in rows],
        limits=WIDE,
    )
    assert judgement.status is arrays.status is Status.PASS
    assert judgement.metrics == pytest.approx(arrays.metrics, rel=1e-12)
    assert judgement.native["NeMo-RL"] == pytest.approx(arrays.native["NeMo-RL"], rel=1e-12)


def test_a_constant_offset_fails(tmp_path):
    rows = list(planted(40))
    for row in rows:
        row["trainer_logprobs"] = [x - 0.3 if x else x for x in row["trainer_logprobs"]]
    judgement, _ = judged(write(tmp_path / "a.jsonl", rows))
    assert judgement.exit_status == 1
    assert judgement.metrics["mean_d"] == pytest.approx(-0.3, abs=0.01)


def test_many_files_are_one_recording_in_the_order_of_their_numbers(tmp_path):
    for step in (10, 9, 1):
        write(tmp_path / f"step_{step}.jsonl", planted(8, seed=step), step=step)
    recording = find_recording([tmp_path])
    assert [file.name.rpartition("step_")[2] for file in recording.files] == ["1.jsonl", "9.jsonl", "10.jsonl"]
    _, imported = compare_recorded(recording, limits=WIDE)
    assert (imported.file_count, imported.read, imported.used) == (3, 24, 24)


def test_a_refused_row_is_named_and_never_lets_a_recording_pass(tmp_path):
    rows = list(planted(40))
    rows[7]["trainer_logprobs"] = rows[7]["trainer_logprobs"][:-1]
    judgement, imported = judged(write(tmp_path / "a.jsonl", rows))
    assert (imported.read, imported.used, imported.refused) == (40, 39, 1)
    assert judgement.status is Status.UNKNOWN
    message = verdict(judgement, "recorded_rows").message
    assert "1 of 40 rows" in message
    assert "line 8" in message
    assert "trainer_logprobs" in message
    assert judgement.counts["rows_refused"] == 1


def test_one_side_alone_says_how_to_get_the_other(tmp_path):
    path = write(tmp_path / "a.jsonl", without(planted(8), "trainer_logprobs"))
    with pytest.raises(DumpError, match=r"the rollout side's logprobs only.*onepolicy score"):
        judged(path)


def test_a_file_without_a_row_is_no_pass(tmp_path):
    write(tmp_path / "a.jsonl", planted(4))
    recording = find_recording([tmp_path / "a.jsonl"])
    (tmp_path / "a.jsonl").write_text("")
    with pytest.raises(DumpError):
        compare_recorded(recording, limits=WIDE)


def test_rows_that_are_all_refused_are_no_pass(tmp_path):
    rows = [{**row, "rollout_logprobs": [-1.0]} for row in planted(4)]
    with pytest.raises(DumpError, match="all 4 rows were refused"):
        judged(write(tmp_path / "a.jsonl", rows))


def test_the_temperature_of_sampling_makes_a_kl_only_if_the_format_says_so(tmp_path):
    path = write(tmp_path / "a.jsonl", planted(40))
    judgement, _ = judged(path, protocol=SamplingProtocol(temperature=0.8))
    assert verdict(judgement, "mean_kl").kind == "about the policy"
    assert verdict(judgement, "meaning").status is Status.PASS


def test_truncated_sampling_has_no_kl_from_sampled_tokens(tmp_path):
    path = write(tmp_path / "a.jsonl", planted(40))
    judgement, _ = judged(path, protocol=SamplingProtocol(top_p=0.9))
    assert verdict(judgement, "mean_kl").status is Status.UNKNOWN


def test_weights_that_are_behind_are_told_apart_from_a_mismatch(tmp_path):
    rows = [{**row, "weight_version": 3, "trainer_version": 3 + (i % 4 == 0)} for i, row in enumerate(planted(40))]
    judgement, _ = judged(write(tmp_path / "a.jsonl", rows))
    found = verdict(judgement, "same_weights")
    assert found.status is Status.UNKNOWN
    assert "10 of 40 rollouts were sampled by other weights" in found.message
    assert "version 3 and 4" in found.message
    assert verdict(judgement, "mean_kl").status is Status.UNKNOWN


def test_steps_with_a_version_each_are_no_mixture(tmp_path):
    for step in (1, 2, 3):
        rows = [{**row, "weight_version": step, "trainer_version": step} for row in planted(16, seed=step)]
        write(tmp_path / f"{step}.jsonl", rows, step=step)
    judgement, _ = judged(tmp_path)
    assert judgement.status is Status.PASS
    assert verdict(judgement, "same_weights").status is Status.PASS


def test_two_versions_within_one_step_are_a_mixture(tmp_path):
    rows = [{**row, "weight_version": i % 2} for i, row in enumerate(planted(40))]
    judgement, _ = judged(write(tmp_path / "a.jsonl", rows, step=1))
    assert verdict(judgement, "one_weight_version").status is Status.UNKNOWN


def test_a_shift_by_one_is_found_on_import(tmp_path):
    rows = list(planted(60, length=24))
    for row in rows:
        row["trainer_logprobs"] = [*row["trainer_logprobs"][1:], -1.0]
    judgement, _ = judged(write(tmp_path / "a.jsonl", rows))
    assert verdict(judgement, "alignment").status is Status.FAIL
    assert "1 position earlier" in verdict(judgement, "alignment").message


def test_the_same_rollout_id_twice_is_refused(tmp_path):
    rows = [{**row, "rollout_id": "same"} for row in planted(4)]
    with pytest.raises(DumpError, match=r"'same'.*twice"):
        judged(write(tmp_path / "a.jsonl", rows))


def test_files_of_two_formats_are_not_mixed(tmp_path):
    write(tmp_path / "plain" / "a.jsonl", planted(4))
    nemo = {
        "token_ids": [1, 2],
        "input_lengths": 2,
        "token_loss_mask": [0, 1],
        "sample_loss_mask": 1.0,
        "generation_logprobs": [0.0, -1.0],
        "prev_logprobs": [0.0, -1.0],
        "advantages": [0.0, 0.0],
    }
    (tmp_path / "nemo").mkdir()
    (tmp_path / "nemo" / "train_data_step1.jsonl").write_text(json.dumps(nemo) + "\n")
    with pytest.raises(DumpError, match=r"several formats.*--format"):
        find_recording([tmp_path])


def test_other_files_in_a_folder_are_named(tmp_path):
    write(tmp_path / "a.jsonl", planted(4))
    (tmp_path / "notes.txt").write_text("hello")
    assert any("notes.txt" in note for note in find_recording([tmp_path]).notes)


@pytest.mark.parametrize("content", [b"", bytes(100)])
def test_a_file_that_was_lost_beside_good_ones_is_an_error(tmp_path, content):
    write(tmp_path / "a.jsonl", planted(40))
    (tmp_path / "b.jsonl").write_bytes(content)
    with pytest.raises(DumpError, match=r"b\.jsonl"):
        find_recording([tmp_path])


def test_linked_folders_are_read_once_and_what_cannot_be_read_is_an_error(tmp_path):
    write(tmp_path / "d" / "a.jsonl", planted(20))
    write(tmp_path / "other" / "b.jsonl", planted(20, seed=1))
    (tmp_path / "d" / "link").symlink_to(tmp_path / "other")
    (tmp_path / "d" / "loop").symlink_to(tmp_path / "d")
    assert len(find_recording([tmp_path / "d"]).files) == 2
    (tmp_path / "d" / "c.jsonl").symlink_to(tmp_path / "nothing")
    with pytest.raises(DumpError, match="a broken link"):
        find_recording([tmp_path / "d"])


def test_an_empty_path_is_no_folder():
    with pytest.raises(UsageError, match="an empty path"):
        find_recording([""])


def test_what_is_of_no_format_says_what_was_found(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"question": "?", "answer": "!"}])
    with pytest.raises(DumpError, match=r"answer, question.*--columns"):
        find_recording([path])


def test_other_names_of_columns_are_given(tmp_path):
    rows = [{"ids" if k == "completion_ids" else k: v for k, v in row.items()} for row in planted(40)]
    path = write(tmp_path / "a.jsonl", rows)
    recording = find_recording([path], columns={"completion_ids": "ids"})
    assert compare_recorded(recording, limits=WIDE)[0].status is Status.PASS
    with pytest.raises(UsageError, match="no such column"):
        find_recording([path], columns={"completions": "ids"})


def test_a_column_that_may_be_a_copy_of_the_other_is_no_pass(tmp_path):
    rows = [{**row, "trainer_logprobs": row["rollout_logprobs"]} for row in planted(40)]
    path = write(tmp_path / "a.jsonl", rows)
    judgement, _ = judged(path)
    assert judgement.status is Status.UNKNOWN
    assert "a copy of the other" in verdict(judgement, "two_columns").message
    others = [*rows[:5], *planted(35, seed=3)]
    assert judged(write(tmp_path / "some.jsonl", others))[0].status is Status.UNKNOWN
    assert judged(write(tmp_path / "few.jsonl", [*rows[:2], *planted(38, seed=3)]))[0].status is Status.PASS
    assert compare_recorded(find_recording([path]), limits=load_limits("bitwise"))[0].status is Status.PASS


def test_rows_that_were_sampled_otherwise_than_said_are_refused(tmp_path):
    path = write(tmp_path / "a.jsonl", planted(40), tags={"temperature": "0.7"})
    with pytest.raises(DumpError, match=r"sampled with temperature 0.7.*--temperature 0.7"):
        judged(path)
    assert judged(path, protocol=SamplingProtocol(temperature=0.7))[0].status is Status.PASS


@pytest.mark.parametrize("versions", [(8, 5), ("sha-a", "sha-b"), ("5.0", "7.0"), ("1", "1" + "0" * 5000)])
def test_weights_that_differ_in_any_way_are_no_pass(tmp_path, versions):
    extra = dict(zip(("weight_version", "trainer_version"), versions, strict=True))
    judgement, _ = judged(write(tmp_path / "a.jsonl", planted(40), step=1, **extra))
    assert verdict(judgement, "same_weights").status is Status.UNKNOWN
    same = dict.fromkeys(extra, versions[0])
    assert judged(write(tmp_path / "b.jsonl", planted(40), step=1, **same))[0].status is Status.PASS


def zeros(row, places):
    return {side: [0.0 if i in places else x for i, x in enumerate(row[side])] for side in SIDES}


SIDES = ("rollout_logprobs", "trainer_logprobs")


@pytest.mark.parametrize("limits", ["bitwise", "bf16"])
def test_columns_of_filled_places_are_no_pass(tmp_path, limits):
    for name, places in (("all", range(12)), ("most", range(10))):
        path = write(tmp_path / f"{name}.jsonl", [{**row, **zeros(row, places)} for row in planted(40)])
        found, _ = compare_recorded(find_recording([path]), limits=load_limits(limits))
        assert found.status is not Status.PASS
        assert "exactly 0.0 on both sides" in verdict(found, "two_columns").message


def test_rows_that_are_filled_beside_good_ones_are_no_pass(tmp_path):
    rows = [{**row, **zeros(row, range(12))} if i % 4 == 0 else row for i, row in enumerate(planted(40))]
    assert judged(write(tmp_path / "a.jsonl", rows))[0].status is Status.UNKNOWN


def test_rollouts_that_are_masked_away_are_no_pass(tmp_path):
    rows = [{**row, "sampled": [i % 4 > 0] * 8} for i, row in enumerate(planted(40))]
    judgement, _ = judged(write(tmp_path / "a.jsonl", rows))
    assert judgement.status is Status.UNKNOWN
    assert "10 of 40 rollouts have no sampled token" in verdict(judgement, "compared_rollouts").message


def test_the_same_rows_several_times_are_no_further_evidence_without_ids(tmp_path):
    rows = without(planted(6), "prompt_ids", "completion_ids")
    for copy in range(4):
        write(tmp_path / "d" / f"{copy}.jsonl", rows)
    judgement, _ = judged(tmp_path / "d")
    assert judgement.counts["prompt_groups"] == 6 or judgement.status is Status.UNKNOWN


def test_rollouts_without_ids_are_no_duplicates_of_each_other(tmp_path):
    rows = without(planted(40), "prompt_ids", "completion_ids")
    judgement, _ = judged(write(tmp_path / "a.jsonl", rows))
    assert judgement.counts["duplicates"] == 0
    assert np.isfinite(judgement.metrics["k3"])
