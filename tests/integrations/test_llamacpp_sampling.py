"""What is asked of llama.cpp's server when it samples, and what its answers become."""

import re

import numpy as np
import pytest
import torch
from tiny_gguf import END, VOCABULARY_SIZE, write_gguf

from onepolicy.engines.contract import SampleInput, Sampler, ScoreInput, Wanted
from onepolicy.engines.spec import parse_spec
from onepolicy.errors import EngineError
from onepolicy.integrations import open_engine, open_sampler
from onepolicy.integrations.llamacpp.answer import completion_of
from onepolicy.integrations.llamacpp.request import refuse_other_settings, request_of, settings_of
from onepolicy.records.protocol import Constraint, Meaning, SamplingProtocol
from onepolicy.records.tokens import TokenState


def prompt(rollout_id="r-0", ids=(72, 105), seed=0):
    return SampleInput(rollout_id=rollout_id, prompt_ids=np.asarray(ids, dtype=np.int32), seed=seed)


def entry(token_id, logprob=-1.0, top=((7, -0.5), (8, -0.9))):
    listed = [{"id": other, "logprob": value} for other, value in top]
    return {"id": token_id, "logprob": logprob, "top_logprobs": listed}


def completed(ids, entries, *, top=0):
    answer = {"tokens": ids, "stop_type": "limit", "content": "text"}
    return completion_of(prompt(), answer, Wanted(top=top), entries=entries)


def test_every_sampling_field_is_sent():
    sent = request_of([72, 105], settings_of(prompt(seed=9), SamplingProtocol(top_k=5), Wanted(top=3)))
    assert sent["prompt"] == [72, 105]
    assert (sent["temperature"], sent["top_k"], sent["top_p"], sent["min_p"], sent["seed"]) == (1.0, 5, 1.0, 0.0, 9)
    assert (sent["repeat_penalty"], sent["cache_prompt"], sent["n_probs"]) == (1.0, False, 3)


def test_a_server_that_used_another_value_is_refused():
    sent = settings_of(prompt(), SamplingProtocol(top_k=5), Wanted())
    with pytest.raises(EngineError, match=r"top_k=40; top_k=5 was sent"):
        refuse_other_settings(sent=sent, used=sent | {"top_k": 40})


def test_a_server_that_does_not_say_what_it_used_is_refused():
    sent = settings_of(prompt(), SamplingProtocol(), Wanted())
    with pytest.raises(EngineError, match="does not say which dynatemp_range"):
        refuse_other_settings(sent=sent, used={name: used for name, used in sent.items() if name != "dynatemp_range"})


def test_a_server_that_drops_a_schema_is_refused():
    constraint = Constraint(kind="json_schema", text='{"type": "object"}')
    sent = settings_of(prompt(), SamplingProtocol(constraint=constraint), Wanted())
    assert sent["json_schema"] == {"type": "object"}
    assert "grammar" not in sent, "the server passes over a schema beside a grammar, an empty one too"
    refuse_other_settings(sent=sent, used=sent | {"grammar": "root ::= object"})
    with pytest.raises(EngineError, match="used no grammar"):
        refuse_other_settings(sent=sent, used=sent | {"grammar": ""})


def test_numbers_that_the_server_keeps_as_float32_count_as_the_same():
    sent = settings_of(prompt(), SamplingProtocol(temperature=0.8), Wanted())
    refuse_other_settings(sent=sent, used=sent | {"temperature": float(np.float32(0.8))})


@pytest.mark.parametrize("sentinel", [-9999.0, -3.4028234663852886e38, float("nan")])
def test_sentinels_become_invalid_and_never_numbers(sentinel):
    completion = completed([97, 98], {0: entry(97), 1: entry(98, logprob=sentinel)})
    assert completion.states.tolist() == [TokenState.VALUE, TokenState.INVALID]
    assert np.isnan(completion.logprobs[1])


def test_a_logprob_of_null_is_absent():
    completion = completed([97], {0: entry(97, logprob=None)})
    assert completion.states.tolist() == [TokenState.ABSENT]


def test_without_entries_the_whole_completion_is_absent():
    completion = completed([97, 98], {})
    assert completion.states.tolist() == [TokenState.ABSENT] * 2
    assert completion.top1.tolist() == [-1, -1]


def test_top_lists_exist_where_an_entry_exists_and_are_as_long_as_the_shortest():
    completion = completed([*"é".encode(), 97], {1: entry(0xA9), 2: entry(97, top=((1, -0.1),))}, top=2)
    assert completion.top.positions.tolist() == [1, 2]
    assert completion.top.ids.tolist() == [[7], [1]]
    assert completion.top1.tolist() == [-1, 7, 1]


def test_an_answer_without_token_ids_says_what_it_has():
    incomplete = {"content": "x", "stop_type": "eos"}
    with pytest.raises(EngineError, match=r"has no 'tokens'; it has content, stop_type"):
        completion_of(prompt(), incomplete, Wanted(), entries={})


# a server in this process


@pytest.fixture(scope="module")
def engine(tiny):
    _, path = tiny
    engine = open_sampler(parse_spec(f"llamacpp:{path}?ctx=256&parallel=2&threads=1"))
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
    cut = 0
    for completion in engine.sample(prompts, protocol, Wanted(top=4)):
        value = completion.states == TokenState.VALUE
        assert value.all(), "a token that ends inside a character is asked for by itself"
        cut += completion.text.count("\ufffd")
        exact = expected_logprobs(model, [72, 105], completion.token_ids)
        mine = exact[np.arange(len(value)), completion.token_ids]
        # the server keeps its cache in float16, and these weights are large
        np.testing.assert_allclose(completion.logprobs[value], mine[value], atol=0.2)
        assert np.abs(completion.logprobs[value] - mine[value]).mean() < 0.01
        best = np.sort(exact[completion.top.positions], axis=1)[:, ::-1][:, :4]
        np.testing.assert_allclose(completion.top.logprobs, best, atol=0.2)
        assert completion.top.positions.tolist() == list(range(len(value)))
    assert cut > 20, "random bytes must have cut characters, or this test shows nothing"


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


@pytest.mark.parametrize("window", [None, 4])
def test_a_penalty_acts_on_prompt_and_completion_or_on_the_window_of_them(tiny, engine, window):
    model, _ = tiny
    protocol = SamplingProtocol(temperature=0.0, max_new_tokens=40, repetition_penalty=3.0, penalty_window=window)
    item = prompt(ids=[72, 105, 105])
    (one,) = engine.sample([item], protocol, Wanted())
    ids = [*item.prompt_ids.tolist(), *one.token_ids.tolist()]
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].double().numpy()
    for at in range(3, len(ids)):
        row = logits[at - 1].copy()
        for token in set(ids[:at][-(window or at) :]):
            row[token] = row[token] / 3.0 if row[token] > 0 else row[token] * 3.0
        assert row[ids[at]] > row.max() - 0.4, "float16 in the cache moves these logits by 0.2"


def test_a_completion_that_ignores_the_end_token_goes_to_its_limit(engine):
    prompts = [prompt(f"r-{n}", seed=n) for n in range(8)]
    completions = engine.sample(prompts, SamplingProtocol(max_new_tokens=150, ignore_eos=True), Wanted())
    assert {(len(one.token_ids), one.finish_reason) for one in completions} == {(150, "length")}
    assert all(END not in one.token_ids for one in completions), "this server makes it impossible"


def test_a_stop_string_ends_a_completion_and_stays_in_it_with_its_logprobs(tiny, engine):
    model, _ = tiny
    prompts = [prompt(f"r-{n}", seed=n) for n in range(8)]
    protocol = SamplingProtocol(max_new_tokens=150, stop=("a", "b", "c", "d"))
    stopped = [one for one in engine.sample(prompts, protocol, Wanted(top=2)) if one.stop_reason in protocol.stop]
    assert stopped
    for one in stopped:
        assert one.finish_reason == "stop"
        # the server looks at whole characters alone: after a lead byte it sees the string up to three tokens later
        assert one.stop_reason in one.text[-4:]
        assert engine.decode(one.token_ids) == one.text
        assert (one.states == TokenState.VALUE).all()
        exact = expected_logprobs(model, [72, 105], one.token_ids)[np.arange(len(one.token_ids)), one.token_ids]
        assert np.abs(one.logprobs - exact).mean() < 0.02


@pytest.mark.parametrize(
    ("kind", "text", "fits"),
    [
        ("grammar", 'root ::= "xy" [0-3]+', r"xy[0-3]+"),
        ("json_schema", '{"enum": ["yes", "no"]}', r'"(yes|no)".*'),
    ],
)
def test_a_constraint_is_kept_and_heeded(engine, kind, text, fits):
    protocol = SamplingProtocol(max_new_tokens=6, constraint=Constraint(kind=kind, text=text))
    (one,) = engine.sample([prompt()], protocol, Wanted())
    assert re.match(fits, one.text)


def test_the_order_of_the_samplers_is_the_protocols(engine):
    order = ("penalties", "top_k", "top_p", "min_p", "temperature")
    protocol = SamplingProtocol(max_new_tokens=4, temperature=2.0, top_p=0.5, repetition_penalty=1.1, processors=order)
    assert engine.sampled_meaning(protocol).is_raw
    assert len(engine.sample([prompt()], protocol, Wanted())[0].token_ids) > 0


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


def test_a_conversation_has_the_bos_that_the_server_itself_would_put_in_front(tiny, tmp_path):
    model, _ = tiny
    write_gguf(model, tmp_path / "bos.gguf", add_bos=True)
    engine = open_sampler(parse_spec(f"llamacpp:{tmp_path}/bos.gguf?ctx=256&threads=1"))
    try:
        messages = [{"role": "user", "content": "hi"}]
        ids = engine.encode_chat(messages)
        assert ids.tolist() == [END, *b"user:hi", END, *b"A:"]
        answered = engine.client.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1})
        assert answered["usage"]["prompt_tokens"] == len(ids)
    finally:
        engine.close()


def test_a_prompt_that_does_not_fit_names_the_rollout_and_the_option(engine):
    with pytest.raises(EngineError, match=r"rollout long: 250 prompt tokens and max_new_tokens=64 .* 256 .* ctx"):
        engine.sample([prompt("long", ids=[72] * 250)], SamplingProtocol(max_new_tokens=64), Wanted())


def test_a_prompt_that_the_server_refuses_names_the_rollout(engine):
    with pytest.raises(EngineError, match=r"rollout odd: http://127.*/completion: status 400: .*contains invalid"):
        engine.sample([prompt("odd", ids=[VOCABULARY_SIZE])], SamplingProtocol(), Wanted())


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
    assert (states == TokenState.VALUE).all()
    # 0.07 measured; paired by position it is 3.8
    assert np.abs(scored - rollout).mean() < 0.2
