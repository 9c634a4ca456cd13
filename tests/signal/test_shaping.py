"""Oracle: the equation, case by case, in plain Python."""

import pytest
import torch

from onepolicy.errors import UsageError
from onepolicy.signal.shaping import length_band, soft_overlong

LIMIT, BUFFER = 100, 20


def overlong(length):
    if length <= LIMIT - BUFFER:
        return 0.0
    return (LIMIT - BUFFER - length) / BUFFER if length <= LIMIT else -1.0


def band(length):
    outside = max(30 - length, length - 60, 0)
    return max(0.0, 1.0 - outside / 10)


def test_the_penalty_is_that_of_the_equation_at_every_length():
    lengths = torch.arange(150)
    found = soft_overlong(lengths, limit=LIMIT, buffer=BUFFER)
    assert found.tolist() == pytest.approx([overlong(length) for length in range(150)], abs=1e-15)


def test_the_band_is_1_inside_and_falls_on_both_sides():
    found = length_band(torch.arange(90), low=30, high=60, decay=10)
    assert found.tolist() == pytest.approx([band(length) for length in range(90)], abs=1e-15)


@pytest.mark.parametrize("slope", [BUFFER, 1, LIMIT])
def test_no_token_more_costs_more_than_one_over_the_buffer(slope):
    steps = soft_overlong(torch.arange(-5, 200), limit=LIMIT, buffer=slope).diff().abs()
    assert float(steps.max()) <= 1 / slope + 1e-12
    steps = length_band(torch.arange(-5, 200), low=30, high=60, decay=slope).diff().abs()
    assert float(steps.max()) <= 1 / slope + 1e-12


def test_both_ends_of_the_buffer_belong_to_two_pieces_that_agree():
    ends = torch.tensor([LIMIT - BUFFER, LIMIT], dtype=torch.float64)
    for shift in (-1e-9, 0.0, 1e-9):
        found = soft_overlong(ends + shift, limit=LIMIT, buffer=BUFFER)
        assert found.tolist() == pytest.approx([0.0, -1.0], abs=1e-9)


def test_a_penalty_that_jumps_at_the_limit_has_a_step_of_all_of_it():
    jump = (torch.arange(200) > LIMIT).double().diff().abs().max()
    assert float(jump) == 1.0 > float(soft_overlong(torch.arange(200), limit=LIMIT, buffer=BUFFER).diff().abs().max())


def test_a_band_of_one_length_and_one_from_0_are_bands():
    assert length_band(torch.tensor([4, 5, 6]), low=5, high=5, decay=2).tolist() == [0.5, 1.0, 0.5]
    assert length_band(torch.tensor([0, 3]), low=0, high=2, decay=4).tolist() == [1.0, 0.75]


def test_floats_keep_their_type_and_whole_numbers_become_float64():
    assert soft_overlong(torch.tensor([90.0]), limit=LIMIT, buffer=BUFFER).dtype == torch.float32
    assert soft_overlong(torch.tensor([90]), limit=LIMIT, buffer=BUFFER).dtype == torch.float64
    assert not length_band(torch.zeros(0), low=0, high=1, decay=1).numel()


@pytest.mark.parametrize("buffer", [0, -1, LIMIT + 1])
def test_a_buffer_that_is_none_is_refused(buffer):
    with pytest.raises(UsageError, match="buffer"):
        soft_overlong(torch.tensor([1]), limit=LIMIT, buffer=buffer)


@pytest.mark.parametrize(("low", "high", "decay"), [(5, 4, 1), (-1, 4, 1), (1, 4, 0), (1, 4, float("nan"))])
def test_a_band_that_is_none_is_refused(low, high, decay):
    with pytest.raises(UsageError, match="band"):
        length_band(torch.tensor([1]), low=low, high=high, decay=decay)
