"""Oracles: what `generate` reports, and a float64 loop over one sequence at a time without padding."""

import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PhiConfig,
    PhiForCausalLM,
)

from onepolicy.errors import AlignmentError, UsageError
from onepolicy.logprobs.compute import compute_logprobs, uses_hidden_states
from onepolicy.logprobs.report import ReportRequest
from onepolicy.records.protocol import Meaning

V = 97
SHAPE = {
    "vocab_size": V,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}


def build(kind):
    torch.manual_seed(1)
    models = {
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
        "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(**SHAPE, head_dim=8, final_logit_softcapping=5.0)),
        "cohere": lambda: CohereForCausalLM(CohereConfig(**SHAPE, logit_scale=0.0625)),
        "granite": lambda: GraniteForCausalLM(GraniteConfig(**SHAPE, logits_scaling=4.0)),
        "bloom": lambda: BloomForCausalLM(
            BloomConfig(vocab_size=V, hidden_size=32, n_layer=2, n_head=4, pad_token_id=0, eos_token_id=None)
        ),
    }
    return models[kind]().eval()


@pytest.fixture(scope="module", params=["llama", "gemma2"])
def model(request):
    return build(request.param)


@pytest.fixture(scope="module")
def llama():
    return build("llama")


def laid_out(sequences, left):
    """Sequences as rows with `left[i]` padding tokens before them and as many as needed behind."""
    width = max(len(ids) + pad for ids, pad in zip(sequences, left, strict=True))
    ids, mask = torch.zeros(len(sequences), width, dtype=torch.long), torch.zeros(len(sequences), width)
    for i, (sequence, pad) in enumerate(zip(sequences, left, strict=True)):
        ids[i, pad : pad + len(sequence)] = sequence
        mask[i, pad : pad + len(sequence)] = 1
    return ids, mask.long()


PADDINGS = {"left": [4, 0, 2], "right": [0, 0, 0], "both sides": [1, 0, 5]}
PROMPT_LENGTHS = [3, 7, 5]
PROCESSED = {"do_sample": True, "temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.03}


def generated(model, **settings):
    """Sequences without padding, and the [B, C, V] scores and logits that `generate` reports."""
    torch.manual_seed(3)
    prompts = [torch.randint(1, V, (length,)) for length in PROMPT_LENGTHS]
    ids, mask = laid_out(prompts, [7 - length for length in PROMPT_LENGTHS])
    out = model.generate(
        ids,
        attention_mask=mask,
        max_new_tokens=6,
        output_scores=True,
        output_logits=True,
        return_dict_in_generate=True,
        **settings,
    )
    full = [out.sequences[i, 7 - length :] for i, length in enumerate(PROMPT_LENGTHS)]
    return full, torch.stack(out.scores, 1), torch.stack(out.logits, 1)


def computed(model, sequences, left, meaning):
    ids, mask = laid_out(sequences, left)
    completion = torch.zeros_like(mask)
    for i, (pad, length) in enumerate(zip(left, PROMPT_LENGTHS, strict=True)):
        completion[i, pad + length : pad + len(sequences[i])] = 1
    return compute_logprobs(
        model,
        input_ids=ids,
        attention_mask=mask,
        completion_mask=completion,
        request=ReportRequest(meaning=meaning),
    )


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("kind", ["raw", "processed"])
def test_logprobs_equal_those_that_generate_reports_under_any_padding(model, padding, kind):
    sequences, scores, logits = generated(model, **PROCESSED)
    meaning = Meaning()
    if kind == "processed":
        meaning = Meaning(temperature=0.8, top_k=40, top_p=0.9, min_p=0.03)
    reported = (logits if kind == "raw" else scores).double().log_softmax(dim=2)
    tokens = torch.stack([sequence[-6:] for sequence in sequences])
    expected = reported.gather(2, tokens[:, :, None])[:, :, 0].flatten()
    found = computed(model, sequences, PADDINGS[padding], meaning)
    torch.testing.assert_close(found.report.logprobs.double(), expected, atol=2e-5, rtol=0)
    assert found.rows.tolist() == [i for i in range(3) for _ in range(6)]


def test_a_sequence_alone_equals_the_one_that_generate_reports(model):
    sequences, _, logits = generated(model, do_sample=False)
    ids = sequences[1][None]
    completion = torch.zeros_like(ids)
    completion[0, 7:] = 1
    found = compute_logprobs(model, input_ids=ids, attention_mask=torch.ones_like(ids), completion_mask=completion)
    expected = logits[1].double().log_softmax(dim=1).gather(1, ids[0, 7:, None])[:, 0]
    torch.testing.assert_close(found.report.logprobs.double(), expected, atol=2e-5, rtol=0)
    assert found.positions.tolist() == list(range(7, 13))


@pytest.mark.parametrize(
    ("kind", "plain"),
    [("llama", True), ("gemma2", False), ("cohere", False), ("granite", False), ("bloom", True)],
)
def test_the_full_logits_are_used_unless_the_head_is_all_there_is(kind, plain):
    model = build(kind)
    assert uses_hidden_states(model) is plain
    ids = torch.randint(1, V, (2, 9))
    completion = torch.ones_like(ids)
    completion[:, :4] = 0
    found = compute_logprobs(model, input_ids=ids, attention_mask=torch.ones_like(ids), completion_mask=completion)
    with torch.no_grad():
        logp = model(ids).logits.double().log_softmax(dim=2)
    expected = logp[:, 3:-1].gather(2, ids[:, 4:, None]).flatten()
    torch.testing.assert_close(found.report.logprobs.double(), expected, atol=5e-6, rtol=0)


def test_soft_capping_that_hardly_changes_the_logits_is_noticed():
    config = Gemma2Config(**{**SHAPE, "initializer_range": 0.002}, head_dim=8, final_logit_softcapping=1000.0)
    assert not uses_hidden_states(Gemma2ForCausalLM(config).eval())


def test_a_head_that_was_replaced_is_asked_about_again(llama):
    model = build("llama")
    assert uses_hidden_states(model)
    head = torch.nn.Linear(32, V, bias=True)
    model.set_output_embeddings(head)
    assert uses_hidden_states(model)
    model.set_output_embeddings(torch.nn.Sequential(head))
    assert not uses_hidden_states(model)


def test_padding_inside_a_sequence_is_skipped(llama):
    sequence = torch.randint(1, V, (6,))
    ids = torch.cat([sequence[:3], torch.zeros(2, dtype=torch.long), sequence[3:]])[None]
    mask = torch.tensor([[1, 1, 1, 0, 0, 1, 1, 1]])
    completion = torch.tensor([[0, 0, 0, 0, 0, 1, 1, 1]])
    found = compute_logprobs(llama, input_ids=ids, attention_mask=mask, completion_mask=completion)
    with torch.no_grad():
        logp = llama(sequence[None]).logits[0].double().log_softmax(dim=1)
    expected = logp[2:5].gather(1, sequence[3:, None])[:, 0]
    torch.testing.assert_close(found.report.logprobs.double(), expected, atol=2e-5, rtol=0)


def test_given_position_ids_are_used(llama):
    ids = torch.randint(1, V, (1, 6))
    ones, far = torch.ones_like(ids), torch.tensor([[0, 9, 20, 31, 47, 60]])
    completion = torch.tensor([[0, 0, 0, 0, 0, 1]])
    arguments = {"input_ids": ids, "attention_mask": ones, "completion_mask": completion}
    found = compute_logprobs(llama, **arguments, position_ids=far)
    with torch.no_grad():
        expected = llama(ids, position_ids=far).logits[0, 4].log_softmax(dim=0)[ids[0, 5]]
    torch.testing.assert_close(found.report.logprobs[0], expected, atol=1e-5, rtol=0)
    assert found.report.logprobs[0] != compute_logprobs(llama, **arguments).report.logprobs[0]


def test_statistics_know_the_context_of_each_token(model):
    sequences = [torch.randint(1, V, (length,)) for length in (8, 6)]
    ids, mask = laid_out(sequences, [0, 1])
    completion = torch.zeros_like(ids)
    completion[0, 4:8] = completion[1, 4:7] = 1
    found = compute_logprobs(
        model,
        input_ids=ids,
        attention_mask=mask,
        completion_mask=completion,
        request=ReportRequest(statistics=True),
    )
    penalised = found.report.statistics["logprob_repetition_1_1"]
    with torch.no_grad():
        x = model(sequences[1][None]).logits[0, 4].double()
    for v in set(sequences[1][:5].tolist()):
        x[v] = x[v] * 1.1 if x[v] < 0 else x[v] / 1.1
    assert float(penalised[-2]) != float(penalised[-1])
    assert float(penalised[-1]) == pytest.approx(float(x.log_softmax(0)[sequences[1][5]]), abs=2e-5)


def test_a_bfloat16_model_is_scored_from_its_own_bfloat16_logits():
    model = build("llama").bfloat16()
    ids = torch.randint(1, V, (2, 9))
    completion = torch.ones_like(ids)
    completion[:, 0] = 0
    found = compute_logprobs(model, input_ids=ids, attention_mask=torch.ones_like(ids), completion_mask=completion)
    with torch.no_grad():
        logits = model(ids).logits
    assert logits.dtype == torch.bfloat16
    expected = logits[:, :-1].double().log_softmax(dim=2).gather(2, ids[:, 1:, None]).flatten()
    # One last bit of a bfloat16 logit of about 4.
    torch.testing.assert_close(found.report.logprobs.double(), expected, atol=0.04, rtol=0)


def test_no_completion_tokens_give_an_empty_answer(model):
    ids = torch.randint(1, V, (2, 5))
    found = compute_logprobs(
        model, input_ids=ids, attention_mask=torch.ones_like(ids), completion_mask=torch.zeros_like(ids)
    )
    assert found.rows.shape == found.positions.shape == found.report.logprobs.shape == (0,)


def test_the_first_real_token_has_no_logprob(llama):
    ids, mask = laid_out([torch.randint(1, V, (4,)), torch.randint(1, V, (6,))], [2, 0])
    completion = torch.zeros_like(ids)
    completion[0, 2] = 1
    with pytest.raises(AlignmentError, match="sequence 0 at column 2 and is the first real token"):
        compute_logprobs(llama, input_ids=ids, attention_mask=mask, completion_mask=completion)
    completion[0, 2], completion[0, 1] = 0, 1
    with pytest.raises(AlignmentError, match="sequence 0 at column 1 and is padding"):
        compute_logprobs(llama, input_ids=ids, attention_mask=mask, completion_mask=completion)


def test_masks_of_another_shape_are_refused(llama):
    ids = torch.randint(1, V, (2, 5))
    with pytest.raises(AlignmentError, match=r"completion_mask has shape \[2, 4\] and input_ids \[2, 5\]"):
        compute_logprobs(llama, input_ids=ids, attention_mask=torch.ones_like(ids), completion_mask=torch.ones(2, 4))


def test_position_ids_for_a_model_without_them_are_refused():
    ids = torch.randint(1, V, (1, 5))
    with pytest.raises(UsageError, match="BloomForCausalLM takes none"):
        compute_logprobs(
            build("bloom"),
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            completion_mask=torch.tensor([[0, 0, 0, 0, 1]]),
            position_ids=torch.arange(5)[None],
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_head_with_a_bias_gives_the_models_own_logprobs_in_half_precision_too(dtype):
    """Phi's head has a bias. A product that is rounded before the bias is added is another number."""
    config = PhiConfig(vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    model = PhiForCausalLM(config).to(dtype).eval()
    torch.nn.init.normal_(model.lm_head.bias)
    ids = torch.randint(97, (3, 40))
    mask = torch.ones_like(ids)
    wanted = torch.ones_like(ids)
    wanted[:, 0] = 0
    got = compute_logprobs(model, input_ids=ids, attention_mask=mask, completion_mask=wanted).report.logprobs
    with torch.no_grad():
        own = model(input_ids=ids, attention_mask=mask).logits.float().log_softmax(-1)
    expected = own[:, :-1].gather(2, ids[:, 1:, None]).flatten()
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
