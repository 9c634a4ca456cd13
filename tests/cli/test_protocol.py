"""`onepolicy protocol` from files and runs."""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import onepolicy
from onepolicy.records.protocol import SamplingProtocol


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    protocol = SamplingProtocol(max_new_tokens=24, temperature=0.9)
    spec = {"engine": "fake", "target": "m", "batch_size": 4}
    onepolicy.check(rollout=spec, trainer=spec, run=path, protocol=protocol, budget=400)
    return path


@pytest.fixture
def here(tmp_path, monkeypatch, made):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made, "run")
    Path("a.yaml").write_text("temperature: 0.9\nmax_new_tokens: 24\n")
    Path("b.yaml").write_text("temperature: 0.9\nmax_new_tokens: 6\nstop: ['e']\n")
    return tmp_path


pytestmark = pytest.mark.usefixtures("here")


def answer(cli, *arguments, status):
    ended = cli("protocol", *arguments, "--json")
    assert ended.status == status, ended
    return json.loads(ended.out)


# -- show ----------------------------------------------------------------------------------------------------------


def test_show_gives_each_field_with_its_source(cli):
    ended = cli("protocol", "show", "b.yaml")
    assert ended.status == 0
    lines = {line.split()[0]: line.split() for line in ended.out.splitlines() if line.strip()}
    assert lines["max_new_tokens"][1:] == ["6", "protocol"]
    assert lines["top_p"][1:] == ["1.0", "default"]
    assert set(SamplingProtocol.model_fields) <= set(lines)


def test_show_of_several_sources_as_json(cli):
    first, second = answer(cli, "show", "a.yaml", "run", status=0)
    assert (first["kind"], second["kind"]) == ("protocol", "run")
    assert first["hash"] == second["hash"] == SamplingProtocol(max_new_tokens=24, temperature=0.9).hash


def test_a_framework_file_is_read_by_its_name(cli):
    Path("request.json").write_text(json.dumps({"temperature": 0.9, "max_tokens": 24, "top_k": -1}))
    Path("generation_config.json").write_text(json.dumps({"do_sample": True, "top_k": 20, "temperature": 0.6}))
    (vllm, transformers) = answer(cli, "show", "vllm:request.json", "generation_config.json", status=0)
    assert (vllm["kind"], vllm["protocol"]["top_k"], vllm["sources"]["temperature"]) == ("vllm", 0, "the request")
    assert (transformers["kind"], transformers["protocol"]["top_k"]) == ("transformers", 20)


@pytest.mark.parametrize(
    ("source", "content", "says"),
    [
        ("none.yaml", None, "there is no such file"),
        ("what.json", "{}", "it does not show whose configuration this is"),
        ("vllm:none.json", None, "none.json"),
        ("vllm:bad.json", "{", "is no JSON"),
        ("vllm:text.json", '"a"', "this is str"),
        ("vllm:flags.txt", "--top-p '0.9", "is no command line"),
        ("http://localhost:8000", None, "there is no such file"),
        ("c.yaml", "temprature: 1", "there is no field 'temprature'"),
    ],
)
def test_what_is_no_protocol_is_refused_with_its_name(cli, source, content, says):
    name = source.removeprefix("vllm:")
    if content is not None:
        Path(name).write_text(content)
    ended = cli("protocol", "show", source)
    assert ended.status == 2
    assert name in ended.err
    assert says in ended.err


# -- diff ----------------------------------------------------------------------------------------------------------


def test_the_same_protocol_is_0_wherever_it_stands(cli):
    ended = cli("protocol", "diff", "a.yaml", "run")
    assert (ended.status, "SAME: both are the protocol" in ended.out) == (0, True)


def test_a_difference_is_1_and_named_with_both_values_and_why(cli):
    ended = cli("protocol", "diff", "a.yaml", "b.yaml")
    assert ended.status == 1
    assert "max_new_tokens  24 in a.yaml, 6 in b.yaml" in ended.out
    assert "stop  [] in a.yaml, [e] in b.yaml" in ended.out
    assert "DIFFERENT: 2 fields that matter." in ended.out


def test_what_does_not_matter_is_shown_and_the_status_is_0(cli):
    Path("c.yaml").write_text("temperature: 0.9\nmax_new_tokens: 24\nseed: 3\n")
    ended = cli("protocol", "diff", "a.yaml", "c.yaml")
    assert (ended.status, "seed  0 in a.yaml, 3 in c.yaml" in ended.out) == (0, True)
    assert "SAME: what differs changes nothing of what is drawn" in ended.out


def test_a_setting_that_no_protocol_has_makes_equality_unknown(cli):
    sampled = {"temperature": 0.9, "max_tokens": 24, "seed": 1, "logit_bias": {"5": -100}}
    Path("request.json").write_text(json.dumps(sampled))
    Path("same.json").write_text(json.dumps({k: v for k, v in sampled.items() if k != "logit_bias"}))
    found = answer(cli, "diff", "openai:request.json", "openai:same.json", status=3)
    assert found["status"] == "unknown"
    assert any(note["field"] == "logit_bias" for note in found["a"]["ignored"])


def test_on_a_run_the_diff_says_what_it_does_to_its_completions(cli, made):
    rows = [row for part in Path("run/rollouts").glob("*.parquet") for row in pq.read_table(part).to_pylist()]
    found = answer(cli, "diff", "a.yaml", "b.yaml", "--run", "run", status=1)
    said = {one["quantity"]: one for one in found["consequences"]}
    assert said["share_over_limit"]["low"] == pytest.approx(sum(sum(r["sampled"]) > 6 for r in rows) / len(rows))
    assert said["share_with_stop_string"]["low"] == pytest.approx(sum("e" in r["text"] for r in rows) / len(rows))
    assert {one["certainty"] for one in said.values()} == {"exact"}


def test_a_truncation_on_a_run_with_lists_is_bounded_and_says_so(cli):
    Path("c.yaml").write_text("temperature: 0.9\nmax_new_tokens: 24\ntop_p: 0.8\n")
    ended = cli("protocol", "diff", "run", "c.yaml", "--run", "run")
    assert ended.status == 1
    assert "would be removed by top_p 0.8 of c.yaml" in " ".join(ended.out.split())
    assert "from the top lists of reading 'rollout'" in " ".join(ended.out.split())


def test_a_run_of_mixed_protocols_says_so_and_is_judged_unknown(cli):
    part = sorted(Path("run/spans").glob("*.parquet"))[0]
    table = pq.read_table(part)
    hashes = ["0123456789abcdef", *table["protocol_hash"].to_pylist()[1:]]
    at = table.column_names.index("protocol_hash")
    pq.write_table(table.set_column(at, table.schema.field("protocol_hash"), [hashes]), part)
    ended = cli("protocol", "diff", "run", "a.yaml")
    assert ended.status == 3
    assert "protocol_hash = 0123456789abcdef: 1 calls were sampled under another protocol" in " ".join(
        ended.out.split()
    )
    judged = json.loads(cli("judge", "run", "--json").out)
    assert judged["status"] == "unknown"
    verdicts = {verdict["check"]: verdict for verdict in judged["verdicts"]}
    assert verdicts["one_protocol"]["status"] == verdicts["mean_kl"]["status"] == "unknown"
    assert "not all sampled under one protocol" in verdicts["mean_kl"]["message"]


# -- write, lock, verify -------------------------------------------------------------------------------------------


def test_a_run_is_written_back_as_yaml(cli):
    assert cli("protocol", "write", "yaml", "run", "--output", "back.yaml").status == 0
    assert cli("protocol", "diff", "back.yaml", "run").status == 0


def test_a_protocol_is_written_for_a_framework_and_comes_back(cli):
    ended = cli("protocol", "write", "vllm", "b.yaml")
    assert ended.status == 0
    Path("out.json").write_text(ended.out)
    (back,) = answer(cli, "show", "vllm:out.json", status=0)
    assert (back["protocol"]["temperature"], back["protocol"]["stop"]) == (0.9, ["e"])


def test_what_is_lost_is_said_beside_what_is_written(cli):
    Path("c.yaml").write_text("seed: 3\nuse_cache: false\n")
    ended = cli("protocol", "write", "vllm", "c.yaml")
    assert json.loads(ended.out)
    lines = ended.err.splitlines()
    assert lines[:2] == ["lost", "  use_cache = false: vLLM has no setting for it"]
    assert lines[-1].startswith("at their default, nothing to say: ")
    assert "max_prompt_tokens" in lines[-1]


def test_an_unknown_framework_is_refused_with_the_known_ones(cli):
    ended = cli("protocol", "write", "paper", "a.yaml")
    assert (ended.status, "Known: yaml, transformers, vllm" in ended.err) == (2, True)


def test_a_lock_holds_until_a_field_moves_and_gives_the_last_one_back(cli):
    assert cli("protocol", "lock", "b.yaml").status == 0
    assert cli("protocol", "verify", "b.yaml").status == 0
    Path("b.yaml").write_text("temperature: 0.9\nmax_new_tokens: 6\nseed: 4\n")
    ended = cli("protocol", "verify", "b.yaml")
    assert (ended.status, "MOVED: seed, stop." in ended.out) == (1, True)
    assert [one["field"] for one in answer(cli, "verify", "b.yaml", status=1)["moved"]] == ["seed", "stop"]
    assert cli("protocol", "write", "yaml", "b.yaml.lock", "--output", "b.yaml").status == 0
    assert cli("protocol", "verify", "b.yaml").status == 0


def test_another_file_can_be_held_against_a_lock(cli):
    assert cli("protocol", "lock", "a.yaml", "--output", "agreed.lock").status == 0
    assert cli("protocol", "verify", "run", "--lock", "agreed.lock").status == 0
    assert cli("protocol", "diff", "agreed.lock", "a.yaml").status == 0
    assert cli("protocol", "verify", "a.yaml").status == 2


def test_what_a_lock_would_not_hold_is_not_locked(cli):
    Path("request.json").write_text(json.dumps({"logit_bias": {"5": -100}}))
    ended = cli("protocol", "lock", "openai:request.json")
    assert (ended.status, "so a lock would not hold it" in ended.err) == (2, True)


def test_a_field_that_the_engine_does_not_obey_is_refused_before_anything_is_sampled(cli):
    Path("c.yaml").write_text("rollout: fake:m\ntrainer: fake:m\nsampling:\n  repetition_penalty: 1.1\n")
    ended = cli("check", "c.yaml", "--run", "new")
    assert (ended.status, Path("new").exists()) == (2, False)
    assert "fake: sampling.repetition_penalty = 1.1: this engine does not obey the field" in ended.err


# -- what a person may do wrong ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("request.json", '{"temperature": 0.5, "temperature": 0.9}', "the key 'temperature' stands twice"),
        ("request.json", '{"request": {"stop": "a", "stop": "b"}}', "the key 'stop' stands twice"),
        ("request.json", '{"stop": ["\\ud800"]}', "half of a surrogate pair"),
        ("start.txt", "", "holds nothing"),
        ("start.txt", "# vllm serve\n", "holds nothing"),
        ("start.txt", "temperature: 0.5", "neither a flag"),
        ("start.txt", "\u2014max-model-len 100", "Type the dash anew"),
    ],
)
def test_what_would_be_passed_over_in_a_file_is_refused(cli, name, text, said):
    Path(name).write_text(text, encoding="utf-8")
    ended = cli("protocol", "show", f"vllm:{name}")
    assert ended.status == 2
    assert said in ended.err


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("request.json", '{"temperature": 1e-999}'),
        ("start.txt", """--override-generation-config '{"temperature": 1e-999}'"""),
        ("start.txt", "--override-generation-config.temperature 1e-999"),
    ],
)
def test_a_number_that_would_become_0_is_refused(cli, name, text):
    Path(name).write_text(text)
    ended = cli("protocol", "show", f"vllm:{name}")
    assert (ended.status, "the number 1e-999 is too small to be held" in ended.err) == (2, True)
    ended = cli("record", "fake:m", "--run", "new", "--temperature", "1e-999")
    assert (ended.status, "the number 1e-999 is too small to be held" in ended.err) == (2, True)


@pytest.mark.parametrize("name", ["start.txt", "request.json"])
def test_a_byte_order_mark_is_no_part_of_what_a_file_says(cli, name):
    text = "--max-model-len 100" if name == "start.txt" else '{"request": {}, "flags": ["--max-model-len", "100"]}'
    Path(name).write_text(text, encoding="utf-8-sig")
    (said,) = answer(cli, "show", f"vllm:{name}", status=0)
    assert said["protocol"]["max_total_tokens"] == 100


def test_what_is_written_never_takes_the_place_of_its_source(cli):
    before = Path("a.yaml").read_text()
    for arguments in (("lock", "a.yaml"), ("write", "vllm", "a.yaml")):
        ended = cli("protocol", *arguments, "--output", "./a.yaml")
        assert (ended.status, "is the source itself" in ended.err) == (2, True)
    assert Path("a.yaml").read_text() == before
    assert cli("protocol", "write", "yaml", "a.yaml", "--output", "a.yaml").status == 0


def test_the_command_that_a_lock_names_verifies_it(cli):
    said = cli("protocol", "lock", "a.yaml", "--output", "my locks.lock").out
    assert said.endswith("onepolicy protocol verify a.yaml --lock 'my locks.lock'\n")
    assert cli("protocol", "verify", "a.yaml", "--lock", "my locks.lock").status == 0


def test_the_lock_of_the_folder_one_is_in_lies_beside_it(cli, here, monkeypatch):
    monkeypatch.chdir("run")
    assert cli("protocol", "lock", ".").status == 0
    assert (here / "run.lock").exists()
    assert cli("protocol", "verify", ".").status == 0
    for source in ("/", "green:.."):
        assert "Say where it is kept" in cli("protocol", "lock", source).err


# -- a configuration of another model ------------------------------------------------------------------------------


def model_folder(generation, config):
    Path("model").mkdir(exist_ok=True)
    Path("model/generation_config.json").write_text(json.dumps({"do_sample": True, "top_k": 0, **generation}))
    Path("model/config.json").write_text(config if isinstance(config, str) else json.dumps(config))


FOLDERS = ("model", "model/generation_config.json", "transformers:model/generation_config.json")


@pytest.mark.parametrize("source", FOLDERS)
@pytest.mark.parametrize("name", ["eos_token_id", "bos_token_id", "pad_token_id"])
def test_a_special_token_that_the_model_of_the_folder_does_not_have_is_an_error(cli, source, name):
    for config in ({"vocab_size": 100}, {"model_type": "m", "text_config": {"vocab_size": 100}}):
        model_folder({name: 100}, config)
        ended = cli("protocol", "show", source)
        assert ended.status == 2
        assert f"generation_config.json: {name} = 100: the model of" in ended.err
        assert "config.json has 100 ids" in ended.err
        assert "another model" in ended.err
        model_folder({name: 99}, config)
        assert cli("protocol", "show", source).status == 0


@pytest.mark.parametrize("source", FOLDERS)
@pytest.mark.parametrize(
    ("given", "config", "is_noted"),
    [
        ([7, 8], {"eos_token_id": 9}, True),
        (7, {"text_config": {"eos_token_id": [8, 9]}}, True),
        ([7, 8], {"eos_token_id": 8}, False),
        (7, {"eos_token_id": 1, "text_config": {"eos_token_id": 7}}, False),
        (7, {"eos_token_id": None}, False),
        (None, {"eos_token_id": 9}, False),
    ],
)
def test_end_tokens_that_share_none_with_the_models_own_are_a_note_that_matters(cli, source, given, config, is_noted):
    model_folder({"eos_token_id": given}, config)
    (said,) = answer(cli, "show", source, status=0)
    found = [note for note in said["ignored"] if note["field"] == "eos_token_id"]
    assert [note["matters"] for note in found] == [True] * is_noted
    assert all("may be that of another model" in note["why"] for note in found)


@pytest.mark.parametrize(("config", "says"), [("{", "is no JSON"), ("[]", "this is list")])
def test_a_config_beside_it_that_cannot_be_read_is_an_error_with_its_name(cli, config, says):
    model_folder({}, config)
    ended = cli("protocol", "show", "model")
    assert (ended.status, "config.json" in ended.err, says in ended.err) == (2, True, True)


def test_stop_ids_that_the_model_of_a_run_does_not_have_are_an_error(cli):
    Path("c.yaml").write_text("stop_token_ids: [32, 151645]\n")
    assert cli("protocol", "diff", "run", "c.yaml").status == 1
    ended = cli("protocol", "diff", "run", "c.yaml", "--run", "run")
    assert ended.status == 2
    assert "c.yaml: stop_token_ids = 151645: the model of run has" in ended.err
    Path("c.yaml").write_text("stop_token_ids: [32]\n")
    assert cli("protocol", "diff", "run", "c.yaml", "--run", "run").status == 1


def test_a_lock_with_stop_ids_that_the_model_of_a_run_does_not_have_is_an_error(cli):
    for ids, status in (([151645], 2), ([32], 1)):
        Path("c.yaml").write_text(f"stop_token_ids: {ids}\n")
        assert cli("protocol", "lock", "c.yaml").status == 0
        ended = cli("protocol", "verify", "run", "--lock", "c.yaml.lock")
        assert (ended.status, "c.yaml.lock: stop_token_ids = 151645" in ended.err) == (status, status == 2)


# -- what is said beside it -----------------------------------------------------------------------------------------


def imported(name, manifest_protocol):
    """A run of recorded files, whose import was given these fields."""
    shutil.copytree("run", name)
    path = Path(name) / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["protocol"] |= SamplingProtocol(**manifest_protocol).model_dump(mode="json")
    manifest["imported"] = {"format": "verl", "files": [], "file_count": 1, "read": 1, "used": 1, "refused": 0}
    path.write_text(json.dumps(manifest))


def test_what_an_import_was_not_given_is_in_no_diff_and_leaves_it_unknown(cli):
    imported("imp", {})
    found = answer(cli, "diff", "b.yaml", "imp", status=3)
    assert (found["status"], found["differences"]) == ("unknown", [])
    ended = cli("protocol", "diff", "b.yaml", "imp")
    assert ended.out.splitlines()[-1] == "UNKNOWN: what is known of the two is the same."
    assert "not known: the import was not given it" in " ".join(cli("protocol", "show", "imp").out.split())


def test_what_an_import_was_given_is_compared(cli):
    imported("imp", {"temperature": 0.5})
    found = answer(cli, "diff", "b.yaml", "imp", status=1)
    assert [one["field"] for one in found["differences"]] == ["temperature"]


def test_what_does_not_matter_is_marked_and_counted_apart(cli):
    Path("c.yaml").write_text("temperature: 0.5\nmax_new_tokens: 24\nseed: 3\n")
    ended = cli("protocol", "diff", "a.yaml", "c.yaml")
    assert ended.out.splitlines()[-1] == "DIFFERENT: 1 field that matters, 1 that does not (seed)."
    marked = [line for line in ended.out.splitlines() if line.endswith("(does not matter)")]
    assert [line.split()[0] for line in marked] == ["seed"]


def test_a_schedule_that_moves_is_written_with_its_end_and_said_first(cli):
    text = "temperature: 0.7\nuse_cache: false\nschedule: {kind: linear, start: 1.0, end: 0.7, steps: 100}\n"
    Path("c.yaml").write_text(text)
    found = answer(cli, "write", "vllm", "c.yaml", status=0)
    assert found["content"]["request"]["temperature"] == 0.7
    (note,) = [note for note in found["lost"] if note["field"] == "schedule"]
    assert note["matters"]
    assert "the schedule moves from 1 to 0.7 over 100 steps" in note["why"]
    assert "{kind: linear" in note["value"]
    matters = [note["matters"] for note in found["lost"]]
    assert matters == sorted(matters, reverse=True)


def test_a_lock_says_what_it_takes_the_place_of(cli):
    cli("protocol", "lock", "a.yaml", "--output", "x.lock")
    ended = cli("protocol", "lock", "b.yaml", "--output", "x.lock")
    before = SamplingProtocol(max_new_tokens=24, temperature=0.9).hash
    assert ended.out.splitlines()[-1] == f"It replaces {before}; moved: max_new_tokens, stop."
    assert "which is the same" in cli("protocol", "lock", "b.yaml", "--output", "x.lock").out
    Path("x.lock").write_text("edited")
    assert "replaces a file that was no lock" in cli("protocol", "lock", "b.yaml", "--output", "x.lock").out


@pytest.mark.parametrize("name", ["out.vllm", "out.json"])
def test_what_is_written_to_a_file_is_said_with_its_hash_and_read_back(cli, name):
    ended = cli("protocol", "write", "vllm", "b.yaml", "--output", name)
    (b,) = answer(cli, "show", "b.yaml", status=0)
    assert ended.out == f"{name}: protocol {b['hash']}\n"
    (back,) = answer(cli, "show", f"vllm:{name}", status=0)
    assert (back["protocol"]["temperature"], back["protocol"]["stop"]) == (0.9, ["e"])


def test_the_default_order_of_processors_is_shown_as_such(cli):
    for on, says in ({}, "the default; vLLM's own order gives the same here"), ({"top_p": 0.9, "min_p": 0.1}, "vLLM's"):
        Path("request.json").write_text(json.dumps(on))
        (said,) = answer(cli, "show", "vllm:request.json", status=0)
        assert said["sources"]["processors"].startswith(says)


def test_messages_of_locks_name_the_next_command(cli):
    Path("request.json").write_text(json.dumps({"temperature": 0.5}))
    ended = cli("protocol", "lock", "vllm:request.json")
    assert "Give it or send them. A file with the parts request and generation_config holds both." in ended.err
    assert "Take it out" not in ended.err
    assert "onepolicy protocol lock a.yaml" in cli("protocol", "verify", "a.yaml").err
    assert "--lock FILE" in cli("protocol", "verify", "green:.").err
    cli("protocol", "lock", "a.yaml")
    ended = cli("protocol", "verify", "a.yaml.lock")
    assert (ended.status, "onepolicy protocol verify a.yaml" in ended.err, "lock.lock" in ended.err) == (2, True, False)


@pytest.mark.parametrize(
    ("source", "command"),
    [
        ("b.yaml", "onepolicy protocol write yaml a.yaml.lock --output b.yaml"),
        ("openai:r.json", "onepolicy protocol write openai a.yaml.lock --output r.json"),
        ("run", "onepolicy protocol write yaml a.yaml.lock"),
    ],
)
def test_the_way_back_to_a_lock_is_written_where_the_source_is(cli, source, command):
    Path("r.json").write_text(json.dumps({"temperature": 0.5}))
    Path("a.yaml").write_text("temperature: 0.8\nmax_new_tokens: 24\n")
    cli("protocol", "lock", "a.yaml")
    ended = cli("protocol", "verify", source, "--lock", "a.yaml.lock")
    assert ended.status == 1
    assert ended.out.splitlines()[-1].endswith(command)


# -- sampled with --------------------------------------------------------------------------------------------------

SIDES = ("--rollout", "fake:m", "--trainer", "fake:m")


def protocol_of(run):
    return SamplingProtocol(**json.loads((Path(run) / "manifest.json").read_text())["protocol"])


@pytest.mark.parametrize("command", [("record", "--engine", "fake:m"), ("check", *SIDES)], ids=lambda c: c[0])
def test_a_protocol_is_sampled_with_and_options_go_over_it(cli, command):
    cli("protocol", "lock", "a.yaml")
    for name, source in (("one", "a.yaml"), ("two", "a.yaml.lock"), ("three", "run")):
        cli(*command, "--run", name, "--budget", "60", "--protocol", source)
        assert protocol_of(name) == SamplingProtocol(temperature=0.9, max_new_tokens=24)
    cli(*command, "--run", "four", "--budget", "60", "--protocol", "a.yaml", "--temperature", "1")
    assert protocol_of("four") == SamplingProtocol(temperature=1.0, max_new_tokens=24)


def test_fields_without_an_option_come_from_the_protocol_too(cli):
    Path("c.yaml").write_text("repetition_penalty: 1.1\n")
    ended = cli("record", "--engine", "fake:m", "--run", "new", "--protocol", "c.yaml")
    assert (ended.status, "repetition_penalty = 1.1: this engine does not obey the field" in ended.err) == (2, True)


def test_a_source_that_does_not_say_all_is_not_sampled_with(cli):
    Path("request.json").write_text(json.dumps({"temperature": 0.5}))
    ended = cli("record", "--engine", "fake:m", "--run", "new", "--protocol", "vllm:request.json")
    assert (ended.status, "generation_config.json is not given" in ended.err) == (2, True)
    imported("imp", {"temperature": 0.5})
    ended = cli("check", *SIDES, "--run", "new", "--protocol", "imp")
    assert (ended.status, "not all of its protocol is known" in ended.err) == (2, True)
    assert not Path("new").exists()


def test_a_config_names_a_protocol_beside_it(cli):
    Path("sub").mkdir()
    shutil.copy("a.yaml", "sub/sampling_config.yaml")
    Path("sub/c.yaml").write_text("rollout: fake:m\ntrainer: fake:m\nbudget: 60\nsampling: sampling_config.yaml\n")
    cli("check", "sub/c.yaml", "--run", "new", "--max-new-tokens", "12")
    assert protocol_of("new") == SamplingProtocol(temperature=0.9, max_new_tokens=12)
    Path("sub/c.yaml").write_text("rollout: fake:m\ntrainer: fake:m\nsampling: none.yaml\n")
    ended = cli("check", "sub/c.yaml", "--run", "other")
    assert (ended.status, "none.yaml: there is no such file" in ended.err) == (2, True)
