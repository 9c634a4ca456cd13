"""K07: the padding is an end token, and masks are made from values."""

import numpy as np
import pytest
import torch
from leg_faults import END, left, loaded, mask_by_value, positions_of, right_way
from leg_models import climbed, one_thread, planted, rotary, rung, suite  # noqa: F401 - a fixture is used by its name


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return rotary(tmp_path_factory.mktemp("rope") / "model")


@pytest.fixture
def with_ends(tmp_path):
    """Sequences in which the end token stands inside every second completion, as a chat's marker does."""
    suite(tmp_path / "suite.jsonl", inside="<|end|>")
    return tmp_path


SEQUENCES = [[5, 6, 7, 8, 9, 10, 11], [12, 13, END, 14, 15, 16, 17, 18, END], [20, 21, 22, END]]


def test_b40_a_mask_by_value_breaks_its_leg_and_the_engines_own_padding_does_not(model, with_ends):
    ladder = climbed(
        with_ends,
        f"transformers:{model}",
        only=("padding", "by-value"),
        against={"by-value": planted(with_ends, model, "mask_by_value")},
    )
    assert rung(ladder, "padding").status.value == "pass", "the engine pads with an end token and masks by length"
    assert rung(ladder, "by-value").status.value == "fail"
    assert ladder.breaks == "by-value"
    assert "'by-value' breaks" in ladder.sentence


def test_b40_no_trained_row_keeps_its_end_where_the_mask_is_by_value():
    """As many ends are trained as rows stopped by themselves, or the mask is wrong."""
    ids, by_length = left(SEQUENCES)
    by_value = (ids != END).long()
    stopped = sum(one[-1] == END for one in SEQUENCES)
    last = ids[:, -1] == END
    assert int(by_length[last, -1].sum()) == stopped == 2
    assert int(by_value[last, -1].sum()) == 0


def test_b41_the_logprobs_differ_from_the_hole_in_the_mask_on_and_nowhere_before(model):
    wrong, right = mask_by_value(loaded(str(model)), SEQUENCES), right_way(loaded(str(model)), SEQUENCES)
    d = [np.subtract(a[1:], b[1:]) for a, b in zip(wrong, right, strict=True)]
    assert np.abs(d[0]).max() < 1e-5, "no end token inside"
    hole = SEQUENCES[1].index(END)
    assert np.abs(d[1][:hole]).max() < 1e-5
    assert np.abs(d[1][hole:]).max() > 0.05
    assert np.abs(d[2]).max() < 1e-5, "nothing comes after its end"
    ids, _ = left(SEQUENCES)
    holes = [bool((np.diff((row != END).int().numpy()) == -1)[: len(row) - 2].any()) for row in ids]
    assert holes == [False, True, False]


def test_b43_a_model_that_is_trained_without_its_ends_does_not_learn_to_stop(model):
    rows = [[30 + n, 40 + n, 50 + n, 60 + n, END] for n in range(8)]
    by_value = _chance_to_end(model, rows, mask_by="value")
    by_length = _chance_to_end(model, rows, mask_by="length")
    assert by_length > 0.9
    assert by_value < 0.1


def _chance_to_end(model, rows, *, mask_by):
    """P(end) after the gold rows, when training skips what the mask says."""
    net = loaded(str(model))
    ids = torch.tensor(rows)
    trained = (ids != END) if mask_by == "value" else torch.ones_like(ids, dtype=torch.bool)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    for _ in range(60):
        labels = ids.masked_fill(~trained, -100)
        optimizer.zero_grad()
        net(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss.backward()
        optimizer.step()
    with torch.no_grad():
        mask = torch.ones_like(ids[:, :-1])
        last = net(input_ids=ids[:, :-1], attention_mask=mask, position_ids=positions_of(mask)).logits[:, -1]
        return float(last.softmax(-1)[:, END].mean())
