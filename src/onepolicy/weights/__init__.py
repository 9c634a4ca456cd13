"""Digests of weights that depend on the values and on nothing of how they are stored, and what differs between two."""

from onepolicy.weights.live import digest_of

__all__ = ["digest_of"]
