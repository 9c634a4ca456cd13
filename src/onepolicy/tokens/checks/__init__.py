"""The token checks. To add one: a file with a function TokenMeasurement -> Verdict, and one line here."""

from __future__ import annotations

from collections.abc import Callable

from onepolicy.records.verdict import Verdict
from onepolicy.tokens.checks.round_trip import round_trip
from onepolicy.tokens.checks.same_ids import same_ids
from onepolicy.tokens.checks.same_text import same_text
from onepolicy.tokens.checks.special_tokens import special_tokens
from onepolicy.tokens.round_trip import TokenMeasurement

Check = Callable[[TokenMeasurement], Verdict]

CHECKS: tuple[Check, ...] = (same_ids, special_tokens, same_text, round_trip)
"""in the order of judgement"""
