import hashlib
import math

import pytest
from pydantic import ValidationError

from onepolicy.records.protocol import Meaning, SamplingProtocol

PLAIN = SamplingProtocol()
GREEDY = SamplingProtocol(temperature=0)
COLD = SamplingProtocol(temperature=0.7)
NUCLEUS = SamplingProtocol(top_p=0.9, top_k=50, min_p=0.05)


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
    ]
    assert len(others) == len(SamplingProtocol.model_fields)
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
