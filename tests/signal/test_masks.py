"""Oracle: loops over rows in plain Python."""

import math

import pytest
import torch

from onepolicy.errors import AlignmentError, UsageError
from onepolicy.signal.masks import (
    mask_from_ends,
    mask_from_lengths,
    masked_mean,
    masked_sum,
    selected,
    sequence_logprobs,
    whitened,
)

END, PAD = 9, 0


def test_a_mask_from_lengths_marks_so_many_first_columns():
    found = mask_from_lengths(torch.tensor([0, 2, 4]), width=4)
    assert found.tolist() == [[False] * 4, [True, True, False, False], [True] * 4]


def test_the_end_is_marked_where_padding_has_its_id():
    lengths = torch.tensor([3, 2])
    ids = torch.tensor([[5, 6, END, END], [7, END, END, END]])
    mask = mask_from_lengths(lengths, width=4)
    assert ids[torch.arange(2), lengths - 1].tolist() == [END, END]
    assert torch.equal(mask, mask_from_ends(ids, [END]))
    assert not torch.equal(mask, ids != END)


def test_a_mask_from_ends_stops_with_the_first_of_several_ends():
    ids = torch.tensor([[5, 8, END, PAD], [5, 6, 7, 5], [END, 8, 8, 8]])
    assert mask_from_ends(ids, [8, END]).tolist() == [[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]
    assert mask_from_ends(ids, []).all()


@pytest.mark.parametrize("lengths", [[5], [-1]])
def test_a_length_outside_the_columns_is_refused(lengths):
    with pytest.raises(AlignmentError, match="columns: 4"):
        mask_from_lengths(torch.tensor(lengths), width=4)


def test_lengths_of_two_dimensions_are_refused():
    with pytest.raises(AlignmentError, match=r"\[2, 1\]"):
        mask_from_lengths(torch.tensor([[1], [2]]), width=4)


@pytest.mark.parametrize("lengths", [torch.tensor([2.7]), torch.tensor([math.nan]), [2]])
def test_lengths_that_are_no_whole_numbers_are_refused(lengths):
    with pytest.raises(UsageError, match="whole numbers"):
        mask_from_lengths(lengths, width=4)


@pytest.mark.parametrize("end_ids", [2, None, [2.9], ["</s>"], [[2]], torch.tensor([2.5])])
def test_ends_that_are_no_list_of_ids_are_refused(end_ids):
    with pytest.raises(UsageError, match="a list of token ids"):
        mask_from_ends(torch.tensor([[1, 2]]), end_ids)


def test_ends_may_be_a_tensor_or_a_set():
    for end_ids in (torch.tensor([2]), {2}, (2,)):
        assert mask_from_ends(torch.tensor([[1, 2, 3]]), end_ids).tolist() == [[True, True, False]]


def test_no_rows_are_no_error():
    assert mask_from_lengths(torch.zeros(0, dtype=torch.long), width=4).shape == (0, 4)
    assert float(masked_sum(torch.zeros(0, 4), torch.zeros(0, 4))) == 0.0


VALUES = torch.tensor([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0], [64.0, 128.0, 256.0]], dtype=torch.float64)
MASK = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1]])


def test_sums_and_means_are_those_of_what_is_marked():
    assert float(masked_sum(VALUES, MASK)) == 453.0
    assert masked_sum(VALUES, MASK, dim=1).tolist() == [5.0, 0.0, 448.0]
    assert float(masked_mean(VALUES, MASK)) == pytest.approx(453 / 5, rel=1e-15)
    assert masked_sum(VALUES, MASK.bool()).item() == masked_sum(VALUES, MASK.double()).item()


def test_the_mean_of_nothing_is_nan_and_its_sum_and_logprob_are_0():
    means = masked_mean(VALUES, MASK, dim=1)
    assert means[:1].tolist() + means[2:].tolist() == [2.5, 448 / 3]
    assert math.isnan(means[1])
    assert sequence_logprobs(VALUES, MASK).tolist() == [5.0, 0.0, 448.0]


@pytest.mark.parametrize("fill", [math.nan, math.inf, -math.inf, -1e30])
@pytest.mark.parametrize("function", [masked_sum, masked_mean, whitened, selected])
def test_what_is_not_marked_enters_neither_value_nor_gradient(fill, function):
    def both(values):
        leaf = values.clone().requires_grad_()
        found = function(leaf, MASK)
        (slope,) = torch.autograd.grad((found * found).sum(), leaf)
        return found.detach(), slope

    planted = torch.where(MASK.bool(), VALUES, fill)
    for found, expected in zip(both(planted), both(VALUES), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert (both(planted)[1][MASK == 0] == 0).all()


def test_a_selection_before_exp_keeps_nan_out_of_the_gradient_and_one_after_it_does_not():
    def slope(loss):
        leaf = torch.tensor([[1.0, math.inf]], requires_grad=True)
        return torch.autograd.grad(loss(leaf, torch.tensor([[1, 0]])), leaf)[0]

    torch.testing.assert_close(slope(lambda x, mask: selected(x, mask).exp().mul(mask).sum())[0, 1], torch.tensor(0.0))
    assert slope(lambda x, mask: masked_sum(x.exp(), mask)).isnan().any()


def test_a_filling_of_minus_infinity_summed_is_no_sum_and_selected_is():
    logprobs = torch.where(MASK.bool(), -VALUES, -torch.inf)
    assert float(logprobs[0].sum()) == -math.inf
    assert sequence_logprobs(logprobs, MASK).tolist() == [-5.0, 0.0, -448.0]


@pytest.mark.parametrize("function", [masked_sum, masked_mean, whitened, selected])
def test_a_mask_of_another_shape_is_refused(function):
    with pytest.raises(AlignmentError, match=r"\[3, 3\].*\[3, 2\]"):
        function(VALUES, MASK[:, :2])


@pytest.mark.parametrize("function", [masked_sum, masked_mean, whitened, selected, sequence_logprobs])
@pytest.mark.parametrize("bad", [math.nan, 2.0, 0.5, -1.0])
def test_a_mask_of_something_else_than_0_and_1_is_refused(function, bad):
    mask = MASK.double()
    mask[1, 1] = bad
    with pytest.raises(UsageError, match="something else than 0 and 1"):
        function(VALUES, mask)


def test_a_sum_over_columns_that_are_not_there_is_refused():
    for function in (masked_sum, masked_mean):
        with pytest.raises(AlignmentError, match=r"\[2\], and so no dimension 1"):
            function(torch.ones(2), torch.ones(2), dim=1)
    with pytest.raises(AlignmentError, match="no dimension 1"):
        sequence_logprobs(torch.ones(2), torch.ones(2))


# -- whitening --------------------------------------------------------------------------------------------------


def test_whitened_values_have_mean_0_and_variance_1_over_what_is_marked():
    found = whitened(VALUES, MASK)
    marked = found[MASK.bool()]
    assert float(marked.mean()) == pytest.approx(0.0, abs=1e-15)
    assert float(marked.var(unbiased=True)) == pytest.approx(1.0, rel=1e-14)
    assert (found[MASK == 0] == 0).all()


@pytest.mark.parametrize("number", [3, 7, 10, 1000])
@pytest.mark.parametrize("value", [0.1, 0.3, -1e6 / 3])
def test_equal_values_of_float32_are_whitened_to_0_and_not_to_their_rounding(number, value):
    assert not whitened(torch.full((1, number), value), torch.ones(1, number)).any()


def test_values_that_differ_by_the_rounding_of_a_sum_are_whitened_to_0():
    tenth = torch.tensor(0.1)
    values = torch.stack([sum([tenth] * 9, torch.tensor(0.0)), tenth * 9, torch.tensor(0.9), torch.tensor(0.9)])
    assert len(set(values.tolist())) == 3
    assert not whitened(values[None], torch.ones(1, 4)).any()


def test_one_value_or_none_is_whitened_to_0():
    assert not whitened(VALUES, torch.zeros(3, 3)).any()
    assert not whitened(VALUES, torch.tensor([[0, 0, 1], [0, 0, 0], [0, 0, 0]])).any()


def test_a_marked_nan_is_not_hidden():
    found = whitened(torch.tensor([[1.0, math.nan, 2.0, 5.0]]), torch.tensor([[1, 1, 1, 0]]))
    assert found[0, :3].isnan().all()
    assert float(found[0, 3]) == 0.0


def test_whole_numbers_are_whitened_and_averaged_as_the_same_in_float64_and_not_cut():
    values, mask = torch.tensor([[1, 2, 4]]), torch.ones(1, 3)
    for function in (whitened, masked_mean):
        torch.testing.assert_close(function(values, mask), function(values.double(), mask), rtol=0, atol=0)


def test_complex_values_are_refused():
    with pytest.raises(UsageError, match="real numbers"):
        whitened(torch.ones(1, 2, dtype=torch.complex64), torch.ones(1, 2))
