"""From two configurations, or two runs, to one answer."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from onepolicy.behaviour.limits import BehaviourLimits
from onepolicy.engines.spec import parse_spec
from onepolicy.errors import EngineError, RunError, UsageError
from onepolicy.integrations.fake.engine import FakeEngine
from onepolicy.integrations.fake.vocabulary import decode
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.run import Run
from onepolicy.records.verdict import Status
from onepolicy.workflow import record as recording
from onepolicy.workflow.behave import BehaveEvery, BehaveOptions, behave, function_named, record_and_behave
from onepolicy.workflow.behave_kept import kept_behaviour
from onepolicy.workflow.behave_parse import searched
from onepolicy.workflow.behave_record import BehaveRequest, protocols, record_both

FAKE = parse_spec("fake:m?batch_size=20")
HOT, COLD = protocols(["max_new_tokens=32"], ["max_new_tokens=32", "temperature=0.7"], samples=4)
_, AGAIN = protocols(["max_new_tokens=32"], ["max_new_tokens=32"], samples=4)
FAST = BehaveOptions(permutations=499)


def request(a=HOT, b=COLD, **changes) -> BehaveRequest:
    return replace(BehaveRequest(engine_a=FAKE, a=a, engine_b=FAKE, b=b, suite="standard", prompts=50), **changes)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """A at T = 1, B at T = 0.7, and A's configuration with another seed; 50 prompts x 4 samples in many languages."""
    folder = tmp_path_factory.mktemp("runs")
    a, cold = record_both(folder / "cold", request())
    _, again = record_both(folder / "again", request(b=AGAIN))
    return {"a": a, "cold": cold, "again": again}


def verdicts(found):
    return {verdict.check: verdict for verdict in found.verdicts}


def test_another_temperature_alarms_at_50_x_4(runs):
    found = behave(runs["a"], runs["cold"], FAST)
    assert found.status is Status.FAIL
    assert {v.check for v in found.verdicts if v.status is Status.FAIL} >= {"content", "self_similarity"}
    assert found.b.protocol["temperature"] == "0.7"
    languages = {rollout.tags["language"] for rollout in Run.open(runs["a"]).rollouts()}
    assert {"zh", "en", "ja"} <= languages


def test_two_seeds_of_one_configuration_do_not_alarm_at_50_x_4(runs):
    found = behave(runs["a"], runs["again"], FAST)
    assert found.status is Status.PASS
    assert (found.prompts, found.a.rollouts, found.b.rollouts) == (50, 200, 200)


def test_the_answer_is_the_same_each_time(runs):
    assert behave(runs["a"], runs["again"], FAST) == behave(runs["a"], runs["again"], FAST)


def test_it_is_json_and_back(runs):
    found = behave(runs["a"], runs["cold"], FAST)
    assert type(found).model_validate_json(found.model_dump_json()) == found
    assert json.loads(found.model_dump_json())["status"] == "fail"


def test_text_comes_without_special_tokens_and_the_reward_sees_the_prompt_with_them(runs):
    seen = []
    reward = lambda prompt, completion: seen.append((prompt, completion)) or len(completion) / 100  # noqa: E731
    behave(runs["a"], runs["again"], replace(FAST, reward=reward))
    first = next(Run.open(runs["a"]).rollouts())
    assert seen[0][0] == decode(first.token_ids[~first.sampled])
    assert seen[0][0].startswith("<|im_start|>")
    assert all("<|im_end|>" not in completion for _, completion in seen)
    assert len(seen) == 400


def test_a_reward_of_both_rounds_is_compared_and_a_planted_gap_fails(runs):
    even = replace(FAST, reward=lambda prompt, completion: float(len(completion) % 2 == 0))
    assert verdicts(behave(runs["a"], runs["again"], even))["reward"].status is Status.UNKNOWN
    stutter = replace(FAST, reward=lambda prompt, completion: float(any(c * 2 in completion for c in set(completion))))
    found = behave(runs["a"], runs["cold"], stutter)
    assert verdicts(found)["reward"].status is Status.FAIL
    assert found.agreement.rate_a < found.agreement.rate_b


def test_rewards_that_the_runs_have_are_used(runs, tmp_path, run_with_rewards):
    a, b = (run_with_rewards(runs[name], tmp_path / name, lambda i: float(i % 2)) for name in ("a", "again"))
    found = behave(a, b, FAST)
    assert found.reward.a == 0.5
    assert "reward" not in verdicts(behave(runs["a"], runs["again"], FAST))


@pytest.fixture
def run_with_rewards(copied):
    def make(source, target, reward):
        run = copied(source, target)
        for path in (run / "rollouts").glob("part-*.parquet"):
            table = pq.read_table(path)
            rows = [row | {"reward": reward(i)} for i, row in enumerate(table.to_pylist())]
            pq.write_table(type(table).from_pylist(rows, schema=table.schema), path)
        return run

    return make


@pytest.fixture
def copied():
    return lambda source, target: Path(shutil.copytree(source, target))


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (lambda p, c: 1 / 0, "the reward function failed: ZeroDivisionError"),
        (lambda p, c: 10**400, "returned 1000.*, which is no number"),
        (lambda p, c: None, "returned None, which is no number"),
        (lambda p, c: "1.0", "returned '1.0'; a reward is a finite number"),
        (lambda p, c: float("nan"), "returned nan; a reward is a finite number"),
    ],
)
def test_a_reward_function_that_fails_or_gives_no_number_is_named_with_its_rollout(reward, message, runs):
    with pytest.raises(UsageError, match=f"rollout standard-.*: .*{message}"):
        behave(runs["a"], runs["again"], replace(FAST, reward=reward))


def test_keywords_and_format_are_metrics(runs):
    options = replace(FAST, keywords=("é", "月"), parse=r"[0-9]")
    found = behave(runs["a"], runs["again"], options)
    names = [row.name for row in found.metrics]
    assert [name for name in names if name.startswith(("keyword", "parses"))] == ["keyword é", "keyword 月", "parses"]
    by_function = behave(
        runs["a"], runs["again"], replace(options, parse=lambda text: any(c in text for c in "0123456789"))
    )
    assert by_function.metrics == found.metrics


@pytest.mark.parametrize(
    ("parse", "message"),
    [("[", "is no regular expression"), (lambda text: text.absent, "the function that parses failed on")],
)
def test_a_format_that_cannot_be_tried_is_an_error(parse, message, runs):
    with pytest.raises(UsageError, match=message):
        behave(runs["a"], runs["again"], replace(FAST, parse=parse))


def test_a_search_that_does_not_end_is_ended_and_says_at_which_text():
    with pytest.raises(UsageError, match=r"did not end within 2 s; it stayed at text 2 of 3, of 41 characters"):
        searched("(a+)+$", ["aaa", "a" * 40 + "b", "b"], seconds=2.0)


def test_a_search_finds_what_re_finds_in_any_text():
    texts = ["", "line\nbreak\r\u2028", "明月光", "\ud800", '"quoted"', "x" * 100_000]
    for pattern in ("月", "^$", r"\s", "(?i)QUOTED", "x$"):
        assert searched(pattern, texts) == [re.search(pattern, text) is not None for text in texts]
    assert searched("a", []) == []


def test_a_run_that_is_not_complete_is_unknown(runs, tmp_path, copied):
    half = copied(runs["again"], tmp_path / "half")
    manifest = json.loads((half / "manifest.json").read_text())
    (half / "manifest.json").write_text(json.dumps(manifest | {"status": "recording"}))
    for part in sorted((half / "rollouts").glob("part-*.parquet"))[:5]:
        part.unlink()
    found = behave(runs["a"], half, FAST)
    assert found.status is Status.UNKNOWN
    assert "100 of 200 rollouts are recorded" in found.sentence


@pytest.mark.parametrize(
    ("planted", "check"),
    [({"weight_version": "step-2"}, "one_weight_version_b"), ({"protocol_hash": "0" * 16}, "one_protocol_b")],
)
def test_a_side_of_several_policies_is_unknown(planted, check, runs, tmp_path, copied, rewrite):
    mixed = copied(runs["again"], tmp_path / "mixed")
    rewrite(mixed / "spans", lambda rows: [row.update(weight_version="step-1") for row in rows.values()])
    assert behave(runs["a"], mixed, FAST).status is Status.PASS
    rewrite(mixed / "spans", lambda rows: next(iter(rows.values())).update(planted))
    found = behave(runs["a"], mixed, FAST)
    assert found.status is Status.UNKNOWN
    assert verdicts(found)[check].status is Status.UNKNOWN
    assert "2 " in verdicts(found)[check].message


def test_a_run_of_fixed_sequences_has_no_behaviour(tmp_path):
    for name in ("fixed", "also"):
        recording.record(tmp_path / name, recording.RecordRequest(engine=FAKE, suite="fixed-quick"))
    with pytest.raises(UsageError, match="has no sampled token"):
        behave(tmp_path / "fixed", tmp_path / "also")
    with pytest.raises(UsageError, match="is of fixed sequences"):
        record_both(tmp_path / "run", request(suite="fixed-quick"))


def test_a_run_is_not_compared_with_itself(runs, tmp_path):
    (tmp_path / "link").symlink_to(runs["a"])
    with pytest.raises(UsageError, match="would be compared with itself, which always passes"):
        behave(runs["a"], tmp_path / "link", FAST)


def test_more_prompts_than_the_suite_has_are_refused_and_not_cut_silently(tmp_path):
    with pytest.raises(UsageError, match="201 prompts are asked for, and the suite 'standard' has 200"):
        record_both(tmp_path / "run", request(prompts=201))
    with pytest.raises(UsageError, match="0 prompts are asked for"):
        record_both(tmp_path / "run", request(prompts=0))
    assert not (tmp_path / "run").exists()


def test_one_prompt_is_unknown(tmp_path):
    found = record_and_behave(tmp_path / "run", request(b=AGAIN, prompts=1), FAST)
    assert found.status is Status.UNKNOWN
    assert "1 prompts with 4 samples" in found.sentence


def test_greedy_on_both_sides_compares_one_sample_of_each_prompt(tmp_path):
    greedy = [side.model_copy(update={"temperature": 0.0}) for side in (HOT, AGAIN)]
    found = record_and_behave(tmp_path / "run", request(a=greedy[0], b=greedy[1], prompts=20), FAST)
    assert (found.a.rollouts, found.b.rollouts) == (20, 20)
    assert "20 of 20 completions of B are also in A, token by token" in found.notes
    assert {row.p for row in found.metrics} == {1.0}


def test_prompts_of_another_suite_have_none_in_common(runs, tmp_path):
    recording.record(tmp_path / "other", recording.RecordRequest(engine=FAKE, suite="quick", protocol=HOT))
    with pytest.raises(UsageError, match="A has 50 prompts and B 32, and none of them under the same id"):
        behave(runs["a"], tmp_path / "other", FAST)


def test_another_tokenizer_fails_by_its_prompts(tmp_path):
    found = record_and_behave(
        tmp_path / "run", request(b=AGAIN, prompts=12, engine_b=parse_spec("fake:m?chat_bos=1")), FAST
    )
    assert verdicts(found)["same_prompts"].status is Status.FAIL
    assert "12 of 12 prompts are other tokens for B than for A" in found.sentence


@pytest.mark.parametrize(("bad", "status"), [(float("nan"), Status.UNKNOWN), (float("inf"), Status.UNKNOWN)])
def test_rewards_in_a_run_that_are_no_numbers_are_unknown(bad, status, runs, tmp_path, run_with_rewards):
    a = run_with_rewards(runs["a"], tmp_path / "a", lambda i: float(i % 2))
    b = run_with_rewards(runs["again"], tmp_path / "b", lambda i: bad if i == 3 else float(i % 2))
    found = verdicts(behave(a, b, FAST))["reward"]
    assert found.status is status
    assert "have no reward, or one that is no finite number" in found.message


def test_a_comparison_is_kept_beside_its_runs_with_what_they_held(tmp_path):
    found = record_and_behave(tmp_path / "run", request(b=AGAIN, prompts=12), FAST)
    kept = kept_behaviour(tmp_path / "run")
    assert kept.found == found
    assert kept.b.protocol == AGAIN.hash
    assert kept.is_of(tmp_path / "run")


def test_an_empty_folder_is_no_run(tmp_path):
    with pytest.raises(RunError, match="no run here"):
        behave(tmp_path, tmp_path)


def test_one_engine_is_opened_once_for_both_sides(tmp_path, monkeypatch):
    opened = []
    close = FakeEngine.close
    monkeypatch.setattr(FakeEngine, "close", lambda self: opened.append(self) or close(self))
    record_both(tmp_path / "one", request(prompts=12))
    assert len(opened) == 1
    record_both(tmp_path / "two", request(prompts=12, engine_b=parse_spec("fake:other")))
    assert len(opened) == 3


def test_a_recording_goes_on_where_it_was_killed(tmp_path, runs, monkeypatch):
    """B dies in its third batch; what is there is kept, and the end is that of an undisturbed one."""
    calls = []
    sample = FakeEngine.sample

    def dies(self, batch, protocol, wanted):
        calls.append(protocol)
        if sum(one == COLD for one in calls) == 3:
            raise EngineError("gone")
        return sample(self, batch, protocol, wanted)

    monkeypatch.setattr(FakeEngine, "sample", dies)
    with pytest.raises(EngineError, match="gone"):
        record_both(tmp_path / "run", request())
    monkeypatch.setattr(FakeEngine, "sample", sample)
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("part-*.parquet")}
    with pytest.raises(RunError, match="a run is already there"):
        record_both(tmp_path / "run", request())
    a, b = record_both(tmp_path / "run", request(), resume=True)
    assert {path: path.read_bytes() for path in before} == before
    again, undisturbed = (behave(x, y, FAST) for x, y in ((a, b), (runs["a"], runs["cold"])))
    assert again.metrics == undisturbed.metrics


def test_a_request_takes_specs_as_text_and_b_is_a_with_the_next_seed():
    asked = BehaveRequest(engine_a="fake:m?batch_size=20")
    assert asked.engine_a == asked.engine_b == FAKE
    assert (asked.a.samples_per_prompt, asked.a.seed) == (4, 0)
    assert asked.b == asked.a.model_copy(update={"seed": 1})
    served = BehaveRequest(engine_a="fake:m", a=COLD, engine_b="fake:n", b=HOT)
    assert (str(served.engine_b), served.a, served.b) == ("fake:n", COLD, HOT)
    with pytest.raises(UsageError, match="names no engine"):
        BehaveRequest(engine_a="model")


def test_b_samples_with_the_seed_after_a_unless_it_names_one():
    a, b = protocols(["seed=7", "temperature=0.5"], ["top_k=20"], samples=3)
    assert (a.seed, a.temperature, a.samples_per_prompt) == (7, 0.5, 3)
    assert (b.seed, b.top_k, b.temperature) == (8, 20, 1.0)
    assert protocols(["seed=7"], ["seed=7"], samples=3)[1].seed == 7
    assert SamplingProtocol(seed=7, samples_per_prompt=3) == protocols(["seed=7"], [], samples=3)[0]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["temperature"], "--a 'temperature': write it as name=value. Known: temperature, top_p"),
        (["heat=1"], "--a 'heat=1': write it as name=value"),
        (["samples_per_prompt=2"], "give --samples 2, which is for both"),
        (["samples_per_prompt"], "give --samples N, which is for both"),
        (["processors=x"], r"""--a: processors = 'x': .* for example 'processors=\["penalties","top_k","""),
        (["temperature=-1"], "--a: temperature = -1: "),
        (["top_k=many"], "--a: top_k = 'many': "),
        (["top_p=0"], "--a: top_p = 0"),
        (["top_p=0.9", "top_p=0.8"], "--a gives top_p twice"),
    ],
)
def test_a_sampling_that_is_none_is_refused(texts, message):
    with pytest.raises(UsageError, match=message):
        protocols(texts, [], samples=4)


def test_functions_are_named_as_for_the_callable_engine(tmp_path):
    (tmp_path / "rewards.py").write_text("def right(prompt, completion):\n    return 1.0\n")
    assert function_named(f"{tmp_path}/rewards.py:right", option="--reward")("p", "c") == 1.0
    with pytest.raises(UsageError, match=r"--reward .*rewards.py:wrong: .*has no function 'wrong'. It has: right"):
        function_named(f"{tmp_path}/rewards.py:wrong", option="--reward")


def test_the_self_check_of_a_training_looks_every_so_many_steps(tmp_path):
    check = BehaveEvery(steps=100, request=lambda step: request(prompts=12), path=tmp_path, options=FAST)
    looked = {step: check(step) for step in (1, 99, 100, 101)}
    assert [step for step, found in looked.items() if found is not None] == [100]
    assert looked[100].a.run == str(tmp_path / "step-100" / "a")
    again = check(100)  # of a training that was started again
    assert (again.a.run, again.metrics) == (str(tmp_path / "step-100-2" / "a"), looked[100].metrics)
    assert kept_behaviour(tmp_path / "step-100").found == looked[100]
    with pytest.raises(UsageError, match="a self-check every 0 steps is none"):
        replace(check, steps=0)


def test_the_pages_self_check_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs" / "behave.md").read_text()
    snippet = re.search(r"## In a training loop\n\n```python\n(.*?)```", page, re.DOTALL)[1]
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet, "behave.md", "exec"), {})
    between, looked = capsys.readouterr().out.splitlines()
    assert between == "499 None"
    assert re.match(r"500 (Pass|Unknown|Fail): ", looked)
    assert (tmp_path / "runs" / "self-check" / "step-500" / "behaviour.json").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keywords": ("a", "a")}, "the keyword 'a' is blank, or given twice"),
        ({"keywords": (" ",)}, "the keyword ' ' is blank"),
        ({"success": float("nan")}, "is no success"),
    ],
)
def test_a_question_that_is_none_is_refused(changes, message, runs):
    with pytest.raises(UsageError, match=message):
        behave(runs["a"], runs["again"], replace(FAST, **changes))


def test_thresholds_can_be_given(runs):
    wide = BehaviourLimits(repetition_change=0.9, similarity_change=0.9, length_change=0.9, rate_change=0.9)
    found = behave(runs["a"], runs["cold"], replace(FAST, limits=wide.model_copy(update={"content_change": 0.9})))
    assert found.status is Status.PASS
    assert "beyond chance, and small" in verdicts(found)["self_similarity"].message
