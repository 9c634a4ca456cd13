"""Properties of templates built here, under the number of the public report that each fault is known from."""

import json

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from onepolicy.records.verdict import Status
from onepolicy.tokens.open import open_tokenizer
from onepolicy.tokens.render import ChatTemplate
from onepolicy.tokens.sides import Reader
from onepolicy.tokens.template.probes import ANSWER, PLAIN, REASON, THINKING, Book
from onepolicy.tokens.template.report import PROPERTIES, SPOKEN, compare, compare_with_server, examine, stop_ids_of
from onepolicy.tokens.template.report import book_of as book_of_stored

SPECIALS = ["<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
HEAD = "{{ '<|im_start|>' + m.role + '\\n' }}"
PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
CALLS = "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}"
END = "{{ '<|im_end|>\\n' }}"
CHATML = (
    "{% for m in messages %}" + HEAD + "{{ m.content or '' }}" + CALLS + END + "{% endfor %}" + PROMPT
)  # TMPL-CHATML
REASONING = (
    "{% set text = m.content or '' %}{% set r = m.reasoning_content or '' %}{% if '</think>' in text %}"
    "{% set r = text.split('</think>')[0].split('<think>')[-1].strip() %}"
    "{% set text = text.split('</think>')[-1].lstrip() %}{% endif %}"
)
THINK = (  # TMPL-THINK: reasoning only in the last turn
    "{% for m in messages %}"
    + HEAD
    + REASONING
    + "{% if r and loop.last %}{{ '<think>\\n' + r + '\\n</think>\\n\\n' }}"
    "{% endif %}{{ text }}" + CALLS + END + "{% endfor %}" + PROMPT
)
BLOCK = repr(f"<think>\n{REASON}\n</think>\n\n")
KEPT = THINK.replace("{% if r and loop.last %}", "{% if r %}")


def byte_level(*, bos=False):
    """T-BPE without merges: a byte is a token."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIALS)
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
        )
    return tokenizer


def book_of(source, *, bos=False, stop_ids=None, **special):
    special = {"eos_token": "<|im_end|>", **special}
    template = ChatTemplate(source=source, special=special, origin="the template")
    return Book(template, reader=Reader(byte_level(bos=bos)), stop_ids=stop_ids)


def verdicts(source, **options):
    return {verdict.check: verdict for verdict in examine(book_of(source, **options)).verdicts}


def test_chatml_passes_every_property_that_decides():
    report = examine(book_of(CHATML))
    assert report.status is Status.PASS, report.sentence
    assert {v.check for v in report.verdicts if v.status is not Status.PASS} == {
        "prefix_reasoning_field",
        "prefix_thinking_tools",
        "tool_arguments",
        "between_turns",
        "typed_special",
    }


def test_every_property_speaks_for_training_in_a_full_sentence():
    for source in (CHATML, THINK, CHATML.replace("{{ m.content or '' }}", "{{ m.content | trim }}")):
        for verdict in verdicts(source).values():
            assert verdict.message.endswith("."), verdict


def test_b12_reasoning_removed_from_history_is_told_with_turn_and_span():
    found = verdicts(THINK)
    for check in ("prefix_thinking", "prefix_reasoning_field"):
        verdict = found[check]
        assert verdict.status is Status.FAIL
        assert f"turn 1: the next prompt lacks {BLOCK} (thinking removed)" in verdict.message
        assert [e.note.partition(":")[0] for e in verdict.evidence] == ["turn 1", "turn 2"]
    assert found["prefix_plain"].status is Status.PASS


def test_b12_the_place_of_the_break_is_the_character_of_the_opening_tag():
    evidence = verdicts(THINK)["prefix_thinking"].evidence[0]
    head = "<|im_start|>user\nWhich colour is the sky?<|im_end|>\n<|im_start|>assistant\n"
    assert evidence.position == len(head)


def test_b12_a_turn_without_reasoning_gains_an_empty_block():
    source = THINK.replace("{% if r and loop.last %}", "{% if loop.last and m.role == 'assistant' %}")
    verdict = verdicts(source)["prefix_plain"]
    assert verdict.status is Status.FAIL
    assert r"turn 1: the finished turn adds '<think>\n\n</think>\n\n' (thinking added)" in verdict.message


def test_a_template_that_keeps_reasoning_preserves_every_prefix():
    found = verdicts(KEPT)
    assert {found[c].status for c in found if c.startswith("prefix")} == {Status.PASS}


def test_b13_a_slice_behind_a_rewritten_history_is_known_to_begin_elsewhere():
    """The evidence says where the rewritten prompt leaves the one before, so nothing may be sliced behind it."""
    book = book_of(THINK)
    finished, following = book.text(THINKING, 2), book.text(THINKING, 3, prompt=True)
    sliced = following[len(finished) :]
    assert not following.startswith(finished)
    assert not sliced.startswith("<|im_start|>")  # what the careless slice gives: it begins inside a turn
    assert verdicts(THINK)["prefix_thinking"].evidence[0].position < len(finished)


def test_b14_what_follows_the_end_of_a_turn_is_told_with_its_ids():
    verdict = verdicts(CHATML)["between_turns"]
    newline = byte_level().encode("\n").ids
    assert f"after <|im_end|> comes '\\n', ids {newline}, which the model does not sample" in verdict.message
    assert verdicts(CHATML.replace("<|im_end|>\\n", "<|im_end|>"))["between_turns"].status is Status.PASS


MERGED = (
    "{% for m in messages %}{% if m.role == 'tool' %}{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}"
    "<|im_start|>user{% endif %}{{ '\\n[' + m.content + ']' }}"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}"
    "{% else %}" + HEAD + "{{ m.content or '' }}" + CALLS + END + "{% endif %}{% endfor %}" + PROMPT
)


def test_b16_merged_tool_results_are_told():
    verdict = verdicts(MERGED)["per_message"]
    assert verdict.status is not Status.PASS
    assert "neighbouring tool results are merged" in verdict.message
    assert verdicts(CHATML)["per_message"].status is Status.PASS


def test_b16_a_default_that_each_message_repeats_is_told():
    source = "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\\nHelp.<|im_end|>\\n' }}{% endif %}" + CHATML
    verdict = verdicts(source)["per_message"]
    assert "messages rendered one at a time are not the conversation" in verdict.message


@pytest.mark.parametrize("filtered", ["{{ m.content | trim }}", "{{ (m.content or '').rstrip() }}"])
def test_b18_trimmed_content_is_told_as_whitespace(filtered):
    source = CHATML.replace("{{ m.content or '' }}", filtered)
    verdict = verdicts(source)["outer_whitespace"]
    assert verdict.status is Status.FAIL
    assert "whitespace at its ends changes" in verdict.message
    assert verdict.evidence[0].note == "turn 1: whitespace"


def test_b19_how_tool_arguments_are_written_again_is_told():
    plain = verdicts(CHATML)["tool_arguments"]
    assert "given as an object, they are JSON with spaces, keys in the order given" in plain.message
    compact = CHATML.replace(
        "c.function | tojson",
        "c.function.name ~ (c.function.arguments | tojson(separators=(',', ':'), sort_keys=true))",
    )
    assert "JSON compact, keys sorted" in verdicts(compact)["tool_arguments"].message
    echoing = CHATML.replace(
        "c.function | tojson",
        "c.function.name ~ (c.function.arguments if c.function.arguments is string else c.function.arguments | tojson)",
    )
    assert verdicts(echoing)["tool_arguments"].status is Status.PASS
    assert "quoted once more" in plain.message


def test_b20_a_generation_prompt_that_opens_the_reasoning_is_told():
    source = KEPT.replace("assistant\\n' }}{% endif %}", "assistant\\n<think>\\n' }}{% endif %}")
    found = verdicts(source)
    assert "which opens the reasoning: completions hold only the closing tag" in found["generation_prompt"].message
    assert found["prefix_thinking"].status is Status.PASS
    assert r"the finished turn lacks '<think>\n'" in found["prefix_plain"].message


def test_b21_a_generation_prompt_that_is_always_written_fails():
    always = CHATML.replace("{% if add_generation_prompt %}", "{% if true %}")
    assert verdicts(always)["generation_prompt"].status is Status.FAIL
    assert verdicts(CHATML)["generation_prompt"].status is Status.PASS


def test_b21_a_header_that_ends_a_finished_conversation_fails():
    source = CHATML + "{% if messages[-1].role == 'assistant' %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    verdict = verdicts(source)["generation_prompt"]
    assert verdict.status is Status.FAIL
    assert "also ends a finished conversation" in verdict.message


def test_a_template_without_a_generation_prompt_is_noted():
    verdict = verdicts(CHATML.removesuffix(PROMPT))["generation_prompt"]
    assert not verdict.required
    assert "none is written" in verdict.message


def test_b23_only_conversations_with_earlier_reasoning_differ():
    report = compare(book_of(THINK), book_of(KEPT))
    verdict = report.verdicts[0]
    assert report.status is Status.FAIL
    assert [e.rollout_id for e in verdict.evidence] == [
        "reasoning in the content",
        "reasoning in its own field",
        "a tool loop with reasoning",
    ]
    assert f"the first has '', the second {BLOCK} (thinking removed)" in verdict.evidence[0].note


def test_the_same_template_twice_is_the_same():
    report = compare(book_of(CHATML), book_of(CHATML))
    assert report.status is Status.PASS
    assert report.template_hash == report.other_hash


def test_a_switch_that_only_one_template_reads_is_told():
    report = compare(book_of("{{ enable_thinking }}" + CHATML), book_of("{{ other }}" + CHATML))
    assert report.verdicts[1].message.startswith("only the first reads enable_thinking; only the second reads other.")


def test_one_side_that_refuses_is_a_difference():
    refusing = "{% if tools %}{{ raise_exception('no tools') }}{% endif %}" + CHATML
    evidence = compare(book_of(CHATML), book_of(refusing)).verdicts[0].evidence
    assert {e.note for e in evidence} == {"the second refuses it (no tools (line 1))"}
    same = compare(book_of(refusing), book_of(refusing))
    assert same.status is Status.PASS
    assert same.verdicts[0].message.startswith("both write 11 of 18 conversations, and alike; both refuse, from some")
    assert "a tool loop, a tool loop with reasoning" in same.verdicts[0].message
    assert len(same.verdicts[0].evidence) == 7  # every conversation with tools


def test_two_templates_that_refuse_everything_were_not_compared_and_are_unknown():
    refusing = "{{ raise_exception('no') }}"
    report = compare(book_of(refusing), book_of(refusing))
    assert (report.status, report.exit_status) == (Status.UNKNOWN, 3)
    assert "both refuse all 18 conversations, so nothing was compared" in report.sentence
    assert len(report.verdicts[0].evidence) == 18


class Refusing:
    """A server that renders what its list says."""

    origin = "server"

    def __init__(self, answer):
        self._answer = answer

    def conversation(self, messages):
        return self._answer(messages)

    def spelled(self, ids):
        return tuple(map(str, ids))


def test_a_server_and_a_template_that_refuse_everything_were_not_compared_and_are_unknown():
    report = compare_with_server(book_of("{{ raise_exception('no') }}"), Refusing(lambda messages: "no"))
    assert (report.status, report.exit_status) == (Status.UNKNOWN, 3)
    assert "nothing was compared" in report.sentence


def test_conversations_that_a_server_and_a_template_both_refuse_are_named():
    strict = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHATML
    book = book_of(strict)

    def ids(messages):
        if messages[0]["role"] == "system":
            return "no system"
        probe = next(p for p in SPOKEN if list(p.messages[: len(messages)]) == list(messages))
        return book.reader.encode(book.text(probe, len(messages), prompt=True))

    report = compare_with_server(book, Refusing(ids))
    assert report.status is Status.PASS
    assert "both refuse, from some message on, a system message." in report.verdicts[0].message


def test_null_content_that_is_spelled_out_fails():
    found = verdicts(CHATML.replace("{{ m.content or '' }}", "{{ m.content }}"))["empty_content"]
    assert found.status is Status.FAIL
    assert "a call with content: null is written with 'None' where empty content has ''" in found.message


def test_null_content_that_is_refused_is_a_note():
    found = verdicts(CHATML.replace("{{ m.content or '' }}", "{{ '' + m.content }}"))["empty_content"]
    assert not found.required
    assert "refuses a call with content: null" in found.message


def test_a_refused_system_role_or_tools_are_notes_and_no_failure():
    source = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
        "{% if tools %}{{ raise_exception('No tools') }}{% endif %}" + CHATML
    )
    report = examine(book_of(source))
    found = {v.check: v for v in report.verdicts}
    assert report.status is Status.PASS
    assert found["system_role"].message == "refuses a system message: System role not supported (line 1)."
    assert found["prefix_tools"].message == "refuses a tool loop: No tools (line 1)."


def test_a_default_system_message_is_told_with_its_date():
    default = (
        "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\\nKnows up to 2023.<|im_end|>\\n' }}{% endif %}"
    )
    told = verdicts(default + CHATML)["default_system"].message
    assert r"'<|im_start|>system\nKnows up to 2023.<|im_end|>\n' is written" in told
    assert "It names a date." in told
    today = "{{ '<|im_start|>system\\nToday is ' + strftime_now('%d %b %Y') + '<|im_end|>\\n' }}"
    assert "depends on today's date" in verdicts(today + CHATML)["default_system"].message
    assert verdicts(CHATML)["default_system"].status is Status.PASS


def test_a_missing_end_of_turn_fails():
    verdict = verdicts(CHATML.replace("<|im_end|>", ""))["stop_token"]
    assert verdict.status is Status.FAIL
    assert "never learns to stop" in verdict.message


def test_b76_an_end_of_turn_that_is_no_stop_id_fails_and_is_unknown_where_nothing_says():
    unnamed = {"eos_token": "</s>"}
    end = byte_level().token_to_id("<|im_end|>")
    assert verdicts(CHATML, **unnamed)["stop_token"].status is Status.UNKNOWN
    assert verdicts(CHATML, stop_ids=frozenset({end}), **unnamed)["stop_token"].status is Status.PASS
    failed = verdicts(CHATML, stop_ids=frozenset({end - 1}), **unnamed)["stop_token"]
    assert failed.status is Status.FAIL
    assert f"Add id {end} to the stop ids" in failed.message


def test_b76_an_end_of_turn_outside_the_generation_block_fails():
    open_, close = "{% generation %}", "{% endgeneration %}"
    body = "{{ m.content or '' }}" + CALLS
    outside = CHATML.replace(body, open_ + body + close)
    inside = CHATML.replace(body + END, open_ + body + END + close)
    assert "outside the template's generation block" in verdicts(outside)["stop_token"].message
    assert verdicts(inside)["stop_token"].status is Status.PASS


def test_b06_a_bos_in_template_and_tokenizer_is_doubled():
    verdict = verdicts("{{ bos_token }}" + CHATML, bos=True, bos_token="<s>")["bos"]
    assert verdict.status is Status.FAIL
    assert "BOS doubled: encoded with special tokens, the re-encoded ids begin with 2 x <s>" in verdict.message
    assert verdict.evidence[0].position == 1  # the second BOS
    assert verdicts("{{ bos_token }}" + CHATML, bos_token="<s>")["bos"].status is Status.PASS


def test_b07_a_raw_text_without_its_bos_is_told_and_a_chat_is_not():
    both = verdicts("{{ bos_token }}" + CHATML, bos=True, bos_token="<s>")["raw_text_bos"]
    assert "raw text gets <s> only with special tokens on" in both.message
    template_only = verdicts("{{ bos_token }}" + CHATML, bos_token="<s>")["raw_text_bos"]
    assert "a conversation begins with <s>, raw text does not" in template_only.message
    neither = verdicts(CHATML)["raw_text_bos"]
    assert neither.status is Status.PASS


def test_a_bos_that_only_the_tokenizer_adds_is_missing_from_rendered_text():
    verdict = verdicts(CHATML, bos=True, bos_token="<s>")["bos"]
    assert verdict.status is Status.FAIL
    assert verdict.message.startswith("BOS missing")


def test_b27_a_special_token_that_a_user_types_is_found_in_the_content():
    verdict = verdicts(CHATML)["typed_special"]
    assert not verdict.required
    before = "user\nWhat is "
    assert verdict.evidence[0].position == 1 + len(before)  # after <|im_start|>; a byte is a token
    assert verdict.evidence[0].note == "<|im_end|> inside the user's content"


def test_b27_content_that_is_split_is_safe():
    tokenizer = byte_level()
    tokenizer.encode_special_tokens = True
    book = book_of(CHATML)
    book.reader.tokenizer.encode_special_tokens = True
    try:
        verdict = {v.check: v for v in examine(book).verdicts}["typed_special"]
    finally:
        book.reader.tokenizer.encode_special_tokens = False
    assert verdict.status is Status.PASS


def test_a_template_with_a_switch_for_thinking_is_asked_with_it_off():
    source = THINK.replace(
        PROMPT,
        PROMPT.replace(
            "assistant\\n'",
            "assistant\\n' + ('' if enable_thinking | default(true) else '<think>\\n\\n</think>\\n\\n')",
        ),
    )
    assert "prefix_thinking_off" not in verdicts(THINK)
    verdict = verdicts(source)["prefix_thinking_off"]
    assert verdict.status is Status.FAIL
    assert r"lacks '<think>\n\n</think>\n\n'" in verdict.message


def test_generation_config_says_where_generation_stops(tmp_path):
    assert stop_ids_of(str(tmp_path)) is None
    file = tmp_path / "generation_config.json"
    file.write_text(json.dumps({"eos_token_id": [1, 106]}))
    assert stop_ids_of(str(tmp_path)) == {1, 106}
    assert stop_ids_of(str(tmp_path / "tokenizer.json")) == {1, 106}
    file.write_text(json.dumps({"eos_token_id": 7}))
    assert stop_ids_of(str(tmp_path)) == {7}


def test_every_property_has_a_verdict_of_its_own_name():
    names = [verdict.check for verdict in examine(book_of("{{ enable_thinking }}" + KEPT)).verdicts]
    assert names == [judge.__name__ for judge in PROPERTIES]


def test_the_answer_stands_in_what_is_rendered():
    assert ANSWER in book_of(CHATML).text(PLAIN, 2)


def test_a_template_that_takes_arguments_as_text_alone_is_given_text():
    source = CHATML.replace("c.function | tojson", "c.function.name + c.function.arguments")
    found = verdicts(source)
    assert found["prefix_tools"].status is Status.PASS
    assert found["tool_arguments"].message.startswith("arguments are taken as text alone")


@pytest.mark.parametrize(
    "source",
    [
        "",
        "x",
        "{{ messages }}",
        "{% for m in messages %}{{ (m.content or '') | upper }}{% endfor %}",
        "{% for m in messages %}{{ (m.content or '')[::-1] }}{% endfor %}",
        "{{ messages[-1].content }}",
        "{{ messages[0].content }}",
        "{{ raise_exception('never') }}",
        "{% for m in messages %}<|im_end|>{{ m.content }}{% endfor %}",
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}",
        "{{ range(100) | random }}{{ lipsum() }}",
        "\ud800{{ messages[0].content }}",
    ],
)
def test_a_template_that_is_none_for_conversations_is_examined_without_a_crash_and_never_passes(source):
    assert examine(book_of(source)).status is not Status.PASS
    assert compare(book_of(source), book_of(CHATML)).status is Status.FAIL


KEPT_BY = {
    "smollm2": {"prefix_plain", "prefix_thinking", "outer_whitespace", "bos", "stop_token"},
    "deepseek": {"prefix_plain", "prefix_tools", "outer_whitespace", "bos", "stop_token"},
    "qwen3": {"outer_whitespace", "bos", "stop_token"},
    "llama3_1": {"prefix_plain", "prefix_thinking", "stop_token"},
    "gemma3": {"prefix_plain", "prefix_thinking", "stop_token"},
}
LOST_BY = {
    "smollm2": set(),
    "deepseek": {"prefix_thinking"},
    "qwen3": {
        "prefix_plain",
        "prefix_thinking",
        "prefix_thinking_off",
        "prefix_reasoning_field",
        "prefix_tools",
        "prefix_thinking_tools",
    },
    "llama3_1": {"outer_whitespace", "bos"},
    "gemma3": {"outer_whitespace", "bos"},
}
"""of the properties in the table of docs/tokenizers.md, each seen once in Transformers' own renderings"""


@pytest.mark.real
@pytest.mark.parametrize("name", KEPT_BY)
def test_real_templates_have_the_properties_of_the_table(name, real_tokenizers):
    report = examine(book_of_stored(open_tokenizer(real_tokenizers[name])))
    shown = {v.check: v.status for v in report.verdicts if v.check in set().union(*KEPT_BY.values(), *LOST_BY.values())}
    assert {check for check, status in shown.items() if status is Status.PASS} == KEPT_BY[name]
    assert {check for check, status in shown.items() if status is Status.FAIL} == LOST_BY[name]


def test_two_templates_with_two_tokenizers_are_compared_by_their_text():
    longer = CHATML.replace("<|im_end|>\\n", "<|im_end|>\\n\\n")
    other = Book(ChatTemplate(source=longer), reader=Reader(byte_level(bos=True)))
    verdict = compare(book_of(CHATML), other).verdicts[0]
    assert "other tokenizer" not in verdict.message
    assert (
        "plain turns, a system message, reasoning in the content, reasoning in its own field and 14 more"
        in verdict.message
    )
    assert len(verdict.evidence) == 18
