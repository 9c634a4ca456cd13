"""What the rollouts of a run say of lengths, stops and seeds; one file for each check."""

from onepolicy.sampling.audit.check import Check, audited

__all__ = ["Check", "audited"]
