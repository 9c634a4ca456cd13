"""Limits, intervals and the rule that turns verdicts into one answer."""
