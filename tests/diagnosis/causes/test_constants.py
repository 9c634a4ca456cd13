"""The same weights under another constant."""

import pytest
import transformers
from leg_models import END, LONGEST, VOCABULARY, WIDTH, rotary, saved
from planted_runs import names, sampled_by, why

from onepolicy.engines.spec import parse_spec
from onepolicy.errors import EngineError
from onepolicy.integrations import open_engine

pytestmark = pytest.mark.usefixtures("causes_of_engines")

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


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    gemma = transformers.Gemma2Config(**SHAPE, head_dim=8, sliding_window=16, attn_logit_softcapping=2.0)
    experts = transformers.MixtralConfig(**SHAPE, num_local_experts=4, num_experts_per_tok=2)
    rotary(folder / "llama")
    saved(transformers.Gemma2ForCausalLM, gemma, folder / "gemma")
    saved(transformers.MixtralForCausalLM, experts, folder / "experts")
    return {name: f"transformers:{folder / name}?attn=eager" for name in ("llama", "gemma", "experts")}


@pytest.mark.parametrize(
    ("model", "change", "cause"),
    [
        ("llama", "rope_theta=500000", "constants of the model"),
        ("llama", "rope_factor=4", "constants of the model"),
        ("gemma", "sliding_window=%2B1", "constants of the model"),
        ("gemma", "attn_logit_softcapping=none", "constants of the model"),
        ("experts", "num_experts_per_tok=-1", "expert routing"),
    ],
)
def test_the_constant_that_the_rollout_side_reads_otherwise_is_named(tmp_path, models, model, change, cause):
    plain = models[model]
    found = why(sampled_by(tmp_path / "run", f"{plain}&config={change}", plain))
    assert names(found) == [(cause, "cause")], found.sentence
    assert change.partition("=")[0] in found.sentence


def test_a_model_under_its_own_constants_has_no_cause(tmp_path, models):
    plain = models["gemma"]
    assert not why(sampled_by(tmp_path / "run", plain, plain)).causes


def test_a_constant_that_the_model_does_not_have_or_has_so_already_is_not_run(models):
    for change, said in (("sliding_window=none", "has no sliding_window"), ("rope_theta=10000", "it is so")):
        with pytest.raises(EngineError, match=said):
            open_engine(parse_spec(f"{models['llama']}&config={change}"))
