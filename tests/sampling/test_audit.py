"""The audit: a fault of each kind that is planted in calls, and calls without it."""

import math
from dataclasses import replace

import numpy as np
import pytest

from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.rollout import Rollout, Span
from onepolicy.records.verdict import Status
from onepolicy.sampling.audit.asked import Asked
from onepolicy.sampling.audit.call import Call, calls_of
from onepolicy.sampling.audit.check import CHECKS, audited

END, OTHER_END, PAD = 258, 250, 0
LIMIT = 8


def text(ids) -> bytes:
    """Ids below 256 are bytes; a merged token 'j;' is 256."""
    return b"".join(bytes([i]) if i < 256 else {256: b"j;", END: b"<end>"}[i] for i in ids)


PLAIN = Asked(
    protocol=SamplingProtocol(max_new_tokens=LIMIT, samples_per_prompt=2),
    ends=frozenset({END, OTHER_END}),
    is_exact=True,
    content=text,
)


def call(completion, *, name="a/0", prompt=None, finish="stop", **fields) -> Call:
    ids = np.array(list(completion), dtype=np.int32)
    prompt_ids = [1, *name.partition("/")[0].encode(), 2] if prompt is None else prompt
    values = {
        "rollout_id": name,
        "prompt_id": name.partition("/")[0],
        "prompt": np.array(prompt_ids, dtype=np.int32),
        "completion": ids,
        "logprobs": np.full(len(ids), -3.0, dtype=np.float32),
        "trained": np.ones(len(ids), dtype=np.bool_),
        "finish_reason": finish,
    }
    return Call(**{**values, **fields})


def healthy(prompts=16, *, cut=4) -> list[Call]:
    """Two samples of each prompt; the last `cut` prompts' are cut at the limit. All completions differ."""
    calls = []
    for i in range(prompts):
        for sample in range(2):
            own = [100 + i, 200 + sample]
            is_cut = i >= prompts - cut
            ids = [*own, 50, 51, 52, 53, 54, 55] if is_cut else [*own, END]
            calls.append(call(ids, name=f"p{i:02}/{sample}", finish="length" if is_cut else "stop"))
    return calls


def verdicts(calls, asked=PLAIN):
    return {verdict.check: verdict for verdict in audited(calls, asked)}


def failing(calls, asked=PLAIN) -> set[str]:
    return {name for name, verdict in verdicts(calls, asked).items() if verdict.status is not Status.PASS}


def asked(**changes) -> Asked:
    protocol = PLAIN.protocol.model_copy(update=changes)
    return replace(PLAIN, protocol=protocol)


def test_nothing_is_found_in_healthy_calls_and_each_check_says_one_thing():
    found = audited(healthy(), PLAIN)
    assert {v.check for v in found if v.status is not Status.PASS} == {"one_protocol", "stop_strings"}  # none is named
    assert len(found) == len(CHECKS) == len({v.check for v in found})


# -- how a completion ends --------------------------------------------------------------------------------------


def test_a_stop_without_an_end_token_is_named_with_its_place():
    calls = [*healthy(), call([60, 61], name="x/0"), call([62, END], name="x/1")]
    found = verdicts(calls)["finish_reason"]
    assert (found.status, found.value) == (Status.FAIL, 1)
    assert (found.evidence[0].rollout_id, found.evidence[0].position) == ("x/0", len(calls[-2].prompt) + 1)
    assert "cut off the ids" in found.message


def test_a_stop_string_ends_a_completion_even_inside_its_last_token():
    assert failing([call(b"if ("), call([*b"i", 256])], replace(PLAIN, stop=("(", ";"))) & {"finish_reason"} == set()
    assert "finish_reason" in failing([call([256, *b"i"])], replace(PLAIN, stop=(";",)))


def test_the_engines_own_stop_reason_is_believed_where_the_ids_show_it():
    fine = [call(b"ab", stop_reason="b"), call([9, 77], stop_reason="77")]
    assert verdicts(fine)["finish_reason"].status is Status.PASS
    trimmed = [call(b"a", stop_reason="b")]
    assert verdicts(trimmed)["finish_reason"].status is Status.FAIL


def test_an_unexplained_stop_of_files_that_were_read_is_unknown_until_a_person_names_what_ends():
    read = replace(PLAIN, is_told=False, ends=frozenset())
    found = verdicts([call(b"ab")], read)["finish_reason"]
    assert (found.status, found.required) == (Status.UNKNOWN, True)
    assert verdicts([call(b"ab")], replace(read, stop=("b",)))["finish_reason"].status is Status.PASS


def test_b72_an_answer_that_ended_with_another_end_token_counts_as_cut():
    calls = [*healthy(), call([60, OTHER_END], name="x/0", finish="length")]
    found = verdicts(calls)
    assert found["finish_reason"].status is Status.FAIL
    assert "only one of several end ids" in found["finish_reason"].message
    assert found["length_limit"].status is Status.PASS, "the end explains its length"


def test_b73_an_end_written_over_the_last_token_is_seen_with_its_logprob():
    logprobs = np.array([-1] * 7 + [-19.5], dtype=np.float32)
    forced = call([*range(60, 67), END], name="x/0", finish="length", logprobs=logprobs)
    found = verdicts([*healthy(), forced])
    assert {name for name in found if found[name].status is Status.FAIL and found[name].required} == {
        "forced_end",
        "samples_per_prompt",
    }
    assert "-19.5" in found["forced_end"].message
    assert found["forced_end"].evidence[0].position == forced.total - 1


def cut_at_the_limit(ends: int, *, logprob: float, others=20) -> list[Call]:
    logprobs = np.array([-1] * 7 + [logprob], dtype=np.float32)
    forced = [call([60 + i, *range(61, 67), END], name=f"x{i}/0", finish="length") for i in range(ends)]
    plain = [call([60 + i, *range(61, 68)], name=f"y{i}/0", finish="length") for i in range(others)]
    return [*plain, *(replace(c, logprobs=logprobs) for c in forced)]


def test_a_policy_that_ends_at_the_very_limit_is_not_accused():
    """Some engines look at the length before they look at the token."""
    for ends in (1, 2):
        found = verdicts(cut_at_the_limit(ends, logprob=-2.0))
        assert (found["forced_end"].status, found["finish_reason"].status) == (Status.PASS, Status.PASS)
    read = replace(PLAIN, is_told=False, protocol=SamplingProtocol())
    assert verdicts(cut_at_the_limit(2, logprob=-2.0), read)["finish_reason"].status is Status.PASS


@pytest.mark.parametrize(("ends", "logprob"), [(1, -15.0), (5, -6.0), (21, -0.1)])
def test_b73_ends_that_are_too_unlikely_or_too_many_are_forced(ends, logprob):
    assert verdicts(cut_at_the_limit(ends, logprob=logprob))["forced_end"].status is Status.FAIL


def test_ends_at_the_limit_are_called_forced_no_more_often_than_is_said():
    """Over every outcome of eight cut calls of a policy that ends there with a chance of 1 %."""
    often = 0.0
    for ends in range(9):
        found = verdicts(cut_at_the_limit(ends, logprob=math.log(0.01), others=8 - ends))["forced_end"]
        often += math.comb(8, ends) * 0.01**ends * 0.99 ** (8 - ends) * (found.status is Status.FAIL)
    assert 0 < often <= 1e-3


def test_other_reasons_are_named_and_are_no_fault():
    found = verdicts([*healthy(), call([60], name="x/0", finish="abort")])["finish_reason"]
    assert found.status is Status.PASS
    assert "1 say 'abort'" in found.message
    assert not verdicts([call([60], finish="")])["finish_reason"].required


@pytest.mark.parametrize(
    ("completion", "words"),
    [([60, END, 61, 62], "give the engine all end ids"), ([60, END, PAD, PAD], "padding was kept")],
)
def test_tokens_after_an_end_token_fail(completion, words):
    found = verdicts([*healthy(), call(completion, name="x/0", finish="length")])["tokens_after_end"]
    assert found.status is Status.FAIL
    assert words in found.message
    assert found.evidence[0].note.startswith("2 tokens after the end token 258")


def test_a_token_that_is_only_named_like_an_end_is_unknown_and_a_given_one_fails():
    calls = [*healthy(), call([60, OTHER_END, 61, END], name="x/0")]
    found = verdicts(calls)["tokens_after_end"]
    assert (found.status, found.required) == (Status.UNKNOWN, True)
    assert "ends no completion of the run" in found.message
    assert verdicts(calls, replace(PLAIN, ends_are_given=True))["tokens_after_end"].status is Status.FAIL
    assert verdicts(calls, replace(PLAIN, ends=frozenset({END})))["tokens_after_end"].status is Status.PASS


def test_end_tokens_that_the_protocol_ignores_are_no_fault():
    calls = [call([60, END, *range(61, 67)], finish="length")]
    found = verdicts(calls, asked(ignore_eos=True))
    assert found["forced_end"].status is Status.PASS
    for name in ("tokens_after_end", "ends_at_all"):
        assert (found[name].status, found[name].required) == (Status.UNKNOWN, False)
        assert found[name].message == "not checked: the protocol ignores end tokens."


def test_b75_a_stop_string_inside_a_merged_token_is_found_in_the_text():
    stop = replace(PLAIN, stop=(";",))
    went_on = call([*b"in", 256, *b"\nreal"], name="x/0", finish="length")
    found = verdicts([*healthy(), went_on], stop)["stop_strings"]
    assert (found.status, found.value) == (Status.FAIL, 1)
    assert "inside larger tokens" in found.message
    assert found.evidence[0].note == "5 tokens after ';'"
    assert verdicts([*healthy(), call(b"in j;", name="x/0")], stop)["stop_strings"].status is Status.PASS


def test_a_stop_string_over_several_tokens_is_found_and_its_own_tokens_are_not_said_to_be_inside():
    found = verdicts([call(b"a\n\nb", finish="length")], replace(PLAIN, stop=("\n\n",)))["stop_strings"]
    assert found.status is Status.FAIL
    assert "inside larger tokens" not in found.message


def test_a_stop_string_before_the_shortest_length_does_not_count():
    calls = [call(b"a;bc;")]
    assert verdicts(calls, replace(asked(min_new_tokens=3), stop=(";",)))["stop_strings"].status is Status.PASS
    assert verdicts(calls, replace(asked(min_new_tokens=2), stop=(";",)))["stop_strings"].status is Status.FAIL


def test_without_a_tokenizer_the_text_is_looked_at_and_without_both_it_is_unknown():
    bare = replace(PLAIN, content=None, stop=(";",))
    assert verdicts([call(b"a;b", text="a;b")], bare)["stop_strings"].status is Status.FAIL
    assert verdicts([call(b"a;b", text="ab")], bare)["stop_strings"].status is Status.PASS
    assert verdicts([call(b"a;b")], bare)["stop_strings"].status is Status.UNKNOWN


@pytest.mark.parametrize(("count", "required"), [(6, True), (5, False)])
def test_b76_if_nothing_ends_and_many_were_cut_it_is_unknown_whether_the_policy_stops(count, required):
    found = verdicts(healthy(count, cut=count))["ends_at_all"]
    assert (found.status, found.required) == (Status.UNKNOWN, required)


def test_b76_an_end_token_outside_the_loss_fails():
    calls = healthy()
    masked = [replace(c, trained=np.array([True] * 2 + [False])) if c.says_stop else c for c in calls]
    found = verdicts(masked)["end_trained"]
    assert (found.status, found.value) == (Status.FAIL, 24)
    whole = [replace(c, trained=np.zeros(len(c.completion), dtype=np.bool_)) for c in calls]
    assert verdicts(whole)["end_trained"].status is Status.UNKNOWN


# -- lengths ----------------------------------------------------------------------------------------------------


def test_b80_a_limit_that_cuts_most_completions_is_noted_and_does_not_decide():
    found = verdicts(healthy(16, cut=9))["cut_share"]
    assert (found.status, found.required, found.value) == (Status.FAIL, False, 9 / 16)
    assert "raise the limit" in found.message
    assert verdicts(healthy(16, cut=8))["cut_share"].status is Status.PASS


def test_b78_what_masked_cut_completions_do_to_a_loss_is_a_number():
    calls = [replace(c, trained=~np.ones(8, dtype=np.bool_)) if c.says_length else c for c in healthy(16, cut=4)]
    found = verdicts(calls)["loss_of_cut"]
    assert found.value == pytest.approx(24 * 3 / (24 * 3 + 8 * 8))
    assert not found.required
    assert "one of the two is a mistake" not in found.message
    assert "one of the two is a mistake" in verdicts([*calls, *healthy(1, cut=1)])["loss_of_cut"].message


def test_a_completion_beyond_its_limit_fails():
    assert verdicts([call(range(60, 69), finish="length")])["length_limit"].status is Status.FAIL
    assert verdicts([call([60, 61, END])], asked(max_total_tokens=5))["length_limit"].status is Status.FAIL
    assert verdicts([call([60, 61, END])], asked(max_total_tokens=6))["length_limit"].status is Status.PASS


def test_a_completion_below_its_shortest_length_fails():
    assert verdicts([call([60, END])], asked(min_new_tokens=3))["length_limit"].status is Status.FAIL
    assert verdicts([call([60, END])], asked(min_new_tokens=2))["length_limit"].status is Status.PASS


def cut_at(total: int, lengths) -> list[Call]:
    return [call(range(60, 60 + total - n), prompt=range(n), name=f"p{n}/0", finish="length") for n in lengths]


def test_what_a_limit_counts_shows_in_the_calls_that_it_cut():
    found = verdicts(cut_at(10, range(3, 8)))["length_limit"]
    assert found.status is Status.FAIL
    assert "counts prompt and completion: together 10 tokens" in found.message
    same = [call(range(60, 68), prompt=range(n), name=f"p{n}/0", finish="length") for n in range(3, 8)]
    assert "counts tokens of the completion: 8" in verdicts(same)["length_limit"].message
    characters = [call(range(60, 60 + n), name=f"p{n}/0", finish="length", text="x" * 20) for n in range(3, 8)]
    assert "counts characters: 20" in verdicts(characters)["length_limit"].message


def test_a_limit_of_both_that_the_protocol_names_is_no_fault():
    assert verdicts(cut_at(10, range(3, 8)), asked(max_total_tokens=10))["length_limit"].status is Status.PASS


def test_of_files_that_were_read_only_what_was_given_is_known():
    read = replace(PLAIN, is_told=False, protocol=SamplingProtocol())
    found = verdicts(healthy(), read)
    assert not found["length_limit"].required
    assert not found["samples_per_prompt"].required
    told = replace(read, told_too=("samples_per_prompt",))
    assert verdicts(healthy(), told)["samples_per_prompt"].status is Status.FAIL, "one was said, two are there"


# -- prompts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "side"), [([6, 7, 8], "on the left"), ([5, 6, 7], "on the right"), ([5, 6, 9, 8], "other ids")]
)
def test_b77_samples_of_one_prompt_that_begin_otherwise_fail_and_name_the_side(prompt, side):
    calls = [call([60, END], prompt=[5, 6, 7, 8]), call([61, END], name="a/1", prompt=prompt)]
    for order in (calls, calls[::-1]):
        found = verdicts(order)["same_prompt"]
        assert (found.status, found.value) == (Status.FAIL, 1)
        assert side in found.message
    later = [calls[0], replace(calls[0], rollout_id="a/2"), replace(calls[1], begins=False)]
    assert verdicts(later)["same_prompt"].status is Status.PASS


def with_prompts(prompts) -> list[Call]:
    return [call([60 + i, END], name=f"p{i}/0", prompt=prompt) for i, prompt in enumerate(prompts)]


def template(n: int) -> list[int]:
    return [1, *range(10, 10 + n), 2]


@pytest.mark.parametrize(("side", "keep"), [("left", slice(-9, None)), ("right", slice(None, 9))])
def test_b77_prompts_cut_at_a_limit_lack_what_all_others_have(side, keep):
    long = [template(20)[keep], template(30)[keep]]
    calls = with_prompts([*(template(n % 7) for n in range(14)), *long])
    found = verdicts(calls)["prompt_edges"]
    assert (found.status, found.value) == (Status.FAIL, 2)
    assert "first" in found.message if side == "left" else "last" in found.message
    assert verdicts(calls, asked(prompt_truncation=side))["prompt_edges"].status is not Status.FAIL
    other = {"left": "right", "right": "left"}[side]
    assert verdicts(calls, asked(prompt_truncation=other))["prompt_edges"].status is Status.FAIL


def test_prompts_of_another_kind_are_no_cut_ones():
    calls = with_prompts([*(template(n % 7) for n in range(14)), [9, 10], [9, 10, 11]])
    found = verdicts(calls)["prompt_edges"]
    assert (found.status, found.required) == (Status.UNKNOWN, False)
    assert verdicts(with_prompts([[i, 50 + i] for i in range(20)]))["prompt_edges"].message.startswith("not checked")


# -- samples ----------------------------------------------------------------------------------------------------


def test_one_sample_of_each_prompt_has_nothing_to_be_compared_with_and_is_not_called_checked():
    found = verdicts(healthy()[::2])
    for name in ("same_prompt", "duplicate_samples"):
        assert (found[name].status, found[name].required) == (Status.UNKNOWN, False)
        assert found[name].message == "not checked: no prompt has two samples."
    both = verdicts([*healthy()[::2], healthy()[1]])
    assert {both[name].status for name in ("same_prompt", "duplicate_samples")} == {Status.PASS}


def test_nothing_drawn_and_no_stop_string_are_not_checked():
    found = verdicts(healthy(), asked(temperature=0.0))
    for name in ("seeds", "stop_strings"):
        assert (found[name].status, found[name].required) == (Status.UNKNOWN, False)
        assert found[name].message.startswith("not checked: ")


def test_a_prompt_with_another_number_of_samples_fails():
    found = verdicts(healthy()[:-1])["samples_per_prompt"]
    assert (found.status, found.value) == (Status.FAIL, 1)
    assert "1 with 1" in found.message


def test_two_samples_that_are_unlikely_and_equal_fail():
    twin = replace(healthy()[-1], rollout_id="p15/9")
    found = verdicts([*healthy(), twin])["duplicate_samples"]
    assert (found.status, found.value) == (Status.FAIL, 1)
    assert found.evidence[0].rollout_id == "p15/9"


def test_two_ranks_with_the_same_data_are_seen_under_any_name():
    first = healthy(8)
    second = [replace(c, rollout_id=f"r1-{c.rollout_id}", prompt_id=f"r1-{c.prompt_id}") for c in first]
    found = verdicts([*first, *second])["duplicate_samples"]
    assert (found.status, found.value) == (Status.FAIL, 16)
    assert "16 of them stand under another prompt's name" in found.message


def test_equal_samples_without_the_logprobs_that_judge_them_are_unknown():
    twin = replace(healthy()[0], rollout_id="p00/9")
    calls = [*healthy(), twin]
    assert verdicts(calls, replace(PLAIN, is_exact=False))["duplicate_samples"].status is Status.UNKNOWN
    without = [replace(c, logprobs=np.full(len(c.completion), np.nan, dtype=np.float32)) for c in calls]
    assert verdicts(without)["duplicate_samples"].status is Status.UNKNOWN
    greedy = verdicts(calls, asked(temperature=0.0))["duplicate_samples"]
    assert (greedy.status, greedy.required) == (Status.PASS, False)


def test_likely_samples_may_be_equal():
    yes = [
        call([60, END], name=f"p{i}/{s}", logprobs=np.log([0.9, 1.0]).astype(np.float32))
        for i in range(20)
        for s in range(8)
    ]
    found = verdicts(yes)["duplicate_samples"]
    assert found.status is Status.PASS
    assert "140 of 160" in found.message


def test_an_unlikely_completion_under_another_prompt_fails_and_a_likely_one_does_not():
    stolen = replace(healthy()[-1], rollout_id="q/0", prompt=np.array([1, 2, 3], dtype=np.int32))
    assert verdicts([*healthy(), stolen])["same_completion"].status is Status.FAIL
    rewritten = [replace(c, trajectory_id="t") for c in (*healthy(), stolen)]
    assert verdicts(rewritten)["same_completion"].status is Status.PASS, "one answer in two rows of a conversation"
    short = replace(healthy()[0], rollout_id="q/0", prompt=np.array([1, 2, 3], dtype=np.int32))
    assert short.logprob == -9
    assert verdicts([*healthy(), short])["same_completion"].status is Status.PASS


def test_one_seed_for_two_samples_of_a_prompt_fails_and_for_two_prompts_is_noted():
    seeded = [replace(c, seed=str(i)) for i, c in enumerate(healthy())]
    assert verdicts(seeded)["seeds"].status is Status.PASS
    twice = [replace(seeded[0], seed="1"), *seeded[1:]]
    assert verdicts(twice)["seeds"].status is Status.FAIL
    assert verdicts(twice, asked(seed_policy="each request"))["seeds"].status is not Status.FAIL
    shared = [replace(seeded[0], seed="2"), *seeded[1:]]
    found = verdicts(shared)["seeds"]
    assert (found.status, found.required, found.value) == (Status.UNKNOWN, False, 1)


def test_calls_of_several_protocols_are_unknown():
    own = [replace(c, protocol_hash=PLAIN.protocol.hash) for c in healthy()]
    assert verdicts(own)["one_protocol"].status is Status.PASS
    found = verdicts([*own[1:], replace(own[0], protocol_hash="0" * 16)])["one_protocol"]
    assert (found.status, found.required, found.value) == (Status.UNKNOWN, True, 2)


def test_calls_from_files_carry_one_hash_and_no_claim_of_one_protocol():
    own = [replace(c, protocol_hash=PLAIN.protocol.hash) for c in healthy()]
    found = verdicts(own, replace(PLAIN, of_files=True))["one_protocol"]
    assert (found.status, found.required) == (Status.UNKNOWN, False)
    mixed = [*own[1:], replace(own[0], protocol_hash="0" * 16)]
    assert verdicts(mixed, replace(PLAIN, of_files=True))["one_protocol"].required


def test_a_limit_that_a_person_gives_makes_no_other_protocol_of_the_runs():
    own = [replace(c, protocol_hash=PLAIN.protocol.hash) for c in healthy()]
    given = replace(asked(max_new_tokens=9), told_too=("max_new_tokens",), of_run=PLAIN.protocol.hash)
    assert verdicts(own, given)["one_protocol"].status is Status.PASS


# -- calls of a rollout -----------------------------------------------------------------------------------------


def test_a_span_with_the_answer_of_a_tool_in_it_is_two_calls_and_the_last_one_ends_it():
    sampled = np.array([0, 0, 1, 1, 0, 0, 1, 1], dtype=np.bool_)
    rollout = Rollout(
        rollout_id="r",
        prompt_id="p",
        trajectory_id="r",
        token_ids=np.arange(8, dtype=np.int32),
        sampled=sampled,
        loss_mask=sampled,
        text="whole",
        tags={"step": "3", "seed": "7"},
    )
    span = Span(rollout_id="r", start=2, end=8, finish_reason="stop", stop_reason="7")
    first, second = calls_of(rollout, [span], -np.arange(8, dtype=np.float32))
    assert (first.prompt.tolist(), first.completion.tolist(), first.finish_reason) == ([0, 1], [2, 3], "")
    assert (second.completion.tolist(), second.finish_reason, second.stop_reason) == ([6, 7], "stop", "7")
    assert (first.begins, second.begins, first.text, second.logprob) == (True, False, None, -13.0)
    assert (first.step, first.seed) == ("3", "7")


def test_the_finish_reason_of_a_file_is_the_tag_of_its_rollout():
    sampled = np.array([False, True])
    rollout = Rollout(
        rollout_id="r",
        prompt_id="p",
        trajectory_id="r",
        token_ids=np.arange(2, dtype=np.int32),
        sampled=sampled,
        loss_mask=sampled,
        tags={"finish_reason": "length"},
    )
    for spans in ([], [Span(rollout_id="r", start=1, end=2)]):
        (one,) = calls_of(rollout, spans, None)
        assert one.says_length
        assert math.isnan(one.logprob)
