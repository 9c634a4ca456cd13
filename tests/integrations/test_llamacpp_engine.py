"""The llama.cpp engine on a tiny random model with a byte vocabulary, whose output is full of broken characters."""

import subprocess
import sys
import threading

import gguf
import httpx
import numpy as np
import pytest
import torch
import transformers

from onepolicy.engines.contract import SampleInput, Sampler, ScoreInput, Wanted
from onepolicy.engines.spec import parse_spec
from onepolicy.errors import EngineError, UsageError
from onepolicy.integrations import open_engine, open_sampler
from onepolicy.integrations.llamacpp.align import (
    complete_positions,
    ends_inside_character,
    only_embedding,
    paired_positions,
)
from onepolicy.integrations.llamacpp.answer import completion_of
from onepolicy.integrations.llamacpp.engine import LlamaCppEngine
from onepolicy.integrations.llamacpp.request import refuse_other_settings, request_of, settings_of
from onepolicy.integrations.llamacpp.vocabulary import Vocabulary, byte_alphabet, read_vocabulary
from onepolicy.records.protocol import Meaning, SamplingProtocol
from onepolicy.records.tokens import TokenState

END = 256
VOCABULARY_SIZE = 288


def one_byte(token_id):
    """A vocabulary in which each id is one byte."""
    return bytes([token_id])


def prompt(rollout_id="r-0", ids=(72, 105), seed=0):
    return SampleInput(rollout_id=rollout_id, prompt_ids=np.asarray(ids, dtype=np.int32), seed=seed)


def entry(token_id, logprob=-1.0, top=((7, -0.5), (8, -0.9))):
    listed = [{"id": other, "logprob": value} for other, value in top]
    return {"id": token_id, "logprob": logprob, "top_logprobs": listed}


def answer(ids, entries, **fields):
    return {"tokens": ids, "completion_probabilities": entries, "stop_type": "limit", "content": "text"} | fields


def completed(ids, entries, *, top=0, **fields):
    return completion_of(prompt(), answer(ids, entries, **fields), Wanted(top=top), bytes_of=one_byte)


# which token an entry belongs to


def test_entries_for_every_token_are_paired_in_order():
    assert paired_positions([5, 6, 5], [5, 6, 5], bytes_of=one_byte) == [0, 1, 2]


def test_as_many_entries_as_tokens_but_other_ids_are_not_paired():
    assert paired_positions([5, 6], [6, 5], bytes_of=one_byte) is None


def test_only_the_last_token_of_a_character_has_an_entry():
    text = list("aé介b".encode())
    assert complete_positions(text, bytes_of=one_byte) == [0, 2, 5, 6]
    assert paired_positions(text, [text[at] for at in (0, 2, 5, 6)], bytes_of=one_byte) == [0, 2, 5, 6]


def test_repeated_ids_are_paired_by_the_rule_where_order_alone_would_allow_several_ways():
    lead, middle = 0xE4, 0xBB
    ids = [lead, middle, middle, lead, middle, middle]
    assert only_embedding(ids, [middle, middle]) is None
    assert paired_positions(ids, [middle, middle], bytes_of=one_byte) == [2, 5]


def test_a_completion_cut_inside_a_character_has_no_entry_at_its_end():
    ids = [*b"ab", 0xF0, 0x9F, 0x98]
    assert paired_positions(ids, [97, 98], bytes_of=one_byte) == [0, 1]


def test_an_invalid_lead_byte_swallows_the_bytes_it_is_owed():
    ids = [0xE4, *b"ab", 0xC3, *b"c"]
    assert complete_positions(ids, bytes_of=one_byte) == [2, 4]


def test_a_stray_continuation_byte_counts_as_complete():
    assert complete_positions([0x80, 0xBF], bytes_of=one_byte) == [0, 1]


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        (b"", False),
        (b"a", False),
        (b"\xc3", True),
        (b"\xc3\xa9", False),
        (b"\xe4\xbb", True),
        (b"\xe4\xbb\x8b", False),
        (b"\xf0\x9f\x98", True),
        (b"\xf0\x9f\x98\x80", False),
        (b"\xff", False),
    ],
)
def test_a_text_ends_inside_a_character_while_its_lead_byte_is_owed_bytes(text, inside):
    assert ends_inside_character(text) is inside


def test_tokens_of_unknown_bytes_are_paired_only_if_one_way_exists():
    assert paired_positions([1, 2, 3], [1, 3], bytes_of=lambda _: None) == [0, 2]
    assert paired_positions([1, 2, 2], [1, 2], bytes_of=lambda _: None) is None


def test_entries_that_are_not_among_the_tokens_are_not_paired():
    assert paired_positions([1, 2, 3], [4], bytes_of=lambda _: None) is None


def test_no_entries_belong_to_no_token():
    assert paired_positions([0xE4, 0xBB], [], bytes_of=one_byte) == []


# the bytes of a vocabulary


def test_the_byte_alphabet_is_a_bijection_that_writes_the_space_as_g_with_dot():
    assert sorted(byte_alphabet().values()) == list(range(256))
    assert byte_alphabet()["Ġ"] == 0x20


def test_byte_level_tokens_are_read_through_the_alphabet_and_control_tokens_as_text():
    vocabulary = Vocabulary(kind="gpt2", tokens=("Ġhi", "ä»", "<|im_end|>", "介"), types=(1, 1, 3, 1))
    assert [vocabulary.bytes_of(n) for n in range(4)] == [b" hi", b"\xe4\xbb", b"<|im_end|>", None]


def test_sentence_piece_tokens_write_spaces_and_single_bytes_their_own_way():
    vocabulary = Vocabulary(kind="llama", tokens=("▁hi", "<0xE4>", "</s>"), types=(1, 6, 3))
    assert [vocabulary.bytes_of(n) for n in range(3)] == [b" hi", b"\xe4", b"</s>"]


def test_bytes_of_an_unknown_kind_of_vocabulary_or_an_unknown_id_are_not_known():
    assert Vocabulary(kind="bert", tokens=("a",), types=(1,)).bytes_of(0) is None
    assert Vocabulary(kind="gpt2", tokens=("a",), types=(1,)).bytes_of(1) is None


# what is asked and what comes back


def test_every_sampling_field_is_sent():
    sent = request_of(prompt(seed=9), settings_of(prompt(seed=9), SamplingProtocol(top_k=5), Wanted(top=3)))
    assert sent["prompt"] == [72, 105]
    assert (sent["temperature"], sent["top_k"], sent["top_p"], sent["min_p"], sent["seed"]) == (1.0, 5, 1.0, 0.0, 9)
    assert (sent["repeat_penalty"], sent["cache_prompt"], sent["n_probs"]) == (1.0, False, 3)


def test_a_server_that_used_another_value_is_refused():
    sent = settings_of(prompt(), SamplingProtocol(top_k=5), Wanted())
    with pytest.raises(EngineError, match=r"rollout r-0: .*top_k=40; top_k=5 was sent"):
        refuse_other_settings(prompt(), sent=sent, used=sent | {"top_k": 40})


def test_a_server_that_does_not_say_what_it_used_is_refused():
    sent = settings_of(prompt(), SamplingProtocol(), Wanted())
    with pytest.raises(EngineError, match="does not say which dynatemp_range"):
        refuse_other_settings(prompt(), sent=sent, used={})


def test_numbers_that_the_server_keeps_as_float32_count_as_the_same():
    sent = settings_of(prompt(), SamplingProtocol(temperature=0.8), Wanted())
    refuse_other_settings(prompt(), sent=sent, used=sent | {"temperature": float(np.float32(0.8))})


@pytest.mark.parametrize("sentinel", [-9999.0, -3.4028234663852886e38, float("nan")])
def test_sentinels_become_invalid_and_never_numbers(sentinel):
    completion = completed([97, 98], [entry(97), entry(98, logprob=sentinel)])
    assert completion.states.tolist() == [TokenState.VALUE, TokenState.INVALID]
    assert np.isnan(completion.logprobs[1])


def test_a_logprob_of_null_is_absent():
    completion = completed([97], [entry(97, logprob=None)])
    assert completion.states.tolist() == [TokenState.ABSENT]


def test_entries_that_cannot_be_paired_leave_the_whole_completion_absent():
    completion = completed([97, 98], [entry(98), entry(97)])
    assert completion.states.tolist() == [TokenState.ABSENT] * 2
    assert completion.top1.tolist() == [-1, -1]


def test_top_lists_exist_where_an_entry_exists_and_are_as_long_as_the_shortest():
    completion = completed([*"é".encode(), 97], [entry(0xA9), entry(97, top=((1, -0.1),))], top=2)
    assert completion.top.positions.tolist() == [1, 2]
    assert completion.top.ids.tolist() == [[7], [1]]
    assert completion.top1.tolist() == [-1, 7, 1]


def test_an_answer_without_token_ids_names_the_rollout():
    incomplete = {"content": "x", "stop_type": "eos"}
    with pytest.raises(EngineError, match=r"rollout r-0: .* has no 'tokens'"):
        completion_of(prompt(), incomplete, Wanted(), bytes_of=one_byte)


# the engine


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A random Llama with 256 byte tokens and its GGUF file."""
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        initializer_range=0.3,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(config).eval()
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(model, path)
    return model, path


def write_gguf(model, path):
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_file_type(0)
    tokens = [char for char, _ in sorted(byte_alphabet().items(), key=lambda pair: pair[1])]
    extra = ["<|end|>", *(f"<|{n}|>" for n in range(VOCABULARY_SIZE - END - 2)), "ab"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens + extra)
    writer.add_token_types([1] * 256 + [3] * (len(extra) - 1) + [1])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(END)
    writer.add_bos_token_id(END)
    writer.add_add_bos_token(False)
    writer.add_chat_template(
        "{% for m in messages %}{{ m.role }}:{{ m.content }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}A:{% endif %}"
    )
    for name, values in model.state_dict().items():
        writer.add_tensor(gguf_name(name), gguf_values(name, values.numpy(), config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_name(name):
    names = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    parts = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    if name in names:
        return names[name]
    _, _, layer, part = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{parts[part]}.weight"


def gguf_values(name, values, config):
    """Rotary pairs are neighbours in GGUF and halves in Transformers."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for part, count in heads.items():
        if part in name:
            split = values.reshape(count, 2, -1, values.shape[1])
            return np.ascontiguousarray(split.swapaxes(1, 2).reshape(values.shape))
    return values


@pytest.fixture(scope="module")
def engine(tiny):
    _, path = tiny
    engine = open_sampler(parse_spec(f"llamacpp:{path}?ctx=256&parallel=2&threads=1&batch_size=4"))
    yield engine
    engine.close()


def expected_logprobs(model, prompt_ids, completion_ids):
    ids = torch.tensor([[*prompt_ids, *completion_ids]])
    with torch.no_grad():
        logprobs = model(ids).logits[0].double().log_softmax(-1)
    at = range(len(prompt_ids) - 1, ids.shape[1] - 1)
    return logprobs[list(at)].numpy()


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_sampled_logprobs_are_those_of_the_model_for_the_very_tokens(tiny, engine, temperature):
    model, _ = tiny
    prompts = [prompt(f"r-{n}", seed=n) for n in range(6)]
    protocol = SamplingProtocol(max_new_tokens=100, temperature=temperature)
    absent = 0
    for completion in engine.sample(prompts, protocol, Wanted(top=4)):
        value = completion.states == TokenState.VALUE
        absent += int((~value).sum())
        exact = expected_logprobs(model, [72, 105], completion.token_ids)
        mine = exact[np.arange(len(value)), completion.token_ids]
        # the server keeps its cache in float16, and these weights are large
        np.testing.assert_allclose(completion.logprobs[value], mine[value], atol=0.2)
        assert np.abs(completion.logprobs[value] - mine[value]).mean() < 0.01
        best = np.sort(exact[completion.top.positions], axis=1)[:, ::-1][:, :4]
        np.testing.assert_allclose(completion.top.logprobs, best, atol=0.2)
        assert set(completion.states.tolist()) <= {TokenState.VALUE, TokenState.ABSENT}
    assert absent > 20, "random bytes must have cut characters, or this test shows nothing"


def test_transformers_reads_the_same_file_once_and_scores_with_its_exact_weights(tiny, tmp_path, monkeypatch, capfd):
    model, path = tiny
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ids = np.asarray([72, 105, 33, 200], dtype=np.int32)
    item = ScoreInput(rollout_id="r-0", token_ids=ids, wanted=np.asarray([False, True, True, True]))
    for _ in range(2):
        trainer = open_engine(parse_spec(f"transformers:{path}"))
        (row,) = trainer.score([item], Wanted())
        exact = expected_logprobs(model, ids[:1], ids[1:])[np.arange(3), ids[1:]]
        np.testing.assert_allclose(row.logprobs[1:], exact, atol=1e-4)
    said = capfd.readouterr().err.splitlines()
    assert said == ["onepolicy: converting tiny.gguf for Transformers, once; this takes about 20 s"]
    assert len([entry for entry in (tmp_path / "onepolicy" / "models").iterdir() if entry.is_dir()]) == 1


def test_greedy_takes_the_most_likely_token(engine):
    (completion,) = engine.sample([prompt()], SamplingProtocol(temperature=0.0, max_new_tokens=20), Wanted())
    known = completion.top1 >= 0
    assert known.any()
    assert completion.top1[known].tolist() == completion.token_ids[known].tolist()


def test_a_seed_repeats_its_completion_and_another_seed_does_not(engine):
    protocol = SamplingProtocol(max_new_tokens=20)
    first, again, other = (
        engine.sample([prompt(seed=seed)], protocol, Wanted())[0].token_ids.tolist() for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_a_completion_ends_with_the_sampled_end_token_and_spells_it_out(engine):
    prompts = [prompt(f"r-{n}", seed=n) for n in range(40)]
    completions = engine.sample(prompts, SamplingProtocol(max_new_tokens=200), Wanted())
    stopped = [completion for completion in completions if completion.finish_reason == "stop"]
    assert stopped, "with 288 tokens and 40 x 200 draws some completion must end"
    for completion in stopped:
        assert completion.token_ids[-1] == END
        assert completion.stop_reason == str(END)
        assert completion.text.endswith("<|end|>")
    assert [completion.rollout_id for completion in completions] == [item.rollout_id for item in prompts]


def test_a_completion_at_the_limit_says_length(engine):
    (completion,) = engine.sample([prompt(seed=1)], SamplingProtocol(max_new_tokens=3), Wanted())
    assert (completion.finish_reason, completion.stop_reason, len(completion.token_ids)) == ("length", "", 3)


def test_the_engine_is_a_sampler_that_says_what_it_is(tiny, engine):
    assert isinstance(engine, Sampler)
    info = engine.info
    assert (info.name, info.vocab_size, info.max_length) == ("llamacpp", VOCABULARY_SIZE, 256)
    assert len(info.weights_hash) == 16
    assert info.dtype == "float32"
    assert engine.tokenizer_file() is None
    assert engine.sampled_meaning(SamplingProtocol(temperature=0.5)) == Meaning()
    assert engine.condition(path="decode").batch_size == 2


def test_text_goes_to_ids_and_back_with_special_tokens_spelled_out(engine):
    ids = engine.encode("hé<|end|>", add_special_tokens=False)
    assert ids.tolist() == [*"hé".encode(), END]
    assert engine.decode(ids) == "hé<|end|>"


def test_a_conversation_is_rendered_with_the_models_template(engine):
    ids = engine.encode_chat([{"role": "user", "content": "hi"}])
    assert ids.tolist() == [*b"user:hi", END, *b"A:"]


def test_the_vocabulary_of_a_file_is_its_bytes(tiny):
    _, path = tiny
    vocabulary = read_vocabulary(path)
    assert [vocabulary.bytes_of(n) for n in (0, 0xE4, END)] == [b"\x00", b"\xe4", b"<|end|>"]


def test_scoring_says_that_the_engine_is_a_rollout_side(engine):
    item = ScoreInput(rollout_id="r-0", token_ids=np.zeros(2, np.int32), wanted=np.ones(2, np.bool_))
    with pytest.raises(EngineError, match="use it as --rollout"):
        engine.score([item], Wanted())


def test_a_prompt_that_does_not_fit_names_the_rollout_and_the_option(engine):
    with pytest.raises(EngineError, match=r"rollout long: 250 prompt tokens and max_new_tokens=64 .* 256 .* ctx"):
        engine.sample([prompt("long", ids=[72] * 250)], SamplingProtocol(max_new_tokens=64), Wanted())


def test_a_prompt_that_the_server_refuses_names_the_rollout(engine):
    with pytest.raises(EngineError, match=r"rollout odd: the llama.cpp server refused .400.: Prompt contains invalid"):
        engine.sample([prompt("odd", ids=[VOCABULARY_SIZE])], SamplingProtocol(), Wanted())


def test_a_closed_server_leaves_no_thread_of_python_and_no_open_port(tiny):
    _, path = tiny
    before = threading.active_count()
    engine = LlamaCppEngine.open(parse_spec(f"llamacpp:{path}?ctx=256&parallel=2&threads=1"))
    engine.sample([prompt()], SamplingProtocol(max_new_tokens=2), Wanted())
    address = engine._server._server.listening_address
    assert httpx.get(f"{address}/health").is_success
    engine.close()
    assert threading.active_count() == before
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{address}/health")
    with pytest.raises(RuntimeError, match="closed"):
        engine.decode(np.asarray([72], dtype=np.int32))


def test_an_answer_that_takes_too_long_names_the_rollout_and_the_option(tiny):
    _, path = tiny
    engine = LlamaCppEngine.open(parse_spec(f"llamacpp:{path}?ctx=256&threads=1&timeout=0.0001"))
    try:
        with pytest.raises(EngineError, match=r"did not answer within 0.0001 s. Raise the option timeout"):
            engine.sample([prompt()], SamplingProtocol(), Wanted())
    finally:
        engine.close()


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(EngineError, match=r"there is no GGUF file .*absent.gguf.*smollm2"):
        open_sampler(parse_spec(f"llamacpp:{tmp_path}/absent.gguf"))


def test_a_file_that_is_no_gguf_is_named(tmp_path):
    (tmp_path / "bad.gguf").write_bytes(b"no model")
    with pytest.raises(EngineError, match=r"llama.cpp cannot load .*bad.gguf"):
        open_sampler(parse_spec(f"llamacpp:{tmp_path}/bad.gguf"))


def test_without_the_package_the_extra_is_named(tiny):
    _, path = tiny
    program = (
        "import sys; sys.modules['xllamacpp'] = None\n"
        "from onepolicy.engines.spec import parse_spec\n"
        "from onepolicy.errors import MissingExtraError\n"
        "from onepolicy.integrations import open_sampler\n"
        "try: open_sampler(parse_spec('llamacpp:' + sys.argv[1]))\n"
        "except MissingExtraError as error: print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    assert "'xllamacpp', which is not installed" in run.stdout
    assert "onepolicy[llamacpp]" in run.stdout


def test_an_unknown_option_lists_the_known_ones(tmp_path):
    with pytest.raises(UsageError, match=r"no option 'beams'.*ctx, parallel"):
        open_sampler(parse_spec(f"llamacpp:{tmp_path}/model.gguf?beams=2"))


@pytest.mark.real
def test_the_packaged_model_answers_in_chinese_with_every_logprob_at_its_token():
    engine = open_sampler(parse_spec("llamacpp:smollm2"))
    try:
        ids = engine.encode_chat([{"role": "user", "content": "用中文介绍一下北京。"}])
        prompts = [prompt(f"r-{n}", ids=ids, seed=n) for n in range(4)]
        completions = engine.sample(prompts, SamplingProtocol(max_new_tokens=64), Wanted(top=2))
    finally:
        engine.close()
    trainer = open_engine(parse_spec("transformers:smollm2"))
    full = [np.concatenate([ids, completion.token_ids]) for completion in completions]
    items = [ScoreInput(rollout_id="r", token_ids=each, wanted=np.arange(len(each)) >= len(ids)) for each in full]
    rows = trainer.score(items, Wanted())
    trainer.close()
    rollout = np.concatenate([completion.logprobs for completion in completions])
    scored = np.concatenate([row.logprobs[len(ids) :] for row in rows])
    states = np.concatenate([completion.states for completion in completions])
    assert (states == TokenState.ABSENT).any()
    # 0.07 measured; paired by position it is 3.8
    assert np.abs(scored - rollout)[states == TokenState.VALUE].mean() < 0.2
