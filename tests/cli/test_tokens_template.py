"""`onepolicy tokens template`: what it prints, and how it ends."""

import json

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{{ m.content or '' }}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
TRIMMED = CHATML.replace("{{ m.content or '' }}", "{{ (m.content or '') | trim }}")


@pytest.fixture
def folder(tmp_path):
    """A model's folder with a tokenizer whose template is the given one."""

    def build(source=CHATML, name="model", eos="<|im_end|>"):
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
        path = tmp_path / name
        path.mkdir()
        tokenizer.save(str(path / "tokenizer.json"))
        config = {"eos_token": eos, "chat_template": source}
        (path / "tokenizer_config.json").write_text(json.dumps(config))
        return path

    return build


def test_a_template_without_a_fault_ends_with_0_within_80_columns(cli, folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    ended = cli("tokens", "template", folder())
    assert ended.status == 0, ended.err
    assert ended.out.startswith("Pass: ")
    assert max(map(len, ended.out.splitlines())) <= 80
    assert "note" in ended.out


def test_a_property_that_changes_training_ends_with_1(cli, folder):
    ended = cli("tokens", "template", folder(TRIMMED))
    assert ended.status == 1
    assert ended.out.startswith("Fail: an answer ")


def test_a_stop_token_that_nothing_confirms_ends_with_3(cli, folder):
    ended = cli("tokens", "template", folder(eos="</s>"))
    assert ended.status == 3
    assert ended.out.startswith("Unknown: <|im_end|> ends the assistant's turn")


def test_json_holds_every_verdict(cli, folder):
    ended = cli("tokens", "template", folder(TRIMMED), "--json")
    report = json.loads(ended.out)
    assert ended.status == 1
    assert report["status"] == "fail"
    assert {v["check"]: v["status"] for v in report["verdicts"]}["outer_whitespace"] == "fail"
    assert report["variables"] == ["add_generation_prompt", "messages"]


def test_two_templates_are_compared_by_the_same_conversations(cli, folder):
    first, second = folder(), folder(TRIMMED, "other")
    ended = cli("tokens", "template", first, second, "--json")
    assert ended.status == 1
    (evidence, *more) = json.loads(ended.out)["verdicts"][0]["evidence"]
    assert evidence["rollout_id"] == "an answer with outer whitespace"
    assert not more
    assert cli("tokens", "template", first, first).status == 0


def test_a_jinja_file_is_asked_with_a_tokenizer(cli, folder, tmp_path):
    file = tmp_path / "chat.jinja"
    file.write_text(TRIMMED)
    alone = cli("tokens", "template", file)
    assert (alone.status, alone.out) == (2, "")
    assert "Add --tokenizer TARGET" in alone.err
    model = folder()
    assert cli("tokens", "template", file, "--tokenizer", model).status == 1
    assert "1 of 18 conversations" in cli("tokens", "template", model, file, "--tokenizer", model).out.replace(
        "\n", " "
    )


def test_a_date_is_handed_to_the_template(cli, folder):
    source = "{{ '<|im_start|>system\\nIt is ' + strftime_now('%Y') + '.<|im_end|>\\n' }}" + CHATML
    model = folder(source)
    told = {
        v["check"]: v
        for v in json.loads(cli("tokens", "template", model, "--date", "2031-05-06", "--json").out)["verdicts"]
    }
    assert "It is 2031." in told["default_system"]["message"]
    assert "depends on today's date" in told["default_system"]["message"]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("fine\n{% if %}", "line 2 is not valid Jinja"),
        ("{% include '/etc/hostname' %}", "reads another file"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls itself without end"),
        ("{{ 'a' * 10000000000 }}", "needs more than"),
    ],
)
def test_a_template_that_cannot_be_rendered_ends_with_2_and_one_line(cli, folder, source, said):
    ended = cli("tokens", "template", folder(source))
    assert ended.status == 2
    assert said in ended.err
    assert "Traceback" not in ended.err
    assert ended.out == ""


def test_a_template_file_that_is_no_text_or_absent_ends_with_2(cli, folder, tmp_path):
    model = folder()
    binary = tmp_path / "binary.jinja"
    binary.write_bytes(b"\xff\xfe{{")
    assert "is not UTF-8 (byte 0)" in cli("tokens", "template", binary, "--tokenizer", model).err
    absent = cli("tokens", "template", tmp_path / "absent.jinja", "--tokenizer", model)
    assert (absent.status, "is no file" in absent.err) == (2, True)


def test_a_tokenizer_without_a_template_says_how_to_give_one(cli, folder):
    model = folder()
    (model / "tokenizer_config.json").write_text("{}")
    ended = cli("tokens", "template", model)
    assert ended.status == 2
    assert "has no chat template. Give one as a .jinja file" in ended.err


def test_control_characters_of_a_template_do_not_reach_the_terminal(cli, folder):
    ended = cli("tokens", "template", folder("\x1b[31m" + CHATML))
    assert "\x1b" not in ended.out
