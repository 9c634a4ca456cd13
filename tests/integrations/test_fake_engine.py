import subprocess
import sys
import time

import numpy as np
import pytest
from tokenizers import Tokenizer

from onepolicy.engines.contract import Completion, SampleInput, Sampler, ScoreInput, Wanted
from onepolicy.engines.spec import parse_spec
from onepolicy.errors import EngineError, UsageError
from onepolicy.integrations import open_sampler
from onepolicy.integrations.fake.engine import FakeEngine
from onepolicy.integrations.fake.options import FakeOptions
from onepolicy.records.protocol import Meaning, SamplingProtocol
from onepolicy.records.reading import ReadingRow, TopLists
from onepolicy.records.tokens import TokenState, digest_of_ids

CHAT = [{"role": "user", "content": "Why is the sky blue?"}]
NUMBERS = Wanted()
EVERYTHING = Wanted(statistics=True, top=259)


def engine(**options) -> FakeEngine:
    return FakeEngine(FakeOptions(**options))


def sampled(fake: FakeEngine, count: int = 1, wanted: Wanted = NUMBERS, **protocol) -> list[Completion]:
    sampling = SamplingProtocol(**protocol)
    prompt = fake.encode_chat(CHAT)
    names = [f"r-{number}" for number in range(count)]
    batch = [SampleInput(rollout_id=name, prompt_ids=prompt, seed=sampling.seed_for(name)) for name in names]
    return fake.sample(batch, sampling, wanted)


def scored(fake: FakeEngine, completion: Completion, wanted: Wanted = NUMBERS) -> ReadingRow:
    prompt = fake.encode_chat(CHAT)
    ids = np.concatenate([prompt, completion.token_ids])
    asked = np.arange(len(ids)) >= len(prompt)
    return fake.score([ScoreInput(rollout_id="r", token_ids=ids, wanted=asked)], wanted)[0]


def of_text(fake: FakeEngine, text: str, **fields) -> ScoreInput:
    ids = fake.encode(text, add_special_tokens=False)
    return ScoreInput(**{"rollout_id": "r", "token_ids": ids, "wanted": np.ones(len(ids), bool), **fields})


def log_softmax(logits):
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


def test_it_is_a_sampler_that_a_spec_opens_without_torch_or_scipy():
    assert isinstance(open_sampler(parse_spec("fake:tiny?noise=0.02&logprobs=processed")), Sampler)
    code = "import sys, onepolicy.integrations.fake.engine; print({'torch', 'scipy'} & set(sys.modules))"
    path = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=path, check=True)
    assert done.stdout == "set()\n"


def test_an_unknown_option_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match=r"no option 'sed'. It knows: seed, noise"):
        FakeEngine.open(parse_spec("fake:tiny?sed=1"))


def test_scoring_what_it_sampled_gives_the_same_numbers_to_the_last_bit():
    fake = engine(noise=0.1)
    completion = sampled(fake, wanted=Wanted(statistics=True))[0]
    row = scored(fake, completion, Wanted(statistics=True))
    start = len(fake.encode_chat(CHAT))
    assert np.array_equal(row.logprobs[start:], completion.logprobs)
    assert np.array_equal(row.top1[start:], completion.top1)
    assert np.array_equal(row.statistics["varentropy"][start:], completion.statistics["varentropy"])
    assert (row.states[:start] == TokenState.MASKED).all()
    assert np.isnan(row.logprobs[:start]).all()
    assert row.digest == digest_of_ids(np.concatenate([fake.encode_chat(CHAT), completion.token_ids]))


def test_a_completion_does_not_depend_on_its_batch():
    alone, together = sampled(engine())[0], sampled(engine(batch_size=3), count=7)[0]
    assert np.array_equal(alone.token_ids, together.token_ids)
    assert np.array_equal(alone.logprobs, together.logprobs)


def test_equal_seeds_are_the_same_weights_and_others_are_not():
    one, same, other = engine(seed=1), engine(seed=1), engine(seed=2)
    completion = sampled(one)[0]
    assert one.info.weights_hash == same.info.weights_hash != other.info.weights_hash
    assert np.array_equal(scored(same, completion).logprobs, scored(one, completion).logprobs, equal_nan=True)
    assert np.nanmax(np.abs(scored(other, completion).logprobs - scored(one, completion).logprobs)) > 0.1


def test_full_distributions_sum_to_one_and_hold_the_statistics_and_the_first_choice():
    fake = engine(seed=3)
    completion = sampled(fake, wanted=EVERYTHING)[0]
    logprobs = completion.top.logprobs.astype(np.float64)
    mean = (np.exp(logprobs) * logprobs).sum(axis=1)
    assert np.exp(logprobs).sum(axis=1) == pytest.approx(1.0, abs=1e-5)
    assert completion.statistics["entropy"] == pytest.approx(-mean, abs=1e-5)
    variance = (np.exp(logprobs) * (logprobs - mean[:, None]) ** 2).sum(axis=1)
    assert completion.statistics["varentropy"] == pytest.approx(variance, abs=1e-4)
    assert np.array_equal(completion.top.ids[:, 0], completion.top1)
    assert completion.top.positions.tolist() == list(range(len(completion.token_ids)))


def test_text_is_short_sentences_with_one_to_three_nats_a_token():
    completions = sampled(engine(), count=200, wanted=Wanted(statistics=True), max_new_tokens=300)
    entropy = np.concatenate([one.statistics["entropy"] for one in completions])
    surprise = -np.concatenate([one.logprobs for one in completions])
    ids = np.concatenate([one.token_ids for one in completions])
    assert 1.0 < entropy.mean() < 3.0
    assert surprise.mean() == pytest.approx(entropy.mean(), abs=0.1)
    assert ((ids >= 32) & (ids < 127) | (ids == 10) | (ids == 258)).mean() > 0.98
    assert 15 < np.mean([len(one.token_ids) for one in completions]) < 80


def test_sampled_tokens_follow_the_distribution_that_is_reported():
    fake = engine()
    completions = sampled(fake, count=4000, wanted=EVERYTHING, max_new_tokens=1)
    first = np.array([one.token_ids[0] for one in completions])
    top = completions[0].top
    chance = np.zeros(259)
    chance[top.ids[0]] = np.exp(top.logprobs[0])
    found = np.bincount(first, minlength=259) / len(first)
    assert np.abs(found - chance).max() < 5 * np.sqrt(0.25 / len(first))


def test_greedy_takes_the_most_likely_token_whatever_the_seed():
    first, second = sampled(engine(), count=2, temperature=0.0)
    assert np.array_equal(first.token_ids, first.top1)
    assert np.array_equal(first.token_ids, second.token_ids)


def test_an_end_token_stops_and_the_length_cuts():
    completions = sampled(engine(), count=40, max_new_tokens=20)
    stopped = [one for one in completions if one.finish_reason == "stop"]
    cut = [one for one in completions if one.finish_reason == "length"]
    assert stopped
    assert all(one.token_ids[-1] == 258 and one.text.endswith("<|im_end|>") for one in stopped)
    assert all(one.stop_reason == "<|im_end|>" for one in stopped)
    assert cut
    assert all(len(one.token_ids) == 20 and 258 not in one.token_ids for one in cut)


@pytest.mark.parametrize(
    "fields",
    [{"temperature": 0.7}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.1}, {"temperature": 1.3, "top_p": 0.9}],
)
def test_a_processed_meaning_is_temperature_then_truncation(fields):
    fake = engine()
    meaning = Meaning(**fields)
    completion = sampled(fake, wanted=EVERYTHING)[0]
    row = scored(fake, completion, Wanted(meaning=meaning, top=259))
    for ids, raw, place in zip(completion.top.ids, completion.top.logprobs, range(len(row.top.ids)), strict=True):
        expected = dict(_processed_by_hand(ids.tolist(), raw.astype(np.float64), meaning))
        got = zip(row.top.ids[place].tolist(), row.top.logprobs[place], strict=True)
        assert {token: value for token, value in got if np.isfinite(value)} == pytest.approx(expected, abs=1e-4)


def _processed_by_hand(ids, logprobs, meaning):
    """One distribution, token by token, most likely first."""
    chances = np.exp(log_softmax(logprobs / meaning.temperature)).tolist()
    kept, total = [], 0.0
    for token, chance in zip(ids, chances, strict=True):
        full = meaning.top_k and len(kept) == meaning.top_k
        if full or total >= meaning.top_p or chance < meaning.min_p * chances[0]:
            break
        kept.append((token, chance))
        total += chance
    return [(token, np.log(chance / total)) for token, chance in kept]


def test_processed_logprobs_on_request_are_of_the_distribution_that_was_sampled_from():
    fake = engine(logprobs="processed")
    protocol = SamplingProtocol(temperature=0.8, top_p=0.9)
    assert fake.sampled_meaning(protocol) == Meaning.processed_by(protocol)
    assert engine().sampled_meaning(protocol) == Meaning()
    for completion in sampled(fake, count=20, temperature=0.8, top_p=0.9):
        assert (completion.states == TokenState.VALUE).all()
        row = scored(fake, completion, Wanted(meaning=Meaning.processed_by(protocol)))
        assert np.array_equal(row.logprobs[-len(completion.token_ids) :], completion.logprobs)


def test_a_token_outside_the_kept_set_is_excluded():
    fake = engine()
    row = fake.score([of_text(fake, "a\x00")], Wanted(meaning=Meaning(top_k=3)))[0]
    assert row.states.tolist() == [TokenState.ABSENT, TokenState.EXCLUDED]
    assert np.isnan(row.logprobs).all()


def test_noise_has_its_standard_deviation_and_each_dtype_its_own_draw():
    clean, noisy, other = engine(), engine(noise=0.05, dtype="bfloat16"), engine(noise=0.05, dtype="float16")
    again = engine(noise=0.05, dtype="bfloat16")
    text = of_text(clean, "".join(one.text for one in sampled(clean, count=100)))
    numbers = [one.score([text], NUMBERS)[0].logprobs[1:] for one in (clean, noisy, other, again)]
    assert np.array_equal(numbers[1], numbers[3])
    # A logprob moves by noise * (own - mean of all): a little less than the noise of one logit and another.
    assert 0.04 < np.std(numbers[1] - numbers[0]) < 0.06
    assert np.corrcoef(numbers[1] - numbers[0], numbers[2] - numbers[0])[0, 1] < 0.2


def test_the_planted_temperature_changes_what_is_reported_and_not_what_is_sampled():
    honest, faulty = (
        sampled(engine(), wanted=EVERYTHING)[0],
        sampled(engine(temperature=0.5), wanted=EVERYTHING)[0],
    )
    assert np.array_equal(honest.token_ids, faulty.token_ids)
    sharper = log_softmax(honest.top.logprobs.astype(np.float64) / 0.5)
    assert faulty.top.logprobs == pytest.approx(sharper, abs=1e-4)


def test_the_planted_offset_is_added_to_every_logprob():
    honest, faulty = sampled(engine())[0], sampled(engine(offset=-0.25))[0]
    assert faulty.logprobs == pytest.approx(honest.logprobs - 0.25, abs=1e-6)
    too_high = sampled(engine(offset=50.0))[0]
    assert (too_high.states == TokenState.INVALID).all()


def test_ids_to_report_come_back_at_their_positions():
    fake = engine()
    everything = fake.score([of_text(fake, "Sun.")], EVERYTHING)[0].top
    report = TopLists(positions=np.int32([0, 2]), ids=np.int32([[65, 66], [32, 258]]), logprobs=np.float32([]))
    top = fake.score([of_text(fake, "Sun.", report=report)], NUMBERS)[0].top
    expected = dict(zip(everything.ids[1].tolist(), everything.logprobs[1], strict=True))
    assert np.isnan(top.logprobs[0]).all()
    assert top.logprobs[1].tolist() == [expected[32], expected[258]]


def test_top_lists_are_kept_only_for_the_share_that_keeps_them():
    fake = engine()
    batch = [of_text(fake, "Sun."), of_text(fake, "Sun.", keep_top=False)]
    kept, dropped = fake.score(batch, Wanted(top=4))
    assert kept.top.ids.shape == (3, 4)
    assert dropped.top is None


def test_tokens_beyond_the_longest_length_are_truncated_and_a_full_prompt_is_refused():
    fake = engine(max_length=3)
    assert fake.score([of_text(fake, "Hello")], NUMBERS)[0].states.tolist() == [3, 0, 0, 4, 4]
    with pytest.raises(EngineError, match="r-0: the prompt has 39 tokens and max_length=3 leaves no room"):
        sampled(fake)
    assert sampled(engine(max_length=41, seed=1))[0].finish_reason == "length"


def test_an_id_outside_the_vocabulary_is_an_error_that_names_it():
    ids = np.int32([72, 300])
    with pytest.raises(EngineError, match=r"rollout r: position 1 has the id 300, .* vocabulary of 259 ids"):
        engine().score([ScoreInput(rollout_id="r", token_ids=ids, wanted=np.ones(2, bool))], NUMBERS)
    with pytest.raises(EngineError, match="rollout r: position 0 has the id -1"):
        engine().sample([SampleInput(rollout_id="r", prompt_ids=np.int32([-1]), seed=0)], SamplingProtocol(), Wanted())


@pytest.mark.parametrize("special", [False, True])
def test_its_tokenizer_file_encodes_as_it_does(special):
    fake = engine()
    tokenizer = Tokenizer.from_str(fake.tokenizer_file().decode())
    for text in ["", " a  b\n", "Zürich 介绍 🙂", "<|im_start|>user\nhi<|im_end|>\n<|bos|>", "<|im_end"]:
        assert (
            tokenizer.encode(text, add_special_tokens=special).ids
            == fake.encode(text, add_special_tokens=special).tolist()
        )


def test_its_tokenizer_file_decodes_any_ids_as_it_does():
    fake = engine()
    tokenizer = Tokenizer.from_str(fake.tokenizer_file().decode())
    rng = np.random.default_rng(0)
    for _ in range(300):
        ids = rng.integers(259, size=rng.integers(30), dtype=np.int32)
        assert tokenizer.decode(ids.tolist(), skip_special_tokens=False) == fake.decode(ids)


def test_a_conversation_is_rendered_ready_for_the_answer():
    fake = engine()
    expected = "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n"
    assert fake.decode(fake.encode_chat(CHAT)) == expected
    assert fake.encode(expected, add_special_tokens=True)[0] == 256


def test_an_empty_sequence_has_no_entries():
    assert engine().score([of_text(engine(), "")], EVERYTHING)[0].logprobs.shape == (0,)


def test_a_delay_is_slept_for_each_batch():
    fake = engine(delay=0.05)
    begun = time.perf_counter()
    sampled(fake)
    fake.score([of_text(fake, "ab")], NUMBERS)
    assert time.perf_counter() - begun > 0.1


def test_it_says_what_it_is():
    info = FakeEngine.open(parse_spec("fake:my-model?noise=0.01&dtype=bfloat16&max_length=512")).info
    assert (info.name, info.model, info.dtype, info.vocab_size, info.max_length) == (
        "fake",
        "my-model",
        "bfloat16",
        259,
        512,
    )
    assert info.options == {"noise": "0.01", "dtype": "bfloat16", "max_length": "512"}
    assert engine().condition(path="decode").path == "decode"


# protocols


def test_a_stop_id_ends_a_completion_and_is_its_reason():
    drawn = [int(token) for one in sampled(engine(), 20) for token in one.token_ids[:-1]]
    stop = max(set(drawn), key=drawn.count)
    found = [one for one in sampled(engine(), 20, stop_token_ids=(stop,)) if one.stop_reason == str(stop)]
    assert found
    for one in found:
        assert one.token_ids.tolist().index(stop) == len(one.token_ids) - 1
        assert one.finish_reason == "stop"


def test_a_stop_string_ends_a_completion_and_stays_in_it():
    longest = max(sampled(engine(), 20, max_new_tokens=40), key=lambda one: len(one.token_ids))
    stop = next(longest.text[at : at + 2] for at in range(8, 40) if longest.text[at : at + 2].isascii())
    found = [one for one in sampled(engine(), 20, max_new_tokens=40, stop=(stop,)) if one.stop_reason == stop]
    assert found
    assert all(one.text.endswith(stop) and one.text.count(stop) == 1 for one in found)


def test_no_completion_is_shorter_than_the_least_length_and_the_other_draws_stay():
    plain, least = sampled(engine(), 60), sampled(engine(), 60, min_new_tokens=6)
    assert min(len(one.token_ids) for one in plain) < 6
    for before, one in zip(plain, least, strict=True):
        assert len(one.token_ids) >= 6
        if len(before.token_ids) > 6:
            assert len(one.token_ids) > 6
    greedy = sampled(engine(), 1, temperature=0.0, min_new_tokens=64, max_new_tokens=64)
    assert (len(greedy[0].token_ids), greedy[0].finish_reason) == (64, "length")
    with pytest.raises(UsageError, match=r"fake: sampling\.min_new_tokens = 6"):
        engine(logprobs="processed").sampled_meaning(SamplingProtocol(min_new_tokens=6))


def test_a_completion_that_ignores_the_end_token_goes_to_its_limit():
    found = sampled(engine(), 20, ignore_eos=True, max_new_tokens=30)
    assert {(len(one.token_ids), one.finish_reason, one.stop_reason) for one in found} == {(30, "length", "")}


def test_the_protocol_can_ask_for_processed_logprobs():
    cold = SamplingProtocol(temperature=0.5, logprobs="processed")
    assert engine().sampled_meaning(cold) == Meaning(temperature=0.5)
