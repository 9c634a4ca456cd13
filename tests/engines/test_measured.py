"""What logprobs mean is told from answers whose meaning is known: softmaxes of random logits, with a server's noise."""

import math

import numpy as np
import pytest
from scipy.special import log_softmax

from onepolicy.engines.measured import (
    COLD,
    DRAWS,
    NEARLY_GREEDY,
    PROMPTS,
    MeasuredMeaning,
    measure,
    measure_temperature,
    measured_meaning,
    obeys_temperature,
)
from onepolicy.records.protocol import Meaning, SamplingProtocol

VOCAB, TOP = 500, 20
BF16 = 0.02
"""nats by which a bfloat16 server repeats itself"""


def logits_of(seed, *, spread=2.0):
    return np.random.default_rng(seed).normal(0.0, spread, VOCAB)


def answered(logits, *, temperature, top_k, noise=0.0, rng=None, extra=()):
    """A server's list of the most likely tokens; -9999.0 for what top-k removed, as vLLM writes it, is left out."""
    lps = log_softmax(logits / temperature)
    if top_k:
        kept = np.argsort(-lps)[:top_k]
        cut = np.full(VOCAB, -np.inf)
        cut[kept] = log_softmax(lps[kept])
        lps = cut
    if noise:
        lps = lps + rng.normal(0.0, noise, VOCAB)
    listed = [*np.argsort(-lps)[:TOP].tolist(), *extra]
    return {token: float(lps[token]) for token in listed if np.isfinite(lps[token])}


def three(logits, *, temperature, truncation, noise=0.0, seed=0):
    """The three answers of a server that processes by temperature, or by truncation, or both, or nothing."""
    rng = np.random.default_rng(seed)
    given = {"noise": noise, "rng": rng}
    return {
        "plain": answered(logits, temperature=1.0, top_k=0, **given),
        "cold": answered(logits, temperature=COLD if temperature else 1.0, top_k=0, **given),
        "kept": answered(logits, temperature=1.0, top_k=2 if truncation else 0, **given),
    }


WORD = {True: "processed", False: "raw"}


@pytest.mark.parametrize("noise", [0.0, BF16])
@pytest.mark.parametrize("truncation", [True, False])
@pytest.mark.parametrize("temperature", [True, False])
@pytest.mark.parametrize("spread", [0.3, 1.0, 3.0])
def test_each_processing_is_told_apart_from_none(temperature, truncation, noise, spread):
    told = 0
    for seed in range(40):
        found = measured_meaning(
            **three(
                logits_of(seed, spread=spread), temperature=temperature, truncation=truncation, noise=noise, seed=seed
            ),
            keeps=2,
        )
        assert found.temperature in (WORD[temperature], "unknown")
        assert found.truncation in (WORD[truncation], "unknown")
        told += "unknown" not in (found.temperature, found.truncation)
    assert told >= 20 or spread == 0.3


def test_a_token_listed_because_it_was_sampled_changes_nothing():
    lists = three(logits_of(3), temperature=True, truncation=True)
    rare = int(np.argmin(logits_of(3)))
    lists["plain"][rare] = float(log_softmax(logits_of(3))[rare])
    assert measured_meaning(**lists, keeps=2).is_processed


def test_a_model_that_is_sure_of_one_token_shows_no_truncation():
    logits = logits_of(1)
    logits[7] = 60.0
    assert measured_meaning(**three(logits, temperature=False, truncation=False), keeps=2).truncation == "unknown"
    assert measured_meaning(**three(logits, temperature=False, truncation=True), keeps=2).truncation == "unknown"


def test_tokens_that_are_equally_likely_show_no_temperature():
    lists = three(np.zeros(VOCAB), temperature=True, truncation=False)
    assert measured_meaning(**lists, keeps=2).temperature == "unknown"


def test_another_temperature_than_the_one_asked_for_is_neither_raw_nor_processed():
    logits = logits_of(2)
    lists = three(logits, temperature=False, truncation=False)
    lists["cold"] = answered(logits, temperature=0.75, top_k=0)
    assert measured_meaning(**lists, keeps=2).temperature == "unknown"


@pytest.mark.parametrize("missing", ["plain", "cold", "kept"])
def test_an_empty_list_is_unknown(missing):
    lists = three(logits_of(2), temperature=True, truncation=True) | {missing: {}}
    found = measured_meaning(**lists, keeps=2)
    assert "unknown" in (found.temperature, found.truncation)


def test_a_processed_top_k_that_keeps_others_is_unknown():
    lists = three(logits_of(2), temperature=False, truncation=False)
    lists["kept"] = {499: math.log(0.5), 498: math.log(0.5)}
    assert measured_meaning(**lists, keeps=2).truncation == "unknown"


def test_a_prompt_that_tells_nothing_is_followed_by_another():
    sure = np.zeros(VOCAB)
    sure[0] = 60.0
    asked = []

    def ask(ids, temperature, top_k):
        asked.append(tuple(ids.tolist()))
        logits = sure if tuple(ids.tolist()) == tuple(PROMPTS[0]) else logits_of(5)
        return answered(logits, temperature=temperature, top_k=top_k)

    assert measure(ask).is_processed
    assert list(dict.fromkeys(asked)) == [tuple(PROMPTS[0]), tuple(PROMPTS[1])]
    assert len(asked) == 6


SAMPLED = SamplingProtocol(temperature=0.7, top_p=0.9, top_k=40)


@pytest.mark.parametrize(
    ("temperature", "truncation", "meaning"),
    [
        ("raw", "raw", Meaning()),
        ("processed", "processed", Meaning(temperature=0.7, top_p=0.9, top_k=40)),
        ("processed", "raw", Meaning(temperature=0.7)),
        ("raw", "processed", Meaning(top_p=0.9, top_k=40)),
        ("unknown", "raw", None),
        ("raw", "unknown", None),
    ],
)
def test_what_was_measured_says_what_logprobs_mean_under_a_protocol(temperature, truncation, meaning):
    assert MeasuredMeaning(temperature=temperature, truncation=truncation).under(SAMPLED) == meaning


def test_what_was_not_measured_is_not_needed_where_the_protocol_does_not_use_it():
    found = MeasuredMeaning(temperature="unknown", truncation="unknown")
    assert found.under(SamplingProtocol()) == Meaning()
    assert found.under(SamplingProtocol(temperature=0.0)) == Meaning()
    assert MeasuredMeaning(temperature="unknown", truncation="raw").under(SamplingProtocol(top_k=5)) == Meaning()


def test_penalties_are_part_of_what_was_sampled_from_and_never_half_of_it():
    penalised = SamplingProtocol(temperature=0.7, repetition_penalty=1.1)
    processed = MeasuredMeaning(temperature="processed", truncation="processed").under(penalised)
    assert processed == Meaning.processed_by(penalised)
    assert processed.beyond == ("repetition_penalty 1.1",)
    assert MeasuredMeaning(temperature="processed", truncation="raw").under(penalised) is None
    assert MeasuredMeaning(temperature="raw", truncation="raw").under(penalised) == Meaning()


# -- whether a temperature is heeded ------------------------------------------------------------------------------


def drawn(logits, *, temperature, seed):
    probabilities = np.exp(log_softmax(logits / temperature))
    return np.random.default_rng(seed).choice(VOCAB, size=DRAWS, p=probabilities / probabilities.sum()).tolist()


@pytest.mark.parametrize("spread", [0.5, 1.0, 2.0])
def test_a_server_that_heeds_the_temperature_is_never_accused(spread):
    answers = []
    for seed in range(200):
        logits = logits_of(seed, spread=spread)
        plain = answered(logits, temperature=1.0, top_k=0, noise=BF16, rng=np.random.default_rng(seed))
        answers.append(obeys_temperature(plain, drawn(logits, temperature=NEARLY_GREEDY, seed=seed)))
    assert answers.count("no") <= 2  # a bfloat16 tie just beyond what is called close
    assert answers.count("yes") >= 150


@pytest.mark.parametrize("spread", [0.5, 1.0, 2.0])
def test_a_server_that_ignores_the_temperature_is_found(spread):
    answers = []
    for seed in range(200):
        logits = logits_of(seed, spread=spread)
        plain = answered(logits, temperature=1.0, top_k=0)
        answers.append(obeys_temperature(plain, drawn(logits, temperature=1.0, seed=seed)))
    assert answers.count("yes") == 0
    assert answers.count("no") >= 190


def test_a_model_that_is_sure_tells_nothing_of_the_temperature():
    logits = np.zeros(VOCAB)
    logits[9] = 20.0
    plain = answered(logits, temperature=1.0, top_k=0)
    assert obeys_temperature(plain, [9] * DRAWS) == "unknown"


def test_no_list_or_no_draw_tells_nothing():
    assert obeys_temperature({}, [1] * DRAWS) == "unknown"
    assert obeys_temperature({1: -1.0, 2: -2.0}, []) == "unknown"


def test_a_prompt_after_which_the_model_is_sure_is_followed_by_another():
    sure = np.zeros(VOCAB)
    sure[0] = 60.0

    def logits(ids):
        return sure if ids.tolist() == PROMPTS[0] else logits_of(5, spread=1.0)

    def ask(ids, temperature, top_k):
        return answered(logits(ids), temperature=temperature, top_k=top_k)

    heeds = measure_temperature(ask, lambda ids: drawn(logits(ids), temperature=NEARLY_GREEDY, seed=1))
    ignores = measure_temperature(ask, lambda ids: drawn(logits(ids), temperature=1.0, seed=1))
    assert (heeds, ignores) == ("yes", "no")
