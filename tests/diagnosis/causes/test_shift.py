"""One array moved against the other."""

import numpy as np
import pytest
from causes.planted import LENGTH, all_causes, by_rollout, first, found, named, proofs, situation, tokens_of, with_p

from onepolicy.diagnosis.causes import shift
from onepolicy.records.finding import Outcome


def moved(tokens, lag):
    """The rollout logprob of token t + lag stands at token t; what comes from beyond an end is of the other end."""
    return with_p(tokens, np.roll(by_rollout(tokens.p), -lag, axis=1).ravel())


@pytest.mark.parametrize("lag", [1, -1, 2, -5, 8, 16, -16])
def test_a_lag_is_found_with_its_value_and_without_statistics(lag):
    finding = first(moved(tokens_of(kept=()), lag), situation())
    assert (finding.cause, finding.outcome, finding.value) == ("shift", Outcome.CAUSE, lag)
    assert f"{abs(lag)} positions too {'early' if lag > 0 else 'late'}" in finding.label


def test_noise_alone_is_no_lag():
    assert not named(found(tokens_of(kept=(), seed=7), situation(), {"shift": shift.CAUSE}))


def test_rows_that_are_paired_wrongly_are_no_lag():
    tokens = tokens_of(kept=())
    swapped = with_p(tokens, np.roll(by_rollout(tokens.p), 1, axis=0).ravel())
    assert not named(found(swapped, situation(), {"shift": shift.CAUSE}))
    assert proofs(swapped, situation()) == ["rows paired wrongly"]


def test_a_lag_is_no_wrong_pairing():
    assert not proofs(moved(tokens_of(kept=()), 1), situation())


def test_tokens_without_a_partner_count_as_the_others_of_their_rollout():
    tokens = tokens_of(kept=())
    family = next(iter(shift.families(moved(tokens, 3), situation())))
    d = by_rollout(family.corrected(3.0))
    assert np.isfinite(d).all()
    paired = d[:, : LENGTH - 3]
    assert d[:, -1] == pytest.approx(np.square(np.sqrt(np.abs(paired)).mean(axis=1)))


def test_a_lag_of_more_than_half_of_a_rollout_explains_nothing_in_it():
    tokens = tokens_of(kept=())
    lonely = np.full(len(tokens), np.nan)
    assert (shift.with_the_unpaired(tokens, lonely) == tokens.d).all()
    family = next(iter(shift.families(tokens, situation())))
    assert max(map(abs, family.values)) <= LENGTH / 2


def test_a_gap_in_the_positions_is_no_partner():
    tokens = tokens_of(kept=())
    kept = np.ones(len(tokens), dtype=bool)
    kept[10] = False
    family = next(iter(shift.families(moved(tokens, 1).chosen(kept), situation())))
    d = family.corrected(1.0)
    assert abs(d[8]) < 0.1  # token 8 has token 9
    rest = np.delete(d[: LENGTH - 2], 9)
    assert d[9] == pytest.approx(np.square(np.sqrt(np.abs(rest)).mean()))


@pytest.mark.parametrize(("value", "word"), [(1.0, "logits[:, :-1]"), (16.0, "prefix"), (5.0, "virtual tokens")])
def test_the_remedy_depends_on_the_lag(value, word):
    assert word in shift.remedy(situation(), value)
    assert set(all_causes()) >= {"shift"}
