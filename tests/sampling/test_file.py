import pytest
from hypothesis import given
from hypothesis import strategies as st

from onepolicy.errors import UsageError
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.yaml_file import in_one_line, mapping_in
from onepolicy.sampling.file import protocol_in, protocol_text, read_protocol_file, write_protocol_file

FULL = SamplingProtocol(
    temperature=0.7,
    top_p=0.95,
    min_p=1e-05,
    seed=-3,
    processors=("penalties", "top_k", "top_p", "min_p", "temperature"),
    stop=("\n\n", "# not: a comment", "1e-3", "no", "「」", "é\t'\"", "null"),
    stop_token_ids=(2, 7),
    add_bos=False,
    dtype="1e5",
    constraint={"kind": "grammar", "text": "root ::= [a-z]+\n  # x\n"},
    schedule={"kind": "cosine", "start": 1.2, "end": 0.7, "steps": 500},
)


def written(tmp_path, text):
    path = tmp_path / "sampling_config.yaml"
    path.write_text(text)
    return path


def test_what_is_written_is_read_back_and_each_field_has_its_comment(tmp_path):
    path = tmp_path / "sampling_config.yaml"
    write_protocol_file(path, FULL)
    assert read_protocol_file(path) == FULL
    said = " ".join(path.read_text().replace("#", " ").split())
    for name, field in SamplingProtocol.model_fields.items():
        assert " ".join(field.description.split()).replace("#", " ") in said, name


def test_a_default_is_written_as_a_comment_that_can_be_switched_on(tmp_path):
    text = protocol_text(SamplingProtocol(top_k=5))
    assert "\ntop_k: 5\n" in text
    assert "\n# temperature: 1.0\n" in text
    every = "\n".join(
        line.removeprefix("# ") for line in text.splitlines() if line.split(":")[0].lstrip("# ") in FIELDS
    )
    assert read_protocol_file(written(tmp_path, every)) == SamplingProtocol(top_k=5)


FIELDS = set(SamplingProtocol.model_fields)


def test_an_empty_file_and_keys_without_a_value_are_the_defaults(tmp_path):
    assert read_protocol_file(written(tmp_path, "")) == SamplingProtocol()
    assert read_protocol_file(written(tmp_path, "temperature:\nstop: null\n")) == SamplingProtocol()


@pytest.mark.parametrize(
    ("text", "says"),
    {
        "temprature: 0.7": "there is no field 'temprature'. The fields of a protocol: temperature, top_p,",
        "temperature: -1": "temperature = -1: Input should be greater than or equal to 0",
        "top_p: 0": "top_p = 0: Input should be greater than 0",
        "top_k: '5'": "top_k = '5': Input should be a valid integer",
        "top_k: 1.0": "top_k = 1.0",
        "temperature: .nan": "temperature = nan",
        "temperature: 1e-999": "the number 1e-999 is too small to be held",
        "temperature: -1.0e-400": "the number -1.0e-400 is too small to be held",
        "temperature: .inf": "temperature = inf",
        "seed: yes": "seed = True",
        "ignore_eos: 1": "ignore_eos = 1",
        "stop: text": "stop = 'text'",
        "stop: [1]": "stop.0 = 1",
        "stop: ['']": "an empty stop string ends every completion before its first token",
        "ignore_eos: true\nstop_token_ids: [2]": "ignore_eos and stop_token_ids = [2] conflict",
        "min_new_tokens: 100": "min_new_tokens = 100 is above max_new_tokens = 64",
        "temperature: 0.7\nschedule: {kind: linear, start: 1, end: 0.5, steps: 9}": "the schedule ends at 0.5 and",
        "schedule: {kind: linear, start: 1, end: 1}": "schedule.steps",
        "schedule: {kind: linear, start: 1, end: 1, steps: 9, warmup: 1}": "schedule.warmup",
        "temperature: 1\ntemperature: 2": "'temperature' stands twice",
        "- 1": "a protocol is a mapping",
        "a: [": "is no YAML",
    }.items(),
)
def test_a_bad_file_is_refused_with_its_name_and_what_is_wrong(tmp_path, text, says):
    with pytest.raises(UsageError) as refused:
        read_protocol_file(written(tmp_path, text))
    assert str(refused.value).startswith(str(tmp_path / "sampling_config.yaml"))
    assert says in str(refused.value)


def test_a_file_that_is_not_there_is_said(tmp_path):
    with pytest.raises(UsageError, match="there is no such file"):
        read_protocol_file(tmp_path / "none.yaml")


@pytest.mark.parametrize("text", ["0", "0.0", "-0.", "0e5", ".0E-400"])
def test_zero_is_zero_however_it_is_written(tmp_path, text):
    assert read_protocol_file(written(tmp_path, f"temperature: {text}")).is_greedy


def test_a_number_with_an_exponent_and_no_point_is_a_number_and_quoted_it_is_text():
    assert mapping_in("a: 1e-3\nb: '1e-3'\nc: [-2E5, .5e+1]\nd: 1e\ne: e5\n", what="") == {
        "a": 0.001,
        "b": "1e-3",
        "c": [-200000.0, 5.0],
        "d": "1e",
        "e": "e5",
    }


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_stays_in_one_line_and_comes_back(text):
    line = in_one_line([text])
    assert len(line.splitlines()) == 1
    assert mapping_in(f"a: {line}", what="") == {"a": [text]}


@given(
    st.builds(
        dict,
        temperature=st.floats(0, 5),
        min_p=st.floats(0, 1),
        presence_penalty=st.floats(-2, 2),
        stop=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), max_size=3),
        stop_token_ids=st.lists(st.integers(0, 200_000), max_size=3),
        seed=st.integers(-(2**40), 2**40),
        use_cache=st.booleans(),
        chat_template=st.none() | st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    )
)
def test_any_protocol_comes_back_from_its_file(values):
    protocol = SamplingProtocol(**values)
    assert protocol_in(mapping_in(protocol_text(protocol), what="")) == protocol


@pytest.mark.parametrize("text", ["010", "-010", "+07"])
def test_a_number_that_yaml_would_read_by_eights_is_refused(tmp_path, text):
    with pytest.raises(UsageError, match="another one than it looks"):
        read_protocol_file(written(tmp_path, f"max_new_tokens: {text}\n"))
    assert read_protocol_file(written(tmp_path, "seed: 0\nmax_new_tokens: 0x10\n")).max_new_tokens == 16
