"""FSDP2 on two gloo ranks is bit-identical to one process, tensor parallel is not; both measured on real models."""

import json

import numpy as np
import pytest
import torch
import transformers

from onepolicy.engines.parallel import parse_layouts
from onepolicy.engines.spec import EngineSpec
from onepolicy.integrations.transformers.parallel_plan import tensor_parallel_plan
from onepolicy.records.verdict import Status
from onepolicy.workflow.parallel import ParallelRequest, parallel
from onepolicy.workflow.parallel_sequences import SequenceSource

pytestmark = pytest.mark.real
VOCABULARY = 300


@pytest.fixture(scope="module")
def rotary(tmp_path_factory):
    """A saved random Llama with two layers of four heads."""
    path = tmp_path_factory.mktemp("rotary")
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.LlamaForCausalLM(config).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def ids(tmp_path_factory):
    path = tmp_path_factory.mktemp("ids") / "ids.jsonl"
    generator = np.random.default_rng(0)
    path.write_text("\n".join(json.dumps(generator.integers(VOCABULARY, size=size).tolist()) for size in (17, 40)))
    return path


def spread(model, *layouts, source, **options):
    spec = EngineSpec(engine="transformers", target=str(model), options=options)
    found = parallel(ParallelRequest(spec=spec, layouts=parse_layouts(layouts), source=source, timeout=120.0))
    return found, {one.layout: one for one in found.layouts}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_fsdp_is_bit_identical_and_tensor_parallel_is_not(rotary, ids, dtype):
    found, by = spread(rotary, "fsdp=2", "tp=2", source=SequenceSource(ids=ids), dtype=dtype)
    assert found.dtype == dtype
    assert found.status is Status.PASS
    assert by["fsdp=2"].is_identical
    assert by["fsdp=2"].digests == found.digests
    tp = by["tp=2"]
    assert tp.notes == ()
    assert tp.repeats
    assert tp.bitwise_share < 1.0
    assert tp.max_ulp > 0
    assert 0.0 < tp.mean_abs_d < (1e-5 if dtype == "float32" else 0.05)


@pytest.mark.full
def test_the_packaged_model_likewise_and_heads_that_do_not_divide_stay_whole(tmp_path):
    source = SequenceSource(count=2, longest=48)
    found, by = spread("smollm2", "fsdp=2", "tp=2", source=source)
    assert found.status is Status.PASS
    assert by["fsdp=2"].is_identical
    assert 0.0 < by["tp=2"].mean_abs_d < 1e-4
    assert by["tp=2"].bitwise_share < 1.0
    assert by["tp=2"].notes == ("model.layers.*.self_attn: q_proj has 9 parts, which 2 does not divide",)


def test_a_degree_that_cannot_be_had_is_unknown(rotary, ids):
    found, by = spread(rotary, "ep=2", "fsdp=2", source=SequenceSource(ids=ids))
    assert found.status is Status.UNKNOWN
    assert "Transformers models are spread as fsdp or tp" in by["ep=2"].missing
    assert by["ep=2"].mean_abs_d is None
    assert by["fsdp=2"].is_identical


def test_experts_stay_whole_and_the_attention_is_split():
    config = transformers.MixtralConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_local_experts=4,
    )
    plan = tensor_parallel_plan(transformers.MixtralForCausalLM(config), 2)
    assert [name for name in plan.styles if "self_attn" in name]
    assert any("experts" in reason for reason in plan.whole)
