"""Limits as multiples of a noise floor: what they come to, what is refused, and when the floor no longer holds."""

import json

import pytest
import yaml

from onepolicy.errors import UsageError
from onepolicy.judgement.floor import refuse_expired
from onepolicy.judgement.limits import Limits
from onepolicy.judgement.load import load_limits
from onepolicy.records.floor import Floor, FloorBucket, Largest, Variation, read_floor
from onepolicy.records.protocol import Meaning
from onepolicy.records.reading import Condition, EngineInfo, ReadingInfo, ReadingRequest

ENGINE = EngineInfo(
    name="transformers",
    version="5.0",
    model="./model",
    dtype="bfloat16",
    device="cuda",
    weights_hash="aaaa",
    tokenizer_hash="bbbb",
    vocab_size=100,
    max_length=2048,
    options={"attn": "sdpa", "batch_size": "8"},
)
ENVIRONMENT = {"torch": "2.9", "cpu": "EPYC", "gpu": "1 x H200", "onepolicy": "0.1.0"}


def variation(name: str, *, k3: float, worst: float = 0.0, largest: float = 0.0, **changes: str) -> Variation:
    return Variation(
        name=name,
        changes=changes,
        reading=f"floor-{name}",
        prompts=12,
        tokens=100,
        tokens_without=0,
        mean_k3=k3,
        worst_rollout_k3=worst,
        mean_abs_d=largest / 2,
        max_abs_d=largest,
        bitwise_share=0.5,
        by_confidence=(FloorBucket(low=0.5, high=0.75, tokens=100, mean_abs_d=0.1, rms_d=0.1, max_abs_d=largest),),
    )


def a_floor(*variations: Variation, **fields) -> Floor:
    variations = variations or (
        variation("repeat", k3=0.0),
        variation("batch", k3=2e-6, worst=5e-6, largest=0.25, batch_size="1"),
        variation("padding", k3=1e-6, worst=7e-6, largest=0.125, padding_side="left"),
    )

    def largest(field: str) -> Largest:
        value, name = max(((getattr(v, field), v.name) for v in variations), key=lambda pair: pair[0])
        return Largest(value=value, variation=name)

    found = {
        "engine": ENGINE,
        "environment": ENVIRONMENT,
        "meaning": Meaning(),
        "suite": "fixed-quick",
        "suite_hash": "cccc",
        "command_options": ("--output", "my floor.json"),
        "base": "floor-base",
        "variations": variations,
        "mean_kl": largest("mean_k3"),
        "max_abs_d": largest("max_abs_d"),
        "worst_rollout_kl": largest("worst_rollout_k3"),
    }
    return Floor(**found | fields)


def reading(*, name="trainer", engine=ENGINE, environment=ENVIRONMENT, meaning=None) -> ReadingInfo:
    return ReadingInfo(
        name=name,
        request=ReadingRequest(engine=f"{engine.name}:{engine.model}?dtype={engine.dtype}"),
        engine=engine,
        condition=Condition(),
        meaning=meaning or Meaning(),
        environment=environment,
    )


OTHER = reading(name="rollout", engine=EngineInfo(name="vllm", version="1", model="./model", dtype="bfloat16"))


def written(folder, text: str, floor: Floor | None = None) -> str:
    (folder / "a.floor.json").write_text((floor or a_floor()).model_dump_json())
    (folder / "limits.yaml").write_text(text)
    return str(folder / "limits.yaml")


THREE = "floor: a.floor.json\nmean_kl: 3 x floor\nmax_abs_d: 2x floor\nworst_rollout_kl: 1.5e1 x  floor\n"


def test_multiples_of_a_floor_beside_the_file_become_numbers(tmp_path, monkeypatch):
    source = written(tmp_path, THREE + "preset: bf16\ncoverage: 0.9\n")
    monkeypatch.chdir("/")
    limits = load_limits(source)
    assert (limits.mean_kl, limits.max_abs_d, limits.worst_rollout_kl) == pytest.approx((6e-6, 0.5, 1.05e-4))
    assert limits.coverage == 0.9
    assert limits.floor == a_floor()


def test_a_number_beside_multiples_stays_a_number_however_yaml_reads_it(tmp_path):
    limits = load_limits(written(tmp_path, "floor: a.floor.json\nmean_kl: 3 x floor\nworst_rollout_kl: 1e-3\n"))
    assert (limits.mean_kl, limits.worst_rollout_kl, limits.max_abs_d) == (6e-6, 1e-3, Limits().max_abs_d)


def test_an_option_goes_over_a_multiple_and_over_all_of_them_leaves_no_floor(tmp_path):
    source = written(tmp_path, THREE)
    some = load_limits(source, changes={"mean_kl": 1e-3})
    assert (some.mean_kl, some.max_abs_d, some.floor) == (1e-3, 0.5, a_floor())
    every = load_limits(source, changes={"mean_kl": 1e-3, "max_abs_d": 1.0, "worst_rollout_kl": 1e-2})
    assert every == Limits(mean_kl=1e-3, max_abs_d=1.0, worst_rollout_kl=1e-2)


def test_limits_with_their_floor_written_out_load_again_as_the_same(tmp_path):
    limits = load_limits(written(tmp_path, THREE))
    stored = tmp_path / "elsewhere.json"
    stored.write_text(limits.model_dump_json(indent=2))
    (tmp_path / "a.floor.json").unlink()
    assert load_limits(str(stored)) == limits
    assert load_limits(str(stored), changes={"coverage": 0.5}).floor == limits.floor


SYNTAX = "write a number, or a multiple of the floor that is above 0, such as `3 x floor`"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mean_kl: 3 x flor", SYNTAX),
        ("mean_kl: x floor", SYNTAX),
        ("mean_kl: floor", SYNTAX),
        ("mean_kl: -3 x floor", SYNTAX),
        ("mean_kl: 0 x floor", SYNTAX),
        ("mean_kl: 0.0e5 x floor", SYNTAX),
        ("mean_kl: 1e999 x floor", SYNTAX),
        ("mean_kl: nan x floor", SYNTAX),
        ("mean_kl: 3 x floor x floor", SYNTAX),
        ("mean_kl: 3 floor", SYNTAX),
        ("mean_kl: '３ x flооr'", SYNTAX),
        ("mean_kl: ''", SYNTAX),
        ("mean_kl: 1e305 x floor\nmax_abs_d: 1e308 x floor\nworst_rollout_kl: 1e308 x floor", None),
        ("coverage: 3 x floor", "Multiples of a floor are for mean_kl, max_abs_d, worst_rollout_kl"),
        ("outlier_rate: soon", "outlier_rate = 'soon': write a number"),
        ("mean_kl: 3 x floor\nmetrics: {k3: {at_most: 3 x floor}}", "metrics.k3.at_most"),
        ("mean_kl: 1e-3", "no limit is a multiple of the floor 'a.floor.json'"),
        ("mean_kl: [3]", "no limit is a multiple of the floor"),
    ],
)
def test_a_multiple_that_cannot_be_read_is_refused_with_the_right_form(tmp_path, text, message):
    source = written(tmp_path, f"floor: a.floor.json\n{text}\n")
    if message is None:
        assert load_limits(source).mean_kl == pytest.approx(2e299)
        return
    with pytest.raises(UsageError, match=r"limits\.yaml") as refused:
        load_limits(source)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "mean_kl is a multiple of a floor, and no `floor: FILE` says of which"),
        ("floor:", "no `floor: FILE` says of which"),
        ("floor: 3", "floor = 3: name the file that `onepolicy calibrate` wrote"),
        ("floor: nope.json", "No such file or directory). Make it with: onepolicy calibrate --engine SPEC --output"),
        ("floor: .", "Is a directory"),
        ("floor: limits.yaml", "is no noise floor of format version 1"),
        ("floor: half.json", "half.json: is no noise floor"),
        ("floor: list.json", "list.json: is no noise floor"),
        ("floor: later.json", "format_version: Input should be 1"),
        ("floor: more.json", "more: Extra inputs are not permitted"),
        ("floor: lower.json", "mean_kl is not the largest of its variations; the file was changed"),
    ],
)
def test_a_floor_that_cannot_be_read_is_refused_with_what_to_do(tmp_path, given, message):
    whole = a_floor().model_dump(mode="json")
    files = {
        "half": a_floor().model_dump_json()[:200],
        "list": "[]",
        "later": json.dumps(whole | {"format_version": 2}),
        "more": json.dumps(whole | {"more": 1}),
        "lower": json.dumps(whole | {"mean_kl": {"value": 1e-3, "variation": "batch"}}),
    }
    for name, text in files.items():
        (tmp_path / f"{name}.json").write_text(text)
    with pytest.raises(UsageError) as refused:
        load_limits(written(tmp_path, f"{given}\nmean_kl: 3 x floor\n"))
    assert message in str(refused.value)


def test_a_floor_of_zero_is_no_limit_and_the_message_says_which_preset_is(tmp_path):
    exact = a_floor(variation("repeat", k3=0.0), variation("batch", k3=0.0, batch_size="1"))
    with pytest.raises(UsageError, match=r"exactly 0.*bit for bit \(repeat, batch\).*preset: bitwise"):
        load_limits(written(tmp_path, "floor: a.floor.json\nmean_kl: 3 x floor\n", exact))


def test_an_infinite_floor_is_no_limit(tmp_path):
    broken = a_floor(variation("repeat", k3=float("inf")))
    with pytest.raises(UsageError, match="mean_kl = inf"):
        load_limits(written(tmp_path, "floor: a.floor.json\nmean_kl: 3 x floor\n", broken))


def test_a_floor_comes_back_from_its_file_as_it_was(tmp_path):
    floor = a_floor(variation("repeat", k3=1 / 3, worst=float("inf"), largest=1e-300), absent=("padding",))
    (tmp_path / "f.json").write_text(floor.model_dump_json(indent=2))
    assert read_floor(tmp_path / "f.json") == floor
    assert Floor.model_validate(yaml.safe_load(floor.model_dump_json())) == floor


# -- expiry -----------------------------------------------------------------------------------------------------

CHANGED_ENGINE = {
    "version": ("5.1", "version 5.0 -> 5.1"),
    "model": ("./other", "model ./model -> ./other"),
    "dtype": ("float16", "dtype bfloat16 -> float16"),
    "device": ("cpu", "device cuda -> cpu"),
    "weights_hash": ("dddd", "weights hash aaaa -> dddd"),
    "tokenizer_hash": ("", "tokenizer hash bbbb -> unknown"),
    "vocab_size": (99, "vocab size 100 -> 99"),
    "max_length": (None, "max length 2048 -> unknown"),
    "options": ({"attn": "eager", "batch_size": "8"}, "option attn sdpa -> eager"),
}
CHANGED_ENVIRONMENT = {
    "torch": ("2.10", "torch 2.9 -> 2.10"),
    "gpu": (None, "gpu 1 x H200 -> absent"),
    "cpu": ("Xeon", "cpu EPYC -> Xeon"),
    "onepolicy": ("0.2.0", "onepolicy 0.1.0 -> 0.2.0"),
}


def with_environment(**changes) -> dict[str, str]:
    return {name: value for name, value in {**ENVIRONMENT, **changes}.items() if value is not None}


@pytest.fixture
def limits(tmp_path) -> Limits:
    return load_limits(written(tmp_path, THREE))


def expired(limits: Limits, *sides: ReadingInfo) -> str:
    with pytest.raises(UsageError) as refused:
        refuse_expired(limits, sides)
    return str(refused.value)


def test_every_field_of_the_engine_is_looked_at():
    assert {*CHANGED_ENGINE, "name"} == set(EngineInfo.model_fields)


@pytest.mark.parametrize("field", CHANGED_ENGINE)
def test_a_changed_engine_expires_the_floor_and_is_named(limits, field):
    value, message = CHANGED_ENGINE[field]
    changed = reading(engine=ENGINE.model_copy(update={field: value}))
    said = expired(limits, OTHER, changed)
    assert f"Changed since, in 'trainer': {message}. Measure it again with: onepolicy calibrate" in said


@pytest.mark.parametrize("name", CHANGED_ENVIRONMENT)
def test_changed_hardware_or_versions_expire_the_floor_and_are_named(limits, name):
    value, message = CHANGED_ENVIRONMENT[name]
    said = expired(limits, OTHER, reading(environment=with_environment(**{name: value})))
    assert f"in 'trainer': {message}. Measure" in said


def test_another_meaning_expires_the_floor(limits):
    said = expired(limits, OTHER, reading(meaning=Meaning(temperature=0.5)))
    assert "meaning raw -> processed (temperature 0.5)" in said


def test_all_changes_are_named_and_the_command_has_the_engine_of_today(limits):
    engine = ENGINE.model_copy(update={"dtype": "float16"})
    said = expired(limits, OTHER, reading(engine=engine, environment=with_environment(torch="2.10", cpu="Xeon")))
    assert "dtype bfloat16 -> float16; torch 2.9 -> 2.10; cpu EPYC -> Xeon" in said
    assert said.endswith("calibrate --engine 'transformers:./model?dtype=float16' --output 'my floor.json'")


def test_a_floor_of_an_engine_that_was_not_judged_says_so(limits):
    assert "engine transformers -> vllm" in expired(limits, OTHER, OTHER)


@pytest.mark.parametrize(
    "side",
    [
        reading(),
        reading(engine=ENGINE.model_copy(update={"options": {"attn": "sdpa", "batch_size": "64"}})),
        reading(engine=ENGINE.model_copy(update={"options": {"attn": "sdpa", "padding_side": "left"}})),
        reading(environment=with_environment(vllm="1.0")),
    ],
    ids=["the same", "a varied option", "another varied option", "a package that the floor did not need"],
)
def test_a_floor_holds_for_either_side_whatever_it_varied_itself(limits, side):
    refuse_expired(limits, [OTHER, side])
    refuse_expired(limits, [side, OTHER])


def test_columns_of_logprobs_cannot_be_held_against_a_floor(limits):
    assert "do not say which engine they come from" in expired(limits)


def test_limits_without_a_floor_hold_for_anything():
    refuse_expired(Limits(), [])
    refuse_expired(Limits(), [OTHER])


def test_a_floor_that_does_not_say_where_it_was_measured_is_refused(tmp_path):
    file = tmp_path / "f.json"
    found = json.loads(a_floor(variation("repeat", k3=1e-9)).model_dump_json())
    file.write_text(json.dumps({**found, "environment": {}}))
    with pytest.raises(UsageError, match="does not say which onepolicy"):
        read_floor(file)
