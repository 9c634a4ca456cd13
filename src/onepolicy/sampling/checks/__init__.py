"""Checks on how a run was sampled."""
