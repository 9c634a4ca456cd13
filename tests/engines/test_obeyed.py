"""What one request has to say of a protocol."""

import numpy as np
import pytest

from onepolicy.engines.contract import SampleInput
from onepolicy.engines.obeyed import ALWAYS, as_request, for_request, one_token, room_for
from onepolicy.errors import EngineError
from onepolicy.records.protocol import SamplingProtocol, TemperatureSchedule


def asked(length):
    return SampleInput(rollout_id="r-7", prompt_ids=np.arange(length, dtype=np.int32), seed=11)


def test_a_request_is_for_one_completion_with_the_seed_of_its_rollout():
    protocol = SamplingProtocol(samples_per_prompt=4, seed=3, top_k=5, stop=("a",))
    one = for_request(asked(2), protocol)
    assert (one.samples_per_prompt, one.seed, one.seed_policy, one.top_k, one.stop) == (
        1,
        11,
        "each request",
        5,
        ("a",),
    )


def test_what_the_workflow_sees_to_is_not_said():
    schedule = TemperatureSchedule(kind="constant", start=0.7, end=0.7, steps=3)
    protocol = SamplingProtocol(
        temperature=0.7, schedule=schedule, logprobs="processed", dtype="bfloat16", prompt_truncation="left",
        max_prompt_tokens=9, max_total_tokens=20,
    )  # fmt: skip
    assert set(for_request(asked(2), protocol).changed) == {"temperature", "max_new_tokens", "seed", "seed_policy"}
    assert set(as_request(protocol).changed) == {"temperature", "max_new_tokens", "seed_policy"}
    assert set(protocol.changed) <= ALWAYS


@pytest.mark.parametrize(("length", "room"), [(2, 8), (13, 7), (19, 1)])
def test_a_completion_has_the_room_that_its_prompt_leaves(length, room):
    assert room_for(asked(length), SamplingProtocol(max_new_tokens=8, max_total_tokens=20)) == room


def test_a_prompt_that_leaves_too_little_room_is_an_error_with_the_numbers():
    protocol = SamplingProtocol(max_new_tokens=8, max_total_tokens=20, min_new_tokens=5)
    assert room_for(asked(15), protocol) == 5
    with pytest.raises(EngineError, match=r"rollout r-7: its prompt has 16 tokens .* = 20 leaves 4 .* at least 5"):
        room_for(asked(16), protocol)


def test_one_token_is_drawn_from_everything_unless_it_is_cut():
    item, protocol = one_token(np.asarray([4], dtype=np.int32), temperature=0.5, top_k=2, seed=6)
    assert (item.prompt_ids.tolist(), item.seed) == ([4], 6)
    assert set(protocol.changed) == {"temperature", "top_k", "max_new_tokens"}
