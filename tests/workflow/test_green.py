"""The newest run that passed: which one that is, and everything that only looks like it."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from onepolicy.engines.spec import parse_spec
from onepolicy.errors import UsageError
from onepolicy.judgement.limits import Limits
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.run import Run
from onepolicy.records.verdict import Status
from onepolicy.sampling.file import read_protocol_file
from onepolicy.workflow import record as recording
from onepolicy.workflow.behave import BehaveOptions, record_and_behave
from onepolicy.workflow.behave_kept import BEHAVIOUR
from onepolicy.workflow.behave_record import BehaveRequest, protocols, record_both
from onepolicy.workflow.green import green_run, way_back
from onepolicy.workflow.judge import JudgeRequest, judge
from onepolicy.workflow.protocol import said_in, written_for

FAKE = parse_spec("fake:m?batch_size=100")
A, B = protocols(["max_new_tokens=32"], ["max_new_tokens=32", "top_p=0.999"], samples=4)
SERVING = SamplingProtocol(max_new_tokens=32, top_p=0.999)
FAST = BehaveOptions(permutations=199)
REQUEST = BehaveRequest(engine_a=FAKE, a=A, engine_b=FAKE, b=B, suite="standard", prompts=60)


@pytest.fixture(scope="module")
def passed(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("compared") / "passed"
    assert record_and_behave(path, REQUEST, FAST).status is Status.PASS
    return path


@pytest.fixture
def compared(passed, tmp_path) -> Path:
    """A comparison that passed, to be damaged."""
    return Path(shutil.copytree(passed, tmp_path / "runs" / "compared"))


def at(path: Path, seconds: int) -> Path:
    """Let the rollouts of a run have been written then."""
    for part in (path / "rollouts").glob("part-*.parquet"):
        os.utime(part, (seconds, seconds))
    return path


def edit(file: Path, **changes) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


# -- runs of `check` ------------------------------------------------------------------------------------------------


def test_the_newest_is_the_one_whose_rollouts_were_written_last(run_copy, another_run, tmp_path):
    first, second = run_copy(), Path(shutil.copytree(another_run, tmp_path / "a-name-before"))
    at(first, 1_000), at(second, 2_000)
    assert green_run(tmp_path).path == second
    at(first, 3_000)
    assert green_run(tmp_path).path == first


def test_judging_an_old_run_again_does_not_make_it_the_newest(run_copy, another_run, tmp_path):
    old, new = at(run_copy(), 1_000), at(Path(shutil.copytree(another_run, tmp_path / "new")), 2_000)
    judge(old)
    assert green_run(tmp_path).path == new


def test_a_run_itself_and_a_folder_of_folders_can_be_named(run_copy, tmp_path):
    run = run_copy()
    assert green_run(run).path == run
    inner = tmp_path / "one" / "two"
    inner.parent.mkdir()
    shutil.move(run, inner)
    assert green_run(tmp_path).path == inner
    assert green_run(tmp_path).protocol == Run.open(inner).manifest.protocol


def judged_to_fail(run):
    assert judge(run, JudgeRequest(limits=Limits(mean_kl=1e-12))).status is Status.FAIL


def without_a_judgement(run):
    shutil.rmtree(run / "judgements")


def killed_before_its_end(run):
    edit(run / "manifest.json", status="recording")


def read_from_files(run):
    imported = {"format": "verl", "files": [], "file_count": 0, "read": 32, "used": 32, "refused": 0}
    edit(run / "manifest.json", imported=imported)


def of_fixed_sequences(run):
    edit(run / "manifest.json", kind="fixed")


def under_a_protocol_that_was_changed_later(run):
    protocol = json.loads((run / "manifest.json").read_text())["protocol"]
    edit(run / "manifest.json", protocol=protocol | {"temperature": 0.7})


def judged_and_then_edited_to_pass(run):
    judged_to_fail(run)
    edit(run / "judgements" / "default" / "verdicts.json", status="pass")


def with_a_rollout_fewer_than_was_judged(run):
    next((run / "rollouts").glob("part-*.parquet")).unlink()


def without_the_reading_that_was_judged(run):
    shutil.rmtree(run / "readings" / "trainer")


PRETENDERS = {
    judged_to_fail: "failed: 1",
    without_a_judgement: "is not judged: 1",
    killed_before_its_end: "is not recorded to its end: 1",
    read_from_files: "does not say how it was sampled: 1",
    of_fixed_sequences: "does not say how it was sampled: 1",
    under_a_protocol_that_was_changed_later: "was sampled under several protocols: 1",
    judged_and_then_edited_to_pass: "cannot be read: 1",
    with_a_rollout_fewer_than_was_judged: "cannot be read: 1",
    without_the_reading_that_was_judged: "has a judgement of something else: 1",
}


@pytest.mark.parametrize("spoil", PRETENDERS, ids=lambda spoil: spoil.__name__)
def test_what_only_looks_green_is_not_and_is_named(spoil, run_copy, tmp_path):
    run = run_copy()
    spoil(run)
    with pytest.raises(UsageError) as refused:
        green_run(tmp_path)
    assert f"no green run. 1 run or comparison there: {PRETENDERS[spoil]} ({run})." in str(refused.value)


def test_a_judgement_of_another_run_makes_no_run_green(run_copy, another_run, tmp_path):
    run = run_copy()
    shutil.rmtree(run / "judgements")
    shutil.copytree(another_run / "judgements", run / "judgements")
    with pytest.raises(UsageError, match=r"has a judgement of something else: 1"):
        green_run(tmp_path)


def test_numbers_that_moved_since_the_judgement_are_seen(run_copy, rewrite, tmp_path):
    run = run_copy()

    def shift(rows):
        row = next(iter(rows.values()))
        row["logprobs"] = [x - 0.001 for x in row["logprobs"]]

    rewrite(run / "readings" / "trainer", shift)
    with pytest.raises(UsageError, match="has a judgement of something else: 1"):
        green_run(tmp_path)


def test_a_torn_judgement_is_not_green_wherever_it_was_torn(run_copy, tmp_path):
    file = run_copy() / "judgements" / "default" / "verdicts.json"
    whole = file.read_bytes()
    for end in range(0, len(whole) - 2, len(whole) // 20):
        file.write_bytes(whole[:end])
        with pytest.raises(UsageError, match="cannot be read: 1"):
            green_run(tmp_path)


def test_an_older_green_one_is_found_behind_newer_ones_that_are_not(run_copy, another_run, tmp_path):
    green = at(run_copy(), 1_000)
    for second, spoil in enumerate(PRETENDERS, start=2_000):
        run = Path(shutil.copytree(another_run, tmp_path / f"later-{second}"))
        spoil(run)
        at(run, second)
    assert green_run(tmp_path).path == green


def test_nothing_at_all_is_said_too(tmp_path):
    (tmp_path / "notes").mkdir()
    with pytest.raises(UsageError, match="There is no run and no comparison in it"):
        green_run(tmp_path)
    with pytest.raises(UsageError, match="there is no such folder"):
        green_run(tmp_path / "absent")


# -- comparisons of `behave` ----------------------------------------------------------------------------------------


def test_of_a_comparison_that_passed_the_protocol_of_the_serving_side_is_green(compared):
    green = green_run(compared.parent)
    assert green.path == compared / "b"
    assert green.protocol == SERVING
    assert (B.seed, B.samples_per_prompt) != (SERVING.seed, SERVING.samples_per_prompt)


def test_a_seed_that_b_was_given_is_gone_back_to(compared):
    shutil.rmtree(compared / "b")
    given = replace(REQUEST, b=B.model_copy(update={"seed": 99}))
    assert record_and_behave(compared, given, FAST, resume=True).status is Status.PASS
    assert green_run(compared.parent).protocol == SERVING.model_copy(update={"seed": 99})


def test_recorded_but_killed_before_the_comparison_was_kept_is_not_green(compared):
    (compared / BEHAVIOUR).rename(compared / f".{BEHAVIOUR}.0123456789ab.tmp")
    with pytest.raises(UsageError, match=r"2 runs or comparisons there: is not judged: 2 \(newest "):
        green_run(compared.parent)


def test_a_comparison_that_failed_is_not_green_and_replaces_the_one_before(compared):
    every_difference = replace(FAST, limits=FAST.limits.model_copy(update={"length_change": 1e-9}))
    tight = replace(every_difference, reward=lambda prompt, completion: float(len(completion) % 2))
    found = record_and_behave(compared, REQUEST, tight, resume=True)
    assert found.status is not Status.PASS
    with pytest.raises(UsageError, match=r"is unknown: 1|failed: 1"):
        green_run(compared.parent)
    record_and_behave(compared, REQUEST, FAST, resume=True)
    assert green_run(compared.parent).path == compared / "b"


def test_sides_that_were_swapped_or_sampled_again_are_other_runs(compared, tmp_path):
    (compared / "a").rename(compared / "c")
    (compared / "b").rename(compared / "a")
    (compared / "c").rename(compared / "b")
    with pytest.raises(UsageError, match="has a judgement of something else: 1"):
        green_run(compared.parent)
    shutil.rmtree(compared / "a")
    with pytest.raises(UsageError, match="cannot be read: 1"):
        green_run(compared.parent)


def test_a_side_that_was_sampled_again_is_another_run(compared):
    shutil.rmtree(compared / "b")
    record_both(compared, replace(REQUEST, b=B.model_copy(update={"seed": 99})), resume=True)
    with pytest.raises(UsageError, match="has a judgement of something else: 1"):
        green_run(compared.parent)


def test_a_torn_comparison_is_not_green_wherever_it_was_torn(compared):
    file = compared / BEHAVIOUR
    whole = file.read_bytes()
    for end in range(0, len(whole) - 2, len(whole) // 20):
        file.write_bytes(whole[:end])
        with pytest.raises(UsageError, match="cannot be read: 1"):
            green_run(compared.parent)


def test_a_comparison_that_was_edited_to_pass_is_not_green(compared):
    kept = json.loads((compared / BEHAVIOUR).read_text())
    kept["found"]["verdicts"][0]["status"] = "fail"
    (compared / BEHAVIOUR).write_text(json.dumps(kept))
    with pytest.raises(UsageError, match="cannot be read: 1"):
        green_run(compared.parent)


# -- going back -----------------------------------------------------------------------------------------------------


def test_the_green_protocol_is_a_source_and_what_is_written_is_the_serving_sides(compared, tmp_path):
    source = f"green:{compared.parent}"
    said = said_in(source)
    assert said.protocol == SERVING
    assert {said.read.sources[name] for name in ("seed", "samples_per_prompt")} == {"default"}
    text = written_for("yaml", source)[0]
    (tmp_path / "sampling_config.yaml").write_text(text)
    assert read_protocol_file(tmp_path / "sampling_config.yaml") == SERVING


def test_the_way_back_is_a_command_where_the_protocols_differ(compared):
    hot = B.model_copy(update={"temperature": 1.3})
    assert way_back(compared.parent, hot) == (
        f"The last green protocol is that of {compared / 'b'}. To write it back: onepolicy protocol write yaml "
        f"green:{compared.parent} --output sampling_config.yaml"
    )
    assert way_back(compared.parent, B.model_copy(update={"seed": 7})) == (
        f"The last green run, {compared / 'b'}, was sampled under the same protocol."
    )


def test_without_a_green_run_there_is_no_way_back(tmp_path):
    recording.record(tmp_path / "run", recording.RecordRequest(engine=FAKE, suite="quick", protocol=A))
    assert way_back(tmp_path, A) is None
