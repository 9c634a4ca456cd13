"""The hook in verl's own trainers: `fit`, batches, queue columns, rollout correction and metrics are verl's.

Oracle: what verl logs of the same batch, and what the job's engine and trainer say they computed.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from onepolicy.api import compare_files

PEERS = Path(__file__).parents[2] / ".peers"
JOB = Path(__file__).parent / "verl_job.py"

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not PEERS.exists(), reason="verl is not in .peers: run make .peers/.ready"),
]

OUTLIER, STEPS = 5, 4
REJECTS = {"algorithm.rollout_correction.rollout_rs": "token_k3"}
REJECTS |= {"algorithm.rollout_correction.rollout_rs_threshold": 0.001}
SCENARIOS = {
    "plain": {},
    "rejects": {"config": REJECTS},
    "masks": {"outlier": OUTLIER, "options": {"policy": "mask", "limits": "LIMITS"}},
    "all masked": {"noise": 4.0, "options": {"policy": "mask", "limits": "STRICT"}},
    "halts": {"noise": 1.0, "steps": 20, "options": {"policy": "halt"}},
    "bypasses": {"config": {"algorithm.rollout_correction.bypass_mode": True}},
    "asks for none": {"config": {"actor_rollout_ref.rollout.calculate_log_probs": False}},
}
TRAINERS = ("queued", "in_memory")


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A folder with one of each scenario and trainer."""
    folder = tmp_path_factory.mktemp("verl")
    for name, worst in (("LIMITS", 0.5), ("STRICT", 1e-9)):
        (folder / f"{name}.yaml").write_text(f"mean_kl: 1000\nmax_abs_d: 1000\nworst_rollout_kl: {worst}\n")
    scenarios = {}
    for trainer in TRAINERS:
        for name, said in SCENARIOS.items():
            options = dict(said.get("options", {}))
            if options.get("limits"):
                options["limits"] = str(folder / f"{options['limits']}.yaml")
            scenarios[f"{trainer} {name}"] = {**said, "options": options, "trainer": trainer}
    command = [sys.executable, "-W", "ignore", str(JOB), str(PEERS), str(folder), json.dumps(scenarios)]
    environment = {**os.environ, "PYTHONPATH": str(PEERS)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture(params=TRAINERS)
def of(request, ran):
    """Folder of a scenario in one of the trainers."""
    return lambda scenario: ran / f"{request.param} {scenario}"


def read(folder, name):
    return json.loads((folder / f"{name}.json").read_text())


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def logged(folder):
    return [line["data"] for line in lines(folder / "log.jsonl")]


def test_the_numbers_are_those_that_verl_logs_of_the_same_batch(of):
    records, verl = lines(of("plain") / "run/steps.jsonl"), logged(of("plain"))
    assert [record["step"] for record in records] == [1, 2, 3, 4]
    for record, theirs in zip(records, verl, strict=True):
        ours = record["metrics"]
        assert ours["k1"] == pytest.approx(theirs["rollout_corr/kl"], rel=1e-4, abs=1e-8)
        assert ours["k3"] == pytest.approx(theirs["rollout_corr/k3_kl"], rel=1e-4)
        assert ours["mean_probability_difference"] == pytest.approx(
            theirs["training/rollout_probs_diff_mean"], rel=1e-5
        )
        assert ours["max_probability_difference"] == pytest.approx(theirs["training/rollout_probs_diff_max"], rel=1e-5)


def test_all_and_only_what_was_sampled_is_compared(of):
    for record, rows in zip(lines(of("plain") / "run/steps.jsonl"), read(of("plain"), "given"), strict=True):
        assert record["rollouts"] == len(rows) == 24
        assert record["compared"] == sum(sum(row["mask"]) for row in rows)
        assert record["empty_rollouts"] == 1
        assert [cell["lag"] for cell in record["by_lag"]] == [0]


def test_the_numbers_are_in_verls_own_log_one_step_later(of):
    records, verl = lines(of("plain") / "run/steps.jsonl"), logged(of("plain"))
    assert [data.get("onepolicy/step") for data in verl] == [None, 1, 2, 3]
    assert [data["onepolicy/k3"] for data in verl[1:]] == [pytest.approx(r["metrics"]["k3"]) for r in records[:-1]]
    assert [data.get("onepolicy/signal/failed") for data in verl] == [0, None, None, None]


def test_the_dump_has_every_rollout_bit_for_bit(of):
    for step, given in enumerate(read(of("plain"), "given"), start=1):
        rows = pq.read_table(of("plain") / f"dump/step-{step:06d}-rank-0000.parquet").to_pylist()
        made = {tuple(row["prompt"] + row["response"]): row for row in given}
        assert len(rows) == len(made) == 24
        for row in rows:
            expected = made[tuple(row["prompt_ids"] + row["completion_ids"])]
            assert row["completion_ids"] == expected["response"]
            assert row["rollout_logprobs"] == expected["rollout"]
            assert row["trainer_logprobs"] == expected["trainer"]
            assert row["sampled"] == row["loss_mask"] == [m == 1 for m in expected["mask"]]
            assert not expected["response"] or row["reward"] == expected["score"]
            assert (row["prompt_id"], row["step"]) == (expected["uid"], step)
            assert (row["weight_version"], row["trainer_version"]) == (str(step - 1), str(step - 1))


def test_the_advantages_in_the_dump_are_those_of_the_loss(of):
    rows = pq.read_table(of("plain") / "dump/step-000001-rank-0000.parquet").to_pylist()
    given, losses = read(of("plain"), "given")[0], read(of("plain"), "losses")[0]
    places = {tuple(row["prompt"] + row["response"]): i for i, row in enumerate(given)}
    order = [losses["keys"].index(_key(i, given)) for i in range(24)] if "keys" in losses else range(24)
    of_loss = [max(losses["advantages"][place], key=abs, default=None) for place in order]
    for row in rows:
        if row["completion_ids"]:
            place = places[tuple(row["prompt_ids"] + row["completion_ids"])]
            assert row["advantage"] == pytest.approx(of_loss[place])
        else:
            assert row["advantage"] is None


def _key(place, given):
    return f"{given[place]['uid']}_{place % 4}_0"


def test_the_dump_is_compared_as_it_is(of):
    judgement = compare_files(of("plain") / "dump", limits="bf16")
    records = lines(of("plain") / "run/steps.jsonl")
    tokens = sum(record["compared"] for record in records)
    mean = sum(record["metrics"]["k3"] * record["compared"] for record in records) / tokens
    found = {verdict.check: verdict for verdict in judgement.verdicts}
    assert found["mean_kl"].value == pytest.approx(mean, rel=1e-4)
    assert {found[name].status.value for name in ("alignment", "same_weights", "valid_logprobs", "mean_ratio")} == {
        "pass"
    }


def test_what_rejection_sampling_takes_out_of_the_loss_is_compared_all_the_same(of):
    records, verl = lines(of("rejects") / "run/steps.jsonl"), logged(of("rejects"))
    for record, theirs, given in zip(records, verl, read(of("rejects"), "given"), strict=True):
        assert record["compared"] == sum(sum(row["mask"]) for row in given)
        assert record["metrics"]["k3"] == pytest.approx(theirs["rollout_corr/k3_kl"], rel=1e-4)
        rows = pq.read_table(of("rejects") / f"dump/step-{record['step']:06d}-rank-0000.parquet").to_pylist()
        sampled = np.concatenate([row["sampled"] for row in rows])
        trained = np.concatenate([row["loss_mask"] for row in rows])
        rejected = theirs["rollout_corr/rollout_rs_masked_fraction"]
        assert 0 < rejected < 1
        assert 1 - trained.sum() / sampled.sum() == pytest.approx(rejected)
    assert all(data.get("onepolicy/signal/failed", 0) == 0 for data in verl)


def test_an_outlier_is_not_in_the_mask_that_the_loss_gets_and_the_others_are(of):
    given = read(of("masks"), "given")
    for rows, losses in zip(given, read(of("masks"), "losses"), strict=True):
        order = [losses["keys"].index(_key(i, rows)) for i in range(24)] if "keys" in losses else range(24)
        masks = [losses["response_mask"][place] for place in order]
        assert sum(masks[OUTLIER]) == 0
        assert all(sum(masks[i]) == sum(row["mask"]) for i, row in enumerate(rows) if i != OUTLIER)
        assert "onepolicy_sampled" not in losses
    assert [record["masked_rollouts"] for record in lines(of("masks") / "run/steps.jsonl")] == [1] * STEPS


def test_where_every_rollout_is_an_outlier_the_loss_is_left_something_to_divide_by(of):
    for rows, losses in zip(read(of("all masked"), "given"), read(of("all masked"), "losses"), strict=True):
        assert sum(map(sum, losses["response_mask"])) == sum(sum(row["mask"]) for row in rows)
        assert not np.concatenate(losses["advantages"]).any()


def test_halt_ends_verls_loop_and_says_where_the_evidence_is(of):
    ended = read(of("halts"), "ended")
    assert ended.startswith("TrainingHalted: ")
    assert str(of("halts") / "run") in ended
    assert len(read(of("halts"), "losses")) < 20
    assert read(of("halts") / "run", "monitor")["status"] == "fail"


def test_bypass_mode_is_refused_before_the_first_step(of):
    assert "whether the two policies agree is unknown" in read(of("bypasses"), "ended")
    assert not read(of("bypasses"), "losses")


def test_an_engine_that_is_asked_for_no_logprobs_is_refused_with_the_option(of):
    ended = read(of("asks for none"), "ended")
    assert "actor_rollout_ref.rollout.calculate_log_probs=True" in ended
    assert not read(of("asks for none"), "losses")


def test_verl_loads_a_module_that_attaches_in_each_of_its_processes(tmp_path):
    (tmp_path / "my_monitor.py").write_text("import verl\nprint('loaded', verl.DataProto.__name__)\n")
    environment = {**os.environ, "PYTHONPATH": f"{PEERS}{os.pathsep}{tmp_path}"}
    environment["VERL_USE_EXTERNAL_MODULES"] = "my_monitor"
    command = [sys.executable, "-W", "ignore", "-c", "import verl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert "loaded DataProto" in done.stdout, done.stderr[-2000:]
