"""Templates as Transformers renders them, and templates that mean harm."""

import gc
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path

import jinja2
import pytest

from onepolicy.errors import TemplateError, UsageError
from onepolicy.tokens.local import LocalTokenizer
from onepolicy.tokens.open import open_tokenizer
from onepolicy.tokens.render import (
    Budget,
    ChatTemplate,
    Conversation,
    Refusal,
    plain_messages,
    render,
    render_all,
    template_of,
)
from onepolicy.tokens.rendering import RenderingProcess
from onepolicy.tokens.template.probes import PROBES
from onepolicy.tokens.tokenizer import StoredTokenizer

HELLO = Conversation(messages=[{"role": "user", "content": "hello"}])


def written(source, conversation=HELLO, **special):
    return render(ChatTemplate(source=source, special=special), conversation)


def test_a_template_sees_messages_tools_documents_special_tokens_and_switches():
    conversation = Conversation(
        messages=[{"role": "user", "content": "hello"}],
        tools=[{"name": "f"}],
        documents=[{"title": "t", "text": "x"}],
        generation_prompt=True,
        variables={"enable_thinking": False},
    )
    source = (
        "{{ bos_token }}|{{ messages[0].content }}|{{ tools[0].name }}|{{ documents[0].title }}|"
        "{{ add_generation_prompt }}|{{ enable_thinking }}"
    )
    assert written(source, conversation, bos_token="<s>").text == "<s>|hello|f|t|True|False"


def test_blocks_are_trimmed_and_loops_can_break():
    source = "{% for i in range(9) %}\n    {% if i == 2 %}{% break %}{% endif %}\n{{ i }}\n{% endfor %}\n"
    assert written(source).text == "0\n1\n"


def test_json_is_written_without_html_escapes_and_in_any_script():
    assert written("{{ {'b': '<é>', 'a': 1} | tojson }}").text == '{"b": "<é>", "a": 1}'
    assert written("{{ {'b': 2, 'a': 1} | tojson(sort_keys=true, separators=(',', ':')) }}").text == '{"a":1,"b":2}'
    assert written("{{ 'é' | tojson(ensure_ascii=True) }}").text == '"\\u00e9"'
    assert written("{{ [1] | tojson(indent=1) }}").text == "[\n 1\n]"


def test_generation_blocks_leave_the_span_of_what_the_assistant_wrote():
    source = (
        "{% for m in messages %}{% if m.role == 'assistant' %}A:{% generation %}{{ m.content }}</s>{% endgeneration %}"
        "{% else %}U:{{ m.content }}{% endif %}{% endfor %}"
    )
    messages = [{"role": role, "content": role[::-1]} for role in ("user", "assistant", "user", "assistant")]
    page = written(source, Conversation(messages=messages))
    assert [page.text[start:end] for start, end in page.assistant] == ["tnatsissa</s>", "tnatsissa</s>"]


def test_the_date_is_the_callers_and_its_use_is_reported():
    template = ChatTemplate(source="{{ strftime_now('%d %b %Y') }}")
    page = render(template, HELLO, now=datetime(2031, 2, 3))
    assert page.text == "03 Feb 2031"
    assert page.uses_date
    assert not written("{{ messages[0].content }}").uses_date


def test_what_the_template_raises_is_a_refusal_with_its_message_and_line():
    template = ChatTemplate(source="first line\n{{ raise_exception('System role not supported') }}")
    assert render_all(template, [HELLO]).results == (
        Refusal(message="System role not supported", kind="TemplateError", line=2),
    )
    with pytest.raises(TemplateError, match=r"refuses the conversation: System role not supported \(line 2\)"):
        render(template, HELLO)


def test_one_refused_conversation_leaves_the_others():
    template = ChatTemplate(source="{% if messages|length > 1 %}{{ raise_exception('no') }}{% endif %}ok")
    two = Conversation(messages=[*HELLO.messages, *HELLO.messages])
    first, second, third = render_all(template, [HELLO, two, HELLO]).results
    assert isinstance(second, Refusal)
    assert first.text == third.text == "ok"


def test_null_entries_are_left_out_as_transformers_does_unless_they_are_to_be_kept():
    message = {"role": "assistant", "content": None, "reasoning": "because"}
    assert plain_messages([message]) == [
        {"thinking": "because", "role": "assistant", "reasoning": "because", "reasoning_content": "because"}
    ]
    source = "{{ messages[0].content is defined }}"
    assert written(source, Conversation(messages=[message])).text == "False"
    assert written(source, Conversation(messages=[message], keep_nulls=True)).text == "True"


def test_lone_surrogates_and_a_megabyte_come_through():
    text = "\ud800" + "x" * (1 << 20)
    assert written("{{ messages[0].content }}", Conversation(messages=[{"role": "user", "content": text}])).text == text


def test_the_names_that_a_template_reads_are_told():
    read = render_all(ChatTemplate(source="{% set a = 1 %}{{ a }}{{ enable_thinking }}"), [HELLO]).variables
    assert read == {"enable_thinking"}


def test_a_syntax_error_names_its_line_and_what_to_do():
    with pytest.raises(TemplateError, match=r"line 2 is not valid Jinja.*Mend that line"):
        written("fine\n{% if %}")


ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
HOSTILE = {
    "an endless loop": (ENDLESS, "computing time"),
    "a huge text": ("{{ 'a' * 10000000000 }}", "MiB"),
    "a doubling text": (
        "{% set n = namespace(s='aa') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
        "MiB",
    ),
    "an endless output": ("{% for i in range(99999) %}{{ 'a' * 99999 }}{% endfor %}", "characters"),
    "a recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls itself"),
    "deep nesting": ("{{ " + "(" * 5000 + ")" * 5000 + " }}", "calls itself"),
    "a range that is too long": ("{% for i in range(10 ** 12) %}{% endfor %}", "Range too big"),
    "a file": ("{% include '/etc/hostname' %}", "line 1 reads another file"),
    "a parent file": ("\n{% extends 'x' %}", "line 2 reads another file"),
    "an attribute": ("{{ ''.__class__.__mro__ }}", "__class__"),
    "an attribute of a global": ("{{ cycler.__init__.__globals__ }}", "__init__"),
    "a format string": ("{{ '{0.__class__.__mro__}'.format('') }}", "__mro__|__class__"),
    "a changed conversation": ("{{ messages.append(1) }}", "append"),
    "an underscore in a namespace": ("{{ namespace(_a=1) }}", "_a"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_template_ends_in_an_error(what):
    source, said = HOSTILE[what]
    budget = Budget(cpu_seconds=1, memory=1 << 28)
    with pytest.raises(TemplateError, match=said):
        render(ChatTemplate(source=source), HELLO, budget=budget)


def test_a_template_that_does_not_end_is_killed_by_the_clock_where_computing_time_is_not_bounded():
    with pytest.raises(TemplateError, match=r"had not ended after 0.7 s"):
        render(ChatTemplate(source=ENDLESS), HELLO, budget=Budget(cpu_seconds=1000, wall_seconds=0.7))


def test_a_template_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written("{{ messages[0].content }}")
    assert list(Path().iterdir()) == []


def test_a_module_in_the_working_folder_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "jinja2.py").write_text("raise SystemExit('mine')")
    monkeypatch.chdir(tmp_path)
    assert written("x").text == "x"


def test_an_empty_conversation_is_a_usage_error():
    with pytest.raises(UsageError, match="at least one message"):
        written("x", Conversation(messages=[]))


def test_the_template_for_tools_is_taken_where_there_is_one():
    stored = StoredTokenizer(
        origin="here", format="tokenizer.json", pipeline={}, templates={"default": "d", "tool_use": "t"}
    )
    assert template_of(stored).source == "d"
    assert template_of(stored, tools=True).source == "t"
    with pytest.raises(UsageError, match="no chat template 'rag'"):
        template_of(stored, name="rag")
    with pytest.raises(UsageError, match=r"bare has no chat template"):
        template_of(StoredTokenizer(origin="bare", format="gguf", pipeline={}))


def test_today_is_not_read_by_default():
    assert written("{{ strftime_now('%Y-%m-%d') }}").text != date.today().isoformat()


def test_a_name_that_is_set_in_a_branch_is_not_taken_for_a_switch():
    source = "{% if messages %}{% set role = 'user' %}{% else %}{% set role = 'x' %}{% endif %}{{ role }}"
    assert render_all(ChatTemplate(source=source), [HELLO]).variables == {"messages"}
    source = "{% if date_string is not defined %}{% set date_string = 'today' %}{% endif %}{{ date_string }}"
    assert render_all(ChatTemplate(source=source), [HELLO]).variables == {"date_string"}


# real templates, against Transformers

MODELS = ["smollm2", "deepseek", "qwen3", "llama3_1", "gemma3"]
CONTENT = "中文 👩‍👩‍👧 <b>&amp;</b> \\n {{ x }} {% y %} é\u0301 \u200b  end  "


def conversations():
    """Every probe at every cut, hard text, and switches; none with null kept, which Transformers never does."""
    for probe in PROBES:
        for count in range(1, len(probe.messages) + 1):
            for prompt in (False, True):
                yield replace(probe.cut(count, prompt=prompt), keep_nulls=False)
    hard = [{"role": role, "content": CONTENT} for role in ("user", "assistant", "user")]
    for variables in ({}, {"enable_thinking": True}, {"enable_thinking": False, "bos_token": "<other>"}):
        yield Conversation(messages=hard, generation_prompt=True, variables=variables)
    yield Conversation(
        messages=[{"role": "system", "content": CONTENT}, *hard], documents=[{"title": "t", "text": "x"}]
    )


def asked_of_transformers(tokenizer, conversation, **options):
    """What Transformers makes of it; None if it raises."""
    try:
        return tokenizer.apply_chat_template(
            [dict(message) for message in conversation.messages],
            tools=conversation.tools and list(conversation.tools),
            documents=conversation.documents,
            add_generation_prompt=conversation.generation_prompt,
            **options,
            **conversation.variables,
        )
    except (jinja2.TemplateError, TypeError, AttributeError):
        return None


@pytest.mark.real
@pytest.mark.parametrize("name", MODELS)
def test_text_and_ids_agree_with_transformers_on_real_templates(name, real_tokenizers):
    from transformers import AutoTokenizer  # noqa: PLC0415 - only a test of real tokenizers needs it

    theirs = AutoTokenizer.from_pretrained(real_tokenizers[name])
    stored = open_tokenizer(real_tokenizers[name])
    ours = stored.tokenizer()
    wanted = list(conversations())
    for conversation, page in zip(wanted, render_all(template_of(stored), wanted).results, strict=True):
        text = asked_of_transformers(theirs, conversation, tokenize=False)
        assert (None if isinstance(page, Refusal) else page.text) == text
        if text is not None:
            ids = asked_of_transformers(theirs, conversation, tokenize=True, return_dict=False)
            assert ours.encode(text, add_special_tokens=False).ids == ids


@pytest.mark.real
def test_generation_blocks_json_and_the_date_agree_with_transformers(real_tokenizers):
    from transformers import AutoTokenizer  # noqa: PLC0415 - only a test of real tokenizers needs it

    source = (
        "{{ strftime_now('%Y-%m-%d') }}{% for m in messages %}\n    {% if m.role == 'assistant' %}"
        "A: {% generation %}{{ m.content }}<|im_end|>{% endgeneration %}\n"
        "{% else %}{{ m | tojson(indent=2) }}{{ m.content | tojson }}\n{% endif %}"
        "{% if loop.index > 3 %}{% break %}{% endif %}{% endfor %}{{ dict(a=1) | tojson }}{{ dict.fromkeys([1]) }}"
    )
    messages = [{"role": role, "content": CONTENT} for role in ("user", "assistant") * 3]
    theirs = AutoTokenizer.from_pretrained(real_tokenizers["qwen3"])
    found = theirs.apply_chat_template(
        messages, chat_template=source, return_assistant_tokens_mask=True, tokenize=True, return_dict=True
    )
    conversation = Conversation(messages=messages)
    page = render(ChatTemplate(source=source), conversation, now=datetime.now())
    assert page.text == theirs.apply_chat_template(messages, chat_template=source, tokenize=False)
    offsets = theirs(page.text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    mask = [any(end > a and start < b for a, b in page.assistant) for start, end in offsets]
    assert mask == list(map(bool, found["assistant_masks"]))
    assert any(mask)


# -- one process for many renderings ----------------------------------------------------------------------------------


@pytest.fixture
def process():
    with RenderingProcess() as one:
        yield one


def text_of(source, process, **budget):
    return render(ChatTemplate(source=source), HELLO, process=process, budget=Budget(**budget)).text


def process_id(process):
    return process._process.pid


def is_there(pid):
    """Whether a process runs; one that ended and that nobody asked for is there no more."""
    state = Path(f"/proc/{pid}/stat")
    if state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z":
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_one_process_serves_several_renderings_and_several_templates(process):
    assert [text_of("a", process), text_of("{{ messages | length }}", process)] == ["a", "1"]
    first = process_id(process)
    assert text_of("b" * 100_000, process) == "b" * 100_000
    assert process_id(process) == first


@pytest.mark.parametrize("what", HOSTILE)
def test_each_rendering_has_the_same_bounds_in_a_process_that_serves_many(what, process):
    source, said = HOSTILE[what]
    for _ in range(2):
        with pytest.raises(TemplateError, match=said):
            text_of(source, process, cpu_seconds=1, memory=1 << 28)
        assert text_of("fine", process) == "fine"


def test_computing_time_is_bounded_for_each_rendering_and_not_for_all_together(process):
    busy = "{% for i in range(99999) %}{% for j in range(12) %}{% endfor %}{% endfor %}x"
    for _ in range(12):
        assert text_of(busy, process, cpu_seconds=1) == "x"


def test_a_rendering_leaves_nothing_for_the_next_one(process):
    assert text_of("{% set cycler = 'mine' %}{% set x = 1 %}{{ cycler }}", process) == "mine"
    assert "Cycler" in text_of("{{ cycler }}", process)
    assert text_of("{{ x is defined }}", process) == "False"


def test_a_rendering_that_the_clock_stops_ends_with_its_process_and_the_next_starts_another(process):
    with pytest.raises(TemplateError, match=r"had not ended after 0.7 s"):
        text_of(ENDLESS, process, cpu_seconds=1000, wall_seconds=0.7)
    assert process._process is None
    assert text_of("b", process) == "b"


def test_a_process_that_was_killed_is_started_again(process):
    text_of("a", process)
    os.kill(process_id(process), signal.SIGKILL)
    process._process.wait()
    assert text_of("b", process) == "b"


def test_a_closed_process_is_gone_and_may_be_asked_again(process):
    text_of("a", process)
    pid = process_id(process)
    process.close()
    process.close()
    assert not is_there(pid)
    assert text_of("b", process) == "b"


def test_a_tokenizer_keeps_one_process_and_ends_it_when_it_is_let_go(trained, saved):
    tokenizer = LocalTokenizer(str(saved(trained(), chat_template="{{ messages[0].content }}")))
    message = [{"role": "user", "content": "fox"}]
    first = tokenizer.encode_chat(message).tolist()
    pid = process_id(tokenizer._rendering)
    assert tokenizer.encode_chat(message).tolist() == first == trained().encode("fox").ids
    assert process_id(tokenizer._rendering) == pid
    del tokenizer
    gc.collect()
    assert not is_there(pid)


def test_the_process_ends_with_the_one_that_started_it(trained, saved):
    folder = saved(trained(), chat_template="x")
    code = (
        "from onepolicy.tokens.local import LocalTokenizer\n"
        f"t = LocalTokenizer({str(folder)!r})\n"
        "t.encode_chat([{'role': 'user', 'content': 'a'}])\n"
        "print(t._rendering._process.pid, flush=True)\n"
    )
    ended = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert ended.stderr == ""
    assert not is_there(int(ended.stdout))
    with subprocess.Popen(
        [sys.executable, "-c", code + "input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as killed:
        pid = int(killed.stdout.readline())
        killed.kill()
    deadline = time.monotonic() + 20
    while is_there(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_there(pid)
