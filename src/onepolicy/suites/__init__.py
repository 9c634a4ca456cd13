"""Versioned prompts and fixed token sequences."""

from onepolicy.suites.load import SUITES, FixedSequence, Prompt, Suite, load_suite

__all__ = ["SUITES", "FixedSequence", "Prompt", "Suite", "load_suite"]
