"""Whatever is wrong with a server, a command ends with 2 (or 3, or 1), says what to do, and never with a pass."""

import hashlib
import json
import re
import signal
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from standin import LOWEST, Faults, StandIn, TinyModel, Vllm, standing_in

from onepolicy.records.run import Run

PROMPTS = 20
OPTIONS = "retries=1&concurrency=4&timeout=20"
KEY = "sk-never-to-be-kept"


@pytest.fixture(autouse=True)
def few_prompts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [{"id": f"p{i}", "messages": [{"role": "user", "content": f"What is {i}?"}]} for i in range(PROMPTS)]
    Path("suite.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


SHORT = ("--suite", "suite.jsonl", "--max-new-tokens", 6, "--top", 3)


@pytest.fixture
def serve():
    with ExitStack() as servers:

        def start(**options) -> StandIn:
            faults = Faults(
                **{name: options.pop(name) for name in list(options) if hasattr(Faults, name) or name in NEW}
            )
            return servers.enter_context(standing_in(Vllm(faults=faults, **options)))

        yield start


NEW = Faults.__dataclass_fields__


def spec(server: StandIn, options: str = OPTIONS) -> str:
    return f"vllm:{server.url}?{options}"


def as_rollout(server: StandIn, run: Path, *more, options: str = OPTIONS) -> tuple:
    return ("check", "--rollout", spec(server, options), "--trainer", "fake:m", "--run", run, *SHORT, *more)


def as_trainer(server: StandIn, run: Path, *more, options: str = OPTIONS) -> tuple:
    return ("check", "--rollout", "fake:m", "--trainer", spec(server, options), "--run", run, *SHORT, *more)


SIDES = pytest.mark.parametrize("side", [as_rollout, as_trainer])


def refused(ended, *words: str) -> None:
    """It could not run, and says so in one message of ours that has these words."""
    said = " ".join(ended.err.split())
    assert ended.status == 2, (ended.status, ended.out, ended.err)
    assert "Traceback" not in said
    assert "bug of onepolicy" not in said
    for word in words:
        assert re.search(word, said), (word, said)


def parts_of(run: Path) -> dict[str, str]:
    return {
        str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest() for path in run.rglob("*.parquet")
    }


@SIDES
def test_a_server_without_faults_passes(side, serve, cli, tmp_path):
    ended = cli(*side(serve(), tmp_path / "run"))
    assert ended.status == 0, ended


@SIDES
@pytest.mark.parametrize(
    ("faults", "words"),
    [
        ({"delay": 5.0}, ["no whole answer within 0.3 s", r"\?timeout=", "--resume"]),
        ({"refuse": 10**6, "refuse_status": 429}, ["status 429: .*busy", "2 tries", "--resume"]),
        ({"refuse": 10**6, "refuse_status": 503}, ["status 503: .*busy", "2 tries", "--resume"]),
        ({"refuse": 10**6, "refuse_status": 418}, ["status 418"]),
        ({"cut_json": 10**6}, ["the answer is no JSON", "--resume"]),
        ({"cut_body": 10**6}, ["RemoteProtocolError", "--resume"]),
        ({"wrong_prompt_ids": True}, ["worked on other prompt ids than were sent", "BOS"]),
        ({"fewer_logprobs": True}, ["logprobs came back for"]),
        ({"other_model_after": 0}, ["does not exist|answered, 'm' was asked for|serves no model|Name one"]),
        ({"other_model_after": 10}, ["does not exist|'another' answered, 'm' was asked for"]),
        ({"redirect": "http://127.0.0.1:1/v1"}, ["sends on to 'http://127.0.0.1:1/v1'", "not followed"]),
        ({"endless": True}, ["does not end|no whole answer within"]),
    ],
    ids=str,
)
def test_a_fault_ends_with_2_and_says_what_to_do(side, faults, words, serve, cli, tmp_path):
    server = serve(**faults)
    timeout = "0.3" if "delay" in faults or "endless" in faults else "20"
    ended = cli(*side(server, tmp_path / "run", options=f"retries=1&concurrency=4&timeout={timeout}"))
    refused(ended, server.url if "other_model_after" not in faults else "", *words)


@SIDES
def test_a_server_that_is_not_there_is_named(side, serve, cli, tmp_path):
    server = serve()
    server.die()
    refused(cli(*side(server, tmp_path / "run")), f"{server.url}/.*: .*onnect", "See whether the server is up")


@SIDES
@pytest.mark.parametrize("odd", [-9999.0, LOWEST, None, float("nan"), float("inf"), 0.5, -1e4])
def test_what_is_no_logprob_never_passes(side, odd, serve, cli, tmp_path):
    ended = cli(*side(serve(odd_values=(odd,) * 500), tmp_path / "run"))
    assert ended.status in (1, 3), ended
    assert "Traceback" not in ended.err


@SIDES
@pytest.mark.parametrize("odd", ["-1.5", [], {"a": 1}, True, 10**400])
def test_what_is_no_number_is_an_error(side, odd, serve, cli, tmp_path):
    refused(cli(*side(serve(odd_values=(odd,)), tmp_path / "run")), "rollout|canary")


def test_ids_that_are_no_ids_are_an_error(serve, cli, tmp_path, monkeypatch):
    monkeypatch.setattr(Vllm, "shown_ids", lambda self, ids: [*ids[:-1], 2**40])
    refused(cli(*as_rollout(serve(), tmp_path / "run")), "cannot be read")


@SIDES
def test_wrong_ids_of_tokens_never_pass(side, serve, cli, tmp_path):
    assert cli(*side(serve(wrong_ids=True), tmp_path / "run")).status in (1, 2, 3)


@SIDES
@pytest.mark.parametrize("status", [429, 503])
def test_a_burst_of_refusals_is_waited_out(side, status, serve, cli, tmp_path):
    server = serve(refuse=3, refuse_status=status, retry_after="0")
    options = "retries=6&concurrency=4&timeout=20"
    assert cli(*side(server, tmp_path / "run", options=options)).status == 0


@SIDES
def test_now_and_then_a_broken_answer_is_asked_for_again(side, serve, cli, tmp_path):
    assert cli(*side(serve(cut_json=1, cut_body=1), tmp_path / "run", options="retries=4")).status == 0


@SIDES
def test_a_sequence_longer_than_the_server_takes_is_an_error_with_its_words(side, serve, cli, tmp_path):
    server = serve(max_length=33)
    refused(cli(*side(server, tmp_path / "run")), "rollout|canary", "maximum context length is 33 tokens")


def test_a_model_that_the_server_does_not_have_is_refused_with_those_it_has(serve, cli, tmp_path):
    ended = cli(*as_rollout(serve(), tmp_path / "run", options="model=other"))
    refused(ended, "serves no model 'other'. It serves: m")


@pytest.mark.parametrize("temperature", [0, 0.7])
def test_a_server_that_ignores_the_temperature_is_refused(temperature, serve, cli, tmp_path):
    server = serve(ignores_temperature=True)
    ended = cli(*as_rollout(server, tmp_path / "run", "--temperature", temperature))
    refused(ended, server.url, "ignores the request's `temperature`")


@pytest.mark.parametrize("temperature", [0, 0.7])
def test_a_server_that_heeds_the_temperature_is_not(temperature, serve, cli, tmp_path):
    ended = cli(*as_rollout(serve(), tmp_path / "run", "--temperature", temperature))
    assert ended.status in (0, 3), ended


# -- another model behind the same name ---------------------------------------------------------------------------


def test_a_model_replaced_while_it_samples_is_an_error_and_leaves_none_of_its_rollouts(serve, cli, tmp_path):
    run = tmp_path / "run"
    server = serve(reload_after=14)
    refused(cli(*as_rollout(server, run)), "another model answers than the one that this reading began with")
    assert Run.open(run).rollout_ids() == []
    server.dialect.tiny, server.dialect.faults.reload_after = TinyModel(), None
    assert cli(*as_rollout(server, run, "--resume")).status == 0


def test_a_model_replaced_while_it_scores_is_an_error_and_leaves_no_row(serve, cli, tmp_path):
    run = tmp_path / "run"
    refused(cli(*as_trainer(serve(reload_after=8), run)), "another model answers than the one that this reading")
    assert Run.open(run).reading_rollout_ids("trainer") == set()


@SIDES
def test_another_model_is_not_resumed_with(side, serve, cli, tmp_path):
    run = tmp_path / "run"
    server = serve(die_after=14)
    refused(cli(*side(server, run)))
    before = parts_of(run)
    server.dialect.faults.die_after, server.dialect.tiny = None, TinyModel(seed=1)
    server.revive()
    refused(cli(*side(server, run, "--resume")), "another model answers")
    assert parts_of(run) == before


def test_a_new_weight_version_while_it_scores_is_an_error(serve, cli, tmp_path):
    server = serve(reload_after=8, developer=True, weight_version="step-0")
    ended = cli(*as_trainer(server, tmp_path / "run"))
    refused(ended, "its weights were 'step-0' when this reading began and are 'step-1' now")


def test_weights_that_are_updated_half_way_are_seen_and_kept_apart(serve, cli, tmp_path):
    run = tmp_path / "run"
    server = serve(reload_after=14, developer=True, weight_version="step-0")
    ended = cli(*as_rollout(server, run))
    assert ended.status == 3, ended
    said = " ".join(ended.out.split())
    assert said.startswith("Unknown: the rollouts come from ")
    versions = Counter(span.weight_version for span in Run.open(run).spans())
    assert {"step-0", "step-1"} <= set(versions)
    for version in ("step-0", "step-1"):
        assert f"{version} ({versions[version]} rollouts, mean k3" in said
    page = (run / "judgements" / "default" / "report.html").read_text()
    assert "by weight version" in page


def test_weights_with_one_name_pass_and_the_name_is_said(serve, cli, tmp_path):
    ended = cli(*as_rollout(serve(developer=True, weight_version="step-0"), tmp_path / "run"))
    assert ended.status == 0
    assert "all rollouts come from the weight version 'step-0'" in " ".join(ended.out.split())


# -- a server that dies -------------------------------------------------------------------------------------------


@SIDES
def test_a_run_whose_server_died_goes_on_with_resume_and_keeps_what_it_had(side, serve, cli, tmp_path):
    run, whole = tmp_path / "run", tmp_path / "whole"
    server = serve(die_after=14)
    refused(cli(*side(server, run)), server.url, "See whether the server is up", "--resume")
    before = parts_of(run)
    assert before
    server.dialect.faults.die_after = None
    server.revive()
    assert cli(*side(server, run, "--resume")).status == 0
    after = parts_of(run)
    assert {name: after[name] for name in before} == before
    assert cli(*side(server, whole)).status == 0
    assert contents(Run.open(run)) == contents(Run.open(whole))


def contents(run: Run) -> dict[str, list[int]]:
    return {rollout.rollout_id: rollout.token_ids.tolist() for rollout in run.rollouts()}


@SIDES
def test_ctrl_c_with_requests_in_flight_ends_at_once_with_130_and_the_run_resumes(side, serve, cli, process, tmp_path):
    run = tmp_path / "run"
    server = serve()
    victim = process(*side(server, run, options="concurrency=2"))
    questions = 9 if side is as_rollout else 3
    while server.dialect.served < questions:
        assert victim.popen.poll() is None, victim.popen.communicate()
        time.sleep(0.005)
    server.dialect.faults.delay = 60.0
    time.sleep(0.3)
    start = time.monotonic()
    ended = victim.send(signal.SIGINT)
    assert time.monotonic() - start < 20, "it waited for the server"
    assert ended.status == 130, ended
    assert "Traceback" not in ended.err
    assert "--run DIR --resume" in ended.err
    server.die()
    server.dialect.faults.delay = 0.0
    server.revive()
    assert cli(*side(server, run, "--resume", options="concurrency=2")).status == 0


# -- keys -----------------------------------------------------------------------------------------------------------


@SIDES
def test_a_key_is_sent_and_kept_nowhere(side, serve, cli, tmp_path, monkeypatch):
    monkeypatch.setenv("SERVER_KEY", KEY)
    run = tmp_path / "run"
    server = serve()
    ended = cli(*side(server, run, options="key_env=SERVER_KEY"))
    assert ended.status == 0
    assert {headers.get("authorization") for headers in server.headers} == {f"Bearer {KEY}"}
    assert KEY not in ended.out + ended.err
    assert [path for path in run.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()] == []
