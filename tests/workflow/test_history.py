"""A folder of runs: every one is a row, what is damaged is named, and only what is green counts as green."""

import json
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

import fsspec
import pytest

import onepolicy
from onepolicy.engines.spec import parse_spec
from onepolicy.errors import DumpError, UsageError
from onepolicy.judgement.decide import decide, sentence
from onepolicy.records.past import PastRun
from onepolicy.records.verdict import Judgement, Status
from onepolicy.workflow.calibrate import CalibrateRequest, calibrate
from onepolicy.workflow.history import (
    dated_path,
    engines_of,
    history,
    is_green,
    last_green,
    past_run,
    rows_in,
    time_of,
)
from onepolicy.workflow.history_lines import LINES, append_line, read_lines
from onepolicy.workflow.legs import LegsRequest, legs

DAYS = ("20260101-000000-a", "20260102-000000-b", "20260103-000000-c")


@pytest.fixture(scope="module")
def suite(tmp_path_factory) -> str:
    lines = [{"id": f"s{i:02}", "prompt": f"{i} of many: ", "completion": f"the rain in spain {i}"} for i in range(14)]
    path = tmp_path_factory.mktemp("suite") / "fixed.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return str(path)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, suite) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("made")
    for name, noise in (("green", "0.003"), ("red", "0.5")):
        onepolicy.check(rollout="fake:m", trainer=f"fake:m?noise={noise}", suite=suite, run=folder / name)
    return {name: folder / name for name in ("green", "red")}


@pytest.fixture
def folder(runs, tmp_path) -> Path:
    """Green, red, green, on three days."""
    for name, kind in zip(DAYS, ("green", "red", "green"), strict=True):
        shutil.copytree(runs[kind], tmp_path / "runs" / name)
    return tmp_path / "runs"


def at(path: Path, **changes: object) -> None:
    file = path / "readings" / "trainer" / "reading.json"
    content = json.loads(file.read_text())
    content["engine"].update(changes)
    file.write_text(json.dumps(content))


def test_each_run_is_a_row_with_its_time_its_answer_its_number_and_what_changed(folder):
    found = history(str(folder))
    assert [Path(row.run).name for row in found.rows] == list(DAYS)
    assert [row.status for row in found.rows] == [Status.PASS, Status.FAIL, Status.PASS]
    assert found.rows[0].time == datetime(2026, 1, 1, tzinfo=UTC)
    assert found.rows[0].engines == "fake 1 / fake 1"
    assert (found.rows[0].kl < 1e-4 < found.rows[1].kl, found.rows[0].kl_limit) == (True, 1e-4)
    assert found.rows[0].numbers["onepolicy/kl"] == found.rows[0].kl
    assert [row.changed for row in found.rows] == [
        (),
        ("configuration: trainer option noise 0.003 -> 0.5",),
        ("configuration: trainer option noise 0.5 -> 0.003",),
    ]
    assert (found.status, found.exit_status) == (Status.PASS, 0)


def test_the_newest_run_is_held_against_the_last_green_one(folder):
    found = history(str(folder))
    assert Path(found.against.green).name == DAYS[0]
    assert found.against.is_bitwise
    shutil.rmtree(folder / DAYS[2])
    found = history(str(folder))
    assert (found.status, Path(found.against.run).name) == (Status.FAIL, DAYS[1])
    assert found.against.sentence.startswith("Look first at configuration: trainer option noise 0.003 -> 0.5.")


def test_runs_of_one_engine_and_a_monitors_are_no_rows_and_one_that_is_not_scored_is(folder, suite):
    one = parse_spec("fake:m?batch_size=4")
    legs(LegsRequest(engine=one, suite=suite), path=folder / "20260104-000000-legs")
    floor = folder / "20260105-000000-floor"
    calibrate(CalibrateRequest(engine=one, output=folder / "floor.json", suite=suite), path=floor)
    monitor = shutil.copytree(folder / DAYS[0], folder / "20260106-000000-monitor")
    shutil.rmtree(monitor / "judgements")
    manifest = json.loads((monitor / "manifest.json").read_text())
    (monitor / "manifest.json").write_text(json.dumps({**manifest, "suite": "monitor"}))
    found = history(str(folder))
    assert [Path(row.run).name for row in found.rows] == list(DAYS)
    assert found.status is Status.PASS
    shutil.copytree(folder / DAYS[0], folder / "20260107-000000-cut")
    for part in ("readings/trainer", "judgements"):
        shutil.rmtree(folder / "20260107-000000-cut" / part)
    assert history(str(folder)).status is Status.UNKNOWN


def test_without_a_green_run_nothing_passes_and_it_says_why(folder):
    for name in (DAYS[0], DAYS[2]):
        shutil.rmtree(folder / name)
    found = history(str(folder))
    assert (found.status, found.against) == (Status.FAIL, None)
    assert "no green run before" in found.why_not_against


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda run: (run / "manifest.json").write_text("{"), "manifest.json: is not JSON"),
        (lambda run: (run / "manifest.json").unlink(), "manifest.json"),
        (lambda run: shutil.rmtree(run / "judgements"), "is not judged"),
        (lambda run: (run / "judgements/default/verdicts.json").write_text("[]"), "holds no JSON object"),
        (lambda run: (run / "readings/trainer/reading.json").unlink(), "there is no reading 'trainer'"),
        (lambda run: (run / "judgements/default/limits.json").write_text("{]"), "limits.json: is not JSON"),
    ],
)
def test_a_damaged_run_is_a_row_that_says_what_is_wrong(folder, damage, words):
    shutil.rmtree(folder / DAYS[1])
    damage(folder / DAYS[2])
    found = history(str(folder))
    assert len(found.rows) == 2
    assert words in found.rows[1].sentence
    assert (found.rows[1].status, found.status, found.exit_status) == (Status.UNKNOWN, Status.UNKNOWN, 3)


def test_a_damaged_run_after_one_that_failed_leaves_it_failed(folder):
    (folder / DAYS[2] / "manifest.json").write_text("{")
    assert history(str(folder)).status is Status.FAIL


def test_a_damaged_run_of_long_ago_does_not_decide(folder):
    (folder / DAYS[0] / "manifest.json").write_text("{")
    found = history(str(folder))
    assert (found.status, found.rows[0].status) == (Status.PASS, Status.UNKNOWN)
    assert found.against is None


def test_a_judgement_that_was_changed_passes_nothing(folder):
    file = folder / DAYS[1] / "judgements" / "default" / "verdicts.json"
    content = json.loads(file.read_text())
    content["status"] = "pass"
    file.write_text(json.dumps(content))
    row = past_run(folder / DAYS[1])
    assert row.status is Status.UNKNOWN
    assert "does not follow from its verdicts" in row.sentence


def test_a_pass_that_was_copied_from_another_run_is_no_green_and_passes_nothing(folder):
    (folder / DAYS[2]).rename(folder / "20251231-000000-old")
    shutil.copytree(folder / DAYS[0] / "judgements", folder / DAYS[1] / "judgements", dirs_exist_ok=True)
    assert past_run(folder / DAYS[1]).status is Status.PASS
    assert not is_green(folder / DAYS[1])
    found = history(str(folder))
    assert (found.status, found.rows[-1].status) == (Status.UNKNOWN, Status.UNKNOWN)
    assert "is not of what the run holds now" in found.sentence


def test_answers_that_were_edited_to_a_pass_are_no_green_and_pass_nothing(folder):
    shutil.rmtree(folder / DAYS[2])
    file = folder / DAYS[1] / "judgements" / "default" / "verdicts.json"
    judgement = Judgement.model_validate_json(file.read_text())
    verdicts = tuple(verdict.model_copy(update={"status": Status.PASS}) for verdict in judgement.verdicts)
    changes = {"verdicts": verdicts, "status": decide(verdicts), "sentence": sentence(verdicts)}
    file.write_text(judgement.model_copy(update=changes).model_dump_json())
    assert past_run(folder / DAYS[1]).status is Status.PASS
    assert not is_green(folder / DAYS[1])
    assert history(str(folder)).exit_status == 3


def test_the_last_green_run_leaves_out_what_only_says_pass(folder):
    shutil.copytree(folder / DAYS[0] / "judgements", folder / DAYS[1] / "judgements", dirs_exist_ok=True)
    rows = rows_in(folder)
    assert last_green(rows, rows[2]).run == str(folder / DAYS[0])
    with pytest.raises(UsageError, match="no green run before"):
        last_green(rows, rows[0])


def test_runs_of_other_engines_are_not_compared_and_decide_beside(folder, runs, suite):
    other = folder / "20260104-000000-other"
    onepolicy.check(
        rollout="fake:m",
        trainer="fake:m",
        run=other,
        budget=1600,
        protocol=onepolicy.SamplingProtocol(max_new_tokens=8),
    )
    found = history(str(folder))
    assert found.rows[-1].pair != found.rows[0].pair
    assert found.rows[-1].changed == ()
    assert "2 pairs" in found.sentence
    shutil.rmtree(folder / DAYS[2])
    assert history(str(folder)).status is Status.FAIL


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("fake:m?noise=0.5", "fake:m"),
        ("vllm:http://h:1/?retries=0&model=a", "vllm:http://h:1 a"),
        ("transformers:./m/?adapter=x&dtype=bfloat16", "transformers:m x"),
        ("transformers:/m", "transformers:/m"),
        ("callable:./a.py:score", "callable:a.py:score"),
        ("recorded:verl", "recorded:verl"),
    ],
)
def test_engines_are_named_without_what_configures_them(spec, name):
    assert engines_of(spec, "fake:m") == f"{name}, fake:m"


def test_another_model_that_passes_does_not_hide_one_that_fails(folder, suite):
    shutil.rmtree(folder / DAYS[2])
    onepolicy.check(rollout="fake:n", trainer="fake:n?noise=0.003", suite=suite, run=folder / DAYS[2])
    found = history(str(folder))
    assert [row.status for row in found.rows] == [Status.PASS, Status.FAIL, Status.PASS]
    assert (found.exit_status, found.against) == (1, None)
    assert "2 pairs" in found.sentence


def test_a_damaged_run_decides_until_every_pair_has_a_newer_one(folder, suite):
    other = {"rollout": "fake:n", "trainer": "fake:n", "suite": suite}
    (folder / DAYS[2] / "manifest.json").write_text("{")
    shutil.rmtree(folder / DAYS[1])
    onepolicy.check(run=folder / "20260104-000000-other", **other)
    assert history(str(folder)).exit_status == 3
    shutil.copytree(folder / DAYS[0], folder / "20260105-000000-a")
    assert history(str(folder)).exit_status == 0


def test_a_folder_of_no_known_time_is_not_taken_for_an_old_one(folder):
    (folder / "copied" / "judgements").mkdir(parents=True)
    found = history(str(folder))
    assert (found.rows[-1].time, found.exit_status) == (None, 3)
    assert "no run here" in found.rows[-1].sentence


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_a_row_that_says_so(folder):
    (folder / "locked").mkdir(mode=0)
    found = history(str(folder))
    assert (len(found.rows), found.exit_status) == (4, 3)
    assert "ermission denied" in found.rows[-1].sentence


def test_nothing_to_show_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="there is no such folder"):
        history(str(tmp_path / "none"))
    with pytest.raises(UsageError, match="holds no run"):
        history(str(tmp_path))


def test_the_two_sides_of_a_comparison_are_no_runs_of_their_own(folder, runs):
    shutil.copytree(runs["red"], folder / "20260105-000000-behave" / "a")
    (folder / "20260105-000000-behave" / "behaviour.json").write_text("{}")
    assert len(history(str(folder)).rows) == 3


# -- time -------------------------------------------------------------------------------------------------------


def test_the_name_says_when_and_else_the_rollouts_do(folder, tmp_path):
    assert time_of(folder / DAYS[0]) == datetime(2026, 1, 1, tzinfo=UTC)
    run = (folder / DAYS[0]).rename(folder / "named-otherwise")
    for part in (run / "rollouts").iterdir():
        os.utime(part, (86_400, 86_400))
    assert time_of(run) == datetime(1970, 1, 2, tzinfo=UTC)
    (tmp_path / "20269999-000000-x").mkdir()
    assert time_of(tmp_path / "20269999-000000-x") is None


def test_a_dated_path_is_new_and_says_when(tmp_path):
    now = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
    first = dated_path(tmp_path, "gate", now)
    first.mkdir()
    second = dated_path(tmp_path, "gate", now)
    assert (first.name, second.name) == ("20260304-050607-gate", "20260304-050607-gate-2")
    assert time_of(first) == time_of(second) == now


# -- a URL ------------------------------------------------------------------------------------------------------


@pytest.fixture
def remote(folder):
    fs = fsspec.filesystem("memory")
    fs.put(str(folder), "/history-test", recursive=True)
    yield "memory://history-test"
    fs.rm("/history-test", recursive=True)


def test_a_url_gives_the_same_as_the_folder(folder, remote):
    here, there = history(str(folder)), history(remote)
    assert [row.sentence for row in there.rows] == [row.sentence for row in here.rows]
    assert [row.run for row in there.rows] == [f"{remote}/{name}" for name in DAYS]
    assert there.against.green == f"{remote}/{DAYS[0]}"
    assert there.against.moved == here.against.moved


def test_what_is_damaged_at_a_url_is_named(folder, remote):
    fs = fsspec.filesystem("memory")
    fs.rm(f"/history-test/{DAYS[2]}/manifest.json")
    found = history(remote)
    assert [row.status for row in found.rows] == [Status.PASS, Status.FAIL, Status.UNKNOWN]
    assert found.exit_status == 1
    with pytest.raises((DumpError, UsageError)):
        history("memory://nothing-there")


# -- lines ------------------------------------------------------------------------------------------------------


def line(day: int, status: Status, **fields) -> PastRun:
    return PastRun(time=datetime(2026, 2, day, tzinfo=UTC), status=status, sentence=f"{status.value}: x", **fields)


def test_lines_come_back_as_they_were_written(tmp_path):
    rows = [line(1, Status.PASS, pair="p", kl=1e-5), line(2, Status.UNKNOWN)]
    for row in rows:
        append_line(tmp_path / "deep" / LINES, row)
    assert list(read_lines(tmp_path / "deep" / LINES)) == rows


def test_a_line_that_a_kill_cut_off_is_named_and_spoils_no_other(tmp_path):
    file = tmp_path / LINES
    append_line(file, line(1, Status.PASS))
    file.write_bytes(file.read_bytes() + b'{"time": "2026-02-02T00:0')
    append_line(file, line(3, Status.PASS))
    found = list(read_lines(file))
    assert [row.status for row in found] == [Status.PASS, Status.UNKNOWN, Status.PASS]
    assert "line 2: is damaged" in found[1].sentence


@pytest.mark.parametrize("last", [False, True])
def test_a_damaged_line_is_of_the_time_of_the_one_before_or_of_the_file(tmp_path, last):
    file = tmp_path / LINES
    first, after = line(1, Status.PASS).model_dump_json(), line(3, Status.PASS).model_dump_json()
    file.write_text("\n".join(["{", first, '{"time": "2026-02-02T00:0', *([] if last else [after])]))
    os.utime(file, (0, 0))
    written = datetime(1970, 1, 1, tzinfo=UTC)
    days = [datetime(2026, 2, day, tzinfo=UTC) for day in (1, 1, 1, 3)]
    assert [row.time for row in read_lines(file)] == ([*days[:2], written] if last else days)


def test_a_line_that_was_cut_off_last_is_no_pass(folder):
    at_the_end = json.dumps({"time": "2026-02-02T00:0"})
    (folder / LINES).write_text(at_the_end[:-4])
    assert history(str(folder)).exit_status == 3


def test_a_pair_that_is_away_is_not_hidden_by_another_that_passes(folder, runs):
    (folder / "b").mkdir()
    for day in range(1, 20):
        append_line(folder / "b" / LINES, line(day, Status.UNKNOWN, pair="fixed, fixed, vllm:http://b, fake:m"))
        append_line(folder / "a" / LINES, line(day, Status.PASS, pair="fixed, fixed, fake:m, fake:m", made={"a": {}}))
    found = history(str(folder))
    assert (found.rows[-1].status, found.exit_status) == (Status.UNKNOWN, 3)
    append_line(folder / "a" / LINES, line(20, Status.PASS, pair="fixed, fixed, fake:m, fake:m", made={"a": {}}))
    assert history(str(folder)).exit_status == 3
    append_line(folder / "b" / LINES, line(21, Status.PASS, pair="fixed, fixed, vllm:http://b, fake:m", made={"a": {}}))
    assert history(str(folder)).exit_status == 0


@pytest.mark.parametrize("named", ["elsewhere/20260401-000000-probe", "..", "/"])
@pytest.mark.parametrize(("status", "ends"), [(Status.PASS, 3), (Status.FAIL, 1)])
def test_a_line_whose_run_is_not_beside_it_is_no_pass(folder, named, status, ends):
    append_line(folder / LINES, line(9, status, run=named, pair=past_run(folder / DAYS[0]).pair))
    fs = fsspec.filesystem("memory")
    fs.put(str(folder), "/history-lines", recursive=True)
    try:
        for found in (history(str(folder)), history("memory://history-lines")):
            assert (found.exit_status, found.rows[-1].run, len(found.rows)) == (ends, "", 4)
    finally:
        fs.rm("/history-lines", recursive=True)


def test_probes_of_two_watches_in_one_second_are_two_rows(runs, tmp_path):
    for name, kind in (("a", "green"), ("b", "red")):
        probe = shutil.copytree(runs[kind], tmp_path / name / "20260101-000000-probe")
        append_line(tmp_path / name / LINES, past_run(probe))
    shutil.rmtree(tmp_path / "b" / "20260101-000000-probe")
    assert [row.status for row in history(str(tmp_path)).rows] == [Status.FAIL, Status.PASS]


def test_probes_without_a_run_are_rows_and_those_with_one_are_not_there_twice(folder):
    kept = past_run(folder / DAYS[2])
    append_line(folder / LINES, kept)
    append_line(folder / LINES, line(9, Status.UNKNOWN))
    found = history(str(folder))
    assert len(found.rows) == 4
    assert (found.rows[-1].run, found.status) == ("", Status.UNKNOWN)
