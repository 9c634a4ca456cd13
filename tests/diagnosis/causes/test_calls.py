"""One side calls its model otherwise than it should."""

import pytest
from planted_runs import names, outcome_of, planted, served_by, why

from onepolicy.records.finding import Outcome

pytestmark = pytest.mark.usefixtures("causes_of_engines")

LEFT = "batch_size=8&padding_side=left"


@pytest.mark.parametrize("wrong", ["rollout", "trainer"])
@pytest.mark.parametrize(
    ("option", "cause"),
    [("mask=none&" + LEFT, "attention mask"), ("positions=none&" + LEFT, "position ids"), ("mode=train", "train mode")],
)
def test_a_side_that_calls_its_model_wrongly_is_named(tmp_path, gpt2, option, cause, wrong):
    plain, faulty = f"transformers:{gpt2}", f"transformers:{gpt2}?{option}"
    sides = (faulty, plain) if wrong == "rollout" else (plain, faulty)
    found = why(served_by(tmp_path / "run", plain, *sides), served=True)
    assert names(found)[0] == (cause, "cause"), found.sentence
    assert ("trainer" if wrong == "trainer" else "rollout side") in found.findings[0].label


def test_position_ids_of_a_rotary_model_are_no_cause(tmp_path, rope):
    plain = f"transformers:{rope}"
    found = why(served_by(tmp_path / "run", plain, f"{plain}?positions=none&{LEFT}", plain), served=True)
    assert not found.causes


@pytest.mark.parametrize("fault", ["packed_without_a_wall", "mask_by_value"])
def test_a_function_whose_sequences_see_each_other_is_read_one_at_a_time(tmp_path, rope, fault):
    plain = f"transformers:{rope}"
    found = why(served_by(tmp_path / "run", plain, planted(tmp_path, rope, fault), plain), served=True)
    if fault == "mask_by_value":  # it pads rightly, and no text here holds the pad id
        assert not found.causes
        return
    assert names(found) == [("batch", "cause")], found.sentence
    assert "walls between packed sequences" in found.findings[0].remedy


def test_a_sound_function_has_no_cause(tmp_path, rope):
    plain = f"transformers:{rope}"
    found = why(served_by(tmp_path / "run", plain, planted(tmp_path, rope, "right_way"), plain), served=True)
    assert not found.causes
    assert found.sentence.startswith("Nothing to explain")


def test_a_cache_of_older_weights_behind_a_function_is_not_explained_and_what_it_takes_is_said(tmp_path, rope):
    plain = f"transformers:{rope}"
    served = planted(tmp_path, rope, "cache_of_older_weights")
    found = why(served_by(tmp_path / "run", plain, served, plain), served=True)
    assert all(outcome != "cause" for _, outcome in names(found)), found.sentence
    assert outcome_of(found, "prefix cache") is Outcome.UNTESTED
    (one,) = [finding for finding in found.findings if finding.cause == "prefix cache"]
    assert "with its cache flushed" in one.seen
