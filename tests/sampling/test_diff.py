import pytest

from onepolicy.records.protocol import SamplingProtocol
from onepolicy.sampling.diff import WHY, differences

LLAMA = ("penalties", "top_k", "top_p", "min_p", "temperature")


def one(a, b):
    (found,) = differences(SamplingProtocol(**a), SamplingProtocol(**b))
    return found


def test_a_protocol_does_not_differ_from_itself_however_it_was_spelled():
    assert differences(SamplingProtocol(), SamplingProtocol(temperature=1, top_k=0, stop=[])) == ()
    assert differences(SamplingProtocol(stop=["b", "a"]), SamplingProtocol(stop=["a", "b"])) == ()


def test_every_field_says_in_one_sentence_why_it_matters():
    assert list(WHY) == list(SamplingProtocol.model_fields)
    assert all(why.endswith(".") and ". " not in why for why in WHY.values())


def test_exactly_the_planted_fields_are_named_in_the_order_of_the_model():
    a = SamplingProtocol(temperature=0.7, top_p=0.9)
    b = SamplingProtocol(temperature=0.6, top_p=0.9, max_new_tokens=256, stop=("###",), repetition_penalty=1.05)
    found = differences(a, b)
    assert [d.field for d in found] == ["temperature", "max_new_tokens", "repetition_penalty", "stop"]
    assert [(d.a, d.b) for d in found] == [(0.7, 0.6), (64, 256), (1.0, 1.05), ((), ("###",))]
    assert all(d.matters for d in found)


@pytest.mark.parametrize(
    ("on", "matters"),
    [
        ({}, False),
        ({"temperature": 0.7}, False),
        ({"top_p": 0.9}, False),
        ({"temperature": 0.7, "top_k": 20}, False),
        ({"temperature": 0.7, "top_p": 0.9}, True),
        ({"temperature": 0.7, "min_p": 0.1}, True),
        ({"temperature": 0.0, "top_p": 0.9}, False),
    ],
    ids=str,
)
def test_another_order_of_equal_values_matters_only_where_it_changes_what_is_kept(on, matters):
    found = one(on, on | {"processors": LLAMA})
    assert (found.field, found.matters) == ("processors", matters)
    assert ("change places, and both are on" in found.why) == matters
    assert ("It changes nothing here" in found.why) == (not matters)


def test_an_order_is_held_against_the_values_of_both_sides():
    on, off = {"temperature": 0.7, "top_p": 0.9}, {"processors": LLAMA}
    for a, b in ((on, off), (off, on)):
        order = next(d for d in differences(SamplingProtocol(**a), SamplingProtocol(**b)) if d.field == "processors")
        assert order.matters


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({"penalty_window": 64}, {}),
        ({"seed": 1}, {}),
        ({"temperature": 0, "top_p": 0.9}, {"temperature": 0}),
        ({"temperature": 0, "seed_policy": "none"}, {"temperature": 0}),
        ({"seed_policy": "none"}, {"seed_policy": "each rollout"}),
    ],
    ids=str,
)
def test_what_acts_on_neither_side_is_listed_and_does_not_matter(a, b):
    assert not one(a, b).matters


@pytest.mark.parametrize("other", ["none", "each rollout"])
def test_one_seed_for_each_request_on_one_side_matters(other):
    assert one({"seed_policy": "each request"}, {"seed_policy": other}).matters


def test_a_window_matters_as_soon_as_one_side_has_a_penalty():
    found = differences(SamplingProtocol(penalty_window=64, presence_penalty=1.0), SamplingProtocol())
    assert {d.field: d.matters for d in found} == {"presence_penalty": True, "penalty_window": True}
