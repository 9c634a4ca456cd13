"""Effective values of simulated servers of known settings."""

import math

import pytest
from simulated_server import LLAMACPP, OFF, Server

from onepolicy.sampling.measured.agreement import Agreement, agreement, chance, differs
from onepolicy.sampling.measured.left_out import LeftOut, measured_left_out

NEUTRAL = {"stop_token_ids": ()}
ROOM = {
    "temperature": 0.04,
    "top_p": 0.04,
    "min_p": 0.01,
    "repetition_penalty": 0.1,
    "presence_penalty": 0.2,
    "frequency_penalty": 0.2,
}
"""how far from the value the nearest that was refuted may be; of `top_k` see the test"""


def measured(server: Server, *names: str) -> LeftOut:
    return measured_left_out(server.draw, names=names or tuple(OFF), neutral=NEUTRAL)


def values(found: LeftOut) -> dict[str, float | None]:
    return {name: one.value for name, one in found.fields.items()}


def test_a_plain_server_has_all_fields_off_each_with_a_value_that_it_is_not():
    found = measured(Server())
    assert values(found) == OFF
    assert found.holds
    assert (found.floor.compared >= 3 * 1024, found.floor.differed) == (True, 0)
    for one in found.fields.values():
        assert math.isfinite(one.low) or math.isfinite(one.high), one
        assert one.seen == Agreement(compared=1024, differed=0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0.7),
        ("temperature", 1.37),
        ("temperature", 0.0),
        ("top_p", 0.9),
        ("top_p", 0.73),
        ("top_k", 20),
        ("top_k", 1),
        ("min_p", 0.05),
        ("repetition_penalty", 1.2),
        ("repetition_penalty", 1.05),
        ("presence_penalty", 0.5),
        ("presence_penalty", -0.7),
        ("frequency_penalty", 0.3),
    ],
)
def test_one_planted_value_is_found_and_all_else_is_off(name, value):
    found = measured(Server(defaults={name: value}))
    one = found.fields[name]
    assert one.could_be(value), one
    assert one.value == pytest.approx(value, abs=ROOM.get(name, 1)), one
    assert values(found) == {**OFF, name: one.value}
    assert found.holds
    if name == "top_k":
        assert value - one.low <= 2 or value == 1
        assert one.high - value <= 3
    else:
        assert max(value - one.low if math.isfinite(one.low) else 0, one.high - value) <= 2 * ROOM[name], one


@pytest.mark.parametrize("order", [LLAMACPP, ("penalties", "temperature", "min_p", "top_k", "top_p")])
def test_several_planted_values_do_not_hide_each_other(order):
    planted = {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.2, "presence_penalty": 0.5}
    found = measured(Server(defaults=planted, order=order))
    for name, one in found.fields.items():
        assert one.could_be({**OFF, **planted}[name]), one
    assert found.holds


def test_what_a_greedy_default_would_hide_is_found_behind_it():
    found = measured(Server(defaults={"temperature": 0.0, "top_p": 0.8, "top_k": 5}))
    assert (found.fields["temperature"].value, found.fields["top_p"].value, found.fields["top_k"].value) == (0, 0.8, 5)


def test_a_value_is_found_on_a_server_that_rounds_otherwise_each_time():
    found = measured(Server(defaults={"temperature": 0.7, "repetition_penalty": 1.2}, jitter=0.005))
    assert found.floor.differed > 0
    for name, one in found.fields.items():
        assert one.could_be({**OFF, "temperature": 0.7, "repetition_penalty": 1.2}[name]), one


# -- what cannot be known ---------------------------------------------------------------------------------------------


def test_nothing_is_known_of_a_server_that_heeds_no_seed():
    found = measured(Server(defaults={"temperature": 0.7}, heeds_seeds=False))
    assert set(values(found).values()) == {None}
    assert "other tokens each time" in found.fields["temperature"].why
    assert not found.holds


def test_a_field_that_the_server_drops_is_not_known():
    found = measured(Server(defaults={"top_p": 0.9}, drops=("top_p",)), "top_p", "temperature")
    assert found.fields["top_p"].value is None
    assert "drops the field" in found.fields["top_p"].why


def test_a_field_that_the_server_refuses_is_not_known():
    found = measured(Server(refuses=("min_p",)), "temperature")
    assert found.fields["temperature"].value is None


def test_a_value_beyond_those_that_can_be_sent_is_not_known():
    found = measured(Server(defaults={"temperature": 4.0}), "temperature")
    assert found.fields["temperature"].value is None
    assert "no value draws the same tokens" in found.fields["temperature"].why


def test_a_default_of_another_kind_shows_when_all_is_sent_together():
    found = measured(Server(stops_at=5))
    assert values(found) == OFF
    assert not found.holds
    assert found.together.differed > 10


# -- false alarms -----------------------------------------------------------------------------------------------------


def alarms(count: int) -> int:
    """Plain servers, half of which round otherwise each time, of which something else than off is said."""
    found = 0
    for model in range(count):
        server = Server(model=model, jitter=0.01 * (model % 2), per_prompt=4, length=8)
        one = measured(server)
        known = {name: value for name, value in values(one).items() if value is not None}
        found += any(not one.fields[name].could_be(OFF[name]) for name in known) or not one.holds
    return found


def test_plain_servers_raise_no_alarm():
    assert alarms(20) == 0


@pytest.mark.full
def test_at_most_one_of_two_hundred_plain_servers_raises_an_alarm():
    assert alarms(200) <= 1


@pytest.mark.full
def test_planted_values_are_found_on_eighty_servers_that_round_otherwise_each_time():
    planted = {**OFF, "temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.2}
    shown = 0
    for model in range(80):
        found = measured(Server(model=model, defaults=planted, jitter=0.01 + 0.01 * (model % 2), per_prompt=4))
        assert all(one.could_be(planted[name]) for name, one in found.fields.items())
        shown += sum(values(found)[name] == value for name, value in planted.items())
    assert shown >= 0.98 * 80 * len(planted)  # the others are shown as a value beside, with the planted one in reach


# -- agreement --------------------------------------------------------------------------------------------------------


def test_tokens_are_compared_up_to_the_first_that_differs():
    assert agreement([[1, 2, 3]], [[1, 2, 3]]) == Agreement(compared=3, differed=0)
    assert agreement([[1, 2, 3]], [[1, 9, 3]]) == Agreement(compared=2, differed=1)
    assert agreement([[1, 2, 3]], [[1, 2]]) == Agreement(compared=3, differed=1)
    assert agreement([[]], [[]]) == Agreement(compared=0, differed=0)


def test_the_chance_is_that_of_fishers_exact_test():
    from scipy.stats import fisher_exact  # noqa: PLC0415 - slow to import

    for seen, floor in (((5, 100), (0, 300)), ((3, 50), (2, 40)), ((0, 10), (0, 10)), ((9, 9), (0, 30))):
        table = [[seen[0], seen[1] - seen[0]], [floor[0], floor[1] - floor[0]]]
        exact = fisher_exact(table, alternative="greater").pvalue
        ours = chance(
            Agreement(compared=seen[1], differed=seen[0]), floor=Agreement(compared=floor[1], differed=floor[0])
        )
        assert ours == pytest.approx(exact)


def test_two_answers_that_differ_once_are_not_said_to_differ():
    assert not differs(Agreement(compared=16, differed=1), floor=Agreement(compared=48, differed=0))
