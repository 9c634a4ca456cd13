"""The order of processors of simulated servers."""

from itertools import combinations

import pytest
from simulated_server import LLAMACPP, VLLM, Server

from onepolicy.records.protocol import SamplingProtocol
from onepolicy.sampling.measured.order import Order, measured_order, order_from, orders_of
from onepolicy.sampling.measured.processing import listed, processed

PAIRS = [
    pair
    for pair in combinations(("penalties", "temperature", "top_k", "top_p", "min_p"), 2)
    if pair not in (("temperature", "top_k"), ("top_k", "min_p"))
]


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("turned", [False, True])
def test_each_pair_is_told_apart(pair, turned):
    order = pair[::-1] if turned else pair
    rest = [name for name in VLLM if name not in pair]
    server = Server(order=(*order, *rest), prompts=40, repeats=6.0)
    found = measured_order(pair, server.contexts(), server)
    assert found.known, found
    assert found.pair == order


@pytest.mark.parametrize("order", [VLLM, LLAMACPP])
def test_the_whole_order_is_put_together(order):
    on = SamplingProtocol(temperature=0.7, top_k=20, top_p=0.9, min_p=0.05, presence_penalty=0.5)
    server = Server(order=order, prompts=40, repeats=6.0)
    found = [measured_order(pair, server.contexts(), server) for pair in orders_of(on)]
    assert all(one.known for one in found)
    whole = order_from(found)
    for first, second in orders_of(on):
        assert (whole.index(first) < whole.index(second)) == (order.index(first) < order.index(second))


def test_no_pair_is_asked_for_where_no_order_matters():
    assert orders_of(SamplingProtocol(temperature=0.7, top_k=5, min_p=0.1)) == (("temperature", "min_p"),)
    assert orders_of(SamplingProtocol(temperature=0.7, top_k=5)) == ()
    assert orders_of(SamplingProtocol(temperature=0.7, top_p=0.9)) == (("temperature", "top_p"),)


def test_a_model_that_is_sure_everywhere_shows_no_order():
    server = Server()
    server.table *= 50.0
    found = measured_order(("temperature", "top_p"), server.contexts(), server)
    assert not found.known
    assert "no context was found" in str(found)


def test_a_server_that_does_neither_is_not_given_an_order():
    server = Server(drops=("temperature", "top_p"), prompts=40)
    found = measured_order(("temperature", "top_p"), server.contexts(), server)
    assert not found.known or found.nats < 3 * 9.3, "either the draws do not tell, or barely"


def test_what_is_not_known_leaves_the_order_as_it_was_said():
    assert order_from([Order(pair=("top_p", "temperature"))], like=VLLM) == VLLM
    known = Order(pair=("top_p", "temperature"), nats=20.0, draws=32)
    assert order_from([known], like=VLLM).index("top_p") < order_from([known], like=VLLM).index("temperature")


def test_a_list_that_does_not_reach_to_the_edge_tells_nothing():
    short = listed({1: -1.0, 2: -2.0})
    assert processed(short, ("top_p",), {"top_p": 0.9}) is None
    assert processed(short, ("top_k",), {"top_k": 2}) is None
    assert set(processed(short, ("top_p",), {"top_p": 0.3}) or {}) == {1}
