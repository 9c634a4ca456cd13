"""The gate's answer: nothing but a pass allows, and a check is skipped only where nothing can have changed."""

import json
import shutil
import time
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from standin import Vllm, standing_in

from onepolicy.engines.spec import parse_spec
from onepolicy.errors import EngineError, OnePolicyError, RunError, UsageError
from onepolicy.judgement.decide import sentence
from onepolicy.judgement.limits import Limits
from onepolicy.records.past import GateAnswer
from onepolicy.records.tokens import digest_of_ids
from onepolicy.records.verdict import Status, Verdict
from onepolicy.workflow.calibrate import CalibrateRequest, calibrate
from onepolicy.workflow.config import check_request, load_config
from onepolicy.workflow.gate import GateRequest, asked_of, gate
from onepolicy.workflow.gate_answer import read_answer
from onepolicy.workflow.judge import JudgeRequest, judge

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
WEEK = timedelta(days=7)
WAIVER = {"check": "mean_kl", "reason": "known"}


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    fixed = [{"id": f"s{i:02}", "prompt": f"{i} of many: ", "completion": f"the rain in spain {i}"} for i in range(14)]
    Path("fixed.jsonl").write_text("\n".join(map(json.dumps, fixed)))
    fresh = [{"id": f"p{i}", "messages": [{"role": "user", "content": f"say {i}"}]} for i in range(3)]
    Path("three.jsonl").write_text("\n".join(map(json.dumps, fresh)))
    return tmp_path


def written(*, name: str = "onepolicy.yaml", **config: object) -> Path:
    asked = {"rollout": "fake:m", "trainer": "fake:m?noise=0.003", "suite": "fixed.jsonl", **config}
    Path(name).write_text(json.dumps(asked))  # JSON is YAML
    return Path(name)


def asked(config: Path, *, days: float = 0, **fields: object) -> GateRequest:
    now = NOW + timedelta(days=days)
    return GateRequest(config=config, verdict=Path("verdict.json"), now=lambda: now, **fields)


def kept() -> GateAnswer:
    return read_answer(Path("verdict.json"))


def test_a_pass_allows_and_the_file_says_it_with_its_numbers(here):
    answer = gate(asked(written()))
    assert (answer.allowed, answer.status, answer.exit_status) == (True, Status.PASS, 0)
    assert kept() == answer
    assert answer.numbers["onepolicy/kl"] < 1e-4
    assert answer.run == "runs/20260501-120000-onepolicy"
    assert (Path(answer.run) / "judgements" / "default" / "gate.json").exists()


def test_a_fail_and_an_unknown_do_not(here):
    failed = gate(asked(written(trainer="fake:m?noise=0.5")))
    assert (failed.allowed, failed.exit_status, kept().allowed) == (False, 1, False)
    unknown = gate(asked(written(suite="three.jsonl")))
    assert (unknown.allowed, unknown.exit_status, kept().allowed) == (False, 3, False)


@pytest.mark.parametrize(
    ("config", "error", "words"),
    [
        ({"trainer": "llamacpp:none.gguf"}, EngineError, "no GGUF file"),
        ({"trainer": "callable:none.py:score"}, UsageError, "no file none.py"),
        ({"trainer": None}, UsageError, "no trainer engine"),
        ({"suite": "none.jsonl"}, UsageError, "no suite"),
        (
            {"limits": {"waivers": [{"check": "mean_kl", "reason": "x", "until": "2999-01-01"}]}},
            UsageError,
            "not needed",
        ),
        ({"limits": {"mean_kl": "3 x floor", "floor": "none.json"}}, UsageError, "noise floor"),
    ],
)
def test_what_cannot_run_is_not_allowed_and_the_file_says_why(here, config, error, words):
    with pytest.raises(error, match=words):
        gate(asked(written(**config)))
    assert (kept().allowed, kept().status, kept().exit_status) == (False, Status.UNKNOWN, 2)
    assert words in kept().sentence


def test_an_answer_of_before_does_not_survive_the_beginning_of_a_gate(here):
    gate(asked(written()))
    with pytest.raises(OnePolicyError):
        gate(asked(Path("none.yaml")))
    assert not kept().allowed


def test_a_verdict_file_that_cannot_be_written_is_an_error_before_anything_is_checked(here):
    Path("verdict.json").mkdir()
    with pytest.raises(RunError, match="no regular file"):
        gate(asked(written()))
    assert not Path("runs").exists()


def test_a_waiver_past_its_end_blocks_what_it_let_through(here):
    def answer(until: str, days: int) -> GateAnswer:
        limits = {"max_abs_d": 100, "worst_rollout_kl": 100, "waivers": [WAIVER | {"until": until}]}
        return gate(asked(written(trainer="fake:m?noise=0.5", limits=limits), days=days))

    assert answer("2999-01-01", 0).allowed
    assert (answer("2020-01-01", 1).allowed, kept().exit_status) == (False, 1)


def test_an_expired_floor_blocks(here):
    noisy = parse_spec("fake:m?batch_noise=1e-4&batch_size=4")
    calibrate(CalibrateRequest(engine=noisy, output=Path("floor.json"), suite="fixed.jsonl"), path=here / "floor-run")
    config = written(trainer=str(noisy), limits={"mean_kl": "9 x floor", "floor": "floor.json"})
    assert gate(asked(config)).allowed
    floor = json.loads(Path("floor.json").read_text())
    floor["environment"]["numpy"] = "1.0"
    Path("floor.json").write_text(json.dumps(floor))
    with pytest.raises(UsageError, match="holds for neither reading"):
        gate(asked(config, days=1))
    assert not kept().allowed


def test_an_answer_that_contradicts_itself_is_refused(here):
    gate(asked(written(trainer="fake:m?noise=0.5")))
    content = json.loads(Path("verdict.json").read_text()) | {"allowed": True}
    Path("verdict.json").write_text(json.dumps(content))
    with pytest.raises(RunError, match="does not follow from status 'fail'"):
        kept()


# -- against the last green run -----------------------------------------------------------------------------------


def test_the_second_run_is_held_against_the_first(here):
    assert gate(asked(written())).against is None
    same = gate(asked(written(), days=1)).against
    assert (same.is_bitwise, same.changed) == (True, ())
    worse = gate(asked(written(trainer="fake:m?noise=0.5"), days=2))
    assert not worse.allowed
    assert worse.against.green == "runs/20260502-120000-onepolicy"
    assert worse.against.sentence.startswith("Look first at configuration: trainer option noise 0.003 -> 0.5.")


class NewVllm(Vllm):
    """The same server after an upgrade, which changes its numbers a little."""

    def other(self, method, path, body):
        return (200, {"version": "0.33.0"}) if path == "/version" else super().other(method, path, body)


def test_an_upgraded_engine_is_the_first_thing_to_look_at(here):
    with standing_in(Vllm()) as server:
        config = written(rollout=f"vllm:{server.url}?retries=0", trainer="fake:m")
        assert gate(asked(config)).allowed
        server.dialect = NewVllm(tiny=type(server.dialect.tiny)(seed=1))
        answer = gate(asked(config, days=1))
    assert not answer.allowed
    assert answer.against.changed[0] == "versions: rollout engine version 0.32.0 -> 0.33.0"
    assert answer.against.sentence.startswith("Look first at versions: rollout engine version 0.32.0 -> 0.33.0")


# -- if changed -----------------------------------------------------------------------------------------------------


@pytest.fixture
def green(here):
    """A gate that passed."""

    def make(config: Path, **fields: object) -> GateAnswer:
        answer = gate(asked(config, **fields))
        assert answer.allowed
        return answer

    return make


def runs() -> int:
    return len(list(Path("runs").iterdir()))


def test_nothing_changed_skips_the_check_and_says_since_when(green):
    first = green(written(), if_changed=WEEK)
    assert first.why_checked == "no run there that passed was asked for the same by `onepolicy gate`"
    second = gate(asked(written(), days=1, if_changed=WEEK))
    assert (second.allowed, second.unchanged_since, runs()) == (True, first.run, 1)
    assert second.sentence.startswith(f"Pass: nothing changed since {first.run} of 2026-05-01 12:00 UTC")
    assert second.numbers == first.numbers


def test_without_being_asked_for_nothing_is_skipped(green):
    green(written())
    assert gate(asked(written(), days=1)).unchanged_since == ""
    assert runs() == 2


@pytest.mark.parametrize(
    "change",
    [
        {"trainer": "fake:m?noise=0.002"},
        {"rollout": "fake:other"},
        {"budget": 100},
        {"limits": "bf16"},
        {"limits": {"mean_kl": 2e-4}},
        {"top": 3},
        {"also": ["fake:m?seed=1"]},
        {"statistics": True},
    ],
)
def test_whatever_is_asked_for_otherwise_is_checked(green, change):
    green(written())
    answer = gate(asked(written(**change), days=1, if_changed=WEEK))
    assert (answer.unchanged_since, runs()) == ("", 2)


def test_another_content_of_the_suite_is_checked(green):
    config = written()
    green(config)
    lines = Path("fixed.jsonl").read_text()
    Path("fixed.jsonl").write_text(lines.replace("spain 13", "spain, 13"))
    assert "asked for the same" in gate(asked(config, days=1, if_changed=WEEK)).why_checked


def edit(name: str, change) -> None:
    (file,) = Path("runs").glob(f"*/{name}")
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


READING = "readings/trainer/reading.json"


def test_a_package_that_was_loaded_then_and_is_installed_alike_now_did_not_change(green):
    """Which of them a process has loaded depends on what it did before."""
    green(written())
    edit(READING, lambda c: c["environment"].update(tokenizers=version("tokenizers"), peft=version("peft")))
    assert gate(asked(written(), days=1, if_changed=WEEK)).unchanged_since


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        (READING, lambda c: c["environment"].update(numpy="1.0"), "numpy changed from 1.0 to"),
        (READING, lambda c: c["environment"].update(flash_attn="2"), "flash attn changed from 2 to absent"),
        (READING, lambda c: c["environment"].update(xllamacpp="1"), "xllamacpp changed from 1 to 2"),
        (READING, lambda c: c["environment"].pop("numpy"), "numpy changed from absent to"),
        (READING, lambda c: c["environment"].update(driver="550"), "driver changed from 550 to absent"),
        (READING, lambda c: c["environment"].pop("python"), "python changed from absent to"),
        (READING, lambda c: c["engine"].update(version="0"), "version changed from 0 to 1"),
        (READING, lambda c: c["engine"].update(weights_hash="x"), "weights hash changed from x to"),
        (READING, lambda c: c["engine"].update(tokenizer_hash="x"), "tokenizer hash changed from x to"),
        (READING, lambda c: c["engine"].update(weights_hash=""), "does not say a hash of its weights"),
        (READING, lambda c: c["condition"].update(batch_size=3), "batch size changed from 3 to 16"),
        ("readings/rollout/reading.json", lambda c: c["engine"].update(version="0"), "version changed from 0 to 1"),
        ("judgements/default/gate.json", lambda c: c.update(asked="x"), "asked for the same"),
        ("judgements/default/verdicts.json", lambda c: c["metrics"].update(k3=0.5), "does not hold what was judged"),
        ("judgements/default/verdicts.json", lambda c: c.update(status="fail"), "asked for the same"),
        ("manifest.json", lambda c: c.update(status="recording"), "does not hold what was judged"),
    ],
)
def test_whatever_is_not_as_it_was_or_not_known_is_checked(green, name, change, why):
    green(written())
    edit(name, change)
    answer = gate(asked(written(), days=1, if_changed=WEEK))
    assert why in answer.why_checked
    assert (answer.unchanged_since, runs()) == ("", 2)


def fresh_suite() -> None:
    lines = [{"id": f"p{i}", "messages": [{"role": "user", "content": f"say {i}"}]} for i in range(20)]
    Path("three.jsonl").write_text("\n".join(map(json.dumps, lines)))


def test_fresh_rollouts_are_skipped_too(green):
    fresh_suite()
    config = written(suite="three.jsonl", budget=1000, sampling={"max_new_tokens": 40})
    green(config)
    assert gate(asked(config, days=1, if_changed=WEEK)).unchanged_since == "runs/20260501-120000-onepolicy"


def test_a_prompt_that_becomes_other_ids_is_checked_as_no_hash_covers_a_template(green, rewrite):
    fresh_suite()
    config = written(suite="three.jsonl", sampling={"max_new_tokens": 12})
    path = Path(green(config).run)
    new = {}

    def other(rows):
        for name, row in rows.items():
            row["token_ids"][0] = (row["token_ids"][0] + 1) % 200
            new[name] = digest_of_ids(np.array(row["token_ids"]))

    rewrite(path / "rollouts", other)
    for reading in ("rollout", "trainer"):
        rewrite(path / "readings" / reading, lambda rows: [row.update(digest=new[name]) for name, row in rows.items()])
    assert "becomes other ids" in gate(asked(config, days=1, if_changed=WEEK)).why_checked


def test_a_green_run_that_is_too_old_or_of_the_future_is_no_answer(green):
    green(written())
    assert "none before" in gate(asked(written(), days=8, if_changed=WEEK)).why_checked
    shutil.rmtree(next(Path("runs").glob("20260509*")))
    assert "none before" in gate(asked(written(), days=-1, if_changed=WEEK)).why_checked


def test_a_later_run_that_did_not_pass_is_not_passed_over(green):
    green(written())
    gate(asked(written(trainer="fake:m?noise=0.5"), days=1))
    answer = gate(asked(written(), days=2, if_changed=WEEK))
    assert "came after" in answer.why_checked
    assert "is fail" in answer.why_checked


def test_a_later_fail_of_the_same_engines_on_another_suite_is_not_passed_over(green):
    green(written())
    Path("other.jsonl").write_text(Path("fixed.jsonl").read_text().replace("rain", "snow"))
    other = {"trainer": "fake:m?noise=0.5", "suite": "other.jsonl"}
    assert not gate(asked(written(**other), days=1)).allowed
    assert "is fail" in gate(asked(written(), days=2, if_changed=WEEK)).why_checked


def test_a_later_fail_of_other_engines_changes_nothing(green):
    green(written())
    assert not gate(asked(written(rollout="fake:n", trainer="fake:n?noise=0.5"), days=1)).allowed
    assert gate(asked(written(), days=2, if_changed=WEEK)).unchanged_since


def test_a_fail_that_was_edited_to_a_pass_is_checked(here):
    failing = written(trainer="fake:m?noise=0.5")
    assert not gate(asked(failing)).allowed

    def passing(content):
        for verdict in content["verdicts"]:
            verdict["status"] = "pass"
        verdicts = [Verdict.model_validate(verdict) for verdict in content["verdicts"]]
        content.update(status="pass", sentence=sentence(verdicts))

    edit("judgements/default/verdicts.json", passing)
    answer = gate(asked(failing, days=1, if_changed=WEEK))
    assert (answer.allowed, "does not hold what was judged" in answer.why_checked) == (False, True)


def test_a_run_that_was_judged_again_with_other_limits_is_checked(here):
    failing = written(trainer="fake:m?noise=0.5")
    run = Path(gate(asked(failing)).run)
    loose = Limits(mean_kl=10, max_abs_d=100, worst_rollout_kl=100, outlier_rate=1)
    assert judge(run, JudgeRequest(limits=loose)).status is Status.PASS
    answer = gate(asked(failing, days=1, if_changed=WEEK))
    assert (answer.allowed, "judged again since, with other limits" in answer.why_checked) == (False, True)


@pytest.fixture
def zone(monkeypatch):
    """Sets the time zone of this process."""
    with monkeypatch.context() as patch:
        yield lambda name: (patch.setenv("TZ", name), time.tzset())
    time.tzset()


@pytest.mark.parametrize(("name", "holds"), [("UTC", False), ("Etc/GMT+12", True)])
def test_a_waiver_ends_with_the_day_of_this_machine(green, zone, name, holds):
    zone(name)
    limits = {"max_abs_d": 100, "worst_rollout_kl": 100, "waivers": [WAIVER | {"until": "2999-01-01"}]}
    config = written(trainer="fake:m?noise=0.5", limits=limits)
    days = (datetime(2999, 1, 2, tzinfo=UTC) - NOW) / timedelta(days=1)
    green(config, days=days)
    answer = gate(asked(config, days=days + 0.1, if_changed=WEEK))
    assert bool(answer.unchanged_since) is holds
    assert answer.why_checked == ("" if holds else "the waiver of 'mean_kl' ended on 2999-01-01")


def test_a_later_run_that_is_damaged_is_not_passed_over(green):
    green(written())
    Path("runs/20260502-000000-killed").mkdir()
    Path("runs/20260502-000000-killed/manifest.json").write_text("{")
    assert "came after" in gate(asked(written(), days=2, if_changed=WEEK)).why_checked


def test_an_engine_that_cannot_be_asked_is_checked_and_the_check_says_what_is_wrong(green):
    with standing_in(Vllm()) as server:
        config = written(rollout=f"vllm:{server.url}?retries=0", trainer="fake:m")
        green(config)
        answer = gate(asked(config, days=1, if_changed=WEEK))
        assert "vllm does not say a hash of its weights" in answer.why_checked
    with pytest.raises(EngineError):
        gate(asked(config, days=2, if_changed=WEEK))
    assert not kept().allowed


def test_what_is_asked_for_has_one_name_whatever_the_order_of_the_words(green):
    first = asked_of(check_request(load_config(written())))
    Path("again.yaml").write_text(
        "suite: ./fixed.jsonl\ntrainer: {engine: fake, target: m, noise: 0.003}\nrollout: fake:m"
    )
    assert asked_of(check_request(load_config(Path("again.yaml")))) == first
