"""Oracle: the definitions, in float64 numpy, one token at a time."""

import numpy as np
import pytest
import torch

from onepolicy.logprobs.report import ReportRequest, report_from_hidden, report_from_logits
from onepolicy.logprobs.statistics import COMMON_TRUNCATIONS, POWERS, REPORTED, STATISTICS
from onepolicy.records.protocol import Meaning

ALWAYS = [*REPORTED, *(name for name in STATISTICS if name not in ("log_kept_declared", "logprob_repetition_1_1"))]


def log_kept(p, meaning):
    """Adds tokens in order of probability, as the definitions of top-k, top-p and min-p read."""
    order = np.argsort(-p)
    kept = order[: meaning.top_k] if meaning.top_k else order
    if meaning.top_p < 1.0:
        mass = np.cumsum(p[kept] / p[kept].sum())
        kept = kept[: np.searchsorted(mass, meaning.top_p) + 1]
    kept = kept[p[kept] >= meaning.min_p * p.max()]
    return np.log(p[kept].sum())


def by_definition(logits, token):
    """Every statistic that is always there, for one token."""
    x = logits.double().numpy()
    normaliser = x.max() + np.log(np.exp(x - x.max()).sum())
    possible = x[np.isfinite(x)]
    logp = possible - normaliser
    p = np.exp(logp)
    entropy = -(p * logp).sum()
    above = x > x[token]
    with np.errstate(divide="ignore"):
        mass_above = np.log(np.exp(x[above] - normaliser).sum())
    return {
        "entropy": entropy,
        "varentropy": (p * (-logp - entropy) ** 2).sum(),
        "raw_entropy": entropy,
        "raw_varentropy": (p * (-logp - entropy) ** 2).sum(),
        "raw_third_cumulant": (p * (-logp - entropy) ** 3).sum(),
        "log_normaliser": normaliser,
        "rank": above.sum(),
        "log_mass_above": mass_above,
        **{f"log_sum_power_{i}": np.log((p**beta).sum()) for i, beta in enumerate(POWERS)},
        **{name: log_kept(p, meaning) for name, meaning in COMMON_TRUNCATIONS.items()},
    }


def check(report, logits, ids):
    for i, token in enumerate(ids.tolist()):
        for name, value in by_definition(logits[i], token).items():
            got = float(report.statistics[name][i])
            assert got == pytest.approx(value, rel=2e-5, abs=5e-6), (name, i)


@pytest.mark.parametrize("scale", [0.5, 3.0, 8.0])
def test_statistics_equal_their_definitions(scale):
    logits, ids = torch.randn(12, 997) * scale, torch.randint(997, (12,))
    ids[0] = logits[0].argmax()
    report = report_from_logits(logits, ids, ReportRequest(statistics=True))
    assert list(report.statistics) == ALWAYS
    assert report.statistics["log_mass_above"][0] == -torch.inf
    check(report, logits, ids)


def test_statistics_stand_impossible_tokens_and_large_logits():
    logits, ids = torch.randn(6, 997) * 3, torch.randint(500, 997, (6,))
    logits[:, :400] = -torch.inf
    logits[3] += 1e4
    logits[4, 600] = 300.0
    check(report_from_logits(logits, ids, ReportRequest(statistics=True)), logits, ids)


def test_statistics_from_hidden_states_are_those_from_the_logits():
    hidden, weight, ids = torch.randn(20, 16), torch.randn(200, 16), torch.randint(200, (20,))
    request = ReportRequest(statistics=True)
    from_hidden = report_from_hidden(hidden, weight, ids, request).statistics
    from_logits = report_from_logits(hidden @ weight.T, ids, request).statistics
    torch.testing.assert_close(from_hidden, from_logits, rtol=1e-4, atol=1e-5)


def test_statistics_are_of_the_raw_distribution_whatever_the_logprobs_mean():
    logits, ids = torch.randn(12, 97), torch.randint(97, (12,))
    declared = Meaning(temperature=0.6, top_k=11, top_p=0.9)
    processed = report_from_logits(logits, ids, ReportRequest(statistics=True, meaning=declared)).statistics
    raw = report_from_logits(logits, ids, ReportRequest(statistics=True)).statistics
    for name in set(ALWAYS) - set(REPORTED):
        assert torch.equal(processed[name], raw[name])
    tempered = (logits.double() / 0.6).softmax(dim=1).numpy()
    expected = [log_kept(p, declared) for p in tempered]
    np.testing.assert_allclose(processed["log_kept_declared"].numpy(), expected, atol=2e-6)


def test_the_declared_kept_mass_links_tempered_and_truncated_logprobs():
    logits = torch.randn(12, 97)
    ids = logits.argmax(dim=1)
    declared = Meaning(temperature=0.8, min_p=0.1)
    report = report_from_logits(logits, ids, ReportRequest(statistics=True, meaning=declared))
    tempered = report_from_logits(logits, ids, ReportRequest(meaning=Meaning(temperature=0.8)))
    torch.testing.assert_close(
        report.logprobs + report.statistics["log_kept_declared"], tempered.logprobs, atol=2e-6, rtol=0
    )


def test_the_repetition_penalty_touches_each_seen_id_once():
    logits, ids = torch.randn(3, 11) * 2, torch.tensor([4, 4, 7])
    seen = [torch.tensor([4, 4, 2]), torch.tensor([], dtype=torch.long), torch.tensor([1, 2])]
    report = report_from_logits(logits, ids, ReportRequest(statistics=True, seen_ids=seen))
    for i in range(3):
        x = logits[i].double().numpy().copy()
        for v in set(seen[i].tolist()):
            x[v] = x[v] * 1.1 if x[v] < 0 else x[v] / 1.1
        expected = x[ids[i]] - np.log(np.exp(x).sum())
        assert float(report.statistics["logprob_repetition_1_1"][i]) == pytest.approx(expected, abs=2e-6)


def test_tied_tokens_are_not_above_each_other():
    logits = torch.tensor([[2.0, 2.0, 1.0, 0.0]])
    report = report_from_logits(logits.expand(4, 4), torch.arange(4), ReportRequest(statistics=True)).statistics
    assert report["rank"].tolist() == [0, 0, 2, 3]
    assert report["log_mass_above"][1] == -torch.inf


def test_powers_are_the_chebyshev_nodes_of_a_half_to_two():
    """The roots of the polynomial T8, which numpy finds by eigenvalues."""
    roots = np.polynomial.chebyshev.chebroots([0] * 8 + [1])
    np.testing.assert_allclose(POWERS, np.sort(1.25 + 0.75 * roots), atol=1e-12)
