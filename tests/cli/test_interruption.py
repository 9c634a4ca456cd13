"""A run that was stopped at any moment goes on where it stopped, and ends as if nothing had happened."""

import hashlib
import json
import signal
from pathlib import Path

import pytest

from onepolicy.api import check
from onepolicy.integrations.fake.engine import FakeEngine
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.run import Run
from onepolicy.records.verdict import Judgement

SLOW, PROMPTS, BATCH = 0.1, 32, 4
ROLLOUT = f"fake:m?noise=0.01&delay={SLOW}&batch_size={BATCH}"
TRAINER = f"fake:m?delay={SLOW}&batch_size={BATCH}"
SHORT = ("--max-new-tokens", 24)
GREEDY = (*SHORT, "--temperature", 0)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> dict[tuple, Path]:
    """The same requests, never interrupted."""
    folder = tmp_path_factory.mktemp("unbroken")
    runs = {SHORT: folder / "sampled", GREEDY: folder / "greedy"}
    for options, run in runs.items():
        protocol = SamplingProtocol(max_new_tokens=24, temperature=0.0 if options is GREEDY else 1.0)
        check(rollout=ROLLOUT, trainer=TRAINER, run=run, protocol=protocol)
    return runs


def contents(run: Path) -> dict[str, str]:
    """Relative path -> digest of every file of a run that holds data."""
    return {
        str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(run.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }


def parts_of(run: Path) -> dict[str, str]:
    return {path: digest for path, digest in contents(run).items() if path.endswith(".parquet")}


def decided(run: Path) -> Judgement:
    return Run.open(run).judgement("default").model_copy(update={"run": ""})


def record_command(run: Path, options: tuple) -> tuple:
    return ("record", "--engine", ROLLOUT, "--run", run, *options)


def check_command(run: Path, options: tuple) -> tuple:
    return ("check", "--rollout", ROLLOUT, "--trainer", TRAINER, "--run", run, *options)


@pytest.mark.parametrize("options", [SHORT, GREEDY])
@pytest.mark.parametrize("stage", ["rollouts", "readings/trainer"])
def test_a_check_killed_in_the_middle_resumes_to_the_same_run(stage, options, tmp_path, process, cli, unbroken):
    run = tmp_path / "run"
    victim = process(*check_command(run, options))
    victim.wait_for(run / stage, 3)
    assert victim.send(signal.SIGKILL).status == -signal.SIGKILL
    before = parts_of(run)
    (run / stage / ".part-0000.parquet.left.tmp").write_bytes(b"half a part")

    ended = cli(*check_command(run, options), "--resume")
    assert ended.status == decided(run).exit_status
    after = parts_of(run)
    assert {path: after[path] for path in before} == before
    assert after == parts_of(unbroken[options])
    assert decided(run) == decided(unbroken[options])


def test_no_batch_but_the_one_that_was_cut_is_computed_again(tmp_path, process, cli, monkeypatch):
    run = tmp_path / "run"
    victim = process(*record_command(run, SHORT))
    victim.wait_for(run / "rollouts", 3)
    victim.send(signal.SIGKILL)
    finished = len(list((run / "rollouts").glob("part-*.parquet")))
    sampled = []
    sample = FakeEngine.sample
    monkeypatch.setattr(
        FakeEngine, "sample", lambda self, batch, *rest: sampled.append(1) or sample(self, batch, *rest)
    )
    assert cli(*record_command(run, SHORT), "--resume").status == 0
    assert len(sampled) == PROMPTS // BATCH - finished


@pytest.mark.parametrize("stage", ["rollouts", "readings/trainer"])
def test_ctrl_c_ends_with_130_and_says_how_to_go_on(stage, tmp_path, process, cli, unbroken):
    run = tmp_path / "run"
    victim = process(*check_command(run, SHORT))
    victim.wait_for(run / stage, 2)
    ended = victim.send(signal.SIGINT)
    assert ended.status == 130
    assert "Traceback" not in ended.err
    assert "--run DIR --resume" in ended.err
    assert cli(*check_command(run, SHORT), "--resume").status == 0
    assert decided(run) == decided(unbroken[SHORT])


def test_a_check_without_a_folder_says_where_the_run_is_before_it_begins(tmp_path, cli, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ended = cli("check", "--rollout", "fake:m", "--trainer", "fake:m", *SHORT)
    (run,) = (tmp_path / "runs").iterdir()
    assert ended.err.startswith(f"run runs/{run.name}\n")


def test_a_terminated_process_leaves_a_run_that_resumes(tmp_path, process, cli, unbroken):
    run = tmp_path / "run"
    victim = process(*check_command(run, SHORT))
    victim.wait_for(run / "readings" / "trainer", 2)
    assert victim.send(signal.SIGTERM).status == -signal.SIGTERM
    assert cli(*check_command(run, SHORT), "--resume").status == 0
    assert decided(run) == decided(unbroken[SHORT])


def test_an_unfinished_recording_is_refused_by_score_and_unknown_to_judge(tmp_path, process, cli):
    run = tmp_path / "run"
    victim = process(*record_command(run, SHORT))
    victim.wait_for(run / "rollouts", 2)
    victim.send(signal.SIGKILL)
    ended = cli("score", run, "--engine", TRAINER)
    assert ended.status == 2
    assert "of 32 rollouts are recorded. Finish with: onepolicy record" in ended.err
    assert cli("judge", run).status == 2


def test_an_unfinished_scoring_is_unknown_and_says_what_to_do(tmp_path, process, cli, unbroken):
    run = tmp_path / "run"
    victim = process(*check_command(run, SHORT))
    victim.wait_for(run / "readings" / "trainer", 2)
    victim.send(signal.SIGKILL)
    ended = cli("judge", run, "--coverage", 0.001)
    assert ended.status == 3
    assert "with --resume" in " ".join(ended.out.split())
    assert cli("score", run, "--engine", TRAINER, "--resume").status == 0
    assert cli("judge", run).status == 0
    assert decided(run) == decided(unbroken[SHORT])


def test_a_folder_in_which_a_process_died_before_its_manifest_is_used(tmp_path, cli):
    run = tmp_path / "run"
    run.mkdir()
    (run / ".manifest.json.abc.tmp").write_text("{")
    assert cli("record", "--engine", "fake:m", "--run", run, *SHORT).status == 0


def test_a_second_writer_is_told_to_wait_or_to_take_a_shard(tmp_path, process, cli):
    run = tmp_path / "run"
    first = process(*record_command(run, SHORT))
    first.wait_for(run / "rollouts", 1)
    ended = cli(*record_command(run, SHORT), "--resume")
    assert ended.status == 2
    assert "another process is writing this part of the run" in ended.err
    assert first.end().status == 0
    assert len(Run.open(run).rollout_ids()) == PROMPTS


def test_two_shards_in_two_processes_give_the_run_of_one(tmp_path, process, cli, unbroken):
    run = tmp_path / "run"
    shards = [process(*record_command(run, SHORT), "--shard", f"{i}/2", "--resume") for i in (1, 2)]
    ended = [shard.end() for shard in shards]
    assert [one.status for one in ended] == [0, 0], ended
    shards = [process("score", run, "--engine", TRAINER, "--shard", f"{i}/2") for i in (1, 2)]
    ended = [shard.end() for shard in shards]
    assert [one.status for one in ended] == [0, 0], ended
    assert cli("judge", run).status == 0
    assert parts_of(run) == parts_of(unbroken[SHORT])
    assert contents(run).keys() == contents(unbroken[SHORT]).keys()
    assert contents(run)["manifest.json"] == contents(unbroken[SHORT])["manifest.json"]
    assert decided(run) == decided(unbroken[SHORT])


def test_one_shard_alone_is_no_complete_run(tmp_path, cli):
    run = tmp_path / "run"
    assert cli("record", "--engine", "fake:m", "--run", run, "--shard", "1/2", *SHORT).status == 0
    assert json.loads((run / "manifest.json").read_text())["status"] == "recording"
    ended = cli("score", run, "--engine", "fake:m")
    assert ended.status == 2
    assert "in every shard" in ended.err
