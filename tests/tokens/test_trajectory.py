"""Trajectories of an agent with planted faults, under the number of the public report each is known from."""

import json

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from onepolicy.records.rollout import Rollout, Span
from onepolicy.records.verdict import Status
from onepolicy.tokens.open import open_tokenizer
from onepolicy.tokens.render import ChatTemplate, Conversation, render_all, template_of
from onepolicy.tokens.sides import Reader
from onepolicy.tokens.trajectory import (
    Call,
    History,
    Trajectory,
    calls_of,
    history_breaks,
    history_verdict,
    rendering_breaks,
)

SPECIALS = ["<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
MERGES = ["Ġ h", "e l", "el l", "Ġh ell", "Ġhell o", "t h"]
HEAD = "{{ '<|im_start|>' + m.role + '\\n' }}"
TAIL = "{{ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
CHATML = "{% for m in messages %}" + HEAD + "{{ m.content }}" + TAIL
TRIMMED = "{% for m in messages %}" + HEAD + "{{ m.content | trim }}" + TAIL
THINK = (
    "{% for m in messages %}" + HEAD + "{% if loop.last %}{{ m.content }}{% else %}"
    "{{ m.content.split('</think>')[-1].lstrip() }}{% endif %}" + TAIL
)
DUMPED = (
    "{% for m in messages %}"
    + HEAD
    + "{% if m.call %}{{ m.call | tojson(**style) }}{% else %}{{ m.content }}{% endif %}"
    + TAIL
)


def byte_level():
    """T-BPE: " hello" is one token with the merge parents " hell" and "o"."""
    pairs = [tuple(merge.split(" ")) for merge in MERGES]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*letters, *("".join(pair) for pair in pairs)]
    tokenizer = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIALS)
    return tokenizer


@pytest.fixture(scope="module")
def reader():
    return Reader(byte_level())


def rendered(source, *conversations, prompt=True, **variables):
    """Each conversation as ids, ready for the assistant."""
    asked = [Conversation(messages=c, generation_prompt=prompt, variables=variables) for c in conversations]
    return [page.text for page in render_all(ChatTemplate(source=source), asked).results]


def ids(reader, text):
    return np.array(reader.encode(text), dtype=np.int32)


def user(text="say something"):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def played(reader, source, answers, *, history=None, **variables):
    """A trajectory in which every prompt is rendered anew from messages; `history` is what the messages say instead."""
    history = history or [assistant(text) for text in answers]
    conversations = [[user()]]
    for message in history:
        conversations.append([*conversations[-1], message, user("and then?")])
    prompts = rendered(source, *conversations, **variables)[: len(answers)]
    return [
        Call(prompt_ids=ids(reader, prompt), completion_ids=ids(reader, answer + "<|im_end|>"))
        for prompt, answer in zip(prompts, answers, strict=True)
    ]


def verdict_of(reader, *calls, **options):
    history = History()
    history.add(Trajectory(trajectory_id="t", calls=tuple(calls)), reader)
    return history_verdict(history, **options)


def split_hello(reader, completion):
    """The same text with " hello" as its two merge parents."""
    tokenizer = reader.tokenizer
    hello, parents = tokenizer.token_to_id("Ġhello"), [tokenizer.token_to_id("Ġhell"), tokenizer.token_to_id("o")]
    at = completion.tolist().index(hello)
    return np.array([*completion[:at], *parents, *completion[at + 1 :]], dtype=np.int32), at


def test_b01_retokenised_history_is_drift_with_index_and_both_spellings(reader):
    first, second = played(reader, CHATML, ["I say hello world", "bye"])
    sampled, at = split_hello(reader, first.completion_ids)
    calls = [Call(prompt_ids=first.prompt_ids, completion_ids=sampled), second]
    (found,) = history_breaks(calls, reader)
    assert found.kind == "retokenisation drift"
    assert found.difference.cause == "another valid segmentation"
    assert (found.call, found.turn, found.after_turn) == (1, 0, False)
    assert found.position == len(first.prompt_ids) + at
    assert [p.text for p in found.difference.first[:2]] == [" hell", "o"]
    assert found.difference.second[0].text == " hello"


def test_b01_concatenated_ids_are_silent(reader):
    first, second = played(reader, CHATML, ["I say hello world", "bye"])
    sampled, _ = split_hello(reader, first.completion_ids)
    suffix = second.prompt_ids[len(first.prompt_ids) + len(first.completion_ids) :]
    joined = np.concatenate([first.prompt_ids, sampled, suffix])
    calls = [
        Call(prompt_ids=first.prompt_ids, completion_ids=sampled),
        Call(prompt_ids=joined, completion_ids=second.completion_ids),
    ]
    assert history_breaks(calls, reader) == []
    assert verdict_of(reader, *calls).status is Status.PASS


def test_b05_a_rebuilt_call_and_another_split_are_two_findings_of_two_kinds(reader):
    call = {"name": "f", "arguments": {"b": 1, "a": 2}}
    raw = json.dumps(call, separators=(",", ":"))
    answers = [raw, "I say hello world", "bye"]
    history = [assistant("", call=call), assistant(answers[1]), assistant(answers[2])]
    first, second, third = played(reader, DUMPED, answers, history=history, style={})
    sampled, _ = split_hello(reader, second.completion_ids)
    calls = [first, Call(prompt_ids=second.prompt_ids, completion_ids=sampled), third]
    rewritten, drifted = history_breaks(calls, reader)
    assert (rewritten.kind, rewritten.turn, rewritten.call) == ("template rewrite", 0, 1)
    assert rewritten.difference.cause == "tool-call JSON written anew"
    assert (drifted.kind, drifted.turn, drifted.call) == ("retokenisation drift", 1, 2)


def test_b05_both_in_one_prompt_are_still_two_findings(reader):
    """The history is kept until the last call, and then rendered from messages."""
    call = {"name": "f", "arguments": {"b": 1}}
    raw = json.dumps(call, separators=(",", ":"))
    first, second, third = played(
        reader,
        DUMPED,
        [raw, "I say hello world", "bye"],
        history=[assistant("", call=call), assistant("I say hello world"), assistant("bye")],
        style={},
    )
    kept = np.concatenate(
        [
            first.prompt_ids,
            first.completion_ids,
            ids(reader, "\n<|im_start|>user\nand then?<|im_end|>\n<|im_start|>assistant\n"),
        ]
    )
    sampled, _ = split_hello(reader, second.completion_ids)
    calls = [first, Call(prompt_ids=kept, completion_ids=sampled), third]
    assert [(b.call, b.turn, b.kind) for b in history_breaks(calls, reader)] == [
        (2, 0, "template rewrite"),
        (2, 1, "retokenisation drift"),
    ]


@pytest.mark.parametrize("answer", ["Blue.", "<b>Blue</b> hello", "4", "<think is a word"])
def test_b12_reasoning_that_is_gone_is_a_template_rewrite_with_turn_and_span(reader, answer):
    thought = "<think>\nthe hello sky\n</think>\n\n"
    calls = played(reader, THINK, [thought + answer, thought + "Black.", "bye"])
    found = history_breaks(calls, reader, trajectory_id="t-1")
    assert [(b.kind, b.difference.cause, b.call, b.turn) for b in found] == [
        ("template rewrite", "thinking removed", 1, 0),
        ("template rewrite", "thinking removed", 2, 1),
    ]
    assert [b.change.removed for b in found] == [thought, thought]
    assert found[0].position == len(calls[0].prompt_ids)
    assert found[1].position == len(calls[1].prompt_ids)
    assert "template rewrite (thinking removed), removed '<think>" in str(found[0].shown())


def test_b12_a_thinking_template_with_one_turn_is_silent(reader):
    calls = played(reader, THINK, ["<think>\nx\n</think>\n\nBlue."])
    assert history_breaks(calls, reader) == []
    verdict = verdict_of(reader, *calls, required=False)
    assert verdict.status is Status.UNKNOWN
    assert not verdict.required


def test_b14_the_newline_that_accumulated_ids_lack_is_told_with_its_ids(reader):
    messages = [user(), assistant("Blue."), user("and then?"), assistant("Black.")]
    (whole,) = rendered(CHATML, messages, prompt=False)
    parts = [
        ids(reader, "<|im_start|>user\nsay something<|im_end|>\n<|im_start|>assistant\n"),
        ids(reader, "Blue.<|im_end|>"),
        ids(reader, "<|im_start|>user\nand then?<|im_end|>\n<|im_start|>assistant\n"),  # no newline before
        ids(reader, "Black.<|im_end|>"),
    ]
    ends = np.cumsum([len(part) for part in parts]).tolist()
    found = rendering_breaks(
        np.concatenate(parts), ids(reader, whole), [(ends[0], ends[1]), (ends[2], ends[3])], reader
    )
    assert [(b.turn, b.after_turn, b.missing_ids, b.change.added) for b in found] == [
        (0, True, tuple(reader.encode("\n")), "\n"),
        (1, True, tuple(reader.encode("\n")), "\n"),
    ]
    assert [b.position for b in found] == [ends[1], ends[3]]
    assert {b.kind for b in found} == {"template rewrite"}


def test_b14_ids_with_the_newline_are_silent(reader):
    messages = [user(), assistant("Blue."), user("and then?"), assistant("Black.")]
    (whole,) = rendered(CHATML, messages, prompt=False)
    assert rendering_breaks(ids(reader, whole), ids(reader, whole), [(3, 5)], reader) == []


def test_b18_trimmed_answers_are_whitespace(reader):
    calls = played(reader, TRIMMED, ["  Blue hello.\n", "bye"])
    (found,) = history_breaks(calls, reader)
    assert (found.kind, found.difference.cause, found.turn) == ("template rewrite", "whitespace", 0)
    assert found.position == len(calls[0].prompt_ids)


@pytest.mark.parametrize(
    ("style", "seen"),
    [
        ({"sort_keys": True, "separators": [",", ":"]}, "order of keys"),
        ({}, "spacing"),
        ({"ensure_ascii": True, "separators": [",", ":"]}, "escapes"),
    ],
)
def test_b19_a_call_that_is_dumped_again_names_the_difference(reader, style, seen):
    call = {"town": "Zürich", "days": 2}
    raw = json.dumps(call, separators=(",", ":"), ensure_ascii=False)
    calls = played(reader, DUMPED, [raw, "bye"], history=[assistant("", call=call), assistant("bye")], style=style)
    (found,) = history_breaks(calls, reader)
    assert (found.kind, found.difference.cause) == ("template rewrite", "tool-call JSON written anew")
    assert seen in found.difference.seen
    assert found.turn == 0


def test_b19_the_models_own_text_is_silent(reader):
    raw = '{"b":1, "a":2}'
    assert history_breaks(played(reader, CHATML, [raw, raw, raw]), reader) == []


def test_a_bos_that_a_later_prompt_has_twice_is_in_the_first_prompt(reader):
    first, second = played(reader, CHATML, ["Blue.", "bye"])
    bos = np.array([reader.tokenizer.token_to_id("<s>")], dtype=np.int32)
    calls = [
        Call(prompt_ids=np.concatenate([bos, first.prompt_ids]), completion_ids=first.completion_ids),
        Call(prompt_ids=np.concatenate([bos, bos, second.prompt_ids]), completion_ids=second.completion_ids),
    ]
    (found,) = history_breaks(calls, reader)
    assert (found.turn, found.position) == (None, 1)
    assert found.difference.cause == "BOS doubled"


def test_b09_a_bos_before_a_response_is_found_at_its_boundary(reader):
    prompt, response = ids(reader, "<s>say"), ids(reader, "<s> hello</s>")
    row, whole = np.concatenate([prompt, response]), ids(reader, "<s>say hello</s>")
    (found,) = rendering_breaks(row, whole, [(len(prompt), len(row))], reader)
    assert (found.position, found.turn) == (len(prompt), 0)
    assert found.difference.cause == "BOS inside"


def test_a_completion_that_was_cut_has_no_end_and_goes_on(reader):
    first, second = played(reader, CHATML, ["I say hello world", "bye"])
    cut = first.completion_ids[:-1]  # the engine stopped at its limit, the template writes the end
    assert history_breaks([Call(prompt_ids=first.prompt_ids, completion_ids=cut), second], reader) == []


def test_an_empty_completion_and_an_empty_trajectory_are_silent(reader):
    first, second = played(reader, CHATML, ["", "bye"])
    assert history_breaks([first, second], reader) == []
    assert history_breaks([], reader) == []


def test_a_long_trajectory_with_every_turn_rewritten_names_every_turn(reader):
    turns = 20
    calls = played(reader, CHATML, ["I say hello"] * turns)
    rewritten = played(reader, THINK, ["<think>\nx\n</think>\n\nI say hello"] * turns)
    assert history_breaks(calls, reader) == []
    found = history_breaks(rewritten, reader)
    assert [(b.call, b.turn) for b in found] == [(i + 1, i) for i in range(turns - 1)]
    assert verdict_of(reader, *rewritten).value == turns - 1


def test_the_calls_of_a_run_are_its_spans_in_the_order_of_turns(reader):
    first, second = played(reader, THINK, ["<think>\nx\n</think>\n\nBlue.", "bye"])

    def rollout(name, call):
        token_ids = np.concatenate([call.prompt_ids, call.completion_ids])
        sampled = np.arange(len(token_ids)) >= len(call.prompt_ids)
        return Rollout(
            rollout_id=name, prompt_id="p", trajectory_id="t", token_ids=token_ids, sampled=sampled, loss_mask=sampled
        )

    rollouts = [rollout("b", second), rollout("a", first)]
    spans = [
        Span(rollout_id="b", start=len(second.prompt_ids), end=len(rollouts[0].token_ids), turn=1),
        Span(rollout_id="a", start=len(first.prompt_ids), end=len(rollouts[1].token_ids), turn=0),
    ]
    calls = calls_of(rollouts, spans)
    assert [c.completion_ids.tolist() for c in calls] == [first.completion_ids.tolist(), second.completion_ids.tolist()]
    verdict = verdict_of(reader, *calls)
    assert verdict.status is Status.FAIL
    assert "1 template rewrite" in verdict.message
    assert verdict.evidence[0].rollout_id == "t"


@pytest.mark.parametrize(("reasoning", "what"), [("x" * 10, "mid-message"), ("x" * 400, "empty")])
def test_b13_a_delta_sliced_behind_a_shortened_history_is_flagged_after_its_turn(reader, reasoning, what):
    """full[len(prefix):] where full no longer begins with prefix: the slice is empty or begins inside a message."""
    thought = f"<think>\n{reasoning}\n</think>\n\n"
    messages = [user(), assistant(thought + "Blue."), user("and then, what will you say?")]
    (prompt, following) = rendered(THINK, messages[:1], messages)
    (finished,) = rendered(THINK, messages[:2], prompt=False)
    (kept,) = rendered(CHATML, messages)  # what a careful join gives
    sliced = following[len(finished) :]
    assert (sliced == "") == (what == "empty")
    assert not sliced.startswith("<|im_start|>")
    row, whole = ids(reader, finished + sliced), ids(reader, kept)
    turn = (len(ids(reader, prompt)), len(ids(reader, finished.removesuffix("\n"))))
    found = rendering_breaks(row, whole, [turn], reader)
    assert [(b.turn, b.after_turn, b.kind) for b in found] == [(0, True, "template rewrite")]
    assert found[0].position >= turn[1]


def test_all_breaks_are_counted_and_the_first_are_kept(reader, monkeypatch):
    monkeypatch.setattr("onepolicy.tokens.trajectory.KEPT", 3)
    calls = tuple(played(reader, THINK, ["<think>\nx\n</think>\n\nI say hello"] * 3))
    history = History()
    for number in range(4):
        history.add(Trajectory(trajectory_id=f"t-{number}", calls=calls), reader)
    assert [one.trajectory for one in history.breaks] == ["t-0", "t-0", "t-1"]
    assert (history.found, history.broken, history.trajectories, history.calls) == (8, 4, 4, 12)
    assert history_verdict(history).value == 8


def test_a_trajectory_that_is_not_checked_is_never_a_pass(reader):
    calls = tuple(played(reader, CHATML, ["a", "b"]))
    history = History()
    history.add(Trajectory(trajectory_id="good", calls=calls), reader)
    history.add(Trajectory(trajectory_id="odd", why_unchecked="its order is not known"), reader)
    assert history_verdict(history).status is Status.UNKNOWN
    assert "odd: its order is not known" in history_verdict(history).message
    without = History()
    without.add(Trajectory(trajectory_id="t", calls=calls), None)
    assert history_verdict(without).status is Status.UNKNOWN


@pytest.mark.real
def test_a_real_thinking_template_is_a_rewrite_and_a_real_other_split_is_drift(real_tokenizers):
    stored = open_tokenizer(real_tokenizers["qwen3"])
    reader, template = Reader(stored.tokenizer()), template_of(stored)
    thought = "<think>\nThey ask about daylight.\n</think>\n\n"
    messages = [user(), assistant(thought + "It is blue."), user("and then?"), assistant(thought + "Black."), user()]
    asked = [Conversation(messages=messages[:n], generation_prompt=True) for n in (1, 3, 5)]
    prompts = [page.text for page in render_all(template, asked).results]
    calls = [
        Call(prompt_ids=ids(reader, prompt), completion_ids=ids(reader, answer + "<|im_end|>"))
        for prompt, answer in zip(prompts, [thought + "It is blue.", thought + "Black.", "bye"], strict=True)
    ]
    found = history_breaks(calls, reader)
    assert [(b.kind, b.difference.cause, b.turn, b.change.removed) for b in found] == [
        ("template rewrite", "thinking removed", 0, thought),
        ("template rewrite", "thinking removed", 1, thought),
    ]
    assert found[0].position == len(calls[0].prompt_ids)

    plain = ids(reader, "It is blue.<|im_end|>")
    letters = np.array(
        [*reader.encode("It is bl"), *reader.encode("ue"), *reader.encode(".<|im_end|>")], dtype=np.int32
    )
    assert letters.tolist() != plain.tolist()
    suffix = ids(reader, "\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n")
    again = Call(prompt_ids=np.concatenate([calls[0].prompt_ids, plain, suffix]), completion_ids=plain)
    (drifted,) = history_breaks([Call(prompt_ids=calls[0].prompt_ids, completion_ids=letters), again], reader)
    assert (drifted.kind, drifted.turn) == ("retokenisation drift", 0)
    assert "".join(p.text for p in drifted.difference.first).startswith(" blue.")
