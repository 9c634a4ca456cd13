"""K23 to K25: batches, experts and shards that add in another order (B110, B112, B114, B116, B117, B119)."""

import shutil

import numpy as np
import pytest
import torch
import transformers
from cases.case_runs import columns, function, known, named, of, of_tokens, sampled, served, trained, why
from leg_models import END, LONGEST, VOCABULARY, WIDTH, saved
from tiny_transformer import NOT_RECORDED, Pass, Shape, Tiny, sequences

from onepolicy.records.finding import Outcome

NOISE = {"precision", "batch"}


@pytest.fixture(scope="module")
def half(rope, tmp_path_factory):
    """A run that both sides read in bfloat16."""
    spec = f"transformers:{rope}?dtype=bfloat16"
    return trained(sampled(tmp_path_factory.mktemp("half") / "run", f"{spec}&batch_size=1"), spec)


@pytest.mark.parametrize("batch", [1, 2, 8])
def test_b110_batches_of_another_size_are_noise(tmp_path, rope, half, batch):
    path = served(shutil.copytree(half, tmp_path / "run"), f"transformers:{rope}?dtype=bfloat16&batch_size={batch}")
    found = why(path, of="served")
    assert not found.differs
    assert {cause for cause, _ in named(found)} <= NOISE


SOME_ROWS = """
exact, half = right_way(MODEL, token_ids), under_autocast(MODEL, token_ids)
return [b if len(one) % 7 == 0 else a for one, a, b in zip(token_ids, exact, half)]
"""


def test_b112_rows_of_one_shape_alone_are_no_other_cause(tmp_path, rope):
    path = trained(sampled(tmp_path / "run", f"transformers:{rope}"), f"transformers:{rope}")
    found = why(served(path, function(tmp_path, rope, SOME_ROWS)), of="served")
    assert {cause for cause, _ in named(found)} <= NOISE, found.sentence


@pytest.fixture(scope="module")
def two_rows():
    """Logprobs of 16 rows, two of which have the noise of 16 bits, and the same of the other side."""
    model, ids, rng = Tiny(), sequences(length=80), np.random.default_rng(0)
    exact = [model.logprobs(one) for one in ids]
    noisy = [one + 0.02 * (n % 8 == 7) * rng.standard_normal(len(one)) for n, one in enumerate(exact)]
    return ids, noisy, exact


def test_b112_within_the_noise_of_bfloat16_there_is_nothing_to_explain(two_rows):
    findings, sentence = of_tokens(columns(*two_rows), known("bfloat16"))
    assert not named(findings)
    assert sentence.startswith("Nothing to explain")


def test_b112_what_few_rows_have_is_not_called_the_noise_of_float32(two_rows):
    _, sentence = of_tokens(columns(*two_rows), known("float32"))
    assert not sentence.startswith("Nothing to explain")


@pytest.fixture(scope="module")
def moe():
    return Tiny(Shape(experts=4))


IDS = sequences(count=24, length=64)


def routed(model, **how):
    passes = [Pass(**how) for _ in IDS]
    return [model.logprobs(ids, one) for ids, one in zip(IDS, passes, strict=True)], [one.routes for one in passes]


def test_b114_experts_that_flip_are_no_other_cause_and_the_routes_are_asked_for(moe):
    (p, _), (q, _) = routed(moe, nudge=3e-3), routed(moe)
    findings, sentence = of_tokens(columns(IDS, p, q), known())
    assert not named(findings), sentence
    assert of(findings, "expert routing").outcome is Outcome.UNTESTED
    assert "routes that the rollout side took" in of(findings, "expert routing").seen


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory):
    config = transformers.MixtralConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LONGEST,
        initializer_range=0.4,
        eos_token_id=END,
        bos_token_id=None,
        pad_token_id=END,
        num_local_experts=4,
        num_experts_per_tok=2,
    )
    return saved(transformers.MixtralForCausalLM, config, tmp_path_factory.mktemp("moe") / "model")


def test_b114_flips_through_bfloat16_are_precision(tmp_path, mixtral):
    spec = f"transformers:{mixtral}?attn=eager"
    found = why(trained(sampled(tmp_path / "run", f"{spec}&dtype=bfloat16"), spec))
    assert named(found)[0] == ("precision", "cause"), found.sentence


NUDGED = """
for layer in MODEL.model.layers:
    gate = layer.mlp.gate
    if not hasattr(gate, "kept"):
        gate.kept = gate.weight.data.clone()
        noise = torch.randn(gate.kept.shape, generator=torch.Generator().manual_seed(0))
        gate.weight.data = gate.kept + 0.01 * gate.kept.std() * noise
return right_way(MODEL, token_ids)
"""


@pytest.fixture
def nudged(tmp_path, mixtral):
    spec = f"transformers:{mixtral}?attn=eager"
    path = trained(sampled(tmp_path / "run", spec), spec)
    return why(served(path, function(tmp_path, mixtral, NUDGED)), of="served")


def test_b114_a_router_that_rounds_otherwise_is_no_other_cause(nudged):
    assert not named(nudged), nudged.sentence


def test_b114_routing_is_not_ruled_out_by_another_number_of_experts(nudged):
    assert of(nudged, "expert routing").outcome is not Outcome.RULED_OUT


@pytest.mark.parametrize("fill", [0, NOT_RECORDED])
def test_b116_a_capture_that_was_padded_with_expert_0_is_no_other_cause(moe, fill):
    free, routes = routed(moe)
    cut = [[torch.cat([one[:40], torch.full_like(one[40:], fill)]) for one in of_row] for of_row in routes]
    replayed = [moe.logprobs(ids, Pass(replay=one)) for ids, one in zip(IDS, cut, strict=True)]
    findings, sentence = of_tokens(columns(IDS, free, replayed), known())
    assert not named(findings), sentence
    assert ("Nothing to explain" in sentence) is (fill == NOT_RECORDED)
    assert of(findings, "expert routing").outcome is Outcome.UNTESTED


SHARDED = """
MODEL.bfloat16()
def rowwise(x, weight, parts):
    step = weight.shape[1] // parts
    cut = [(x[..., i : i + step] @ weight[:, i : i + step].T) for i in range(0, weight.shape[1], step)]
    total = cut[0]
    for part in cut[1:]:
        total = total + part
    return total
for layer in MODEL.model.layers:
    for linear in (layer.self_attn.o_proj, layer.mlp.down_proj):
        linear.forward = lambda x, linear=linear: rowwise(x, linear.weight, {parts})
return right_way(MODEL, token_ids)
"""


@pytest.mark.parametrize("parts", [2, 4])
def test_b117_another_degree_of_tensor_parallelism_is_noise(tmp_path, rope, half, parts):
    code = SHARDED.replace("{parts}", str(parts))
    spec = f"{function(tmp_path, rope, code)}?dtype=bfloat16"
    found = why(served(shutil.copytree(half, tmp_path / "run"), spec), of="served")
    assert not found.differs
    assert {cause for cause, _ in named(found)} <= NOISE


@pytest.mark.parametrize("copies", [1, 4])
def test_b119_a_pass_of_another_shape_is_nothing_to_explain(tmp_path, rope, copies):
    path = trained(sampled(tmp_path / "run", f"transformers:{rope}"), f"transformers:{rope}")
    code = f"return right_way(MODEL, token_ids * {copies})[: len(token_ids)]"
    assert not why(served(path, function(tmp_path, rope, code)), of="served").causes
