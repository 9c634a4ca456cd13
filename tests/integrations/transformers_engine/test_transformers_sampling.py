"""Transformers samples as a protocol says: penalties, least and longest lengths, stops, on a tiny random model."""

import numpy as np
import pytest
import torch
import transformers
from tiny_model import END, VOCABULARY_SIZE, opened, prompt

from onepolicy.engines.contract import Wanted
from onepolicy.errors import EngineError, UsageError
from onepolicy.integrations.transformers.processing import Processing
from onepolicy.integrations.transformers.stopping import StopTexts
from onepolicy.records.protocol import Constraint, Meaning, SamplingProtocol

UNLIKE = ((20, 30, 40), (50,), (60, 70, 80, 90, 100), (110, 120))


@pytest.fixture(scope="module")
def engine(folder):
    return opened(folder)


@pytest.fixture(scope="module")
def processed(folder):
    return opened(folder, logprobs="processed")


@pytest.fixture(scope="module")
def model(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()


def sampled(engine, protocol, *, count=8, prompts=((20, 30, 40),), top=0, statistics=False):
    batch = [prompt(prompts[n % len(prompts)], rollout_id=f"r-{n}", seed=n) for n in range(count)]
    return batch, engine.sample(batch, protocol, Wanted(top=top, statistics=statistics))


def exact(model, prompt_ids, completion_ids, *, penalty=1.0, least=0, temperature=1.0, ends=(END, 7)):
    """[C, V] logprobs by the definition, one position at a time, without padding."""
    ids = [*map(int, prompt_ids), *map(int, completion_ids)]
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].numpy()
    rows = []
    for at in range(len(prompt_ids), len(ids)):
        row = logits[at - 1].copy()
        for token in set(ids[:at]):
            row[token] = row[token] / penalty if row[token] > 0 else row[token] * penalty
        if at - len(prompt_ids) < least:
            row[list(ends)] = -np.inf
        row = row / temperature
        rows.append(row - np.logaddexp.reduce(row))
    return np.asarray(rows)


def own(rows, completion):
    return rows[np.arange(len(completion.token_ids)), completion.token_ids]


def test_raw_logprobs_stay_raw_under_a_penalty_and_a_least_length(engine, model):
    protocol = SamplingProtocol(max_new_tokens=12, repetition_penalty=1.5, min_new_tokens=5, temperature=0.7)
    assert engine.sampled_meaning(protocol) == Meaning()
    for item, one in zip(*sampled(engine, protocol, prompts=UNLIKE), strict=True):
        np.testing.assert_allclose(one.logprobs, own(exact(model, item.prompt_ids, one.token_ids), one), atol=5e-5)


@pytest.mark.parametrize("statistics", [False, True])
def test_processed_logprobs_are_after_the_penalty_the_least_length_and_the_temperature(processed, model, statistics):
    protocol = SamplingProtocol(max_new_tokens=12, repetition_penalty=1.5, min_new_tokens=5, temperature=0.7)
    assert processed.sampled_meaning(protocol).beyond == ("repetition_penalty 1.5", "min_new_tokens 5")
    for item, one in zip(*sampled(processed, protocol, prompts=UNLIKE, statistics=statistics), strict=True):
        rows = exact(model, item.prompt_ids, one.token_ids, penalty=1.5, least=5, temperature=0.7)
        np.testing.assert_allclose(one.logprobs, own(rows, one), atol=5e-5)
        assert one.top1.tolist() == rows.argmax(axis=1).tolist()
        probabilities = np.exp(rows)
        entropy = -(probabilities * np.where(probabilities > 0, rows, 0.0)).sum(axis=1)
        np.testing.assert_allclose(one.statistics["entropy"], entropy, atol=1e-4)
        assert one.top is None


def test_the_greedy_choice_under_a_penalty_is_that_of_the_definition_whatever_the_padding(engine, model):
    protocol = SamplingProtocol(max_new_tokens=10, temperature=0.0, repetition_penalty=2.5)
    plain = SamplingProtocol(max_new_tokens=10, temperature=0.0)
    batch, completions = sampled(engine, protocol, count=4, prompts=UNLIKE)
    for item, one in zip(batch, completions, strict=True):
        rows = exact(model, item.prompt_ids, one.token_ids, penalty=2.5)
        assert one.token_ids.tolist() == rows.argmax(axis=1).tolist()
    without = sampled(engine, plain, count=4, prompts=UNLIKE)[1]
    assert any(a.token_ids.tolist() != b.token_ids.tolist() for a, b in zip(completions, without, strict=True))


def test_padding_is_not_penalised_and_transformers_own_penalty_does_so():
    ids, mask = torch.tensor([[END, END, 20]]), torch.tensor([[0, 0, 1]])
    scores = torch.ones(1, VOCABULARY_SIZE)
    processing = Processing(SamplingProtocol(repetition_penalty=2.0), end_ids=(END,), attention_mask=mask)
    assert processing.acts
    changed = (processing(ids, scores)[0] != 1.0).nonzero().flatten().tolist()
    assert changed == [20]
    theirs = transformers.RepetitionPenaltyLogitsProcessor(2.0)(ids, scores)[0]
    assert (theirs != 1.0).nonzero().flatten().tolist() == [END, 20]


def test_a_stop_id_ends_a_completion_beside_the_models_own(engine):
    protocol = SamplingProtocol(max_new_tokens=30)
    drawn = [int(token) for one in sampled(engine, protocol)[1] for token in one.token_ids[:-1]]
    stop = max(set(drawn), key=drawn.count)
    _, completions = sampled(engine, protocol.model_copy(update={"stop_token_ids": (stop,)}), count=24)
    reasons = {one.stop_reason for one in completions}
    assert {str(stop)} < reasons <= {str(stop), str(END), "7", ""}
    for one in completions:
        ends = [at for at, token in enumerate(one.token_ids.tolist()) if token in (END, 7, stop)]
        assert ends in ([], [len(one.token_ids) - 1])


def test_no_completion_is_shorter_than_the_least_length(engine):
    protocol = SamplingProtocol(max_new_tokens=40)
    assert min(len(one.token_ids) for one in sampled(engine, protocol, count=40)[1]) < 8
    least = protocol.model_copy(update={"min_new_tokens": 8})
    for one in sampled(engine, least, count=40)[1]:
        assert len(one.token_ids) >= 8
        assert not set(one.token_ids[:8].tolist()) & {END, 7}


def test_ignoring_the_end_token_runs_to_the_limit(engine, model):
    protocol = SamplingProtocol(max_new_tokens=40, ignore_eos=True)
    batch, completions = sampled(engine, protocol, count=16)
    assert {(len(one.token_ids), one.finish_reason) for one in completions} == {(40, "length")}
    assert any({END, 7} & set(one.token_ids[:-1].tolist()) for one in completions)
    for item, one in zip(batch, completions, strict=True):
        np.testing.assert_allclose(one.logprobs, own(exact(model, item.prompt_ids, one.token_ids), one), atol=5e-5)


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_a_stop_string_ends_a_completion_and_stays_in_it(engine, model, ignore_eos):
    protocol = SamplingProtocol(max_new_tokens=40, ignore_eos=ignore_eos, stop=("a", "bc", "é"))
    batch, completions = sampled(engine, protocol, count=40, prompts=UNLIKE)
    stopped = [one for one in completions if one.stop_reason in protocol.stop]
    assert stopped
    assert len({len(one.token_ids) for one in stopped}) > 1
    for one in stopped:
        assert (one.finish_reason, one.text[-len(one.stop_reason) :]) == ("stop", one.stop_reason)
        assert not any(stop in engine.decode(one.token_ids[:-1]) for stop in protocol.stop)
    for item, one in zip(batch, completions, strict=True):
        np.testing.assert_allclose(one.logprobs, own(exact(model, item.prompt_ids, one.token_ids), one), atol=5e-5)


@pytest.mark.parametrize(
    ("least", "pieces", "length", "stop"),
    [
        (0, ["x", "ab", "c"], 2, "b"),
        (0, ["x", "aE", "ND!"], 3, "END"),
        (3, ["ab", "x", "y", "b"], 4, "b"),
        (2, ["EN", "D", "x"], 2, "END"),
        (2, ["END", "x", "END"], 3, "END"),
    ],
)
def test_a_stop_string_ends_with_the_token_in_which_it_ends_once_the_least_length_is_reached(
    least, pieces, length, stop
):
    stops = StopTexts(("b", "END"), lambda ids: "".join(pieces[at] for at in ids), prompt_length=2, least=least)
    done = [bool(stops(torch.tensor([[0, 0, *range(n)]]), ())[0]) for n in range(1, len(pieces) + 1)]
    assert stops.ended == {0: (length, stop)}
    assert done == [n >= length for n in range(1, len(pieces) + 1)]


def test_a_stop_string_that_the_last_token_completes_inside_a_character_is_seen():
    text = {(1,): "\ufffd", (1, 2): "é"}
    stops = StopTexts(("é",), lambda ids: text.get(tuple(ids), ""), prompt_length=0, least=0)
    assert not stops(torch.tensor([[1]]), ())[0]
    assert stops(torch.tensor([[1, 2]]), ())[0]


def test_the_end_of_a_prompt_is_no_part_of_a_stop_string(engine):
    protocol = SamplingProtocol(max_new_tokens=20, ignore_eos=True)
    batch, completions = sampled(engine, protocol, count=1)
    across = engine.decode(np.append(batch[0].prompt_ids[-1:], completions[0].token_ids[:1]))
    assert "\ufffd" not in across
    (again,) = sampled(engine, protocol.model_copy(update={"stop": (across,)}), count=1)[1]
    assert again.token_ids[:2].tolist() == completions[0].token_ids[:2].tolist()


def test_without_a_cache_the_numbers_are_the_same(engine):
    protocol = SamplingProtocol(max_new_tokens=12)
    first, second = (
        sampled(engine, protocol.model_copy(update={"use_cache": cache}), prompts=UNLIKE)[1] for cache in (True, False)
    )
    for one, other in zip(first, second, strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=5e-5)


def test_the_total_length_gives_each_prompt_the_room_that_it_has(engine):
    protocol = SamplingProtocol(max_new_tokens=40, max_total_tokens=12, ignore_eos=True)
    batch, completions = sampled(engine, protocol, prompts=UNLIKE)
    assert [len(one.token_ids) + len(item.prompt_ids) for item, one in zip(batch, completions, strict=True)] == [12] * 8
    with pytest.raises(EngineError, match=r"r-2: its prompt has 5 tokens and max_total_tokens = 5 leaves 0"):
        sampled(engine, SamplingProtocol(max_total_tokens=5), prompts=UNLIKE)


def test_the_protocol_can_ask_for_processed_logprobs(engine, model):
    protocol = SamplingProtocol(max_new_tokens=8, temperature=0.5, logprobs="processed")
    assert engine.sampled_meaning(protocol) == Meaning(temperature=0.5)
    for item, one in zip(*sampled(engine, protocol), strict=True):
        rows = exact(model, item.prompt_ids, one.token_ids, temperature=0.5)
        np.testing.assert_allclose(one.logprobs, own(rows, one), atol=5e-5)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"repetition_penalty": 1.1, "penalty_window": 8}, "penalty_window"),
        ({"top_p": 0.9, "temperature": 0.5, "processors": ("penalties", "top_p", "temperature")}, "processors"),
        ({"constraint": Constraint(kind="regex", text="a")}, "constraint"),
        ({"padding_side": "right"}, "padding_side"),
    ],
)
def test_what_transformers_does_not_have_is_refused_by_name(engine, fields, says):
    with pytest.raises(UsageError, match=says):
        engine.sampled_meaning(SamplingProtocol(**fields))


def test_stop_strings_without_a_tokenizer_are_refused(folder, tmp_path):
    for file in ("config.json", "model.safetensors", "generation_config.json"):
        (tmp_path / file).write_bytes((folder / file).read_bytes())
    with pytest.raises(EngineError, match="has no tokenizer, so no text is seen"):
        sampled(opened(tmp_path), SamplingProtocol(stop=("a",), max_new_tokens=4))
