"""A model with other constants, weights of another folder, or its adapter merged: against Transformers itself."""

import warnings

import numpy as np
import peft
import pytest
import torch
import transformers
from tiny_model import asked, exact_logprobs, opened, sequences

from onepolicy.engines.contract import Wanted
from onepolicy.errors import EngineError, UsageError
from onepolicy.integrations.transformers.load import load
from onepolicy.integrations.transformers.options import TransformersOptions

(IDS,) = sequences(40)


def scored(folder, **options):
    engine = opened(folder, **options)
    (row,) = engine.score([asked(IDS)], Wanted())
    return row.logprobs[1:], engine.info


def of_tokens(model):
    return exact_logprobs(model, IDS)[np.arange(len(IDS) - 1), IDS[1:]]


def test_another_rotary_base_and_scaling_are_those_of_the_config(folder):
    for change, rope in (
        ("rope_theta=500000", {"rope_type": "default", "rope_theta": 500000.0}),
        ("rope_factor=4", {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}),
    ):
        config = transformers.AutoConfig.from_pretrained(folder)
        config.rope_parameters = rope
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=torch.float64)
        found, info = scored(folder, config=change)
        np.testing.assert_allclose(found, of_tokens(model.eval()), atol=2e-5)
        assert info.weights_hash == "", "it is not the model of these files"


def test_several_constants_are_changed_at_once_and_counted_from_what_is_there(folder):
    config = transformers.AutoConfig.from_pretrained(folder)
    config.rope_parameters = {"rope_type": "default", "rope_theta": 1000.0}
    config.rms_norm_eps = 0.5
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=torch.float64)
    found, _ = scored(folder, config="rope_theta=1000;rms_norm_eps=0.5")
    np.testing.assert_allclose(found, of_tokens(model.eval()), atol=2e-5)


def test_rows_of_the_head_that_are_left_out_take_no_part_in_the_softmax(folder, plain):
    rows = int(max(IDS)) + 1
    found, info = scored(folder, config=f"vocab_size={rows}")
    with torch.no_grad():
        logits = plain(torch.tensor([IDS.tolist()])).logits[0, :-1, :rows].double().log_softmax(-1).numpy()
    np.testing.assert_allclose(found, logits[np.arange(len(IDS) - 1), IDS[1:]], atol=2e-5)
    assert info.vocab_size == plain.config.vocab_size, "ids beyond may still be read"
    cut, _ = scored(folder, config=f"vocab_size={rows - 1}")
    assert np.isnan(cut[IDS[1:] == rows - 1]).all() or np.isneginf(cut[IDS[1:] == rows - 1]).all()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("vocab_size=1000000", "has no rows beyond"),
        ("sliding_window=8", "has no sliding_window"),
        ("rope_theta=10000", "it is so in the model's folder"),
    ],
)
def test_a_constant_that_changes_nothing_is_refused(folder, change, said):
    with pytest.raises(EngineError, match=said):
        opened(folder, config=change)


@pytest.mark.parametrize("text", ["rope_theta", "=3", ";;"])
def test_what_is_no_list_of_constants_is_refused(folder, text):
    with pytest.raises(UsageError, match="NAME=VALUE"):
        opened(folder, config=text)


def test_weights_whose_names_hold_a_word_are_taken_from_another_folder(folder, plain, tmp_path):
    other = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    other.lm_head.weight.data *= 1.5
    other.save_pretrained(tmp_path / "other")
    found, info = scored(folder, replaced=f"lm_head={tmp_path / 'other'}")
    with torch.no_grad():
        exact = (plain(torch.tensor([IDS.tolist()])).logits[0] * 1.5).log_softmax(-1)[:-1].numpy()
    np.testing.assert_allclose(found, exact[np.arange(len(IDS) - 1), IDS[1:]], atol=2e-5)
    assert info.weights_hash == ""


def test_a_word_that_no_weight_holds_is_refused(folder):
    with pytest.raises(EngineError, match="0 weights of the model"):
        opened(folder, replaced=f"no_such={folder}")


def test_weights_that_an_adapter_was_added_to_are_rounded(folder, plain, tmp_path):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.random.fork_rng(), warnings.catch_warnings(action="ignore"):
        torch.manual_seed(0)
        config = peft.LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
        wrapped = peft.get_peft_model(model, config)
        wrapped.save_pretrained(tmp_path / "lora")
        layer = wrapped.get_submodule("base_model.model.model.layers.0.self_attn.q_proj")
        delta = layer.get_delta_weight("default").detach().double()
    options = TransformersOptions(adapter=str(tmp_path / "lora"), merged="bfloat16")
    weight = load(folder, options).model.get_submodule("model.layers.0.self_attn.q_proj").weight.detach()
    exact = (plain.get_submodule("model.layers.0.self_attn.q_proj").weight.detach() + delta).float()
    assert weight.dtype == torch.float32
    torch.testing.assert_close(weight, exact.bfloat16().float(), rtol=2.0**-8, atol=0.0)
    assert bool((weight == weight.bfloat16().float()).all())
    assert opened(folder, adapter=tmp_path / "lora", merged="float32").info.weights_hash == ""


def test_a_head_in_bfloat16_multiplies_in_it(folder, plain):
    found, _ = scored(folder, head="bfloat16")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        hidden = model.model(torch.tensor([IDS.tolist()])).last_hidden_state
        logits = (hidden.bfloat16() @ model.lm_head.weight.bfloat16().T).float()[0].log_softmax(-1)[:-1].numpy()
    np.testing.assert_allclose(found, logits[np.arange(len(IDS) - 1), IDS[1:]], atol=0.03)
    assert np.abs(found - of_tokens(plain)).max() > 1e-3
