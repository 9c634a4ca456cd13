"""What a protocol would have done to recorded tokens, against the full distributions that the records were made of."""

import numpy as np
import pytest

from onepolicy.logprobs import statistics
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.sampling import from_lists, from_statistics
from onepolicy.sampling.bounds import Mean, Range
from onepolicy.sampling.from_lists import ListBlock
from onepolicy.sampling.from_statistics import KEPT_COLUMNS, POWERS, StatisticBlock

VOCABULARY, TOKENS = 120, 50
LLAMA = ("penalties", "top_k", "top_p", "min_p", "temperature")
VLLM = ("penalties", "temperature", "min_p", "top_k", "top_p")
PROTOCOLS = [
    SamplingProtocol(top_p=0.9),
    SamplingProtocol(top_p=0.95),
    SamplingProtocol(top_p=0.93),
    SamplingProtocol(top_k=20),
    SamplingProtocol(top_k=35),
    SamplingProtocol(top_k=3),
    SamplingProtocol(min_p=0.05),
    SamplingProtocol(min_p=0.2),
    SamplingProtocol(top_k=20, top_p=0.8),
    SamplingProtocol(top_k=35, top_p=0.9, min_p=0.02),
    SamplingProtocol(temperature=0.7, top_p=0.9),
    SamplingProtocol(temperature=1.4, top_k=20, min_p=0.1),
    SamplingProtocol(temperature=0.7, top_p=0.9, processors=LLAMA),
    SamplingProtocol(temperature=1.5, top_p=0.85, min_p=0.05, processors=LLAMA),
    SamplingProtocol(temperature=0.8, top_p=0.9, min_p=0.1, top_k=50, processors=VLLM),
]


@pytest.fixture(scope="module")
def raw():
    """[N, V] raw logprobs, from flat to sharp."""
    generator = np.random.default_rng(7)
    logits = generator.normal(size=(TOKENS, VOCABULARY)) * generator.uniform(0.5, 5.0, size=(TOKENS, 1))
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


@pytest.fixture(scope="module")
def drawn(raw):
    generator = np.random.default_rng(8)
    return np.array([generator.choice(VOCABULARY, p=np.exp(row) / np.exp(row).sum()) for row in raw])


def kept_sets(raw, protocol):
    """[N, V] what is kept and [N, V] the distribution at the temperature with nothing removed; step by step."""
    z, alive = raw.copy(), np.ones(raw.shape, dtype=bool)
    for row in range(len(z)):
        for name in protocol.processors:
            p = np.where(alive[row], np.exp(z[row]), 0.0)
            p /= p.sum()
            ranked = sorted(np.flatnonzero(alive[row]), key=lambda token, p=p: -p[token])
            if name == "temperature":
                z[row] /= protocol.temperature
            elif name == "top_k" and protocol.top_k:
                alive[row, ranked[protocol.top_k :]] = False
            elif name == "min_p":
                alive[row] &= p >= protocol.min_p * p.max()
            elif name == "top_p" and protocol.top_p < 1.0:
                before = np.cumsum([0.0, *(p[token] for token in ranked[:-1])])
                alive[row, [t for t, b in zip(ranked, before, strict=True) if b >= protocol.top_p]] = False
    p = np.exp(z)
    return alive, p / p.sum(axis=1, keepdims=True)


_KNOWN = {}


def truth(raw, drawn, protocol):
    """[N] whether the drawn token is removed, [N] log kept mass."""
    if protocol not in _KNOWN:  # the same distributions in all tests
        _KNOWN[protocol] = kept_sets(raw, protocol)
    alive, p = _KNOWN[protocol]
    return ~alive[np.arange(len(drawn)), drawn], np.log((p * alive).sum(axis=1))


def statistic_block(raw, drawn, **more):
    """The columns, computed from the full distributions."""
    p, at = np.exp(raw), np.arange(len(drawn))
    above = raw > raw[at, drawn][:, None]
    with np.errstate(divide="ignore"):
        columns = {"rank": above.sum(axis=1).astype(float), "log_mass_above": np.log((p * above).sum(axis=1))}
    for i, beta in enumerate(POWERS):
        columns[f"log_sum_power_{i}"] = np.log((p**beta).sum(axis=1))
    for name, kept in KEPT_COLUMNS.items():
        for value, column in kept.items():
            columns[column] = truth(raw, drawn, SamplingProtocol(**{name: value}))[1]
    return StatisticBlock(columns=columns | more, logprobs=raw[at, drawn])


def list_block(raw, drawn, k, *, vocabulary=VOCABULARY):
    lists = -np.sort(-raw, axis=1)[:, :k]
    return ListBlock(logprobs=raw[np.arange(len(drawn)), drawn], lists=lists, vocabulary=vocabulary)


def holds(found, true):
    return bool(((found.low <= true + 1e-9) & (true - 1e-9 <= found.high)).all())


def test_the_columns_are_those_that_readings_keep():
    assert pytest.approx(statistics.POWERS, rel=1e-15) == POWERS
    named = {column: name for name, columns in KEPT_COLUMNS.items() for column in columns.values()}
    assert set(named) == set(statistics.COMMON_TRUNCATIONS)
    for name, columns in KEPT_COLUMNS.items():
        for value, column in columns.items():
            assert getattr(statistics.COMMON_TRUNCATIONS[column], name) == value
    assert set(from_statistics.COLUMNS) <= set(statistics.STATISTICS)


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: str(protocol.changed))
def test_statistics_never_exclude_what_is_true(raw, drawn, protocol):
    gone, kept = truth(raw, drawn, protocol)
    block = statistic_block(raw, drawn)
    assert holds(from_statistics.removed(block, protocol), gone)
    assert holds(from_statistics.log_kept(block, protocol), kept)


@pytest.mark.parametrize("k", [1, 5, 20, 100, VOCABULARY])
@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: str(protocol.changed))
def test_lists_never_exclude_what_is_true(raw, drawn, protocol, k):
    gone, kept = truth(raw, drawn, protocol)
    for vocabulary in (VOCABULARY, None):
        block = list_block(raw, drawn, k, vocabulary=vocabulary)
        assert holds(from_lists.removed(block, protocol), gone)
        assert holds(from_lists.log_kept(block, protocol), kept)


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: str(protocol.changed))
def test_a_list_of_the_whole_vocabulary_is_exact(raw, drawn, protocol):
    block = list_block(raw, drawn, VOCABULARY)
    for found, true in zip(
        (from_lists.removed(block, protocol), from_lists.log_kept(block, protocol)),
        truth(raw, drawn, protocol),
        strict=True,
    ):
        assert found.low == pytest.approx(true.astype(float), abs=1e-9)
        assert found.high == pytest.approx(true.astype(float), abs=1e-9)


@pytest.mark.parametrize(
    "protocol",
    [p for p in PROTOCOLS[:6] if p.top_k or p.top_p < 1.0] + [PROTOCOLS[8], SamplingProtocol(temperature=0.6, top_k=9)],
    ids=lambda protocol: str(protocol.changed),
)
def test_rank_and_mass_above_decide_top_p_and_top_k_exactly(raw, drawn, protocol):
    found = from_statistics.removed(statistic_block(raw, drawn), protocol)
    assert (found.low == found.high).all()
    assert (found.low == truth(raw, drawn, protocol)[0]).all()
    assert 0 < found.low.sum() < TOKENS


def test_the_kept_mass_is_exact_where_it_has_a_column_and_between_two_elsewhere(raw, drawn):
    block = statistic_block(raw, drawn)
    for protocol in (SamplingProtocol(top_p=0.9), SamplingProtocol(top_k=50), SamplingProtocol(min_p=0.05)):
        found = from_statistics.log_kept(block, protocol)
        assert found.low is found.high
    between = from_statistics.log_kept(block, SamplingProtocol(top_p=0.93))
    assert between.low is block.columns["log_kept_top_p_0_9"]
    assert between.high is block.columns["log_kept_top_p_0_95"]


def test_the_declared_truncation_is_exact_at_any_temperature(raw, drawn):
    protocol = SamplingProtocol(temperature=0.7, top_p=0.8, top_k=11)
    kept = truth(raw, drawn, protocol)[1]
    block = statistic_block(raw, drawn, log_kept_declared=kept)
    assert np.isinf(from_statistics.log_kept(block, protocol).low).all()
    declared = StatisticBlock(columns=block.columns, logprobs=None, is_declared=True)
    assert from_statistics.log_kept(declared, protocol).low is kept


def test_without_raw_logprobs_min_p_is_open_but_for_the_most_likely_tokens(raw, drawn):
    block = statistic_block(raw, drawn)
    blind = StatisticBlock(columns=block.columns, logprobs=None)
    found = from_statistics.removed(blind, SamplingProtocol(min_p=0.1))
    assert not found.low.any()
    assert (found.high == (block.columns["rank"] > 0)).all()


@pytest.mark.parametrize("temperature", [0.5, 0.6, 0.9, 1.0, 1.1, 1.7, 2.0])
def test_the_normaliser_of_a_temperature_is_interpolated_to_a_thousandth_of_a_nat(raw, drawn, temperature):
    true = np.log((np.exp(raw) ** (1 / temperature)).sum(axis=1))
    found = from_statistics.log_normaliser(statistic_block(raw, drawn), 1 / temperature)
    assert np.abs(found.low - true).max() < 1e-3
    for k in (1, 20, VOCABULARY):
        assert holds(from_lists.log_normaliser(list_block(raw, drawn, k), 1 / temperature), true)
        assert holds(from_lists.log_normaliser(list_block(raw, drawn, k, vocabulary=None), 1 / temperature), true)


@pytest.mark.parametrize("temperature", [0.4, 2.1])
def test_beyond_the_kept_powers_the_normaliser_is_not_known(raw, drawn, temperature):
    assert from_statistics.log_normaliser(statistic_block(raw, drawn), 1 / temperature) is None


def test_longer_lists_say_more(raw, drawn):
    protocol = SamplingProtocol(temperature=0.8, top_p=0.95)
    widths = []
    for k in (2, 10, 50, VOCABULARY):
        mean = Mean()
        mean.add(from_lists.log_kept(list_block(raw, drawn, k), protocol))
        widths.append(mean.high - mean.low)
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] == pytest.approx(0, abs=1e-9)


def test_a_mean_of_ranges_is_exact_only_if_its_ends_meet():
    mean = Mean()
    assert not mean.is_known
    mean.add(Range(low=np.array([0.0, 1.0]), high=np.array([0.0, 1.0])))
    assert (mean.low, mean.is_exact) == (0.5, True)
    mean.add(Range(low=np.array([0.0]), high=np.array([1.0])))
    assert (mean.is_known, mean.is_exact, mean.high) == (True, False, pytest.approx(2 / 3))
    mean.add(Range(low=np.array([-np.inf]), high=np.array([0.0])))
    assert not mean.is_known
