"""K20: soft cap, window, rotary base and scaling that one side reads otherwise (B95, B96, B98, B100)."""

import pytest
import transformers
from cases.case_runs import first, named, of, sampled, trained, why
from leg_models import END, LONGEST, VOCABULARY, WIDTH, rotary, saved

from onepolicy.records.finding import Outcome

SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": LONGEST,
    "initializer_range": 0.4,
    "eos_token_id": END,
    "bos_token_id": None,
    "pad_token_id": END,
}
CAUSE = ("constants of the model", "cause")


@pytest.fixture(scope="module")
def swa(tmp_path_factory):
    """Window 8 on every other layer, a cap of 5 on attention scores and of 10 on logits."""
    config = transformers.Gemma2Config(
        **SHAPE, head_dim=8, sliding_window=8, attn_logit_softcapping=5.0, final_logit_softcapping=10.0
    )
    folder = saved(transformers.Gemma2ForCausalLM, config, tmp_path_factory.mktemp("swa") / "model")
    return f"transformers:{folder}?attn=eager"


def found_of(path, rollout, trainer):
    return why(trained(sampled(path, rollout), trainer))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("attn_logit_softcapping=none", "without attn_logit_softcapping"),
        ("sliding_window=%2B1", "with sliding_window one more"),
        ("sliding_window=-1", "with sliding_window one less"),
    ],
    ids=["b95", "b96 one more", "b96 one less"],
)
def test_a_cap_that_is_not_applied_and_a_window_of_another_convention_are_named(tmp_path, swa, change, said):
    found = found_of(tmp_path / "run", f"{swa}&config={change}", swa)
    assert named(found) == [CAUSE], found.sentence
    assert first(found).label == f"the rollout side runs {said}"


def test_b98_a_rotary_base_that_falls_back_to_10000_is_named_with_its_value(tmp_path, tmp_path_factory):
    rope = {"rope_type": "default", "rope_theta": 1e6}
    plain = f"transformers:{rotary(tmp_path_factory.mktemp('long') / 'model', rope_parameters=rope)}"
    found = found_of(tmp_path / "run", f"{plain}?config=rope_theta=10000", plain)
    assert named(found) == [CAUSE], found.sentence
    assert first(found).label == "the rollout side runs with rope_theta 10000"


def test_b100_an_engine_that_is_scaled_by_the_saved_config_and_a_trainer_that_is_not(tmp_path, rope):
    """The engine reads a folder whose config.json has the scaling; the trainer's tables were made before it was set."""
    scaled = tmp_path / "scaled"
    model = transformers.AutoModelForCausalLM.from_pretrained(rope)
    model.config.rope_parameters = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
    scaled.mkdir()
    for file in rope.iterdir():
        (scaled / file.name).write_bytes(file.read_bytes())
    model.save_pretrained(scaled)
    found = found_of(tmp_path / "run", f"transformers:{scaled}", f"transformers:{rope}")
    assert named(found) == [CAUSE], found.sentence
    assert first(found).label == "the rollout side runs with rope_factor 4"


def test_b100_a_factor_that_is_not_tried_is_no_other_cause(tmp_path, rope):
    found = found_of(tmp_path / "run", f"transformers:{rope}?config=rope_factor=2", f"transformers:{rope}")
    assert not named(found), found.sentence


def test_b100_a_factor_that_is_not_tried_is_not_ruled_out(tmp_path, rope):
    found = found_of(tmp_path / "run", f"transformers:{rope}?config=rope_factor=2", f"transformers:{rope}")
    assert of(found, "constants of the model").outcome is not Outcome.RULED_OUT
