import hashlib
import math

import pytest
from pydantic import ValidationError

from onepolicy.records.protocol import Meaning, SamplingProtocol, TemperatureSchedule

PLAIN = SamplingProtocol()
GREEDY = SamplingProtocol(temperature=0)
COLD = SamplingProtocol(temperature=0.7)
NUCLEUS = SamplingProtocol(top_p=0.9, top_k=50, min_p=0.05)
LLAMA_ORDER = ("penalties", "top_k", "top_p", "min_p", "temperature")
OTHERWISE = {
    "repetition_penalty": 1.1,
    "presence_penalty": -0.5,
    "frequency_penalty": 0.5,
    "penalty_window": 64,
    "processors": LLAMA_ORDER,
    "min_new_tokens": 2,
    "max_total_tokens": 4096,
    "prompt_truncation": "left",
    "max_prompt_tokens": 512,
    "stop": ("\n\n",),
    "stop_token_ids": (2,),
    "ignore_eos": True,
    "padding_side": "left",
    "use_cache": False,
    "dtype": "bfloat16",
    "seed_policy": "none",
    "add_bos": False,
    "chat_template": "chatml",
    "add_generation_prompt": False,
    "constraint": {"kind": "regex", "text": "[0-9]+"},
    "logprobs": "processed",
}
"""each field that came after the first seven, at another value than its default"""


def test_the_hash_of_a_protocol_never_changes():
    assert PLAIN.hash == "0f9d3a0f8d56d96d"
    assert SamplingProtocol(temperature=0.7, top_p=0.9, seed=3).hash == "b16dcd516f3e54fd"


def test_a_hash_depends_on_every_field_and_not_on_how_it_was_said():
    others = [
        {"temperature": 0.5},
        {"top_p": 0.5},
        {"top_k": 5},
        {"min_p": 0.5},
        {"max_new_tokens": 5},
        {"samples_per_prompt": 5},
        {"seed": 5},
        *({name: value} for name, value in OTHERWISE.items()),
        {"temperature": 0.5, "schedule": {"kind": "linear", "start": 1.0, "end": 0.5, "steps": 10}},
    ]
    assert {name for other in others for name in other} == set(SamplingProtocol.model_fields)
    assert len({SamplingProtocol(**other).hash for other in others} | {PLAIN.hash}) == len(others) + 1
    assert SamplingProtocol(temperature=1, seed=0).hash == PLAIN.hash
    assert SamplingProtocol.model_validate_json(NUCLEUS.model_dump_json()).hash == NUCLEUS.hash


@pytest.mark.parametrize(
    "changed",
    [
        {"temperature": 0.99},
        {"temperature": 0},
        {"top_p": 0.999},
        {"top_k": 1},
        {"min_p": 0.001},
    ],
)
def test_whatever_changes_the_distribution_is_not_plain(changed):
    assert not SamplingProtocol(**changed).is_plain


@pytest.mark.parametrize("name", sorted(OTHERWISE))
def test_of_the_later_fields_only_those_that_change_a_distribution_make_it_unplain(name):
    reshapes = {
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "min_new_tokens",
        "ignore_eos",
        "constraint",
    }
    assert SamplingProtocol(**{name: OTHERWISE[name]}).is_plain == (name not in reshapes)


def test_length_number_and_seed_leave_it_plain():
    assert SamplingProtocol(max_new_tokens=1, samples_per_prompt=8, seed=9).is_plain
    assert GREEDY.is_greedy
    assert not COLD.is_greedy


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_p": 0.0},
        {"top_p": 1.01},
        {"top_p": math.nan},
        {"top_k": -1},
        {"top_k": 1.5},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"max_new_tokens": 0},
        {"samples_per_prompt": 0},
        {"temprature": 1.0},
        {"temperature": "0.7"},
        {"temperature": True},
        {"top_k": "5"},
        {"seed": True},
        {"top_p": "off"},
        {"repetition_penalty": 0.0},
        {"presence_penalty": math.nan},
        {"frequency_penalty": -math.inf},
        {"penalty_window": 0},
        {"processors": ("top_k", "top_k", "top_p")},
        {"processors": ("top_z",)},
        {"min_new_tokens": -1},
        {"min_new_tokens": 65},
        {"max_total_tokens": 0},
        {"stop": "text"},
        {"stop": ("",)},
        {"stop_token_ids": (-1,)},
        {"ignore_eos": 1},
        {"prompt_truncation": "middle"},
        {"chat_template": ""},
        {"constraint": {"kind": "poem", "text": "a"}},
        {"constraint": {"kind": "regex", "text": ""}},
        {"schedule": {"kind": "linear", "start": 1.0, "end": 1.0, "steps": 0}},
        {"schedule": {"kind": "linear", "start": -1.0, "end": 1.0, "steps": 5}},
    ],
    ids=str,
)
def test_a_value_out_of_range_and_an_unknown_key_are_refused_by_name(wrong):
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        SamplingProtocol(**wrong)


def test_a_protocol_is_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        PLAIN.seed = 1


def test_a_rollouts_seed_has_31_bits_and_depends_on_the_runs_seed_and_the_rollout_alone():
    seed = int(hashlib.sha256(b"3:r-1").hexdigest()[:8], 16) // 2
    assert SamplingProtocol(seed=3).seed_for("r-1") == COLD.model_copy(update={"seed": 3}).seed_for("r-1") == seed
    seeds = {SamplingProtocol(seed=s).seed_for(f"r-{i}") for s in range(3) for i in range(200)}
    assert len(seeds) == 600
    assert 0 <= min(seeds) <= max(seeds) < 2**31


# -- Meaning -----------------------------------------------------------------------------------------------------


def test_logprobs_after_a_protocol_that_changes_nothing_are_raw_and_so_are_greedy_ones():
    assert Meaning.processed_by(PLAIN) == Meaning.processed_by(GREEDY) == Meaning()
    assert str(Meaning()) == "raw"


def test_logprobs_after_a_protocol_carry_all_that_it_does():
    meaning = Meaning.processed_by(NUCLEUS)
    assert meaning.model_dump() == {
        "temperature": 1.0,
        "top_p": 0.9,
        "top_k": 50,
        "min_p": 0.05,
        "beyond": (),
    }
    assert str(meaning) == "processed (temperature 1, top_p 0.9, top_k 50, min_p 0.05)"
    assert str(Meaning.processed_by(COLD)) == "processed (temperature 0.7)"


@pytest.mark.parametrize(
    ("protocol", "meaning", "expected"),
    [
        (PLAIN, Meaning(), True),
        (PLAIN, Meaning.processed_by(COLD), False),
        (COLD, Meaning.processed_by(COLD), True),
        (COLD, Meaning(), False),
        (COLD, Meaning.processed_by(SamplingProtocol(temperature=0.8)), False),
        (NUCLEUS, Meaning.processed_by(NUCLEUS), True),
        (NUCLEUS, Meaning(), False),
        (GREEDY, Meaning(), False),
    ],
)
def test_tokens_are_draws_only_from_the_distribution_that_sampled_them(protocol, meaning, expected):
    assert meaning.is_sampled_from(protocol) is expected


@pytest.mark.parametrize(
    "wrong", [{"temperature": 0.0}, {"temperature": math.inf}, {"kind": "cooked"}, {"tau": 1}], ids=str
)
def test_a_meaning_out_of_range_is_refused(wrong):
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        Meaning(**wrong)


def test_meanings_can_stand_in_a_set():
    assert len({Meaning(), Meaning(), Meaning.processed_by(COLD)}) == 2


# -- values that contradict each other -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"min_new_tokens": 9, "max_new_tokens": 8}, "min_new_tokens = 9 is above max_new_tokens = 8"),
        ({"min_new_tokens": 64, "max_total_tokens": 64}, "leaves no room for a prompt"),
        ({"ignore_eos": True, "stop_token_ids": [7]}, r"stop_token_ids = \[7\] conflict"),
        ({"top_p": 0.9, "processors": ["temperature"]}, "top_p is switched on and not among processors"),
        (
            {"temperature": 0.7, "schedule": {"kind": "cosine", "start": 1.0, "end": 0.6, "steps": 5}},
            "the schedule ends at 0.6 and temperature is 0.7",
        ),
    ],
)
def test_values_that_contradict_each_other_are_refused(values, says):
    with pytest.raises(ValidationError, match=says):
        SamplingProtocol(**values)


def test_values_that_only_look_as_if_they_did_are_taken():
    SamplingProtocol(min_new_tokens=64, max_new_tokens=64)
    SamplingProtocol(ignore_eos=True, stop=("\n",))
    SamplingProtocol(processors=("temperature",), temperature=0.5)


def test_what_has_no_order_and_no_repetition_is_one_value():
    first, second = (
        SamplingProtocol(stop=("b", "a", "b"), stop_token_ids=(3, 1)),
        SamplingProtocol(stop=("a", "b"), stop_token_ids=(1, 3)),
    )
    assert first == second
    assert first.hash == second.hash


# -- schedules -----------------------------------------------------------------------------------------------------


def schedule(kind, *, start=1.0, end=0.5, steps=10):
    return TemperatureSchedule(kind=kind, start=start, end=end, steps=steps)


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_a_schedule_goes_from_start_to_end_and_stays_there(kind):
    found = [schedule(kind).at(step) for step in (0, 5, 10, 11, 10_000)]
    assert found == [1.0, pytest.approx(0.75), 0.5, 0.5, 0.5]


def test_a_cosine_is_slow_at_both_ends():
    assert schedule("cosine").at(1) == pytest.approx(0.5 + 0.25 * (1 + math.cos(math.pi / 10)))
    assert schedule("cosine").at(1) > schedule("linear").at(1)
    assert schedule("cosine").at(9) < schedule("linear").at(9)


def test_a_constant_schedule_has_one_temperature_and_may_not_have_two():
    assert {schedule("constant", end=1.0).at(step) for step in range(12)} == {1.0}
    with pytest.raises(ValidationError, match="a constant schedule goes from 1 to 0"):
        schedule("constant")


def test_there_is_no_step_before_the_first():
    with pytest.raises(ValueError, match="step -1"):
        schedule("linear").at(-1)


def test_a_step_of_a_scheduled_protocol_is_a_protocol_without_schedule():
    protocol = SamplingProtocol(temperature=0.5, schedule=schedule("linear"))
    assert protocol.at_step(0) == SamplingProtocol(temperature=1.0)
    assert protocol.at_step(99) == COLD.at_step(3).model_copy(update={"temperature": 0.5})
    assert not protocol.is_plain
    assert protocol.at_step(0).is_plain


# -- what a meaning cannot say -------------------------------------------------------------------------------------

PENALISED = SamplingProtocol(temperature=0.7, repetition_penalty=1.1)


@pytest.mark.parametrize(
    ("protocol", "says"),
    [
        (PENALISED, "repetition_penalty 1.1"),
        (SamplingProtocol(presence_penalty=0.5, penalty_window=64), "penalty_window 64"),
        (SamplingProtocol(temperature=0.7, top_p=0.9, processors=LLAMA_ORDER), "order top_p temperature"),
        (SamplingProtocol(min_new_tokens=5), "min_new_tokens 5"),
        (SamplingProtocol(constraint={"kind": "grammar", "text": "root ::= [a]"}), "constraint grammar"),
    ],
)
def test_processed_logprobs_say_what_no_engine_scores_under(protocol, says):
    meaning = Meaning.processed_by(protocol)
    assert says in str(meaning)
    assert meaning.beyond
    assert not meaning.is_raw
    assert not Meaning().is_sampled_from(protocol)
    assert Meaning.model_validate_json(meaning.model_dump_json()) == meaning


def test_an_order_that_changes_nothing_is_not_part_of_a_meaning():
    protocol = SamplingProtocol(temperature=0.7, top_k=20, processors=LLAMA_ORDER)
    assert Meaning.processed_by(protocol) == Meaning(temperature=0.7, top_k=20)


def test_tokens_of_a_schedule_that_moves_are_draws_from_no_one_distribution():
    protocol = SamplingProtocol(temperature=0.5, schedule=schedule("linear"))
    assert not Meaning.processed_by(protocol).is_sampled_from(protocol)
    still = SamplingProtocol(temperature=0.5, schedule=schedule("constant", start=0.5))
    assert Meaning(temperature=0.5).is_sampled_from(still)


def test_minus_zero_is_zero_and_has_its_hash():
    assert str(SamplingProtocol(temperature=-0.0).temperature) == "0.0"
    assert SamplingProtocol(min_p=-0.0).hash == SamplingProtocol(min_p=0.0).hash


@pytest.mark.parametrize("fields", [{"stop": ["a\ud800"]}, {"chat_template": "\udfff"}, {"dtype": "\ud900x"}])
def test_text_that_no_file_can_hold_is_refused(fields):
    with pytest.raises(ValueError, match="surrogate"):
        SamplingProtocol(**fields)
