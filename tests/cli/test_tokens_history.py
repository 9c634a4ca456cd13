"""`onepolicy tokens history` on trajectories in files and in runs, and the same question in `judge`."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onepolicy.engines.spec import parse_spec
from onepolicy.integrations.fake.vocabulary import encode, tokenizer_json
from onepolicy.records.manifest import Manifest
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.rollout import Rollout, Span
from onepolicy.records.run import Run
from onepolicy.tokens.render import ChatTemplate, Conversation, render_all
from onepolicy.workflow.judge import judge
from onepolicy.workflow.score import ScoreRequest, score

HEAD = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
TAIL = "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
KEPT = HEAD + "{{ m.content }}" + TAIL
THINKING = HEAD + "{{ m.content if loop.last else m.content.split('</think>')[-1].lstrip() }}" + TAIL
"""as Qwen3 and others: the history without the reasoning"""
THOUGHT = "<think>\nThey ask about daylight.\n</think>\n\n"
ANSWERS = (THOUGHT + "It is blue.", THOUGHT + "Black.", "Bye.")


def ids(text):
    return encode(text, add_special_tokens=False).tolist()


def played(template, answers=ANSWERS):
    """(prompt, completion) of each call, each prompt rendered anew from all messages."""
    messages = [{"role": "user", "content": "Which colour is the sky?"}]
    asked = []
    for answer in answers:
        asked.append(Conversation(messages=tuple(messages), generation_prompt=True))
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "And then?"}]
    prompts = [page.text for page in render_all(ChatTemplate(source=template), asked).results]
    return [(ids(prompt), ids(answer + "<|im_end|>")) for prompt, answer in zip(prompts, answers, strict=True)]


def row(name, calls):
    return {"id": name, "calls": [{"prompt_ids": p, "completion_ids": c} for p, c in calls]}


@pytest.fixture
def tokenizer(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(tokenizer_json())
    return path


@pytest.fixture
def ask(cli, tmp_path, tokenizer):
    """The command on a JSONL file of these rows."""

    def run(*rows, options=()):
        path = tmp_path / "trajectories.jsonl"
        path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in rows))
        return cli("tokens", "history", path, "--tokenizer", tokenizer, *options)

    return run


def test_a_history_without_the_reasoning_is_a_template_rewrite_and_no_drift_with_the_turn_and_the_removed_span(ask):
    calls = played(THINKING)
    ended = ask(row("conv-1", calls), options=["--json"])
    assert ended.status == 1
    report = json.loads(ended.out)
    assert report["causes"] == {"template rewrite": {"thinking removed": 2}}
    assert [(b["call"], b["turn"], b["removed"], b["added"]) for b in report["breaks"]] == [
        (1, 0, THOUGHT, ""),
        (2, 1, THOUGHT, ""),
    ]
    assert report["breaks"][0]["position"] == len(calls[0][0])
    assert (report["trajectories"], report["calls"], report["broken"]) == (1, 3, 1)


def test_the_console_shows_turn_kind_and_span_within_80_columns(ask):
    ended = ask(row("conv-1", played(THINKING)))
    assert ended.status == 1
    assert ended.out.startswith("Fail: in 1 of 1 trajectories (3 calls) a later prompt does not hold")
    assert "conv-1, call 1, in turn 0 at position 43: template rewrite (thinking removed)" in ended.out
    assert "removed  <think>\\nThey ask about daylight.\\n</think>\\n\\n" in ended.out
    assert max(map(len, ended.out.splitlines())) <= 80


def test_a_history_that_is_kept_passes(ask):
    ended = ask(row("a", played(KEPT)), row("b", played(KEPT, ["One.", "Two."])))
    assert ended.status == 0
    assert ended.out.startswith("Pass: in all 2 trajectories (5 calls) each prompt begins with the ids")


def test_the_same_text_in_other_ids_is_drift(cli, tmp_path):
    """th is a token that the later prompt has in two pieces."""
    content = json.loads(tokenizer_json())
    content["model"]["merges"] = ["t h"]
    content["model"]["vocab"]["th"] = 256
    content["added_tokens"] = [token | {"id": token["id"] + 1} for token in content["added_tokens"]]
    content["post_processor"]["special_tokens"]["<|bos|>"]["ids"] = [257]
    (tmp_path / "t.json").write_text(json.dumps(content))
    first = {"prompt_ids": ids("a "), "completion_ids": [256, *ids("e end")]}
    later = {"prompt_ids": ids("a the end, then"), "completion_ids": ids("x")}
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"calls": [first, later]}))
    ended = cli("tokens", "history", path, "--tokenizer", tmp_path / "t.json", "--json")
    assert ended.status == 1
    (found,) = json.loads(ended.out)["breaks"]
    assert (found["kind"], found["cause"]) == ("retokenisation drift", "another valid segmentation")
    assert (found["trajectory"], found["call"], found["turn"], found["position"]) == ("line 1", 1, 0, 2)
    assert [piece["text"] for piece in found["first"][:2]] == ["th", "e"]
    assert [piece["text"] for piece in found["second"][:3]] == ["t", "h", "e"]


def test_single_calls_have_no_history_and_are_unknown_alone_and_counted_beside_others(ask):
    alone = row("a", played(KEPT, ["One."]))
    ended = ask(alone, {"calls": []})
    assert ended.status == 3
    assert ended.out.startswith("Unknown: no trajectory has two calls")
    beside = ask(alone, row("b", played(KEPT)))
    assert beside.status == 0
    assert "1 trajectories have fewer than two calls" in beside.out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: is not JSON in UTF-8"),
        ("[1]", "line 2: is no JSON object"),
        ({"id": "x"}, "line 2: has no calls"),
        ({"calls": {"0": 1}}, "line 2: has calls that are a dict and no list"),
        ({"calls": [3]}, "line 2: calls[0] is a int and no object"),
        ({"calls": [{"prompt_ids": [1]}]}, "line 2: calls[0].completion_ids is absent"),
        ({"calls": [{"prompt_ids": "12", "completion_ids": [1]}]}, "line 2: calls[0].prompt_ids is a str and no list"),
        (
            {"calls": [{"prompt_ids": [1], "completion_ids": [1]}, {"prompt_ids": [1, None], "completion_ids": []}]},
            "line 2: calls[1].prompt_ids[1] = null is no whole number",
        ),
        ({"calls": [{"prompt_ids": [1], "completion_ids": [True]}]}, "calls[0].completion_ids[0] = true is no whole"),
        ({"calls": [{"prompt_ids": [2**31], "completion_ids": []}]}, "calls[0].prompt_ids[0] = 2147483648 is no token"),
        ({"calls": [{"prompt_ids": [-1], "completion_ids": []}]}, "calls[0].prompt_ids[0] = -1 is no token id"),
        ("[" * 100_000, "line 2: is nested too deeply"),
    ],
)
def test_what_is_malformed_is_named_with_row_and_field(ask, line, said):
    ended = ask(row("a", played(KEPT)), line)
    assert ended.status == 2
    assert said in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("token_id", [259, 2**31 - 1])
def test_ids_that_the_vocabulary_lacks_end_in_an_answer(ask, token_id):
    ended = ask(
        {"calls": [{"prompt_ids": [1], "completion_ids": [token_id]}, {"prompt_ids": [1, 2], "completion_ids": []}]}
    )
    assert ended.status == 1


def test_targets_that_cannot_be_read_say_what_is_wanted(cli, tmp_path, tokenizer):
    assert "no run directory and no file" in cli("tokens", "history", tmp_path / "none").err
    rows = tmp_path / "rows.jsonl"
    rows.write_text("")
    ended = cli("tokens", "history", rows)
    assert (ended.status, "--tokenizer" in ended.err) == (2, True)
    pq.write_table(pa.table({"calls": [1]}), tmp_path / "rows.parquet")
    ended = cli("tokens", "history", tmp_path / "rows.parquet", "--tokenizer", tokenizer)
    assert (ended.status, "is Parquet" in ended.err) == (2, True)


def rollout(name, trajectory, prompt, completion):
    token_ids = np.array([*prompt, *completion], dtype=np.int32)
    sampled = np.arange(len(token_ids)) >= len(prompt)
    return Rollout(
        rollout_id=name,
        prompt_id=trajectory,
        trajectory_id=trajectory,
        token_ids=token_ids,
        sampled=sampled,
        loss_mask=sampled,
        text=None,
    )


@pytest.fixture
def recorded(tmp_path):
    """A complete run with each call of each trajectory as a rollout, scored by both sides."""

    def build(trajectories, *, turn=lambda number: number, spans=True, keeps_text=True):
        rollouts, found = [], []
        for name, calls in trajectories.items():
            for number, (prompt, completion) in enumerate(calls):
                one = rollout(f"{name}/{number}", name, prompt, completion)
                rollouts.append(one)
                found.append(
                    Span(rollout_id=one.rollout_id, start=len(prompt), end=len(one.token_ids), turn=turn(number))
                )
        manifest = Manifest(
            tool_version="0",
            status="recording",
            kind="fresh",
            suite="agent",
            suite_hash="0",
            protocol=SamplingProtocol(),
            rollout_engine="fake:m",
            planned_rollouts=len(rollouts),
            keeps_text=keeps_text,
        )
        run = Run.create(tmp_path / "run", manifest)
        run.write_rollouts(rollouts[::-1], found if spans else found[:-1])
        run.complete()
        for side in ("rollout", "trainer"):
            score(run.path, ScoreRequest(engine=parse_spec("fake:m"), name=side))
        return run.path

    return build


def histories(path):
    return [v for v in judge(path).verdicts if v.check == "history"]


def test_the_rollouts_of_one_trajectory_are_its_calls_and_the_run_brings_the_tokenizer(cli, recorded):
    path = recorded({"conv-1": played(THINKING), "conv-2": played(KEPT, ["a", "b"]), "alone": played(KEPT, ["a"])})
    ended = cli("tokens", "history", path, "--json")
    assert ended.status == 1
    report = json.loads(ended.out)
    assert (report["trajectories"], report["alone"], report["broken"], report["calls"]) == (2, 1, 1, 5)
    assert [(b["trajectory"], b["turn"], b["removed"]) for b in report["breaks"]] == [
        ("conv-1", 0, THOUGHT),
        ("conv-1", 1, THOUGHT),
    ]


def test_judge_tells_of_a_broken_history_which_decides_nothing_as_each_call_has_its_own_prompt(recorded):
    (found,) = histories(recorded({"conv-1": played(THINKING)}))
    assert (found.status.value, found.required) == ("fail", False)
    assert "2 template rewrite" in found.message
    assert "call 1 breaks in turn 0" in found.message
    assert "daylight" in found.message


def test_judge_passes_a_history_that_is_kept_and_is_silent_where_no_trajectory_has_several_calls(recorded, tmp_path):
    (found,) = histories(recorded({"conv-1": played(KEPT)}))
    assert (found.status.value, found.required) == ("pass", False)
    (tmp_path / "run").rename(tmp_path / "first")
    assert histories(recorded({"a": played(KEPT, ["a"]), "b": played(KEPT, ["b"])})) == []


def test_a_run_without_text_shows_ids_alone(cli, recorded):
    path = recorded({"conv-1": played(THINKING)}, keeps_text=False)
    (found,) = histories(path)
    ended = [cli("tokens", "history", path, *options) for options in ([], ["--json"])]
    for text in (found.model_dump_json(), ended[0].out, ended[1].out):
        assert "daylight" not in text
        assert "think>" not in text
    assert ended[0].status == 1
    assert "sampled <60>|<116>" in found.message  # "<t"
    assert "<60> | <116>" in ended[0].out


def test_calls_without_a_known_order_are_unknown_and_never_pass(cli, recorded, tmp_path):
    same = recorded({"conv-1": played(KEPT), "conv-2": played(KEPT, ["a"])}, turn=lambda _: 0)
    ended = cli("tokens", "history", same)
    assert ended.status == 3
    assert "both have a turn 0" in " ".join(ended.out.split())
    (found,) = histories(same)
    assert found.status.value == "unknown"
    (tmp_path / "run").rename(tmp_path / "first")
    ended = cli("tokens", "history", recorded({"conv-1": played(KEPT)}, spans=False))
    assert ended.status == 3
    assert "conv-1/2 has no span" in ended.out


def test_a_rollout_of_several_spans_holds_its_own_history(cli, tmp_path, recorded):
    path = recorded({"conv-1": played(KEPT, ["a"])})
    run = Run.open(path)
    (one,) = run.rollouts()
    (span,) = run.spans()
    middle = (span.start + span.end) // 2
    for part in (path / "spans").iterdir():
        part.unlink()
    run.write_rollouts(
        [one],
        [
            Span(rollout_id=one.rollout_id, start=span.start, end=middle, turn=0),
            Span(rollout_id=one.rollout_id, start=middle, end=span.end, turn=1),
        ],
    )
    ended = cli("tokens", "history", path)
    assert ended.status == 0
    assert "1 trajectories (2 calls)" in ended.out
