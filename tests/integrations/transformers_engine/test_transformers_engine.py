"""The Transformers engine on tiny random models, against log-softmax in float64 and `generate`'s own outputs."""

import hashlib
import json

import numpy as np
import pytest
import torch
import transformers
from tiny_model import (
    END,
    LONGEST,
    VOCABULARY_SIZE,
    asked,
    copied,
    exact_logprobs,
    opened,
    prompt,
    sequences,
)

from onepolicy.engines.contract import Sampler, Wanted
from onepolicy.engines.spec import EngineSpec
from onepolicy.errors import EngineError
from onepolicy.integrations import open_engine
from onepolicy.integrations.transformers.sample import neutral_config
from onepolicy.records.protocol import Meaning, SamplingProtocol
from onepolicy.records.reading import TopLists
from onepolicy.records.tokens import TokenState, digest_of_ids
from onepolicy.weights.model import model_hash

# scoring


def test_scored_logprobs_are_the_log_softmax_of_the_model_at_each_token(engine, plain):
    (ids,) = sequences(20)
    (row,) = engine.score([asked(ids, start=5)], Wanted())
    exact = exact_logprobs(plain, ids)[np.arange(19), ids[1:]]
    np.testing.assert_allclose(row.logprobs[5:], exact[4:], atol=2e-5)
    assert row.states.tolist() == [TokenState.MASKED] * 5 + [TokenState.VALUE] * 15
    assert np.isnan(row.logprobs[:5]).all()
    assert row.digest == digest_of_ids(ids)
    assert row.top1[5:].tolist() == exact_logprobs(plain, ids).argmax(axis=1)[4:].tolist()
    assert row.top1[:5].tolist() == [-1] * 5


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("attn", ["eager", "sdpa"])
def test_padding_changes_no_logprob_by_more_than_rounding(folder, side, attn):
    batch = [asked(ids, rollout_id=f"r-{n}") for n, ids in enumerate(sequences(5, 30, 11, 2, 1, 23, 30, 8))]
    alone = opened(folder, batch_size=1, attn=attn).score(batch, Wanted())
    together = opened(folder, batch_size=8, padding_side=side, attn=attn).score(batch, Wanted())
    for first, second in zip(alone, together, strict=True):
        assert first.rollout_id == second.rollout_id
        np.testing.assert_array_equal(first.states, second.states)
        np.testing.assert_allclose(first.logprobs, second.logprobs, atol=2e-5)


def test_more_sequences_than_a_batch_come_back_in_order(folder, engine):
    batch = [asked(ids, rollout_id=f"r-{n}") for n, ids in enumerate(sequences(5, 9, 7, 4, 6))]
    small = opened(folder, batch_size=2).score(batch, Wanted())
    assert [row.rollout_id for row in small] == ["r-0", "r-1", "r-2", "r-3", "r-4"]
    for first, second in zip(small, engine.score(batch, Wanted()), strict=True):
        np.testing.assert_allclose(first.logprobs, second.logprobs, atol=2e-5)


def test_a_wanted_first_token_is_absent_as_nothing_comes_before_it(engine):
    (ids,) = sequences(4)
    (row,) = engine.score([asked(ids, start=0)], Wanted())
    assert row.states.tolist() == [TokenState.ABSENT] + [TokenState.VALUE] * 3


def test_sequences_with_nothing_wanted_are_masked_throughout(engine):
    (ids,) = sequences(4)
    (row,) = engine.score([asked(ids, start=4)], Wanted())
    assert row.states.tolist() == [TokenState.MASKED] * 4


def test_tokens_past_the_models_length_are_truncated_and_the_others_scored(engine, plain):
    (ids,) = sequences(LONGEST + 3)
    (row,) = engine.score([asked(ids)], Wanted())
    assert row.states[1:LONGEST].tolist() == [TokenState.VALUE] * (LONGEST - 1)
    assert row.states[LONGEST:].tolist() == [TokenState.TRUNCATED] * 3
    exact = exact_logprobs(plain, ids[:LONGEST])[np.arange(LONGEST - 1), ids[1:LONGEST]]
    np.testing.assert_allclose(row.logprobs[1:LONGEST], exact, atol=2e-5)


def test_top_lists_are_the_most_likely_tokens_of_the_share_that_keeps_them(engine, plain):
    first, second = sequences(6, 9)
    batch = [asked(first, start=3, keep_top=False), asked(second, start=3)]
    without, row = engine.score(batch, Wanted(top=4))
    assert without.top is None
    assert row.top.positions.tolist() == [3, 4, 5, 6, 7, 8]
    best = np.sort(exact_logprobs(plain, second)[2:], axis=1)[:, ::-1][:, :4]
    np.testing.assert_allclose(row.top.logprobs, best, atol=2e-5)


@pytest.mark.parametrize("side", ["left", "right"])
def test_reported_ids_come_back_at_their_positions_whatever_is_wanted(folder, plain, side):
    first, second = sequences(6, 9)
    report = TopLists(
        positions=np.asarray([8, 2, 0], dtype=np.int32),
        ids=np.asarray([[9, 10], [11, 12], [13, 14]], dtype=np.int32),
        logprobs=np.zeros((3, 2), dtype=np.float32),
    )
    engine = opened(folder, padding_side=side)
    plain_row, row = engine.score([asked(first), asked(second, start=5, report=report)], Wanted(top=3))
    exact = exact_logprobs(plain, second)
    np.testing.assert_allclose(row.top.logprobs[0], exact[7][[9, 10]], atol=2e-5)
    np.testing.assert_allclose(row.top.logprobs[1], exact[1][[11, 12]], atol=2e-5)
    assert np.isnan(row.top.logprobs[2]).all()
    np.testing.assert_array_equal(row.top.ids, report.ids)
    assert row.states.tolist() == [TokenState.MASKED] * 5 + [TokenState.VALUE] * 4
    assert plain_row.top.ids.shape == (5, 3)


def test_a_processed_meaning_divides_the_logits_by_the_temperature(engine, plain):
    (ids,) = sequences(8)
    (row,) = engine.score([asked(ids)], Wanted(meaning=Meaning(temperature=2.0)))
    halved = torch.tensor(exact_logprobs(plain, ids) / 2).log_softmax(-1).numpy()
    np.testing.assert_allclose(row.logprobs[1:], halved[np.arange(7), ids[1:]], atol=2e-5)


def test_statistics_cover_the_full_sequence(engine):
    first, second = sequences(6, 9)
    rows = engine.score([asked(first), asked(second, start=5)], Wanted(statistics=True))
    for row, start in zip(rows, (1, 5), strict=True):
        assert row.statistics
        for values in row.statistics.values():
            assert len(values) == len(row.logprobs)
            assert np.isnan(values[:start]).all()


def test_an_id_outside_the_vocabulary_is_named_with_its_place(engine):
    (ids,) = sequences(6)
    ids[4] = VOCABULARY_SIZE
    with pytest.raises(EngineError, match=r"rollout r-9: token 4 has the id 300, .* has 300 ids"):
        engine.score([asked(ids, rollout_id="r-9")], Wanted())
    with pytest.raises(EngineError, match="token 0 has the id -1"):
        engine.sample([prompt([-1])], SamplingProtocol(), Wanted())


def test_bfloat16_is_computed_in_bfloat16_and_float32_in_float32(folder, engine):
    (ids,) = sequences(30)
    low = opened(folder, dtype="bfloat16")
    assert low.info.dtype == "bfloat16"
    difference = low.score([asked(ids)], Wanted())[0].logprobs - engine.score([asked(ids)], Wanted())[0].logprobs
    assert 1e-4 < np.nanmax(np.abs(difference)) < 1.0


# sampling


def generated(plain_model, prompts, protocol, seed):
    """What `generate` gives with its own outputs: sequences, and per step raw logits and processed scores."""
    width = max(map(len, prompts))
    ids = torch.tensor([[END] * (width - len(p)) + list(p) for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return plain_model.generate(
            ids,
            attention_mask=mask,
            generation_config=transformers.GenerationConfig(
                do_sample=True,
                temperature=protocol.temperature,
                top_k=protocol.top_k,
                top_p=protocol.top_p,
                min_p=protocol.min_p or None,
                repetition_penalty=1.0,
                max_new_tokens=protocol.max_new_tokens,
                eos_token_id=[END, 7],
                pad_token_id=END,
                return_dict_in_generate=True,
                output_logits=True,
                output_scores=True,
            ),
        )


PROTOCOLS = [
    SamplingProtocol(max_new_tokens=40),
    SamplingProtocol(max_new_tokens=40, temperature=0.7, top_k=20, top_p=0.9),
    SamplingProtocol(max_new_tokens=40, temperature=1.3, min_p=0.02),
]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("meaning", ["raw", "processed"])
def test_recorded_logprobs_are_those_of_generates_own_outputs(folder, protocol, meaning):
    plain_model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    prompts = [(20, 30, 40), (50,), (60, 70, 80, 90, 100), (110, 120)]
    out = generated(plain_model, prompts, protocol, seed=5)
    engine = opened(folder, logprobs=meaning)
    batch = [prompt(ids, rollout_id=f"r-{n}", seed=5 + n) for n, ids in enumerate(prompts)]
    completions = engine.sample(batch, protocol, Wanted(top=2))
    steps = torch.stack(out.logits if meaning == "raw" else out.scores, dim=1).log_softmax(-1).numpy()
    new = out.sequences[:, 5:].numpy()
    for row, completion in enumerate(completions):
        length = len(completion.token_ids)
        assert completion.token_ids.tolist() == new[row, :length].tolist()
        mine = steps[row, np.arange(length), completion.token_ids]
        np.testing.assert_allclose(completion.logprobs, mine, atol=1e-5)
        assert completion.states.tolist() == [TokenState.VALUE] * length
        best = np.sort(steps[row, :length], axis=1)[:, ::-1][:, :2]
        np.testing.assert_allclose(completion.top.logprobs, best, atol=1e-5)
        assert completion.top1.tolist() == completion.top.ids[:, 0].tolist()
        assert completion.top.positions.tolist() == list(range(length))


def test_decode_logprobs_agree_with_scoring_the_same_tokens(engine):
    batch = [prompt(ids, rollout_id=f"r-{n}") for n, ids in enumerate([(20, 30, 40), (50,), (60, 70)])]
    for item, completion in zip(
        batch, engine.sample(batch, SamplingProtocol(max_new_tokens=30), Wanted()), strict=True
    ):
        ids = np.concatenate([item.prompt_ids, completion.token_ids])
        (row,) = engine.score([asked(ids, start=len(item.prompt_ids))], Wanted())
        np.testing.assert_allclose(completion.logprobs, row.logprobs[len(item.prompt_ids) :], atol=5e-5)


def test_the_models_own_generation_config_changes_nothing(engine, plain):
    assert neutral_config(SamplingProtocol(), stop_ids=(), pad_id=0).top_k == 0
    batch = [prompt(rollout_id=f"r-{n}") for n in range(8)]
    drawn = {
        int(completion.token_ids[0])
        for seed in range(40)
        for completion in engine.sample(
            [prompt(rollout_id=item.rollout_id, seed=seed) for item in batch],
            SamplingProtocol(max_new_tokens=1),
            Wanted(),
        )
    }
    likely = np.exp(exact_logprobs(plain, [20, 30, 40, 0])[-1])
    expected = (1 - (1 - likely) ** 320).sum()
    assert abs(len(drawn) - expected) < 5 * np.sqrt(expected), "top_k = 3 of the saved config would give 3 tokens"


def test_greedy_takes_the_most_likely_token_at_each_step(engine):
    (completion,) = engine.sample([prompt()], SamplingProtocol(temperature=0.0, max_new_tokens=20), Wanted())
    assert completion.top1.tolist() == completion.token_ids.tolist()


def test_a_batch_repeats_exactly_and_leaves_the_callers_random_state_alone(engine):
    protocol = SamplingProtocol(max_new_tokens=20)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first, again, other = (
        [c.token_ids.tolist() for c in engine.sample([prompt(seed=seed), prompt(seed=9)], protocol, Wanted())]
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
    assert torch.equal(before, torch.get_rng_state())


def test_a_completion_ends_with_whichever_end_token_the_model_names(engine):
    batch = [prompt(rollout_id=f"r-{n}", seed=n) for n in range(8)]
    completions = [
        completion
        for seed in range(8)
        for completion in engine.sample([prompt(seed=seed), *batch[1:]], SamplingProtocol(max_new_tokens=60), Wanted())
    ]
    stopped = [completion for completion in completions if completion.finish_reason == "stop"]
    assert {completion.stop_reason for completion in stopped} == {str(END), "7"}
    for completion in stopped:
        assert str(completion.token_ids[-1]) == completion.stop_reason
        assert not np.isin(completion.token_ids[:-1], [END, 7]).any()
    for completion in completions:
        assert completion.finish_reason == "stop" or len(completion.token_ids) == 60


def test_sampled_text_spells_special_tokens_out(engine):
    batch = [prompt(rollout_id=f"r-{n}") for n in range(8)]
    completions = [
        completion
        for seed in range(8)
        for completion in engine.sample([prompt(seed=seed), *batch[1:]], SamplingProtocol(max_new_tokens=60), Wanted())
    ]
    ended = [completion for completion in completions if completion.stop_reason == str(END)]
    assert ended
    assert all(completion.text.endswith("<|end|>") for completion in ended)


def test_sampling_keeps_top_lists_only_for_the_share_and_statistics_only_if_wanted(engine):
    batch = [prompt(keep_top=False), prompt(rollout_id="r-1")]
    protocol = SamplingProtocol(max_new_tokens=4)
    without, kept = engine.sample(batch, protocol, Wanted(top=3, statistics=True))
    assert without.top is None
    assert kept.top.ids.shape == (len(kept.token_ids), 3)
    assert {len(values) for values in kept.statistics.values()} == {len(kept.token_ids)}
    assert engine.sample(batch, protocol, Wanted())[0].statistics == {}


def test_statistics_of_sampled_tokens_are_those_of_scoring_them(engine):
    item = prompt(ids=(20, 30, 20, 40))
    (completion,) = engine.sample([item], SamplingProtocol(max_new_tokens=20), Wanted(statistics=True))
    ids = np.concatenate([item.prompt_ids, completion.token_ids])
    (row,) = engine.score([asked(ids, start=4)], Wanted(statistics=True))
    assert set(completion.statistics) == set(row.statistics)
    for name, values in completion.statistics.items():
        np.testing.assert_allclose(values, row.statistics[name][4:], atol=1e-3, rtol=1e-3, err_msg=name)


def test_what_sampled_logprobs_mean_depends_on_the_option(folder, engine):
    protocol = SamplingProtocol(temperature=0.5)
    assert engine.sampled_meaning(protocol) == Meaning()
    assert opened(folder, logprobs="processed").sampled_meaning(protocol) == Meaning.processed_by(protocol)


def test_a_prompt_that_leaves_no_room_for_the_completion_names_both_numbers(engine):
    with pytest.raises(EngineError, match=r"rollout r-0: 10 prompt tokens and max_new_tokens=60 exceed the 64"):
        engine.sample([prompt(range(10, 20))], SamplingProtocol(max_new_tokens=60), Wanted())


def test_an_empty_prompt_is_refused(engine):
    with pytest.raises(EngineError, match=r"rollout r-0: its prompt has no tokens"):
        engine.sample([prompt([])], SamplingProtocol(), Wanted())


# what the engine says, and text


def test_the_engine_is_a_sampler_that_says_what_it_is(folder, engine):
    assert isinstance(engine, Sampler)
    info = engine.info
    assert (info.name, info.version, info.dtype) == ("transformers", transformers.__version__, "float32")
    assert (info.vocab_size, info.max_length, info.weights_hash) == (VOCABULARY_SIZE, LONGEST, model_hash([folder]))
    assert info.tokenizer_hash == hashlib.sha256(engine.tokenizer_file()).hexdigest()[:16]
    assert engine.tokenizer_file() == (folder / "tokenizer.json").read_bytes()


def test_the_condition_says_how_sequences_were_padded(folder, engine):
    assert engine.condition(path="decode").padding_side == "left"
    assert engine.condition(path="prefill").padding_side == "right"
    assert opened(folder, padding_side="left").condition(path="prefill").padding_side == "left"
    alone = opened(folder, batch_size=1).condition(path="prefill")
    assert (alone.batch_size, alone.padding_side) == (1, None)


def test_text_goes_to_ids_and_back(engine):
    ids = engine.encode("hé <|end|>", add_special_tokens=False)
    assert ids.dtype == np.int32
    assert ids[-1] == END
    assert engine.decode(ids) == "hé <|end|>"


def test_a_conversation_is_rendered_with_the_models_template(engine):
    ids = engine.encode_chat([{"role": "user", "content": "hi"}])
    assert engine.decode(ids) == "user:hi<|end|>A:"


def test_without_a_template_a_conversation_is_its_contents_joined_by_newlines(folder, tmp_path):
    model = copied(folder, tmp_path / "plain")
    (model / "chat_template.jinja").unlink()
    engine = opened(model)
    ids = engine.encode_chat([{"role": "system", "content": "a"}, {"role": "user", "content": "b"}])
    assert engine.decode(ids) == "a\nb"


def test_a_model_without_a_tokenizer_scores_and_does_not_encode(folder, tmp_path):
    model = copied(folder, tmp_path / "mute")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (model / name).unlink()
    engine = opened(model)
    assert engine.decode(np.asarray([8], np.int32)) is None
    assert engine.tokenizer_file() is None
    assert engine.info.tokenizer_hash == ""
    with pytest.raises(EngineError, match="has no tokenizer"):
        engine.encode("a", add_special_tokens=False)
    (completion,) = engine.sample([prompt()], SamplingProtocol(max_new_tokens=2), Wanted())
    assert completion.text == ""


def test_a_tokenizer_without_its_json_is_written_out_from_its_backend(folder, engine):
    kept = json.loads(engine.tokenizer_file())
    mine = engine._loaded.tokenizer
    elsewhere = type(mine)(plain=mine.plain, folder=folder / "nowhere")
    assert json.loads(elsewhere.file())["model"]["vocab"] == kept["model"]["vocab"]


def test_nothing_is_written_to_the_console(folder, capfd):
    engine = opened(folder)
    engine.sample([prompt()], SamplingProtocol(max_new_tokens=2), Wanted())
    engine.score([asked(sequences(5)[0])], Wanted())
    engine.encode("a" * 100, add_special_tokens=True)
    engine.close()
    assert capfd.readouterr() == ("", "")


@pytest.mark.real
def test_the_packaged_model_scores_what_it_sampled():
    engine = opened("smollm2")
    ids = engine.encode_chat([{"role": "user", "content": "What is the capital of France?"}])
    (completion,) = engine.sample([prompt(ids)], SamplingProtocol(temperature=0.0, max_new_tokens=24), Wanted())
    assert "Paris" in completion.text
    assert completion.text.endswith("<|im_end|>")
    full = np.concatenate([ids, completion.token_ids])
    (row,) = engine.score([asked(full, start=len(ids))], Wanted())
    np.testing.assert_allclose(row.logprobs[len(ids) :], completion.logprobs, atol=1e-3)


@pytest.mark.real
def test_both_engines_render_a_conversation_of_the_packaged_model_alike():
    pytest.importorskip("xllamacpp")
    messages = [{"role": "user", "content": "Grüße aus 北京 <|im_end|> 🙂"}]
    rendered = []
    for name in ("transformers", "llamacpp"):
        engine = open_engine(EngineSpec(engine=name, target="smollm2"))
        rendered.append(engine.encode_chat(messages).tolist())
        engine.close()
    assert rendered[0] == rendered[1]
