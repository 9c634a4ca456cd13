"""Scoring by one request for each token."""

import asyncio

import numpy as np
import pytest

from onepolicy.engines.contract import ScoreInput
from onepolicy.engines.stepping import AT_ONCE, stepped
from onepolicy.errors import EngineError
from onepolicy.records.reading import TopLists
from onepolicy.records.tokens import TokenState

IDS = [11, 12, 13, 14, 12]
KNOWN = {(11,): {12: -0.5}, (11, 12): {13: -1.5, 9: -0.5}, (11, 12, 13): {9: -0.1}, (11, 12, 13, 14): {12: -9999.0}}


def item(ids=IDS, *, start=0, report=None):
    token_ids = np.asarray(ids, dtype=np.int32)
    return ScoreInput(rollout_id="r", token_ids=token_ids, wanted=np.arange(len(ids)) >= start, report=report)


def test_a_token_has_the_logprob_that_is_listed_after_what_stands_before_it():
    async def list_after(ids, tokens):
        return KNOWN[tuple(ids.tolist())]

    row = asyncio.run(stepped(item(), list_after))
    absent, value, invalid = TokenState.ABSENT, TokenState.VALUE, TokenState.INVALID
    assert row.states.tolist() == [absent, value, value, absent, invalid]
    np.testing.assert_array_equal(row.logprobs, np.asarray([np.nan, -0.5, -1.5, np.nan, np.nan], np.float32))


def test_only_wanted_tokens_cost_a_request_and_few_are_in_flight():
    asked, now, most = [], 0, 0

    async def list_after(ids, tokens):
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        asked.append((len(ids), list(tokens)))
        now -= 1
        return {}

    ids = list(range(100))
    asyncio.run(stepped(item(ids, start=40), list_after))
    assert sorted(asked) == [(at, [at]) for at in range(40, 100)]
    assert most == AT_ONCE


def test_the_other_sides_tokens_are_asked_for_at_their_positions():
    asked = {}

    async def list_after(ids, tokens):
        asked[len(ids)] = list(tokens)
        return dict.fromkeys(tokens, -2.0)

    ids = np.asarray([[12, 5], [6, -1]], dtype=np.int32)
    report = TopLists(positions=np.asarray([1, 3], dtype=np.int32), ids=ids, logprobs=np.zeros((2, 2), np.float32))
    row = asyncio.run(stepped(item(report=report), list_after))
    assert asked == {1: [12, 5], 2: [13], 3: [14, 6], 4: [12]}
    np.testing.assert_array_equal(row.top.logprobs, np.asarray([[-2.0, -2.0], [-2.0, np.nan]], np.float32))


def test_where_one_request_fails_the_others_have_ended_before_its_error_is_raised():
    in_flight = set()

    async def list_after(ids, tokens):
        in_flight.add(len(ids))
        try:
            await asyncio.sleep(0.0 if len(ids) == 2 else 60.0)
            raise EngineError(f"no answer after {len(ids)} ids")
        finally:
            await asyncio.sleep(0)  # as a connection takes a moment to close
            in_flight.discard(len(ids))

    async def scored():
        with pytest.raises(EngineError, match="no answer after 2 ids"):
            await stepped(item(), list_after)
        return set(in_flight)

    assert asyncio.run(scored()) == set()
