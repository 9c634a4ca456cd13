"""A config file asks for what it says, from its own folder, and for nothing when it is wrong."""

import os
from dataclasses import fields
from pathlib import Path

import pytest

from onepolicy.engines.spec import EngineSpec
from onepolicy.errors import UsageError
from onepolicy.integrations import ENGINES, options_of
from onepolicy.judgement.limits import Limits, MetricLimit
from onepolicy.judgement.load import load_limits
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.workflow.check import CheckRequest
from onepolicy.workflow.config import PATH_OPTIONS, Config, check_request, load_config, overlaid

PAIR = "rollout: fake:m\ntrainer: fake:m\n"
FULL = """
rollout: {engine: fake, target: m, noise: 0.5, seed: 3}
trainer: fake:m?seed=3
also: ["fake:m?seed=4", {engine: fake, target: n}]
suite: fixed-quick
sampling: {temperature: 0.5, top_p: 0.9, top_k: 7, min_p: 1e-2, max_new_tokens: 9, samples_per_prompt: 2, seed: 11}
budget: 5000
top: 3
keep_text: false
statistics: true
limits: {preset: bf16, max_abs_d: 3, metrics: {k3: {at_most: 1}}}
"""


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """The working directory, with an empty folder `sub`."""
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(text: str, name: str = "conf.yaml") -> Path:
    path = Path(name)
    path.write_text(text)
    return path


def test_a_file_says_everything_that_check_can_be_asked(here):
    request = check_request(load_config(written(FULL)))
    assert request == CheckRequest(
        rollout=EngineSpec(engine="fake", target="m", options={"noise": "0.5", "seed": "3"}),
        trainer=EngineSpec(engine="fake", target="m", options={"seed": "3"}),
        also=(
            EngineSpec(engine="fake", target="m", options={"seed": "4"}),
            EngineSpec(engine="fake", target="n"),
        ),
        suite="fixed-quick",
        protocol=SamplingProtocol(
            temperature=0.5, top_p=0.9, top_k=7, min_p=0.01, max_new_tokens=9, samples_per_prompt=2, seed=11
        ),
        limits=load_limits("bf16").model_copy(update={"max_abs_d": 3.0, "metrics": {"k3": MetricLimit(at_most=1.0)}}),
        budget=5000,
        top=3,
        keep_text=False,
        statistics=True,
    )


def test_the_config_has_a_key_for_each_field_of_the_request():
    of_a_command_alone = {"extend"}  # an action on a run, as --resume is, and nothing to keep in a file
    names = {field.name for field in fields(CheckRequest)} - of_a_command_alone
    assert set(Config.model_fields) == (names - {"protocol"}) | {"sampling"}


def test_what_a_file_leaves_out_is_as_if_check_was_not_asked(here):
    spec = EngineSpec(engine="fake", target="m")
    usual = CheckRequest(rollout=spec, trainer=spec)
    assert check_request(load_config(written(PAIR))) == usual
    empty = "also:\nsuite:\nsampling:\nbudget:\ntop:\nkeep_text:\nstatistics:\nlimits:\n"
    assert check_request(load_config(written(PAIR + empty))) == usual


def test_every_key_has_a_description():
    for model in (Config, SamplingProtocol):
        assert all(field.description for field in model.model_fields.values())


# -- what goes over it ------------------------------------------------------------------------------------------


def test_values_over_a_file_leave_the_others_as_they_are(here):
    config = load_config(written(FULL))
    changed = overlaid(config, {"suite": "quick", "sampling": {"seed": 5}, "rollout": "fake:other"})
    assert changed.suite == "quick"
    assert changed.sampling == config.sampling.model_copy(update={"seed": 5})
    assert changed.rollout == EngineSpec(engine="fake", target="other")
    assert (changed.trainer, changed.also, changed.limits) == (config.trainer, config.also, config.limits)


def test_numbers_go_over_the_limits_of_a_file_and_a_preset_replaces_them(here):
    config = load_config(written(FULL))
    limits = check_request(config, limits={"mean_kl": 0.5}).limits
    assert (limits.mean_kl, limits.max_abs_d) == (0.5, 3.0)
    replaced = overlaid(config, {"limits": "quantised"})
    assert check_request(replaced, limits={"mean_kl": 0.5}).limits == load_limits("quantised", changes={"mean_kl": 0.5})


def test_a_side_that_nobody_gives_is_refused_with_what_to_do():
    side = EngineSpec(engine="fake", target="m")
    for name, given in (("rollout", {"trainer": side}), ("trainer", {"rollout": side})):
        with pytest.raises(UsageError, match=f"--{name} SPEC.*`onepolicy init`"):
            check_request(Config(**given))


# -- paths ------------------------------------------------------------------------------------------------------


def test_paths_start_from_the_folder_of_the_file(here):
    (here / "sub" / "ckpt").mkdir()
    (here / "sub" / "org").mkdir()
    (here / "sub" / "org" / "model").mkdir()
    (here / "sub" / "mine.yaml").write_text("mean_kl: 0.25\n")
    text = """
rollout: llamacpp:model.gguf
trainer: transformers:ckpt?adapter=lora
also:
  - transformers:org/model
  - transformers:../up
  - callable:code/scoring.py:score?tokenizer=tok.json
suite: mine.jsonl
limits: mine.yaml
"""
    config = load_config(written(text, "sub/conf.yaml"))
    assert [str(side) for side in (config.rollout, config.trainer, *config.also)] == [
        "llamacpp:./sub/model.gguf",
        "transformers:./sub/ckpt?adapter=./sub/lora",
        "transformers:./sub/org/model",
        "transformers:./up",
        "callable:./sub/code/scoring.py:score?tokenizer=./sub/tok.json",
    ]
    assert (config.suite, config.limits) == ("./sub/mine.jsonl", "./sub/mine.yaml")
    assert check_request(config).limits.mean_kl == 0.25


@pytest.mark.parametrize(
    "spec",
    [
        "llamacpp:smollm2",
        "transformers:org/model",
        "transformers:/abs/ckpt?adapter=/abs/lora",
        "llamacpp:~/model.gguf",
        "callable:my_pkg.scoring:score",
        "fake:m?dtype=sub",
        "other:http://localhost:8000/v1",
    ],
)
def test_names_and_absolute_paths_stay_as_they_are(spec, here):
    config = load_config(written(f"rollout: {spec}\ntrainer: {spec}\n", "sub/conf.yaml"))
    assert str(config.rollout) == str(config.trainer) == spec


def test_a_shipped_suite_and_a_preset_stay_names_whatever_files_lie_there(here):
    (here / "sub" / "quick").mkdir()
    (here / "sub" / "strict").mkdir()
    config = load_config(written(PAIR + "suite: quick\nlimits: strict\n", "sub/conf.yaml"))
    assert (config.suite, config.limits) == ("quick", "strict")


def test_a_path_that_is_here_and_not_beside_the_file_is_refused_and_not_taken(here):
    (here / "org" / "model").mkdir(parents=True)
    text = "rollout: fake:m\ntrainer: transformers:org/model\n"
    with pytest.raises(UsageError, match=r"'org/model' is there in .* and not in .*sub, where paths start"):
        load_config(written(text, "sub/conf.yaml"))
    assert load_config(written(text)).trainer == EngineSpec(engine="transformers", target="org/model")


def test_paths_stay_as_typed_where_the_file_lies_in_the_working_directory(here):
    text = "rollout: llamacpp:model.gguf\ntrainer: transformers:./ckpt/\nsuite: a/../mine.jsonl\nlimits: l.yaml\n"
    for name in ("conf.yaml", here / "conf.yaml", "sub/../conf.yaml"):
        config = load_config(written(text, name))
        assert (str(config.rollout), str(config.trainer)) == ("llamacpp:model.gguf", "transformers:./ckpt/")
        assert (config.suite, config.limits) == ("a/../mine.jsonl", "l.yaml")


def test_the_floor_of_limits_written_in_a_file_is_looked_for_beside_the_file(here):
    inline = PAIR + "limits: {mean_kl: 3 x floor, floor: f.json}\n"
    with pytest.raises(UsageError, match=r"sub/f\.json"):
        load_config(written(inline, "sub/conf.yaml"))


def test_every_option_that_takes_a_text_is_known_to_be_a_path_or_not():
    no_paths = {"dtype", "device", "key_env", "model", "config", "replaced"}
    texts = {
        name
        for engine in ENGINES
        for name, field in options_of(engine).model_fields.items()
        if field.annotation in (str, str | None)
    }
    assert texts <= no_paths | set(PATH_OPTIONS)
    assert set(PATH_OPTIONS) <= texts


# -- bad input --------------------------------------------------------------------------------------------------

BAD = {
    "- rollout": "a config is a YAML mapping with keys such as rollout and trainer; this is list",
    "fake:m": "this is str",
    "rollout: [": "is no YAML",
    "rollout: fake:m\n trainer: x": "is no YAML (mapping values are not allowed here, line 2)",
    "x: \x00": "is no YAML",
    "a: 2026-13-41": "is no YAML",
    "a: !!bool maybe": "is no YAML",
    "a: !!timestamp soon": "is no YAML",
    "a: !!int ''": "is no YAML",
    "!!python/object/apply:os.system ['true']": "is no YAML",
    "[" * 5000: "is no YAML",
    "--- 1\n--- 2\n": "is no YAML",
    "trainr: fake:m": "there is no key 'trainr'. Known: rollout, trainer, also, suite, sampling, budget, top",
    "1: fake:m": "there is no key '1'. Known: rollout",
    "protocol: {seed: 1}": "there is no key 'protocol'. Known: rollout",
    "sampling: {temprature: 1}": "there is no key 'sampling.temprature'. Known: temperature, top_p",
    "trainer: fake:a\ntrainer: fake:b": "the key 'trainer' stands twice in the mapping that begins in line 1.",
    "sampling:\n  seed: 1\n  seed: 2": "the key 'seed' stands twice in the mapping that begins in line 2.",
    "rollout: fake": "rollout: 'fake' names no engine. Write engine:target",
    "rollout: 'fake:'": "rollout: 'fake:' names no target",
    "rollout: 5": "rollout: 5 is no engine",
    "rollout: {engine: fake}": "'target' is absent",
    "rollout: {engine: fake, target: m, dtype: }": "the engine's key 'dtype' is None",
    "rollout: {engine: fake, target: m, seed: [1]}": "the engine's key 'seed' is [1]",
    "rollout: {engine: fake, target: m, 1: 2}": "the engine's key 1 is 2",
    "also: fake:m": "also = 'fake:m': Input should be a valid tuple",
    "also: [fake:m, fake]": "also.1: 'fake' names no engine",
    "suite: ''": "suite = ''",
    "suite: 5": "suite = 5",
    "sampling: 5": "sampling = 5",
    "sampling: {temperature: -1}": "sampling.temperature = -1: Input should be greater than or equal to 0",
    "sampling: {temperature: .nan}": "sampling.temperature = nan",
    "sampling: {max_new_tokens: 1.5}": "sampling.max_new_tokens = 1.5",
    "sampling: {seed: true}": "sampling: 'seed' is true or false and must be a number",
    "sampling: {seed: }": "sampling.seed = None",
    "budget: 0": "budget = 0",
    "budget: 1e6": "budget = 1000000.0",
    "budget: true": "budget = True",
    "top: -1": "top = -1",
    "top: 2.5": "top = 2.5",
    "keep_text: 'no'": "keep_text = 'no'",
    "statistics: 1": "statistics = 1",
    "limits: 5": "limits: 5 is no preset, no file and no mapping",
    "limits: [strict]": "limits: ['strict'] is no preset",
    "limits: {1: 2}": "limits: {1: 2} is no preset",
    "limits: {preset: fp8}": "limits: there is no preset 'fp8'. Presets: strict, bf16",
    "limits: {preset: [bf16]}": "limits: there is no preset ['bf16']",
    "limits: {mean_k1: 1}": "limits: there is no limit 'mean_k1'. Known: preset, mean_kl",
    "limits: {preset: bf16, mean_kl: -1}": "limits: mean_kl = -1",
    "limits: {mean_kl: }": "limits: mean_kl = None",
    "limits: {mean_kl: 3 x floor}": "no `floor: FILE` says of which",
}


@pytest.mark.parametrize("text", BAD, ids=lambda text: text[:40].encode("unicode_escape").decode())
def test_a_bad_file_is_refused_with_its_name_and_what_is_wrong(text, here):
    with pytest.raises(UsageError) as refused:
        load_config(written(text))
    said = str(refused.value)
    assert said.startswith("conf.yaml: ")
    assert said.count("conf.yaml") == 1
    assert BAD[text] in said
    assert not said.endswith("..")


def test_a_limits_file_that_is_not_there_is_refused_where_it_was_looked_for(here):
    config = load_config(written(PAIR + "limits: nope.yaml\n", "sub/conf.yaml"))
    with pytest.raises(UsageError, match=r"there is no preset and no file './sub/nope.yaml'"):
        check_request(config)


def test_a_file_that_cannot_be_read_is_refused_with_why(here):
    Path("latin.yaml").write_bytes(b"suite: caf\xe9")
    Path("binary.yaml").write_bytes(bytes(range(256)))
    for name, message in {
        "nope.yaml": "there is no such file. `onepolicy init` writes a config.",
        "sub": "cannot be read (Is a directory)",
        "latin.yaml": "is not UTF-8 (byte 10)",
        "binary.yaml": "is not UTF-8",
        "x" * 300: "cannot be read (File name too long)",
        "": "cannot be read (Is a directory)",
    }.items():
        with pytest.raises(UsageError) as refused:
            load_config(Path(name))
        assert str(refused.value) == f"{Path(name)}: {message}" or message in str(refused.value)


def test_a_file_without_the_right_to_read_is_refused(here):
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    path = written(PAIR)
    path.chmod(0)
    with pytest.raises(UsageError, match="Permission denied"):
        load_config(path)


def test_a_byte_order_mark_and_an_anchor_are_yaml(here):
    Path("conf.yaml").write_bytes(b"\xef\xbb\xbfrollout: &side fake:m\ntrainer: *side\n")
    config = load_config(Path("conf.yaml"))
    assert config.rollout == config.trainer == EngineSpec(engine="fake", target="m")


def test_merged_keys_are_no_key_that_stands_twice(here):
    text = "rollout: &side {engine: fake, target: m, seed: 1}\ntrainer:\n  <<: *side\n  seed: 2\n"
    config = load_config(written(text))
    assert str(config.trainer) == "fake:m?seed=2"


def test_limits_alone_in_a_mapping_start_from_strict(here):
    limits = check_request(load_config(written(PAIR + "limits: {coverage: 0.5}\n"))).limits
    assert limits == Limits(coverage=0.5)


def test_a_file_cannot_ask_for_the_code_of_a_model_to_be_run(tmp_path):
    file = tmp_path / "onepolicy.yaml"
    file.write_text("rollout: fake:m\ntrainer: transformers:./model?trust_remote_code=True\n")
    with pytest.raises(UsageError, match="Give this side on the command line"):
        load_config(file)
