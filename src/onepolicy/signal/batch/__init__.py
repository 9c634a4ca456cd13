"""Checks on what a trainer is about to compute its loss from; one file for each check."""
